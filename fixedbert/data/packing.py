"""Packed rows: all text one after the other, for masked-LM without next-sentence prediction and for causal LM."""

from collections.abc import Iterator

import numpy as np

from .epochs import Examples


class PackedExamples(Examples):
    """
    Rows of `max_seq_length` tokens, of which every token of an epoch's documents is in one.

    The documents of an epoch, shuffled, stand one after the other as `[CLS] tokens [SEP]` and are cut into rows,
    across documents as RoBERTa's FULL-SENTENCES (Liu et al., 2019, section 4.2). A row that begins inside of a
    document gets a [CLS] of its own; one that begins with a document has it already and is a token shorter. The last
    row may be shorter still.

    Args:
        objective: "mlm" masks tokens; "clm" labels all of them but [CLS], for a model that predicts the next one.
        separate_documents: number the positions of each document anew, by which the model tells them apart.
    """

    kind = "packed"
    plan_row = np.int64, 2

    def __init__(self, *args, objective: str = "mlm", separate_documents: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.objective = objective
        self.separate_documents = separate_documents
        self.length = self.rows(self.plan(0))

    def __len__(self) -> int:
        return self.length

    def settings(self) -> tuple:
        return super().settings()[:-1]  # the same for rows of any length

    def make_plan(self, epoch: int) -> Iterator[np.ndarray]:
        """A document's number and where it begins, in the order of the epoch; the last row is the end of all."""
        numbers = np.random.default_rng((self.seed, epoch)).permutation(self.documents_of_epoch(epoch))
        ends = np.cumsum(self.documents.table["tokens"][numbers].astype(np.int64) + 2)
        yield np.stack([np.append(numbers, -1), np.insert(ends, 0, 0)], axis=1)

    def rows(self, plan: np.ndarray) -> int:
        return -(-(int(plan[-1, 1]) - 1) // (self.max_seq_length - 1))  # none for the last [SEP] alone

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        epoch, index = divmod(index, self.length)
        rng = self.generator(epoch, index)
        plan = self.plan(epoch)
        begin = index % self.rows(plan) * (self.max_seq_length - 1)
        end = min(begin + self.max_seq_length - 1, int(plan[-1, 1]))
        place = int(plan[:, 1].searchsorted(begin, side="right")) - 1
        ids, positions, special = [], [], []
        slot = begin
        while slot < end:  # a piece of a document
            number, start = plan[place].tolist()
            tokens = self.documents.tokens(number)
            first, last = slot - start, min(end - start, len(tokens) + 2)  # slots of [CLS] tokens [SEP]
            closing = [self.sep] if last == len(tokens) + 2 else []
            piece = np.concatenate(([self.cls], tokens[max(first - 1, 0) : last - 1], closing)).astype(np.int64)
            ids.append(piece)
            positions.append(np.arange(len(piece)))
            special.append(np.zeros(len(piece), dtype=bool))
            special[-1][0] = True
            special[-1][-1] |= bool(closing)
            slot, place = start + last, place + 1
        input_ids, special = np.concatenate(ids), np.concatenate(special)
        if self.objective == "mlm":
            example = self.masked(input_ids, np.flatnonzero(~special), rng)
        else:
            example = {"input_ids": input_ids, "labels": np.where(input_ids == self.cls, -100, input_ids)}
        if self.separate_documents:
            example["position_ids"] = np.concatenate(positions)
        return example
