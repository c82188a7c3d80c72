"""
Pretraining examples as a pure function of (seed, epoch, index), their masking and their order in an epoch.

An example depends on nothing but these three numbers and the store. Any number of workers and processes, and a resumed
run, therefore see the same examples.
"""

import copy
import hashlib
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..support.checksums import stable_hash
from ..support.errors import InputError
from .store import Documents

PLAN_FORMAT = 2  # raise it when the same documents would give a different plan
SHUFFLE_ROUNDS = 6


def split_documents(documents: Documents, held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """
    Returns the numbers of the training documents and of the held-out documents, independent of any seed.

    Args:
        held_out: the share to hold out, at least 2 documents.

    Raises:
        InputError: there are fewer than 4 documents.
    """
    if len(documents) < 4:
        raise InputError(
            f"the corpus has {len(documents)} documents with text, and training and held-out data need 2 each; add "
            "files, or set `validation_file` or `document_boundary` (by default a .txt file is one document)."
        )
    permutation = np.random.default_rng(0).permutation(len(documents))
    count = min(max(round(held_out * len(documents)), 2), len(documents) - 2)
    return np.sort(permutation[count:]), np.sort(permutation[:count])


class Examples(torch.utils.data.Dataset):
    """
    Map-style dataset over the documents `numbers`. `examples[epoch * len(examples) + index]` is the example
    (seed, epoch, index).

    Each epoch has a plan, an array that says which tokens form which example. The store caches it. The length is that
    of epoch 0, so that steps can be counted in advance: a longer epoch drops its last examples, and a shorter one
    repeats its first.

    Args:
        max_seq_length: tokens of an example, including special tokens.
        mlm_probability: share of tokens to predict.
        inside_word: the result of `tokens_inside_words` for whole-word masking.
        weights: how often an epoch uses the documents of each corpus; with 0.5 each epoch draws half of them.
        num_proc: number of processes that make a plan.
    """

    kind: str
    plan_dtype: type
    plan_columns: int
    length: int

    def __init__(  # noqa: PLR0913
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
        self.open_epoch: int | None = None

    def __len__(self) -> int:
        return self.length

    def __getstate__(self):  # worker processes open the plan themselves
        return {**self.__dict__, "open_epoch": None, "open_plan": None}

    def plan_settings(self) -> tuple:
        """Returns everything that determines a plan, except the epoch."""
        return PLAN_FORMAT, self.kind, self.numbers_hash, self.seed, self.weights, self.max_seq_length

    def make_plan(self, epoch: int) -> Iterator[np.ndarray]:
        """Yields the plan of an epoch in blocks of rows, (rows, plan_columns)."""
        raise NotImplementedError

    def count_examples(self, plan: np.ndarray) -> int:
        """Returns the number of examples in a plan. Raises InputError if they are unsuitable for training."""
        raise NotImplementedError

    def with_max_seq_length(self, max_seq_length: int) -> "Examples":
        """Returns examples of a different length from the same documents."""
        if max_seq_length == self.max_seq_length:
            return self
        other = copy.copy(self)
        other.max_seq_length, other.open_epoch = max_seq_length, None
        other.length = other.count_examples(other.plan(0))
        return other

    def plan(self, epoch: int) -> np.ndarray:
        """Returns the memory-mapped plan of an epoch. Only the most recent one is kept open."""
        if epoch != self.open_epoch:
            name = f"{self.kind}-{stable_hash(*self.plan_settings())}"
            blocks: Iterator[np.ndarray] = (
                block.astype(self.plan_dtype, copy=False) for block in self.make_plan(epoch)
            )
            path = self.documents.plan(f"{name}-{epoch}", blocks)
            if epoch > 2:  # epoch 0 determines the length
                self.documents.remove_plan(f"{name}-{epoch - 2}")
            self.open_plan = np.memmap(path, self.plan_dtype, "r").reshape(-1, self.plan_columns)
            self.open_epoch = epoch
        return self.open_plan

    def subset(self, count: int | None) -> torch.utils.data.Dataset:
        """Returns at most `count` examples of epoch 0, spread over all of them and independent of the seed."""
        if count is None or count >= len(self):
            return self
        return torch.utils.data.Subset(self, np.random.default_rng(0).choice(len(self), count, replace=False).tolist())

    def documents_in_epoch(self, epoch: int) -> np.ndarray:
        """Returns the sorted document numbers of an epoch; a corpus with weight 2 occurs twice."""
        if self.weights is None or all(weight == 1 for weight in self.weights):
            return self.numbers
        weight = np.array(self.weights)[self.documents.metadata["corpus"][self.numbers]]  # (numbers,)
        rng = np.random.default_rng((self.seed, epoch))
        times = np.floor(weight) + (rng.random(len(weight)) < weight % 1)
        return np.repeat(self.numbers, times.astype(int))

    def generator(self, epoch: int, index: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, epoch, index))

    def mask_example(
        self, input_ids: np.ndarray, maskable: np.ndarray, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        masked, labels = mask_tokens(
            input_ids, maskable, self.mlm_probability, self.mask, self.vocab_size, rng, self.inside_word
        )
        return {"input_ids": masked, "labels": labels}


class PackedExamples(Examples):
    """
    Packed rows of `max_seq_length` tokens, for masked LM without next-sentence prediction and for causal LM. Every
    token in the documents of an epoch is in exactly one row.

    The documents are shuffled, joined as `[CLS] tokens [SEP]` and cut into rows across document boundaries, as in
    RoBERTa's FULL-SENTENCES (Liu et al., 2019, section 4.2). A row that starts inside a document gets an additional
    [CLS]. A row that starts with a document has one already and is one token shorter. The last row may be shorter
    still.

    Args:
        objective: "mlm" masks tokens; "clm" labels everything except [CLS], for a model that predicts the next token.
        separate_documents: restart position ids in each document, by which the model separates documents.
    """

    kind = "packed"
    plan_dtype, plan_columns = np.int64, 2

    def __init__(self, *args, objective: str = "mlm", separate_documents: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.objective = objective
        self.separate_documents = separate_documents
        self.length = self.count_examples(self.plan(0))

    def plan_settings(self) -> tuple:
        return super().plan_settings()[:-1]  # does not depend on max_seq_length

    def make_plan(self, epoch: int) -> Iterator[np.ndarray]:
        """Yields number and start of each document in the order of the epoch. The last row has the end of all."""
        numbers = np.random.default_rng((self.seed, epoch)).permutation(self.documents_in_epoch(epoch))
        ends = np.cumsum(self.documents.metadata["tokens"][numbers].astype(np.int64) + 2)
        yield np.stack([np.append(numbers, -1), np.insert(ends, 0, 0)], axis=1)

    def count_examples(self, plan: np.ndarray) -> int:
        return -(-(int(plan[-1, 1]) - 1) // (self.max_seq_length - 1))  # a final [SEP] alone gets no row

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        epoch, index = divmod(index, self.length)
        rng = self.generator(epoch, index)
        plan = self.plan(epoch)
        begin = index % self.count_examples(plan) * (self.max_seq_length - 1)
        end = min(begin + self.max_seq_length - 1, int(plan[-1, 1]))
        row = int(plan[:, 1].searchsorted(begin, side="right")) - 1
        ids, positions, special = [], [], []
        slot = begin
        while slot < end:  # a piece of a document
            number, start = plan[row].tolist()
            tokens = self.documents.tokens(number)
            first, last = slot - start, min(end - start, len(tokens) + 2)  # slots in [CLS] tokens [SEP]
            closing = [self.sep] if last == len(tokens) + 2 else []
            piece = np.concatenate(([self.cls], tokens[max(first - 1, 0) : last - 1], closing)).astype(np.int64)
            ids.append(piece)
            positions.append(np.arange(len(piece)))
            special.append(np.zeros(len(piece), dtype=bool))
            special[-1][0] = True
            special[-1][-1] |= bool(closing)
            slot, row = start + last, row + 1
        input_ids = np.concatenate(ids)
        if self.objective == "mlm":
            example = self.mask_example(input_ids, np.flatnonzero(~np.concatenate(special)), rng)
        else:
            example = {"input_ids": input_ids, "labels": np.where(input_ids == self.cls, -100, input_ids)}
        if self.separate_documents:
            example["position_ids"] = np.concatenate(positions)
        return example


def target_count(maskable: int, probability: float) -> int:
    """Returns how many of `maskable` tokens become targets: the rounded share, but at least one."""
    return max(1, round(probability * maskable))


def mask_tokens(
    input_ids: np.ndarray,
    maskable: np.ndarray,
    probability: float,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
    inside_word: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Masks tokens as BERT does (Devlin et al., 2019, section 3.1): 80 % of the targets are replaced by [MASK], 10 % by a
    random token, and 10 % are kept.

    Args:
        input_ids: (L,).
        maskable: positions that may become targets.
        probability: share of `maskable` that become targets, at least one.
        inside_word: for whole-word masking, whether each token continues a word, bool (vocab_size,). Targets are then
            as many whole words as fit into that share, and the replacement is drawn once per word.

    Returns:
        The masked input (L,) and the labels (L,), which are -100 everywhere except at targets.
    """
    count = target_count(len(maskable), probability)
    labels = np.full_like(input_ids, -100)
    masked = input_ids.copy()
    if not len(maskable):
        return masked, labels
    if inside_word is None:
        targets = rng.choice(maskable, size=count, replace=False)
        draw = rng.random(count)
    else:
        begins = ~inside_word[input_ids[maskable]]
        begins |= np.diff(maskable, prepend=-2) > 1  # after a special token
        word = np.cumsum(begins) - 1  # (maskable,)
        chosen = choose_words(np.bincount(word), count, rng)
        targets = maskable[chosen[word]]
        draw = rng.random(len(chosen))[word[chosen[word]]]
    labels[targets] = input_ids[targets]
    masked[targets[draw < 0.8]] = mask_id
    replaced = targets[draw >= 0.9]
    masked[replaced] = rng.integers(vocab_size, size=len(replaced))
    return masked, labels


def choose_words(lengths: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Chooses random words of at most `count` tokens in total, or else the shortest word. Returns bool (words,)."""
    chosen = np.zeros(len(lengths), dtype=bool)
    room = count
    for word in rng.permutation(len(lengths)).tolist():
        if lengths[word] <= room:
            chosen[word] = True
            room -= lengths[word]
            if not room:
                break
    if room == count:
        chosen[lengths.argmin()] = True
    return chosen


def tokens_inside_words(tokenizer: PreTrainedTokenizerBase) -> np.ndarray | None:
    """
    Returns whether each token continues a word, bool (vocab_size,): in WordPiece such tokens begin with "##". Returns
    None if there is no such token.
    """
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    inside = np.array([token is not None and token.startswith("##") for token in tokens])
    return inside if inside.any() else None


class EpochSampler(torch.utils.data.Sampler):
    """
    Yields every example once per epoch, in a different order each time. The first examples in this order also fill up
    the last step.

    A sampled index is epoch * len(examples) + index, so that worker processes need not know the epoch.
    """

    def __init__(self, examples: Examples, step_size: int = 1):
        self.examples = examples
        self.step_size = step_size  # examples per step on all processes
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch
        self.examples.plan(epoch)  # before workers are forked, so that errors are reported

    def __len__(self) -> int:
        return -(-len(self.examples) // self.step_size) * self.step_size

    def __iter__(self) -> Iterator[int]:
        return islice(self.cycle(), len(self))

    def cycle(self) -> Iterator[int]:
        size, epoch = len(self.examples), self.epoch
        while True:
            for numbers in shuffled(size, (self.examples.seed, epoch)):
                yield from (epoch * size + numbers).tolist()


def shuffled(size: int, seed: tuple[int, ...], chunk: int = 2**16) -> Iterator[np.ndarray]:
    """
    Yields the numbers 0 to size - 1 in random order, in blocks, without holding all of them in memory.

    A Feistel network (Luby and Rackoff, 1988) permutes all numbers with an even number of bits. Those below `size`, in
    the same order, are a permutation too.
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
