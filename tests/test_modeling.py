"""The model: equal to a naive reference, bit-identical to BERT where it is BERT, and sound under Trainer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
    BertTokenizer,
    Trainer,
    TrainingArguments,
)

import fixedbert
from fixedbert import FixedHeadBertConfig

HEADS = [
    "Model",
    "ForPreTraining",
    "ForMaskedLM",
    "LMHeadModel",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnswering",
]
# Batch 13, length 7; 5 heads of 6 in width 32: sizes that differ, so that swapped axes fail.
B, L, D, H, P, F, V = 13, 7, 32, 5, 6, 37, 99
SHAPE = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 3,
    "intermediate_size": F,
    "max_position_embeddings": 11,
    "initializer_range": 0.5,  # large, so that a wrong mask or scale is seen
}


def config_of(head: str, **changes) -> FixedHeadBertConfig:
    shape = {**SHAPE, "num_attention_heads": H, "attention_head_size": P, "is_decoder": head == "LMHeadModel"}
    return FixedHeadBertConfig(**{**shape, **changes})


def model_of(head: str, **changes):
    torch.manual_seed(0)
    return getattr(fixedbert, f"FixedHeadBert{head}")(config_of(head, **changes))


def inputs_of(head: str, labels: bool = False, size: int = B) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def ids(high, *shape):
        return torch.randint(high, shape, generator=generator)

    shape = (size, 3, L) if head == "ForMultipleChoice" else (size, L)
    lengths = ids(L, *shape[:-1]) + 1
    inputs = {
        "input_ids": ids(V, *shape),
        "token_type_ids": ids(2, *shape),
        "attention_mask": (torch.arange(L) < lengths[..., None]).long(),
    }
    if labels:
        tokens = torch.where(ids(2, size, L).bool(), ids(V, size, L), -100)
        inputs |= {
            "ForPreTraining": {"labels": tokens, "next_sentence_label": ids(2, size)},
            "ForMaskedLM": {"labels": tokens},
            "LMHeadModel": {"labels": tokens},
            "ForNextSentencePrediction": {"labels": ids(2, size)},
            "ForSequenceClassification": {"labels": ids(2, size)},
            "ForMultipleChoice": {"labels": ids(3, size)},
            "ForTokenClassification": {"labels": ids(2, size, L)},
            "ForQuestionAnswering": {"start_positions": ids(L, size), "end_positions": ids(L, size)},
        }[head]
    return inputs


def reference_layer(x: np.ndarray, layer: dict[str, np.ndarray], mask: np.ndarray, h: int, p: int) -> np.ndarray:
    """
    One layer of the paper for one sequence x (L, D), head by head, token by token, in numpy.

    softmax((W_k x)^T (W_q x) / sqrt(p)) over the keys that `mask` (L,) admits, W_o over all heads, then BERT's
    residual, LayerNorm and feed-forward.
    """

    def linear(name, y):
        return y @ layer[f"{name}.weight"].T + layer[f"{name}.bias"]

    def layer_norm(name, y):
        centred = y - y.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * layer[f"{name}.weight"] + layer[f"{name}.bias"]

    q, k, v = (linear(f"attention.self.{name}", x) for name in ("query", "key", "value"))
    heads = np.zeros((len(x), h * p))
    for i in range(h):
        part = slice(i * p, (i + 1) * p)
        for query in range(len(x)):
            scores = np.array([q[query, part] @ k[key, part] / np.sqrt(p) for key in range(len(x)) if mask[key]])
            weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            heads[query, part] = weights @ v[mask, part]
    x = layer_norm("attention.output.LayerNorm", linear("attention.output.dense", heads) + x)
    inner = linear("intermediate.dense", x)
    inner = inner * 0.5 * (1 + torch.erf(torch.from_numpy(inner) / 2**0.5).numpy())
    return layer_norm("output.LayerNorm", linear("output.dense", inner) + x)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_layers_equal_the_naive_reference(implementation):
    """Guards: the attention is the paper's: head by head in float64, with real padding, to 1e-10."""
    model = model_of("Model", attn_implementation=implementation).double().eval()
    inputs = inputs_of("Model")
    outputs = model(**inputs, output_hidden_states=True)
    for index, layer in enumerate(model.encoder.layer):
        weights = {name: value.detach().numpy() for name, value in layer.named_parameters()}
        for row in range(B):
            mask = inputs["attention_mask"][row].bool().numpy()
            expected = reference_layer(outputs.hidden_states[index][row].detach().numpy(), weights, mask, H, P)
            actual = outputs.hidden_states[index + 1][row].detach().numpy()
            assert np.abs(actual - expected)[mask].max() < 1e-10


@pytest.mark.parametrize("head", HEADS)
def test_without_head_size_it_is_bert_bit_for_bit(head, tmp_path):
    """Guards: with attention_head_size=None a BERT checkpoint loads by name and every output and loss is identical."""
    torch.manual_seed(0)
    decoder = head == "LMHeadModel"
    bert = getattr(transformers, f"Bert{head}")(BertConfig(**SHAPE, num_attention_heads=4, is_decoder=decoder)).eval()
    bert.save_pretrained(tmp_path)
    model_class = getattr(fixedbert, f"FixedHeadBert{head}")
    config = config_of(head, num_attention_heads=4, attention_head_size=None)
    model, info = model_class.from_pretrained(tmp_path, config=config, output_loading_info=True)
    assert not any(info.values())
    for labels in (False, True)[: 1 if head == "Model" else 2]:
        inputs = inputs_of(head, labels)
        for ours, theirs in zip(model.eval()(**inputs).to_tuple(), bert(**inputs).to_tuple(), strict=True):
            if isinstance(ours, torch.Tensor):  # not the cache of the causal head
                assert torch.equal(ours, theirs)


def test_projections_have_the_paper_s_shapes():
    """Guards: W_q, W_k, W_v map D to H P and W_o maps H P back; the head size is really used."""
    attention = model_of("Model").encoder.layer[0].attention
    assert [tuple(getattr(attention.self, name).weight.shape) for name in ("query", "key", "value")] == [
        (H * P, D)
    ] * 3
    assert tuple(attention.output.dense.weight.shape) == (D, H * P)
    assert attention.self.scaling == P**-0.5


@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM"])
def test_sparse_prediction_changes_neither_loss_nor_gradients(head):
    """Guards: computing the masked-LM head at labelled positions only is the same training."""
    dense, sparse = (model_of(head, sparse_prediction=value).double().eval() for value in (False, True))
    inputs = inputs_of(head, labels=True)
    for model in (dense, sparse):
        model(**inputs).loss.backward()
    outputs = sparse(**inputs)
    assert torch.allclose(dense(**inputs).loss, outputs.loss, rtol=0, atol=1e-12)
    logits = outputs.logits if head == "ForMaskedLM" else outputs.prediction_logits
    assert logits.shape == (int((inputs["labels"] != -100).sum()), V)
    for (name, one), (_, other) in zip(dense.named_parameters(), sparse.named_parameters(), strict=True):
        if one.grad is not None or other.grad is not None:
            assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("head", HEADS[1:])
def test_gradient_accumulation_equals_one_large_batch(head, tmp_path):
    """Guards: Trainer with 4 steps of 4 logs the loss and gradient norm of one of 16; stock BERT is wrong by 4."""

    inputs = inputs_of(head, labels=True, size=16)
    if -100 in inputs.get("labels", ()):  # as many labelled tokens in every row, so that means of means agree
        inputs["labels"] = torch.where(torch.arange(L) % 2 == 0, inputs["input_ids"], -100)
    rows = [{name: tensor[row] for name, tensor in inputs.items()} for row in range(16)]
    logs = []
    for batch, steps in ((16, 1), (4, 4)):
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        model = model_of(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
        logs.append(trainer.state.log_history[0])
    assert logs[0]["loss"] == pytest.approx(logs[1]["loss"], rel=1e-5)
    assert logs[0]["grad_norm"] == pytest.approx(logs[1]["grad_norm"], rel=1e-5)


def test_saved_directory_opens_in_a_fresh_process(tmp_path, vocabulary):
    """Guards: after `import fixedbert` alone a directory opens by every Auto class, and by AutoTokenizer."""
    model_of("ForPreTraining").save_pretrained(tmp_path)
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path)
    script = f"""
import fixedbert, transformers
for name in ("AutoModel", "AutoModelForPreTraining", "AutoModelForMaskedLM", "AutoModelForSequenceClassification",
             "AutoModelForQuestionAnswering", "AutoModelForTokenClassification", "AutoModelForMultipleChoice",
             "AutoModelForNextSentencePrediction", "AutoModelForCausalLM", "AutoModelForTextEncoding"):
    model = getattr(transformers, name).from_pretrained({str(tmp_path)!r})
    assert model.config.attention_head_size == {P}
    print(type(model).__name__)
print(type(transformers.AutoTokenizer.from_pretrained({str(tmp_path)!r})).__name__)
"""
    root = Path(fixedbert.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert run.stdout.split() == [
        "FixedHeadBertModel",
        "FixedHeadBertForPreTraining",
        "FixedHeadBertForMaskedLM",
        "FixedHeadBertForSequenceClassification",
        "FixedHeadBertForQuestionAnswering",
        "FixedHeadBertForTokenClassification",
        "FixedHeadBertForMultipleChoice",
        "FixedHeadBertForNextSentencePrediction",
        "FixedHeadBertLMHeadModel",
        "FixedHeadBertModel",
        "BertTokenizer",
    ]


def test_loading_keeps_every_weight(tmp_path):
    """Guards: what was saved from the pretraining model comes back bit for bit in each head, safetensors only."""
    pretrained = model_of("ForPreTraining")
    pretrained.save_pretrained(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    saved = pretrained.bert.state_dict()
    for auto_class in (
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        AutoModelForQuestionAnswering,
    ):
        model = auto_class.from_pretrained(tmp_path)
        loaded = (model if auto_class is AutoModel else model.bert).state_dict()
        assert loaded.keys() <= saved.keys()
        assert all(torch.equal(loaded[name], saved[name]) for name in loaded)


def test_tied_weights_survive_saving_and_resizing(tmp_path):
    """Guards: the output embeddings stay the input embeddings."""
    model_of("ForMaskedLM").save_pretrained(tmp_path)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path)
    model.resize_token_embeddings(V + 5)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert model.cls.predictions.decoder.bias.shape == (V + 5,)


def test_output_attentions_are_not_empty():
    """Guards: with eager attention every layer's probabilities come out, (B, H, L, L), summing to one."""
    model = model_of("Model", attn_implementation="eager").eval()
    attentions = model(**inputs_of("Model"), output_attentions=True).attentions
    assert [tuple(attention.shape) for attention in attentions] == [(B, H, L, L)] * 3
    assert torch.allclose(attentions[0].sum(-1), torch.ones(B, H, L))


def test_importing_twice_is_harmless():
    """Guards: a second import, or remote code of the same model type, does not fail on what is registered already."""
    script = """
import sys, fixedbert
for name in [name for name in sys.modules if name.split(".")[0] == "fixedbert"]:
    del sys.modules[name]
import fixedbert
from transformers import AutoModel
assert type(AutoModel.from_config(fixedbert.preset_config("tiny"))) is fixedbert.FixedHeadBertModel
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
