"""Packed rows of full length, for masked-LM without next-sentence prediction and for causal LM."""

from collections.abc import Iterator

import numpy as np

from .epochs import Examples


class PackedExamples(Examples):
    """
    Rows of `max_seq_length` tokens. Every token of an epoch's documents is in exactly one of them.

    The documents of an epoch are shuffled, joined as `[CLS] tokens [SEP]` and cut into rows, across documents as in
    RoBERTa's FULL-SENTENCES (Liu et al., 2019, section 4.2). A row that begins inside a document gets a [CLS] of its
    own; one that begins with a document has it already and is one token shorter. The last row may be shorter still.

    Args:
        objective: "mlm" masks tokens; "clm" labels all but [CLS], for a model that predicts the next token.
        separate_documents: let positions begin at 0 in each document, by which the model separates them.
    """

    kind = "packed"
    plan_row = np.int64, 2

    def __init__(self, *args, objective: str = "mlm", separate_documents: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.objective = objective
        self.separate_documents = separate_documents
        self.length = self.rows(self.plan(0))

    def settings(self) -> tuple:
        return super().settings()[:-1]  # rows of any length have the same plan

    def make_plan(self, epoch: int) -> Iterator[np.ndarray]:
        """Number and start of each document, in the order of the epoch. The last row has the end of all."""
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
        input_ids = np.concatenate(ids)
        if self.objective == "mlm":
            example = self.masked(input_ids, np.flatnonzero(~np.concatenate(special)), rng)
        else:
            example = {"input_ids": input_ids, "labels": np.where(input_ids == self.cls, -100, input_ids)}
        if self.separate_documents:
            example["position_ids"] = np.concatenate(positions)
        return example
