"""The collator that turns pretraining examples into batches."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class PretrainingCollator:
    """
    Data collator that pads pretraining examples to the longest one in the batch.

    A batch contains (B, L) tensors for B examples padded to L tokens, and `next_sentence_label` of shape (B,).
    Padding has the label -100. If the examples contain `position_ids`, which separate the documents in a row, padding
    is treated as another document, with position ids that start at 0. Otherwise, the batch has an attention mask.
    """

    pad_token_id: int

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        lengths = np.array([len(example["input_ids"]) for example in examples])
        length = lengths.max()
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
        return {name: torch.from_numpy(array) for name, array in batch.items()}
