"""Batches of pretraining examples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..model.fast_fixed_head_bert import find_label_indices, pack_batch, sequence_ids_from


@dataclass
class PretrainingCollator:
    """
    Pads examples to the longest of the batch: next_sentence_label is (B,), all else (B, L).

    There is an attention mask, but not with `position_ids`: these separate the documents of a row, and padding is one
    more document, without labels.

    With an `objective`, batches are for a FixedHeadBert: `packed_batch` and `label_indices` tell its forward which
    tokens to compute and to predict. To determine them on a GPU, the host would have to wait for it at each step. A
    mask without padding is left out.

    With `row_length` all batches have one shape, for torch.compile: rows of `row_length` tokens with at most
    `row_labels` predictions each. `label_indices` has `row_labels` entries per row, of which spare ones point to a
    token without a label. There is no `packed_batch`, because a graph computes padding.

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
            places = find_label_indices(batch["labels"])
            left = len(asked) * self.row_labels - len(places)
            if left > 0:
                places = torch.cat([places, (~asked).flatten().nonzero()[0].expand(left)])
            added["label_indices"] = places
        if self.row_length is None:
            shape, mask = batch["input_ids"].shape, batch.get("attention_mask")
            sequences = sequence_ids_from(batch.get("position_ids"), shape)
            packed_batch = pack_batch(shape, mask, sequences, asked, pooled="next_sentence_label" in batch)
            if packed_batch is None:
                batch.pop("attention_mask", None)
            else:
                added["packed_batch"] = packed_batch
        return batch | added
