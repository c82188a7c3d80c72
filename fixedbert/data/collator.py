"""Batches of pretraining examples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..model.attention_fixed_head_bert import sequences_of
from ..model.fast_fixed_head_bert import find_tokens, places_of_labels


@dataclass
class PretrainingCollator:
    """
    Pads examples to the longest of the batch: next_sentence_label is (B,), all else (B, L).

    There is an attention mask, but not with `position_ids`: these separate the documents of a row, and padding is one
    more document, without labels.

    With an `objective`, batches are for a FixedHeadBert: they say which tokens a step computes and predicts, the
    `tokens` and `labelled` of its forward. To find these on a GPU the host has to wait for it at each step. A mask
    without padding is left out.

    With `row_length` all batches have one shape, for torch.compile: rows of so many tokens, with at most `row_labels`
    predictions in each. `labelled` has that many places for each row; the ones left over point to a token without a
    label. A graph computes padding, so that there are no `tokens`.

    Args:
        objective: mlm+nsp, mlm or clm.
    """

    pad_token_id: int
    objective: str | None = None
    row_length: int | None = None
    row_labels: int = 0

    def __call__(self, examples: list[dict]) -> dict[str, Any]:
        lengths = np.array([len(example["input_ids"]) for example in examples])
        length = self.row_length or lengths.max()
        padding = {"input_ids": self.pad_token_id, "token_type_ids": 0, "labels": -100, "position_ids": 0}
        batch = {name: np.full((len(examples), length), padding[name]) for name in padding if name in examples[0]}
        for row, example in enumerate(examples):
            for name, array in batch.items():
                array[row, : lengths[row]] = example[name]
        if "position_ids" in batch:
            for row, end in enumerate(lengths):
                batch["position_ids"][row, end:] = np.arange(length - end)
        else:
            batch["attention_mask"] = (np.arange(length) < lengths[:, None]).astype(np.int64)
        if "next_sentence_label" in examples[0]:
            batch["next_sentence_label"] = np.array([example["next_sentence_label"] for example in examples])
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        return tensors if self.objective is None else self.with_places(tensors)

    def with_places(self, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        """The batch, with the places of tokens that a step computes and predicts."""
        added: dict[str, Any] = {}
        asked = None if self.objective == "clm" else batch["labels"].ne(-100)  # where a head reads
        if asked is not None:
            places = places_of_labels(batch["labels"])
            left = len(asked) * self.row_labels - len(places)
            if left > 0:
                places = torch.cat([places, (~asked).flatten().nonzero()[0].expand(left)])
            added["labelled"] = places
        if self.row_length is None:
            shape, mask = batch["input_ids"].shape, batch.get("attention_mask")
            sequences = sequences_of(batch.get("position_ids"), shape)
            tokens = find_tokens(shape, mask, sequences, asked, pooled="next_sentence_label" in batch)
            if tokens is None:
                batch.pop("attention_mask", None)
            else:
                added["tokens"] = tokens
        return batch | added
