"""
Pretraining datasets, and the sampler that shuffles the examples in each epoch.

An example depends only on the store, the seed, the epoch and its index. The examples are therefore the same for any
number of workers and processes, and in a resumed run.
"""

import hashlib
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..support.checksums import stable_hash
from ..support.errors import InputError
from .masking import mask_tokens
from .store import Documents

PLAN_FORMAT = 3  # increment it when the same documents would result in a different plan


def split_documents(documents: Documents, held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """
    Returns the ids of the training documents and of the held-out documents, at least 2 of each.

    `held_out` is the fraction of documents to hold out. The split does not depend on the seed. Raises InputError if
    there are fewer than 4 documents.
    """
    if len(documents) < 4:
        different = f"{len(documents)} different ones with text ({'; '.join(documents.description['corpora'])})"
        raise InputError(
            f"training and held-out data need at least 2 documents each, but the corpus has {different}; add files, "
            "set `validation_file`, or put blank lines between documents and set `document_boundary` to blank_line."
        )
    permutation = np.random.default_rng(0).permutation(len(documents))
    count = min(max(round(held_out * len(documents)), 2), len(documents) - 2)
    return np.sort(permutation[count:]), np.sort(permutation[:count])


class Examples(torch.utils.data.Dataset):
    """
    Base class for map-style datasets of pretraining examples.

    `examples[epoch * len(examples) + index]` returns example number `index` of that epoch.

    Each epoch has a plan, an array that specifies which tokens make up each example. The store caches the plans. The
    length of the dataset is the number of examples in epoch 0. Later epochs that have more examples drop the last
    ones, and those that have fewer repeat the first ones. The order of the documents changes from epoch to epoch, so
    that these examples come from different documents.

    Args:
        document_ids: Ids of the documents to use, indices into `documents`.
        max_seq_length: Maximum number of tokens per example, including special tokens.
        mlm_probability: Fraction of tokens that become prediction targets.
        num_proc: Number of processes that compute a plan.
    """

    kind: str
    plan_dtype: type
    plan_columns: int

    def __init__(  # noqa: PLR0913
        self,
        documents: Documents,
        document_ids: np.ndarray,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        mlm_probability: float = 0.15,
        seed: int = 42,
        num_proc: int = 1,
    ):
        self.documents = documents
        self.document_ids = np.asarray(document_ids, dtype=np.int64)
        self.max_seq_length = max_seq_length
        self.mlm_probability = mlm_probability
        self.seed = seed
        self.num_proc = num_proc
        self.cls, self.sep, self.mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
        self.vocab_size = len(tokenizer)
        self.open_epoch: int | None = None

    @cached_property
    def length(self) -> int:
        return self.count_examples(self.plan(0))

    def __len__(self) -> int:
        return self.length

    def __getstate__(self):  # each worker process opens the plan itself
        return {**self.__dict__, "open_epoch": None, "open_plan": None}

    def plan_settings(self) -> tuple:
        """Returns everything that determines a plan, except the epoch."""
        return PLAN_FORMAT, self.kind, hashlib.sha256(self.document_ids.tobytes()).hexdigest(), self.seed

    def make_plan(self, document_ids: np.ndarray, epoch: int) -> Iterator[np.ndarray]:
        """Yields the plan for an epoch, with the documents in this order, in blocks of shape (rows, plan_columns)."""
        raise NotImplementedError

    def count_examples(self, plan: np.ndarray) -> int:
        """Returns the number of examples in a plan."""
        raise NotImplementedError

    def plan(self, epoch: int) -> np.ndarray:
        """Returns the memory-mapped plan for an epoch. Only the most recently requested plan stays open."""
        if epoch != self.open_epoch:
            name = f"{self.kind}-{stable_hash(*self.plan_settings())}"

            def blocks() -> Iterator[np.ndarray]:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.document_ids)
                return (block.astype(self.plan_dtype, copy=False) for block in self.make_plan(order, epoch))

            # The main process has verified the plan for its data loader workers.
            is_worker = torch.utils.data.get_worker_info() is not None
            path = self.documents.plan(f"{name}-{epoch}", blocks, verify=not is_worker)
            if epoch > 2:  # keep the plan for epoch 0, which determines the length
                self.documents.remove_plan(f"{name}-{epoch - 2}")
            self.open_plan = np.memmap(path, self.plan_dtype, "r").reshape(-1, self.plan_columns)
            self.open_epoch = epoch
        return self.open_plan

    def subset(self, count: int | None) -> torch.utils.data.Dataset:
        """Returns at most `count` examples from epoch 0, chosen at random but independently of the seed."""
        if count is None or count >= len(self):
            return self
        return torch.utils.data.Subset(self, np.random.default_rng(0).choice(len(self), count, replace=False).tolist())

    def mask_example(self, input_ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        maskable = np.flatnonzero((input_ids != self.cls) & (input_ids != self.sep))
        masked, labels = mask_tokens(input_ids, maskable, self.mlm_probability, self.mask, self.vocab_size, rng)
        return {"input_ids": masked, "labels": labels}


class PackedExamples(Examples):
    """
    Dataset of packed rows for causal LM, and for masked LM without next-sentence prediction.

    The documents in an epoch are shuffled, joined as `[CLS] tokens [SEP]` and cut into rows regardless of document
    boundaries, as in RoBERTa's FULL-SENTENCES (Liu et al., 2019, section 4.2). Each token is in exactly one row. A row
    that continues a document starts with an additional [CLS] and has `max_seq_length` tokens. A row that starts with a
    new document has one token fewer, and the last row can be shorter.

    Args:
        objective: "mlm" to mask tokens, or "clm" to label all tokens except [CLS] for next-token prediction.
        separate_documents: Whether to add position ids that restart in each document, so that the model restricts the
            attention of each token to its document.
    """

    kind = "packed"
    plan_dtype, plan_columns = np.int64, 2

    def __init__(self, *args, objective: str = "mlm", separate_documents: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.objective = objective
        self.separate_documents = separate_documents

    def make_plan(self, document_ids: np.ndarray, epoch: int) -> Iterator[np.ndarray]:
        """Yields one block: a row (id, start) per document, and a last row (-1, total length)."""
        ends = np.cumsum(self.documents.metadata["tokens"][document_ids].astype(np.int64) + 2)
        yield np.stack([np.append(document_ids, -1), np.insert(ends, 0, 0)], axis=1)

    def count_examples(self, plan: np.ndarray) -> int:
        return -(-(int(plan[-1, 1]) - 1) // (self.max_seq_length - 1))  # no row for a single [SEP] at the end

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        epoch, index = divmod(index, self.length)
        plan = self.plan(epoch)
        begin = index % self.count_examples(plan) * (self.max_seq_length - 1)
        end = min(begin + self.max_seq_length - 1, int(plan[-1, 1]))
        row = int(plan[:, 1].searchsorted(begin, side="right")) - 1
        ids, positions = [], []
        offset = begin
        while offset < end:  # add a piece of a document
            document_id, start = plan[row].tolist()
            tokens = self.documents.tokens(document_id)
            first, last = offset - start, min(end - start, len(tokens) + 2)  # slice of [CLS] tokens [SEP]
            closing = [self.sep] if last == len(tokens) + 2 else []
            piece = np.concatenate(([self.cls], tokens[max(first - 1, 0) : last - 1], closing)).astype(np.int64)
            ids.append(piece)
            positions.append(np.arange(len(piece)))
            offset, row = start + last, row + 1
        input_ids = np.concatenate(ids)
        if self.objective == "mlm":
            example = self.mask_example(input_ids, np.random.default_rng((self.seed, epoch, index)))
        else:
            example = {"input_ids": input_ids, "labels": np.where(input_ids == self.cls, -100, input_ids)}
        if self.separate_documents:
            example["position_ids"] = np.concatenate(positions)
        return example


class EpochSampler(torch.utils.data.Sampler):
    """
    Sampler that yields each example once per epoch, in a different order in each epoch.

    An incomplete last step is filled with the first examples of the epoch. Each index also encodes the epoch
    (epoch * len(examples) + index), so that worker processes do not need to know the epoch.
    """

    def __init__(self, examples: Examples, step_size: int = 1):
        self.examples = examples
        self.step_size = step_size  # number of examples per optimizer step across all processes
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch
        self.examples.plan(epoch)  # so that errors are raised in this process and not in a worker

    def __len__(self) -> int:
        return -(-len(self.examples) // self.step_size) * self.step_size

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng((self.examples.seed, self.epoch)).permutation(len(self.examples))
        # A list of Python integers would take 32 bytes each.
        return map(int, self.epoch * len(order) + np.resize(order, len(self)))
