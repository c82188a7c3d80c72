"""The collator that turns pretraining examples into batches."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..model.unpadding_fixed_head_bert import find_label_indices, pack_batch, sequence_ids_from


@dataclass
class PretrainingCollator:
    """
    Data collator that pads pretraining examples to the longest one in the batch.

    A batch contains (B, L) tensors for B examples padded to L tokens, and `next_sentence_label` of shape (B,).
    Padding has the label -100. If the examples contain `position_ids`, which separate the documents in a row, padding
    is treated as another document, with position ids that start at 0. Otherwise, the batch has an attention mask.

    Args:
        objective: "mlm+nsp", "mlm" or "clm" for a FixedHeadBert, or None for other models. For a FixedHeadBert, the
            batch also contains two forward arguments: `packed_batch` selects the tokens to process, and
            `label_indices` (not for "clm") selects the tokens to predict. Computing them inside the model would
            synchronize the GPU. If no token can be skipped, `packed_batch` and the attention mask are omitted.
        row_length: Length to which all rows are padded, for torch.compile, which requires batches of a fixed shape.
            With `row_length`, `packed_batch` is omitted because a compiled graph also processes padding.
        row_labels: With `row_length`, the number of entries per row in `label_indices`. It must be at least the
            maximum number of labels in a row. Unused entries point to a token without a label.
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
        """Returns the batch with `label_indices` (tokens to predict) and `packed_batch` (tokens to process)."""
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
