"""Tests with pipelines, PEFT, sentence-transformers, accelerate and Trainer."""

import copy
import sys

import pytest
import torch
from helpers import fork_server
from helpers.tiny_checkpoints import SHAPE, TEXTS, WORDS, save
from helpers.tiny_models import UNEQUAL, H, bert_of, inputs_of, model_of
from torch.utils._pytree import tree_leaves
from transformers import BertTokenizer, pipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import fixedbert
from fixedbert.conversion.growing import to_fixed_head_bert
from fixedbert.model.unpadding_fixed_head_bert import CACHE


@pytest.mark.parametrize(
    "task, head",
    [
        ("fill-mask", "ForMaskedLM"),
        ("text-classification", "ForSequenceClassification"),
        ("token-classification", "ForTokenClassification"),
        ("feature-extraction", "Model"),
        ("text-generation", "LMHeadModel"),
    ],
)
def test_pipelines(task, head):
    """Pipelines return the same results for a padded batch and for single texts."""
    model = model_of(head, unpad_inputs=True, **SHAPE).eval()
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)}, model_max_length=23)
    texts = ["the cat [MASK] on the mat .", "the [MASK]"] if task == "fill-mask" else TEXTS[:2]
    options = {}
    if task == "text-generation":
        tokenizer.padding_side = "left"
        options = {"max_new_tokens": 4, "do_sample": False}
        model.generation_config.max_length = None
    pipe = pipeline(task, model=model, tokenizer=tokenizer)
    together = pipe(texts, batch_size=2, **options)
    alone = [pipe(text, **options) for text in texts]
    if task == "feature-extraction":  # features of padding tokens are zero
        assert torch.tensor(together[1])[0, 4:].abs().max() == 0
        together[1] = [together[1][0][:4]]
    for actual, expected in zip(tree_leaves(together), tree_leaves(alone), strict=True):
        assert actual == (pytest.approx(expected, abs=1e-4) if not isinstance(expected, str) else expected)


def test_lora(tmp_path):
    """LoRA adapters for a model with unequal layers can be trained, saved, loaded and merged."""
    peft = pytest.importorskip("peft")
    modules = ["query", "key", "value", "attention.output.dense"]
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=modules, r=2, init_lora_weights=False)
    base = model_of("ForSequenceClassification", **UNEQUAL).double()
    model = peft.get_peft_model(copy.deepcopy(base), config)
    inputs = inputs_of("ForSequenceClassification", labels=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**inputs).loss.backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert all("lora" in name or "classifier" in name for name in trained)
    optimizer.step()
    model.save_pretrained(tmp_path / "adapter")
    expected = model.eval()(**inputs).logits
    assert (expected - base.eval()(**inputs).logits).abs().max() > 1e-3
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").double().eval()
    assert torch.allclose(again(**inputs).logits, expected, rtol=0, atol=1e-10)
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = type(base).from_pretrained(tmp_path / "merged").eval()
    assert torch.allclose(merged(**inputs).logits, expected, rtol=0, atol=1e-10)


@pytest.mark.xfail(CACHE == "cache", reason="PEFT 0.21 does not know transformers 5.24", strict=True)
def test_prefix_tuning():
    """Prefix tuning works with a configurable head size if token_dim is heads * head size."""
    peft = pytest.importorskip("peft")
    model = model_of("ForSequenceClassification", attention_head_size=7, **SHAPE)
    config = peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3, token_dim=H * 7)
    prefixed = peft.get_peft_model(model, config)
    inputs = inputs_of("ForSequenceClassification", labels=True)
    inputs["input_ids"] %= len(WORDS)
    prefixed(**inputs).loss.backward()
    assert prefixed.prompt_encoder["default"].embedding.weight.grad.abs().max() > 0


def test_sentence_transformers(tmp_path):
    """Embeddings are mean-pooled and do not depend on the batch. Models can be trained, saved and reloaded."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from datasets import Dataset
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    save(model_of("Model", unpad_inputs=True, **SHAPE), tmp_path / "model")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "model"))  # mean pooling by default
    together, alone = model.encode(TEXTS), [model.encode(text) for text in TEXTS]
    assert together.shape == (4, 32)
    assert torch.allclose(torch.tensor(together), torch.tensor(alone), atol=1e-5)

    bert = fixedbert.FixedHeadBertModel.from_pretrained(tmp_path / "model").eval()
    tokens = bert(**model.tokenizer(TEXTS[1], return_tensors="pt")).last_hidden_state[0]
    assert torch.allclose(tokens.mean(0), torch.tensor(alone[1]), atol=1e-5)

    pairs = Dataset.from_dict({"anchor": ["the cat", "the dog"] * 4, "positive": ["cat sat", "dog ran"] * 4})
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=2, use_cpu=True, report_to="none", disable_tqdm=True
    )
    sentence_transformers.SentenceTransformerTrainer(
        model=model, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model), args=arguments
    ).train()
    model.save_pretrained(str(tmp_path / "trained"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "trained"))
    assert torch.equal(torch.tensor(again.encode(TEXTS)), torch.tensor(model.encode(TEXTS)))


def test_offloading_with_device_map(tmp_path):
    """device_map="auto" offloads part of the model to disk without changing the outputs."""
    model = model_of("ForPreTraining").eval()
    model.save_pretrained(tmp_path)
    offloaded = fixedbert.FixedHeadBertForPreTraining.from_pretrained(
        tmp_path, device_map="auto", max_memory={"cpu": 60_000}, offload_folder=tmp_path / "offload"
    ).eval()
    assert "disk" in offloaded.hf_device_map.values() and "cpu" in offloaded.hf_device_map.values()
    inputs = inputs_of("ForPreTraining")
    assert torch.equal(offloaded(**inputs).prediction_logits, model(**inputs).prediction_logits)


SMOOTHED_LOSS = """
import sys
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

def smoothed_loss(model):
    settings = {"label_smoothing_factor": 0.1, "use_cpu": True, "report_to": "none"}
    ids = torch.arange(91).view(13, 7)
    trainer = Trainer(model.eval(), TrainingArguments(sys.argv[2], **settings))
    inputs = {"input_ids": ids, "labels": ids.masked_fill(ids % 5 == 0, -100)}
    return trainer.compute_loss(model, inputs).item()
"""
REMOTE_CODE = """
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

for name in [name for name in sys.modules if name.split(".")[0] == "fixedbert"]:
    sys.modules[name] = None  # as if fixedbert were not installed
del MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["fixedbert.model.modeling_fixed_head_bert.FixedHeadBertLMHeadModel"]
from transformers.dynamic_module_utils import get_class_from_dynamic_module
saved = get_class_from_dynamic_module("modeling_fixed_head_bert.FixedHeadBertLMHeadModel", sys.argv[1])
print("loss", smoothed_loss(saved.from_pretrained(sys.argv[1])))
"""


def test_label_smoothing_of_trainer_predicts_the_next_token(tmp_path, monkeypatch):
    """Trainer's label smoothing shifts the labels for our class, a subclass and remote code, as for stock BERT."""

    class Mine(fixedbert.FixedHeadBertLMHeadModel):
        pass

    class bert(fixedbert.FixedHeadBertLMHeadModel):  # a class whose name is a model type
        pass

    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["bert"] == "BertLMHeadModel"
    names: dict = {}
    monkeypatch.setattr(sys, "argv", ["", "", str(tmp_path / "out")])
    exec(SMOOTHED_LOSS, names)
    stock = bert_of("LMHeadModel")
    expected = names["smoothed_loss"](stock)
    model = to_fixed_head_bert(stock)
    mine = Mine(model.config)
    mine.load_state_dict(model.state_dict())
    for decoder in (model, mine):
        assert names["smoothed_loss"](decoder) == pytest.approx(expected, rel=1e-5)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "alone.py").write_text(SMOOTHED_LOSS + REMOTE_CODE)
    done = fork_server.run(tmp_path / "alone.py", [str(tmp_path / "model"), str(tmp_path / "out")], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("loss ")[1]) == pytest.approx(expected, rel=1e-5)
