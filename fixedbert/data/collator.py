"""Batches of pretraining examples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..model.fast_fixed_head_bert import find_label_indices, pack_batch, sequence_ids_from


@dataclass
class PretrainingCollator:
    """
    Pads examples to the longest in the batch: next_sentence_label is (B,), everything else (B, L).

    A batch has an attention mask unless its examples have `position_ids`, which separate the documents in a row.
    Padding then forms one more document, without labels.

    With an `objective` the batch is for a FixedHeadBert and also contains `packed_batch` and `label_indices`, the
    arguments of its forward for the tokens to compute and to predict. On a GPU the model could only find them by
    synchronizing with the host in every step. An attention mask without padding is omitted.

    With `row_length` all batches have the same shape, as torch.compile requires: `row_length` tokens and at most
    `row_labels` predictions per row. `label_indices` has that many entries per row, and unused ones point to a token
    without a label. There is no `packed_batch`, because a compiled graph computes padding too.

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
        return tensors if self.objective is None else self.add_indices(tensors)

    def add_indices(self, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Adds the indices of the tokens that a step computes and predicts."""
        added: dict[str, Any] = {}
        has_label = None if self.objective == "clm" else batch["labels"].ne(-100)
        if has_label is not None:
            indices = find_label_indices(batch["labels"])
            unused = len(has_label) * self.row_labels - len(indices)
            if unused > 0:
                indices = torch.cat([indices, (~has_label).flatten().nonzero()[0].expand(unused)])
            added["label_indices"] = indices
        if self.row_length is None:
            shape, mask = batch["input_ids"].shape, batch.get("attention_mask")
            sequences = sequence_ids_from(batch.get("position_ids"), shape)
            packed_batch = pack_batch(shape, mask, sequences, has_label, pooled="next_sentence_label" in batch)
            if packed_batch is None:
                batch.pop("attention_mask", None)
            else:
                added["packed_batch"] = packed_batch
        return batch | added
