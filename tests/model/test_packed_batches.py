"""Packed batches from the collator do not change results, and avoid synchronization with the host."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tiny_models import UNEQUAL, V, model_of
from torch.nn.utils import clip_grad_norm_

from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.masking import target_count
from fixedbert.pretraining.examples import make_collator

HEADS = {"mlm+nsp": "ForPreTraining", "mlm": "ForMaskedLM", "clm": "LMHeadModel"}
LENGTHS = [7, 3, 11, 2, 11, 5, 10]
# Objective, row lengths, and whether each row contains two separate documents.
KINDS = [
    ("mlm+nsp", LENGTHS, False),
    ("mlm", LENGTHS, False),
    ("mlm", [11] * 5, False),
    ("mlm", [11] * 5, True),
    ("clm", LENGTHS, False),
    ("clm", [11] * 5, False),
    ("clm", [11] * 5, True),
]
MODELS = [{}, {"attn_implementation": "sdpa"}, UNEQUAL | {"attn_implementation": "eager"}]


def examples(objective: str, lengths: list[int], separate: bool, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Returns pretraining examples. About a third of the tokens have labels, but never the first token."""
    rng = np.random.default_rng(seed)
    found = []
    for length in lengths:
        ids = rng.integers(1, V, size=length)
        asked = rng.random(length) < (0.3 if objective != "clm" else 1.0)
        asked[:2] = [False, True][:length]
        example = {"input_ids": ids, "labels": np.where(asked, ids, -100)}
        if separate:
            first = int(rng.integers(1, length))
            example["position_ids"] = np.concatenate([np.arange(first), np.arange(length - first)])
        if objective == "mlm+nsp":
            example |= {"token_type_ids": rng.integers(2, size=length), "next_sentence_label": int(rng.integers(2))}
        found.append(example)
    return found


def model_for(objective: str, **changes):
    return model_of(HEADS[objective], unpad_inputs=True, sparse_prediction=True, **changes).train()


def outcome(model, batch: dict) -> list[torch.Tensor]:
    """Returns the loss and all gradients of a training step, with a fixed seed."""
    torch.manual_seed(5)
    model.zero_grad()
    outputs = model(**batch)
    outputs.loss.backward()
    return [outputs.loss, outputs[1], *(x.grad for x in model.parameters() if x.grad is not None)]


@pytest.mark.parametrize("changes", MODELS, ids=str)
@pytest.mark.parametrize("objective, lengths, separate", KINDS)
def test_packed_batches_change_no_result(objective, lengths, separate, changes):
    """Loss, logits and gradients are identical with the collator's packed batch, or without an unnecessary mask."""
    rows = examples(objective, lengths, separate)
    model = model_for(objective, **changes)
    plain, given = PretrainingCollator(0)(rows), PretrainingCollator(0, objective)(rows)
    assert next(iter(given)) == "input_ids"  # Trainer reads the batch size from the first tensor
    assert ("packed_batch" in given) == (objective != "clm" or separate or len(set(lengths)) > 1)
    if objective == "clm":
        assert ("attention_mask" in given) == (len(set(lengths)) > 1)
    for one, other in zip(outcome(model, plain), outcome(model, given), strict=True):
        assert torch.equal(one, other)


def on_meta(batch):
    """Moves a batch to the meta device, on which reading a value raises an error."""
    if isinstance(batch, dict):
        return {name: on_meta(x) for name, x in batch.items()}
    return batch.to("meta") if hasattr(batch, "to") else batch


def step(model, batch):
    loss = model(**batch).loss
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters()).step()


@pytest.mark.parametrize("objective, lengths, separate", KINDS)
def test_a_step_does_not_synchronize(objective, lengths, separate):
    """With the collator's packed batch, a training step never waits for the GPU to read a tensor's values."""
    rows = examples(objective, lengths, separate)
    with torch.device("meta"):
        model = model_for(objective, attn_implementation="sdpa")
    step(model, on_meta(PretrainingCollator(0, objective)(rows)))
    plain = PretrainingCollator(0)(rows)
    if "attention_mask" in plain:  # the indices must be computed from its elements
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            step(model, on_meta(plain))


def test_packed_batch_for_a_different_head():
    """If a model reads more outputs than the collator selected, the last layer computes outputs for all tokens."""
    batch = PretrainingCollator(0, "mlm")(examples("mlm", LENGTHS, False))
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    model = model_of("ForNextSentencePrediction", unpad_inputs=True).eval()
    logits = model(**inputs, packed_batch=batch["packed_batch"]).logits
    assert torch.allclose(logits, model(**inputs).logits, atol=1e-5)


def fixed(objective: str, labels: int = 6) -> PretrainingCollator:
    return PretrainingCollator(0, objective, row_length=11, row_labels=labels)


@pytest.mark.parametrize("objective, lengths, separate", KINDS)
def test_batches_of_one_shape(objective, lengths, separate):
    """Batches padded to fixed numbers of tokens and labels all have the same shape, and their loss does not change."""
    shapes = set()
    model = model_for(objective).double().eval()
    for seed in range(4):
        rows = examples(objective, lengths[seed % 2 :][:4], separate, seed)
        batch = fixed(objective)(rows)
        shapes.add(tuple((name, tuple(x.shape)) for name, x in batch.items()))
        expected = model(**PretrainingCollator(0)(rows)).loss
        assert torch.allclose(model(**batch).loss, expected, rtol=0, atol=1e-12)
    assert len(shapes) == 1
    more = fixed(objective, labels=1)(rows)  # no label is lost if there are more than expected
    assert torch.allclose(model(**more).loss, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "backend, objective, separate",
    [("eager", "mlm+nsp", False), pytest.param("inductor", "mlm", True, marks=pytest.mark.slow)],
)
def test_compiled_once(backend, objective, separate):
    """A training step is compiled only once, and its loss equals the loss without compilation."""
    changes = {"num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = model_for(objective, **changes)
    compiled = torch.compile(model, backend=backend)
    for seed in range(4):
        rows = examples(objective, [11, 7 + seed, 11], separate, seed)
        batch = fixed(objective)(rows)
        with torch.compiler.set_stance("default" if seed == 0 else "fail_on_recompile"):
            loss = compiled(**batch).loss
            loss.backward()
        assert torch.allclose(loss, model(**batch).loss, rtol=1e-3)


@pytest.mark.parametrize("devices, torch_compile", [(1, False), (2, False), (1, True)])
def test_the_collator_of_a_run(devices, torch_compile):
    """Training uses packed batches except with DataParallel, and batches of equal shape with torch.compile."""
    data_args = SimpleNamespace(objective="mlm", max_seq_length=37, mlm_probability=0.2)
    training_args = SimpleNamespace(n_gpu=devices, torch_compile=torch_compile)
    collator = make_collator(SimpleNamespace(pad_token_id=3), model_for("mlm"), data_args, training_args)
    expected = PretrainingCollator(3, "mlm" if devices == 1 else None)
    if torch_compile:
        expected.row_length, expected.row_labels = 37, target_count(37, 0.2)
    assert collator == expected and target_count(37, 0.2) == 7
