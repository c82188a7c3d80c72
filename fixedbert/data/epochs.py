"""
Examples by (seed, epoch, index), and their order in an epoch.

An example depends on these three and the store alone. So any number of workers and processes, and a resumed run, see
the same examples.
"""

import copy
import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from ..support.checksums import checksum_file, fingerprint_of, is_sealed, sealing
from ..support.errors import InputError
from .documents import Documents
from .masking import mask_tokens

PLAN_FORMAT = 2  # raise it when the same documents would give another plan
SHUFFLE_ROUNDS = 6


def split_documents(documents: Documents, held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """
    Numbers of the documents for training and of those held out, always the same.

    Args:
        held_out: the share that is held out, at least 2 documents.

    Raises:
        InputError: too few documents for both.
    """
    if len(documents) < 4:
        raise InputError(
            f"the corpus has {len(documents)} documents with text, too few to hold 2 out and train on 2: give more "
            "files, a `validation_file`, or another `document_boundary` (by default a .txt file is one document)."
        )
    shuffled = np.random.default_rng(0).permutation(len(documents))
    held = min(max(round(held_out * len(documents)), 2), len(documents) - 2)
    return np.sort(shuffled[held:]), np.sort(shuffled[:held])


class Examples(torch.utils.data.Dataset):
    """
    Map-style data set over the documents `numbers`. `examples[epoch * len(examples) + index]` is the example
    (seed, epoch, index).

    Every epoch has a plan, an array that says which tokens go into which example. The first process that needs it
    makes it and keeps it in the store with its checksum. A damaged plan is made again. The length is epoch 0's,
    so that steps can be counted. If another epoch has a few examples more, these are left out; if it has fewer, its
    first ones are repeated.

    Args:
        max_seq_length: tokens of an example, special ones included.
        mlm_probability: the share of tokens to predict.
        inside_word: from `tokens_inside_words`, to mask whole words.
        weights: how often an epoch uses the documents of each corpus; 0.5 is half of them, others in each epoch.
        num_proc: processes that make a plan.
    """

    kind: str
    plan_row: tuple[type, int]  # dtype and number of a plan's columns
    length: int

    def __init__(  # noqa: PLR0913  each is a setting of its own
        self,
        documents: Documents,
        numbers: np.ndarray,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        mlm_probability: float = 0.15,
        seed: int = 42,
        inside_word: np.ndarray | None = None,
        weights: list[float] | None = None,
        num_proc: int = 1,
    ):
        self.documents = documents
        self.numbers = np.asarray(numbers, dtype=np.int64)
        self.max_seq_length = max_seq_length
        self.mlm_probability = mlm_probability
        self.seed = seed
        self.inside_word = inside_word
        self.weights = weights
        self.num_proc = num_proc
        self.cls, self.sep, self.mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
        self.vocab_size = len(tokenizer)
        self.numbers_hash = hashlib.sha256(self.numbers.tobytes()).hexdigest()
        self.planned_epoch: int | None = None
        self.written: set[int] = set()

    def __len__(self) -> int:
        return self.length

    def __getstate__(self):  # a worker process opens the plan itself
        return {**self.__dict__, "planned_epoch": None, "opened_plan": None}

    def settings(self) -> tuple:
        """What a plan depends on beside the epoch."""
        return PLAN_FORMAT, self.kind, self.numbers_hash, self.seed, self.weights, self.max_seq_length

    def make_plan(self, epoch: int) -> Iterator[np.ndarray]:
        """The plan of an epoch, in blocks of rows (rows, columns)."""
        raise NotImplementedError

    def rows(self, plan: np.ndarray) -> int:
        """How many examples a plan has; InputError if they cannot be trained on."""
        raise NotImplementedError

    def of_length(self, max_seq_length: int) -> "Examples":
        """Examples of this length, of the same documents."""
        if max_seq_length == self.max_seq_length:
            return self
        other = copy.copy(self)
        other.max_seq_length, other.written = max_seq_length, set()
        other.length = other.rows(other.plan(0))
        return other

    def plan(self, epoch: int) -> np.ndarray:
        """The plan of an epoch, memory-mapped. Only the last call's is open."""
        if epoch != self.planned_epoch:
            folder = self.documents.folder / "plans"
            name = f"{self.kind}-{fingerprint_of(*self.settings())}"
            path = folder / f"{name}-{epoch}"
            try:
                folder.mkdir(exist_ok=True)
                if not is_sealed(path):  # not there, or damaged
                    with FileLock(folder / f"{name}.lock"):
                        if not is_sealed(path):
                            self.write_plan(path, epoch)
                            self.written.add(epoch)
                    if epoch > 2 and epoch - 2 in self.written:  # epoch 0's gives the length
                        old = folder / f"{name}-{epoch - 2}"
                        old.unlink(missing_ok=True)
                        checksum_file(old).unlink(missing_ok=True)
                dtype, columns = self.plan_row
                self.opened_plan = np.memmap(path, dtype, "r").reshape(-1, columns)
            except OSError as error:
                raise InputError(
                    f"{self.documents.folder}: the plan of epoch {epoch} cannot be written into the store ({error}); "
                    "if the store was deleted, the same command prepares it anew and goes on from the last checkpoint."
                ) from error
            self.planned_epoch = epoch
        return self.opened_plan

    def write_plan(self, path: Path, epoch: int):
        with sealing(path) as partial:
            with open(partial, "wb") as file:
                for rows in self.make_plan(epoch):
                    file.write(np.ascontiguousarray(rows, self.plan_row[0]).data)

    def some(self, count: int | None) -> torch.utils.data.Dataset:
        """At most `count` examples of epoch 0, spread over all of them and always the same."""
        if count is None or count >= len(self):
            return self
        return torch.utils.data.Subset(self, np.random.default_rng(0).choice(len(self), count, replace=False).tolist())

    def documents_of_epoch(self, epoch: int) -> np.ndarray:
        """Numbers of the documents of an epoch, in order; with a weight of 2 each of a corpus twice."""
        if self.weights is None or all(weight == 1 for weight in self.weights):
            return self.numbers
        weight = np.array(self.weights)[self.documents.table["corpus"][self.numbers]]  # (numbers,)
        rng = np.random.default_rng((self.seed, epoch))
        times = np.floor(weight) + (rng.random(len(weight)) < weight % 1)
        return np.repeat(self.numbers, times.astype(int))

    def generator(self, epoch: int, index: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, epoch, index))

    def masked(self, input_ids: np.ndarray, maskable: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        masked, labels = mask_tokens(
            input_ids, maskable, self.mlm_probability, self.mask, self.vocab_size, rng, self.inside_word
        )
        return {"input_ids": masked, "labels": labels}


class EpochSampler(torch.utils.data.Sampler):
    """
    Every example once, in another order in each epoch. The last step of an epoch is filled up with the first examples
    of the same order, with one process or several.

    An index is epoch * len(examples) + index, so that worker processes need no epoch.
    """

    def __init__(self, examples: Examples, step_size: int = 1):
        self.examples = examples
        self.step_size = step_size  # examples of a step on all processes
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch
        self.examples.plan(epoch)  # here, where an error can be reported, and before workers are forked

    def __len__(self) -> int:
        return -(-len(self.examples) // self.step_size) * self.step_size

    def __iter__(self) -> Iterator[int]:
        return islice(self.repeated(), len(self))

    def repeated(self) -> Iterator[int]:
        size, epoch = len(self.examples), self.epoch
        while True:
            for numbers in shuffled(size, (self.examples.seed, epoch)):
                yield from (epoch * size + numbers).tolist()


def shuffled(size: int, seed: tuple[int, ...], chunk: int = 2**16) -> Iterator[np.ndarray]:
    """
    The numbers 0 to size - 1 in random order, in blocks, without all of them in memory.

    A Feistel network (Luby and Rackoff, 1988) permutes the numbers with an even count of bits. The ones below `size`,
    in their order, are a permutation too.
    """
    half = max((size - 1).bit_length() + 1, 2) // 2
    keys = np.random.default_rng(seed).integers(2**63, size=SHUFFLE_ROUNDS, dtype=np.uint64)
    for start in range(0, 4**half, chunk):
        number = np.arange(start, min(start + chunk, 4**half), dtype=np.uint64)
        left, right = number >> np.uint64(half), number & np.uint64(2**half - 1)
        for key in keys:
            mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio; wraps around
            left, right = right, left ^ mixed >> np.uint64(64 - half)  # the highest bits are mixed best
        number = (left << np.uint64(half) | right).astype(np.int64)
        yield number[number < size]
