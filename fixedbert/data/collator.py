"""The collator that turns pretraining examples into batches."""

from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence


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
        padding = {"input_ids": self.pad_token_id, "token_type_ids": 0, "labels": -100, "position_ids": 0}
        batch = {}
        for name in [name for name in padding if name in examples[0]]:
            rows = [torch.as_tensor(example[name]) for example in examples]
            batch[name] = pad_sequence(rows, batch_first=True, padding_value=padding[name])
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        after_end = torch.arange(lengths.max()) - lengths[:, None]  # (B, L), negative for tokens
        if "position_ids" in batch:
            batch["position_ids"] = torch.where(after_end < 0, batch["position_ids"], after_end)
        else:
            batch["attention_mask"] = (after_end < 0).long()
        if "next_sentence_label" in examples[0]:
            batch["next_sentence_label"] = torch.tensor([example["next_sentence_label"] for example in examples])
        return batch
