"""
Examples by (seed, epoch, index): what the two kinds of examples share, and the order of an epoch.

Whatever an example is made of follows from these three and the store alone: however many workers and processes there
are, and wherever a run is continued, they see the same examples.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from ..files import checksum_file, fingerprint_of, is_sealed, seal
from .masking import mask_tokens
from .store import Documents

SHUFFLE_ROUNDS = 6


def split_documents(documents: Documents, held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """
    Numbers of the documents for training and of those held out, always the same: a share of all, at least 2.

    Raises:
        InputError: too few documents for both.
    """
    if len(documents) < 4:
        raise InputError(
            f"the corpus has {len(documents)} documents with text, too few to hold 2 out and train on 2: give more "
            "files, a --validation_file, or choose what ends a document with --document_boundary."
        )
    shuffled = np.random.default_rng(0).permutation(len(documents))
    held = min(max(round(held_out * len(documents)), 2), len(documents) - 2)
    return np.sort(shuffled[held:]), np.sort(shuffled[:held])


class Examples(torch.utils.data.Dataset):
    """
    Map-style data set over the documents with the given `numbers`; `examples[epoch * len(examples) + index]` is the
    example (seed, epoch, index).

    Every epoch has a plan, an array that says which tokens go into which example. It is made once, by the first
    process that asks for it, and kept beside the store with its checksum, memory-mapped; a damaged one is made again.
    The length is that of epoch 0, so that steps
    can be counted; where another epoch has a few examples more or less, they are left out or begin again.

    Args:
        max_seq_length: tokens of an example, special ones counted.
        mlm_probability: the share of tokens to predict.
        inside_word: from `tokens_inside_words`, to mask whole words.
        weights: how often the documents of each corpus are used in an epoch; 0.5 is half of them, others each time.
        num_proc: processes that make a plan.
    """

    kind: str
    plan_row: tuple[type, int]  # type and number of a plan's columns

    def __init__(
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
        self.planned_epoch = None
        self.written = set()

    def __getstate__(self):  # a worker process opens the plan itself
        return {**self.__dict__, "planned_epoch": None, "opened_plan": None}

    def settings(self) -> tuple:
        """What a plan depends on besides the epoch."""
        return self.kind, self.numbers_hash, self.seed, self.weights, self.max_seq_length

    def make_plan(self, epoch: int) -> Iterator[np.ndarray]:
        """Rows of the plan of an epoch, some at a time."""
        raise NotImplementedError

    def plan(self, epoch: int) -> np.ndarray:
        """The plan of an epoch, memory-mapped; only the last one asked for is open."""
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
                    if epoch > 2 and epoch - 2 in self.written:  # the first one is kept: it gives the length
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

    def write_plan(self, path, epoch: int):
        partial = path.with_name(path.name + ".partial")
        with open(partial, "wb") as file:
            for rows in self.make_plan(epoch):
                file.write(np.ascontiguousarray(rows, self.plan_row[0]).data)
        seal(partial, path)

    def some(self, count: int | None) -> torch.utils.data.Dataset:
        """At most `count` of the examples of epoch 0, spread over all of them and always the same."""
        if count is None or count >= len(self):
            return self
        return torch.utils.data.Subset(self, np.random.default_rng(0).choice(len(self), count, replace=False).tolist())

    def documents_of_epoch(self, epoch: int) -> np.ndarray:
        """Numbers of the documents of an epoch, in order: with a weight of 2 each of a corpus twice."""
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
    Every example once, in an order of its own in each epoch, by numbers that name the epoch too. The last step of an
    epoch is filled up with the first examples of the same order, on one process as on many.

    The examples themselves hold no epoch, so that worker processes need not be told.
    """

    def __init__(self, examples: Examples, step_size: int = 1):
        self.examples = examples
        self.step_size = step_size  # examples of a step on all processes
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch
        self.examples.plan(epoch)  # here, in the process that can say what is wrong, and before workers are forked

    def __len__(self) -> int:
        return -(-len(self.examples) // self.step_size) * self.step_size

    def __iter__(self) -> Iterator[int]:
        return islice(self.again_and_again(), len(self))

    def again_and_again(self) -> Iterator[int]:
        size, epoch = len(self.examples), self.epoch
        while True:
            for numbers in shuffled(size, (self.examples.seed, epoch)):
                yield from (epoch * size + numbers).tolist()


def shuffled(size: int, seed: tuple[int, ...], chunk: int = 2**16) -> Iterator[np.ndarray]:
    """
    The numbers 0 to size - 1 in random order, some at a time, without holding all of them.

    A Feistel network (Luby and Rackoff, 1988) permutes the numbers of an even count of bits; those below `size` are a
    permutation too.
    """
    half = max((size - 1).bit_length() + 1, 2) // 2
    keys = np.random.default_rng(seed).integers(2**63, size=SHUFFLE_ROUNDS, dtype=np.uint64)
    for start in range(0, 4**half, chunk):
        number = np.arange(start, min(start + chunk, 4**half), dtype=np.uint64)
        left, right = number >> np.uint64(half), number & np.uint64(2**half - 1)
        for key in keys:
            mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio; wraps around
            left, right = right, left ^ mixed >> np.uint64(64 - half)  # the best mixed bits are the highest
        number = (left << np.uint64(half) | right).astype(np.int64)
        yield number[number < size]
