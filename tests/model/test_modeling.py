"""Models: bit-identical to BERT with BERT's head size, and compatible with transformers' features."""

import inspect
import json
import subprocess
import sys
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers
from helpers.tiny_models import BERT_HEADS, HEADS, SHAPE, B, L, P, V, config_of, inputs_of, model_of
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertTokenizer, Trainer, TrainingArguments

import fixedbert
from fixedbert.model.configuration_fixed_head_bert import AUTO_MAP


@pytest.mark.parametrize("head", BERT_HEADS)
def test_bert_checkpoints_give_identical_outputs(head, tmp_path):
    """With attention_head_size=None, BERT checkpoints load, and all outputs and losses are identical."""
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
        if inputs.get("labels", torch.empty(0)).shape == (B, L):  # BERT's loss includes labels at padding
            inputs["labels"] = inputs["labels"].masked_fill(inputs["attention_mask"] == 0, -100)
        outputs, expected = model.eval()(**inputs), bert(**inputs)
        assert [name for name in outputs if name not in ("masked_lm_loss", "next_sentence_loss")] == list(expected)
        assert list(outputs)[: len(expected)] == list(expected)
        for ours, theirs in zip(outputs.to_tuple(), expected.to_tuple(), strict=False):
            if isinstance(ours, torch.Tensor):  # not a cache
                assert torch.equal(ours, theirs)


@pytest.mark.parametrize("padded", [False, True])
def test_training_is_identical_to_bert(padded):
    """With dropout and the same seed, outputs and gradients are identical to BERT's."""
    shape = {**SHAPE, "num_attention_heads": 4, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    bert = transformers.BertModel(BertConfig(**shape, attn_implementation="eager"))
    model = model_of("Model", **shape, attention_head_size=None, attn_implementation="eager")
    model.load_state_dict(bert.state_dict())
    inputs = inputs_of("Model")
    if not padded:
        del inputs["attention_mask"]
    outputs = []
    for each in (bert, model):
        torch.manual_seed(5)
        outputs.append(each.train()(**inputs))
        (outputs[-1].last_hidden_state.pow(3).sum() + outputs[-1].pooler_output.pow(3).sum()).backward()
    assert torch.equal(outputs[0].last_hidden_state, outputs[1].last_hidden_state)
    assert torch.equal(outputs[0].pooler_output, outputs[1].pooler_output)
    assert not torch.equal(outputs[0].last_hidden_state, bert(**inputs).last_hidden_state)  # dropout is active
    for (name, theirs), (_, ours) in zip(bert.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(theirs.grad, ours.grad), name


def test_both_losses_of_pretraining():
    """The two losses are returned in addition to their sum, and Trainer does not treat them as logits."""
    model = model_of("ForPreTraining").eval()
    inputs = inputs_of("ForPreTraining", labels=True)
    outputs = model(**inputs)
    labels = inputs["labels"].masked_fill(inputs["attention_mask"] == 0, -100)
    expected = torch.nn.functional.cross_entropy(outputs.prediction_logits.flatten(0, 1), labels.flatten())
    assert torch.equal(outputs.masked_lm_loss, expected)
    expected = torch.nn.functional.cross_entropy(outputs.seq_relationship_logits, inputs["next_sentence_label"])
    assert torch.equal(outputs.next_sentence_loss, expected)
    assert torch.equal(outputs.loss, outputs.masked_lm_loss + outputs.next_sentence_loss)
    del inputs["next_sentence_label"]
    assert list(model(**inputs)) == ["prediction_logits", "seq_relationship_logits"]
    assert {"masked_lm_loss", "next_sentence_loss"} < {*model.config.keys_to_ignore_at_inference}


@pytest.mark.parametrize("head", HEADS[1:])
def test_gradient_accumulation_equals_one_large_batch(head, tmp_path):
    """Four accumulated batches of 4 rows have the same loss and gradient norm as one batch of 16."""
    inputs = inputs_of(head, labels=True, size=16)
    if -100 in inputs.get("labels", ()):  # equal label counts in all rows, so that averages of averages agree
        inputs["labels"] = torch.where(torch.arange(L) % 2 == 0, inputs["input_ids"], -100)
    if inputs.get("labels", torch.empty(0)).shape == (16, L):
        inputs["attention_mask"][:] = 1  # labels at padding would be refused
    rows = [{name: tensor[row] for name, tensor in inputs.items()} for row in range(16)]
    logs, options = [], {"max_steps": 1, "logging_steps": 1, "save_strategy": "no", "use_cpu": True}
    for batch, steps in ((16, 1), (4, 4)):
        options |= {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}
        arguments = TrainingArguments(str(tmp_path), disable_tqdm=True, **options)
        model = model_of(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
        logs.append(trainer.state.log_history[0])
    assert logs[0]["loss"] == pytest.approx(logs[1]["loss"], rel=1e-5)
    assert logs[0]["grad_norm"] == pytest.approx(logs[1]["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("head", ["ForMaskedLM", "LMHeadModel", "ForTokenClassification"])
def test_trainer_counts_the_labels_of_the_loss(head, padding, tmp_path):
    """Trainer's loss is the average over the labels that the model uses. Others, which Trainer counts, are refused."""
    inputs = inputs_of(head, labels=True, size=16)
    inputs["labels"] = inputs["input_ids"] % 2
    mask = torch.arange(L) < torch.arange(16)[:, None] % L + 1 if padding else torch.ones(16, L, dtype=torch.bool)
    inputs["attention_mask"] = mask = mask.flip(-1) if padding == "left" else mask
    inputs["labels"] = [inputs["labels"], inputs["labels"].masked_fill(~mask, -100)]
    if head == "LMHeadModel" and padding == "left":  # padding does not predict the first token
        inputs["labels"][1].masked_fill_(mask & ~mask.roll(1, -1), -100)
    options = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no", "use_cpu": True, "report_to": "none"}
    for labels, fails in zip(inputs.pop("labels"), (padding is not None, False), strict=True):
        rows = [{name: x[row] for name, x in (inputs | {"labels": labels}).items()} for row in range(16)]
        model = model_of(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        expected = model(**inputs, labels=labels).loss.item()
        arguments = TrainingArguments(str(tmp_path), per_device_train_batch_size=16, disable_tqdm=True, **options)
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        with pytest.raises(ValueError, match="^labels at padding.* must be -100") if fails else nullcontext():
            trainer.train()
            assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_saved_directory_loads_in_a_new_process(tmp_path, vocabulary):
    """After `import fixedbert`, every Auto class loads a saved directory. The import omits slow packages."""
    model_of("ForPreTraining").save_pretrained(tmp_path)
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path)
    script = f"""
import sys
import fixedbert, transformers
print({{"datasets", "matplotlib", "transformers.trainer", "fixedbert.shrinking"}} & {{*sys.modules}})
for name in {[name for name in AUTO_MAP if name != "AutoConfig"]}:
    model = getattr(transformers, name).from_pretrained({str(tmp_path)!r})
    assert model.config.attention_head_size == {P}
    print(type(model).__name__)
print(type(transformers.AutoTokenizer.from_pretrained({str(tmp_path)!r})).__name__)
"""
    root = Path(fixedbert.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert run.stdout.split() == [
        "set()",
        *(reference.split(".")[1] for name, reference in AUTO_MAP.items() if name != "AutoConfig"),
        "BertTokenizer",
    ]


@pytest.mark.parametrize("head", HEADS)
def test_loading_changes_no_field(head, tmp_path):
    """Loading changes no saved configuration field. transformers sees that the attention can be changed."""
    changes = {
        "is_decoder": True,
        "tie_word_embeddings": False,
        "use_cache": False,
        "unpad_inputs": True,
        "sparse_prediction": True,
        "attention_head_size": [3, 13, 6],
        "head_embedding": "mul",
        "qk_norm": True,
        "problem_type": "multi_label_classification",
        "num_labels": 3,
        "chunk_size_feed_forward": 2,
        "output_hidden_states": True,
        "classifier_dropout": 0.25,
        "dtype": "float64",
    }
    model_of(head, **changes).double().save_pretrained(tmp_path)
    model = getattr(fixedbert, f"FixedHeadBert{head}").from_pretrained(tmp_path, attn_implementation="eager")
    saved = fixedbert.FixedHeadBertConfig.from_pretrained(tmp_path)
    assert {name: getattr(saved, name) for name in changes} == changes | {"dtype": torch.float64}
    assert model.config.to_diff_dict() == saved.to_diff_dict()
    assert model.config is model.base_model.config and model.config._attn_implementation == "eager"
    assert model.base_model.unpad_inputs and getattr(model, "sparse_prediction", True)
    assert model._can_set_attn_implementation() and model.base_model._can_set_attn_implementation()
    model.set_attn_implementation("sdpa")
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("head", BERT_HEADS[1:])
def test_arguments_by_position(head):
    """Models have the signatures of BERT's classes, accept positional arguments, and reject too many."""
    model = model_of(head).eval()
    signature = inspect.signature(model.forward)
    assert signature == inspect.signature(getattr(transformers, f"Bert{head}").forward.__get__(model))
    inputs = inputs_of(head, labels=True)
    by_position = [inputs.get(name) for name, x in signature.parameters.items() if x.kind is not x.VAR_KEYWORD]
    while by_position[-1] is None:  # None is not the default of every argument
        by_position.pop()
    assert torch.equal(model(*by_position).loss, model(**inputs).loss)
    with pytest.raises(TypeError, match="too many positional arguments"):
        model(*[None] * 30)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM", "LMHeadModel"])
def test_output_embeddings(head, tied, tmp_path):
    """Output embeddings stay tied or untied if saved and resized. BERT's two output biases are one parameter."""
    model = model_of(head, tie_word_embeddings=tied)
    model(**inputs_of(head, labels=True)).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    torch.nn.init.normal_(model.cls.predictions.bias)
    model.save_pretrained(tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(again.cls.predictions.decoder.bias, model.cls.predictions.bias)
    again.resize_token_embeddings(V + 5)
    assert (again.cls.predictions.decoder.weight is again.bert.embeddings.word_embeddings.weight) == tied
    assert again.cls.predictions.bias is again.cls.predictions.decoder.bias
    assert again.cls.predictions.bias.shape == (V + 5,)


def test_untied_bert_checkpoints_keep_the_bias_that_bert_used(tmp_path):
    """Untied BERT checkpoints with different output biases give BERT's logits, which use the decoder's bias."""
    shape = {**SHAPE, "num_attention_heads": 4, "tie_word_embeddings": False}
    bert = transformers.BertForMaskedLM(BertConfig(**shape)).eval()
    torch.nn.init.normal_(bert.cls.predictions.decoder.bias)
    bert.save_pretrained(tmp_path)
    config = config_of("ForMaskedLM", **shape, attention_head_size=None)
    model = fixedbert.FixedHeadBertForMaskedLM.from_pretrained(tmp_path, config=config).eval()
    inputs = inputs_of("ForMaskedLM")
    assert torch.equal(model(**inputs).logits, bert(**inputs).logits)


def test_missing_head_embeddings_are_initialized(tmp_path):
    """Head embeddings that a checkpoint lacks are initialized, and the weights that it contains are loaded."""
    model = model_of("Model", head_embedding="mul")
    state = {name: value for name, value in model.state_dict().items() if "layer.1.attention.self.head" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {"encoder.layer.1.attention.self.head_embedding"}
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items() if name in state)
    assert 0.3 < again.encoder.layer[1].attention.self.head_embedding.std() < 0.7  # initializer_range 0.5


@pytest.mark.parametrize("saved", HEADS)
def test_every_model_class_loads_from_every_other(saved, tmp_path):
    """A directory saved by one model class can be loaded by all others, with all shared weights."""
    model = model_of(saved, is_decoder=False, head_embedding="add", qk_norm=True)
    model.save_pretrained(tmp_path)
    weights = {name.removeprefix("bert."): value for name, value in model.state_dict().items()}
    for head in HEADS:
        other = getattr(fixedbert, f"FixedHeadBert{head}").from_pretrained(tmp_path, ignore_mismatched_sizes=True)
        shared = {name.removeprefix("bert."): value for name, value in other.state_dict().items()}
        for name in shared.keys() & weights.keys():
            if not name.startswith("classifier") or head == saved:  # classifiers of different classes differ in shape
                assert torch.equal(shared[name], weights[name]), (head, name)
        assert sum(name.startswith("encoder.") for name in shared) == sum(x.startswith("encoder.") for x in weights)


def test_initialization():
    """Models from the meta device are initialized: biases to zero, norms to one, weights normally distributed."""
    changes = {"head_embedding": "add", "qk_norm": True, "initializer_range": 0.02, "hidden_size": 128}
    changes |= {"num_attention_heads": 12, "attention_head_size": 64, "intermediate_size": 512}
    with torch.device("meta"):
        model = model_of("ForPreTraining", **changes)
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(7)
    model.init_weights()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.abs().max() == 0, name
        elif "norm" in name.lower():
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            deviation = 0.02 / parameter.numel() ** 0.5
            assert abs(parameter.mean()) < 5 * deviation and abs(parameter.std() - 0.02) < 5 * deviation, name
    assert model.bert.embeddings.position_ids[0].tolist() == list(range(11))
    assert model.bert.embeddings.token_type_ids.abs().max() == 0


@pytest.mark.parametrize("head", HEADS)
def test_tuples_equal_dictionaries(head):
    """return_dict=False gives the same outputs in the same order, including hidden states and attentions."""
    model = model_of(head, attn_implementation="eager").eval()
    inputs = inputs_of(head, labels=head != "Model")
    asked = {"output_hidden_states": True, "output_attentions": True, "use_cache": False}
    asked = asked if head in ("Model", "LMHeadModel") else {x: v for x, v in asked.items() if x != "use_cache"}
    as_tuple, as_dict = model(**inputs, **asked, return_dict=False), model(**inputs, **asked).to_tuple()
    tensors = [*zip(tree_leaves(as_tuple), tree_leaves(as_dict), strict=True)]
    assert len(tensors) > 7 and all(torch.equal(one, other) for one, other in tensors)


@pytest.mark.parametrize("asked", [{"hidden_states"}, {"attentions"}, {"hidden_states", "attentions"}], ids=sorted)
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForPreTraining"])
def test_gradients_of_hidden_states_and_attentions_are_kept(head, asked):
    """Unpadding changes neither hidden states and attentions nor their gradients, except at padding."""
    inputs = inputs_of(head, labels=True)
    real = inputs["attention_mask"].bool()
    results = []
    for unpad_inputs in (False, True):
        model = model_of(head, unpad_inputs=unpad_inputs, attn_implementation="eager").double().eval()
        outputs = model(**inputs, **{f"output_{name}": True for name in asked})
        kept = [tensor for name in sorted(asked) for tensor in outputs[name]]
        for tensor in kept:
            tensor.retain_grad()
        outputs.loss.backward()
        results.append([*kept, *(tensor.grad for tensor in kept)])
    if "hidden_states" in asked:
        assert outputs.hidden_states[-1][~real].abs().max() == 0
    assert len(results[0]) == 2 * (3 * ("attentions" in asked) + 4 * ("hidden_states" in asked))
    for plain, unpadded in zip(*results, strict=True):
        if plain.ndim == 4:  # attention probabilities (B, H, L, L): compares those of non-padding tokens
            plain, unpadded = ((x * real[:, None, None]).transpose(1, 2) for x in (plain, unpadded))
        assert unpadded[real].abs().max() > 0
        assert torch.allclose(unpadded[real], plain[real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", [{}, {"unpad_inputs": True, "sparse_prediction": True}, {"head_embedding": "add"}])
@pytest.mark.parametrize("head", HEADS[1:])
def test_training_in_bfloat16(head, variant):
    """With bfloat16 autocast, losses are close to those in float32, and all gradients are finite."""
    model = model_of(head, initializer_range=0.05, **variant).eval()
    inputs = inputs_of(head, labels=True)
    expected = model(**inputs).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**inputs).loss
    loss.backward()
    assert torch.allclose(loss.float(), expected, rtol=0.02)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_fsdp_saves_the_model_code(tmp_path):
    """FSDP wraps a model in a class of its own. Its checkpoints contain the same code files."""
    model = model_of("ForMaskedLM")
    model.__class__ = type("FSDPFixedHeadBertForMaskedLM", (type(model),), {})
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert {f"{name.split('.')[0]}.py" for name in AUTO_MAP.values()} <= {file.name for file in tmp_path.iterdir()}
    assert not (tmp_path / "test_modeling.py").exists()


EMPTY = {"layer_attention_heads": [5, 0, 3], "intermediate_size": [0, 11, 37], "attention_head_size": [3, 4, 4]}


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("layers", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_layers_without_heads_or_neurons(head, layers):
    """Layers without heads or neurons add a trainable bias, like a BERT whose added heads and neurons are all zero."""
    changes = {name: [sizes[layer] for layer in layers] for name, sizes in EMPTY.items()}
    model = model_of(head, attn_implementation="sdpa", **changes).double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    empty, without = layers.index(1), layers.index(0)
    found = {
        name.split(".", 1)[1] for name in model.base_model.encoder.layer[empty].state_dict() if "attention" in name
    }
    assert found == {"output.dense.bias", "output.LayerNorm.weight", "output.LayerNorm.bias"}
    assert not [name for name in model.base_model.encoder.layer[without].state_dict() if "intermediate" in name]
    whole = fixedbert.to_bert(model)
    assert whole.config.intermediate_size == 37 and whole.config.num_attention_heads == 8
    inputs = inputs_of(head)
    real = ... if head == "ForSequenceClassification" else inputs["attention_mask"].bool()
    for unpad_inputs in (False, True):
        model.base_model.unpad_inputs = unpad_inputs
        assert torch.allclose(model(**inputs)[0][real], whole(**inputs)[0][real], rtol=0, atol=1e-10)
    model(**inputs)[0][real].pow(2).sum().backward()
    layer = model.base_model.encoder.layer
    assert layer[empty].attention.output.dense.bias.grad.abs().min() > 0
    assert layer[without].output.dense.bias.grad.abs().min() > 0
    attentions = model(**inputs, output_attentions=True).attentions
    assert [a.shape[1] for a in attentions] == changes["layer_attention_heads"]


@pytest.mark.parametrize(("counts", "neurons"), [([0, 5, 0], [0, 7, 0]), ([0, 0, 0], 0)])
def test_layers_without_heads_in_packed_rows(counts, neurons):
    """Packed rows change no result in models with layers without heads or neurons."""
    model = model_of("Model", layer_attention_heads=counts, intermediate_size=neurons).double()
    for name, parameter in model.eval().named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    ids, positions = torch.randint(V, (1, 7)), torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    alone = torch.cat([model(part).last_hidden_state for part in ids.split([3, 4], dim=1)], dim=1)
    for implementation, unpad_inputs in product(("eager", "sdpa"), (False, True)):
        model.set_attn_implementation(implementation)
        model.base_model.unpad_inputs = unpad_inputs
        packed = model(ids, position_ids=positions).last_hidden_state
        assert torch.allclose(packed, alone, rtol=0, atol=1e-12)
