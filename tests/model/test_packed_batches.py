"""Pretraining batches: unpadding, sparse prediction and compilation change no result."""

import numpy as np
import pytest
import torch
from helpers.tiny_models import UNEQUAL, V, model_of

from fixedbert.data.collator import PretrainingCollator

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


@pytest.mark.parametrize("changes", MODELS, ids=str)
@pytest.mark.parametrize("objective, lengths, separate", KINDS)
def test_batches_of_the_collator(objective, lengths, separate, changes):
    """Loss and gradients of the collator's batches are those of a model that computes padding and all logits."""
    batch = PretrainingCollator(0)(examples(objective, lengths, separate))
    assert next(iter(batch)) == "input_ids"  # Trainer reads the batch size from the first tensor
    assert ("attention_mask" in batch) != separate
    results = []
    for unpad_inputs in (False, True):
        model = model_of(HEADS[objective], unpad_inputs=unpad_inputs, sparse_prediction=unpad_inputs, **changes)
        loss = model.double().eval()(**batch).loss
        loss.backward()
        results.append([loss, *(x.grad for x in model.parameters() if x.grad is not None)])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("backend, objective", [("eager", "mlm+nsp"), ("inductor", "mlm")])
def test_compiled_step(backend, objective):
    """A compiled training step has the same loss as the model, for batches of different shapes."""
    changes = {"num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = model_of(HEADS[objective], unpad_inputs=True, sparse_prediction=True, **changes).train()
    compiled = torch.compile(model, backend=backend)
    for seed in range(2):
        batch = PretrainingCollator(0)(examples(objective, [11, 7 + seed, 8 + seed], False, seed))
        loss = compiled(**batch).loss
        loss.backward()
        assert torch.allclose(loss, model(**batch).loss, rtol=1e-3)
