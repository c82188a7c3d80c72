"""
BERT's pretraining examples: pairs of segments for next-sentence prediction, with masked tokens.

After Devlin et al., 2019 (arXiv 1810.04805), section 3.1 and appendix A.1. An example is a pure function of (seed,
epoch, index): however many workers and processes there are, and wherever a run is continued, they see the same ones.
"""

import random
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .documents import Documents

CONTINUES, RANDOM = 0, 1  # next_sentence_label, as in transformers' BERT
PAIR_FIELDS = ("document_a", "start_a", "end_a", "document_b", "start_b", "end_b", "next_sentence_label")


def usable_documents(documents: Documents) -> np.ndarray:
    """
    Numbers of the documents that have text.

    Raises:
        InputError: next-sentence prediction makes no sense, with one document or mostly single sentences.
    """
    sentences = np.array([len(documents.ends(number)) for number in range(len(documents))])
    numbers = np.flatnonzero(sentences)
    remedy = "choose what ends a document with --document_boundary"
    if len(numbers) < 2:
        raise InputError(
            f"the corpus has {len(numbers)} document(s) with text, and next-sentence prediction needs at least 2 for "
            f"training and 2 held out: give more files, or {remedy}."
        )
    single = int((sentences == 1).sum())
    if 2 * single > len(numbers):
        raise InputError(
            f"{single} of the {len(numbers)} documents are a single sentence, and next-sentence prediction needs two: "
            f"put the sentences of a document into one row, or {remedy}."
        )
    return numbers


def split_documents(documents: Documents, held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the documents for training and of those held out, always the same: a share of all, at least 2."""
    numbers = usable_documents(documents)
    if len(numbers) < 4:
        raise InputError(
            f"the corpus has {len(numbers)} documents with text, too few to hold 2 out and train on 2: give more "
            "files, a --validation_file, or choose what ends a document with --document_boundary."
        )
    shuffled = np.random.default_rng(0).permutation(numbers)
    held = min(max(round(held_out * len(numbers)), 2), len(numbers) - 2)
    return np.sort(shuffled[held:]), np.sort(shuffled[:held])


def plan_pairs(
    documents: Documents, numbers: np.ndarray, max_tokens: int, short_seq_prob: float, seed: int, epoch: int
) -> np.ndarray:
    """
    Where the two segments of every example of an epoch begin and end, int32 (pairs, 7) with the columns PAIR_FIELDS.

    Goes through each document once: whole sentences up to `max_tokens` (now and then, with `short_seq_prob`, fewer)
    are cut into two segments at a random sentence. Half of the second segments are replaced by one from a random
    other document, and what they displaced is put back, to be used next. Starts and ends count tokens.
    """
    rng = random.Random(f"{seed} {epoch}")
    ends_of = {number: documents.ends(number).tolist() for number in numbers.tolist()}
    others = list(ends_of)
    pairs = []
    for number, ends in ends_of.items():
        sentence = 0  # the first one not used yet
        while sentence < len(ends):
            start = ends[sentence - 1] if sentence else 0
            target = max_tokens if rng.random() >= short_seq_prob else rng.randint(2, max_tokens)
            after = min(bisect_left(ends, start + target, lo=sentence) + 1, len(ends))
            # at least one sentence for each segment; a last one that stands alone gets a random second
            middle = rng.randint(sentence + 1, after - 1) if after - sentence > 1 else after
            if middle == after or rng.random() < 0.5:
                other = rng.choice(others)
                while other == number:
                    other = rng.choice(others)
                other_ends = ends_of[other]
                first = rng.randrange(len(other_ends))
                start_b = other_ends[first - 1] if first else 0
                wanted = max(target - (ends[middle - 1] - start), 1)
                last = min(bisect_left(other_ends, start_b + wanted, lo=first), len(other_ends) - 1)
                pairs.append((number, start, ends[middle - 1], other, start_b, other_ends[last], RANDOM))
                sentence = middle
            else:
                pairs.append((number, start, ends[middle - 1], number, ends[middle - 1], ends[after - 1], CONTINUES))
                sentence = after
    return np.array(pairs, dtype=np.int32).reshape(-1, len(PAIR_FIELDS))


def truncate_pair(a: np.ndarray, b: np.ndarray, max_tokens: int, rng: np.random.Generator):
    """Shorten the longer of two segments until both fit, each token from the front or the end by a fair coin."""
    surplus = len(a) + len(b) - max_tokens
    if surplus > 0:
        from_longer = min(surplus, abs(len(a) - len(b)))
        rest = surplus - from_longer  # the two are now equally long and lose tokens in turn
        cut_a, cut_b = rest // 2, rest - rest // 2
        if len(a) > len(b):
            cut_a += from_longer
        else:
            cut_b += from_longer
        front_a, front_b = rng.binomial((cut_a, cut_b), 0.5)
        a = a[front_a : len(a) - (cut_a - front_a)]
        b = b[front_b : len(b) - (cut_b - front_b)]
    return a, b


def mask_tokens(
    input_ids: np.ndarray, maskable: np.ndarray, probability: float, mask_id: int, vocab_size: int, rng
) -> tuple[np.ndarray, np.ndarray]:
    """
    BERT's masking: `probability` of the `maskable` positions, at least one, become targets; of these 80 % are replaced
    by [MASK], 10 % by a random token, 10 % stay. Returns the input (L,) and the labels (L,), -100 where no target is.
    """
    count = max(1, round(probability * len(maskable)))
    targets = rng.choice(maskable, size=count, replace=False)
    labels = np.full_like(input_ids, -100)
    labels[targets] = input_ids[targets]
    draw = rng.random(count)
    masked = input_ids.copy()
    masked[targets[draw < 0.8]] = mask_id
    replaced = targets[draw >= 0.9]
    masked[replaced] = rng.integers(vocab_size, size=len(replaced))
    return masked, labels


class PretrainingExamples(torch.utils.data.Dataset):
    """
    Map-style data set of BERT's examples over the documents with the given `numbers`.

    Every epoch draws all pairs anew; `examples[epoch * len(examples) + index]` is the example (seed, epoch, index).
    The length is that of epoch 0, so that steps can be counted; where another epoch has a few pairs more or less, they
    are left out or begin again.
    """

    def __init__(
        self,
        documents: Documents,
        numbers: np.ndarray,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        short_seq_prob: float = 0.1,
        mlm_probability: float = 0.15,
        seed: int = 42,
    ):
        self.documents = documents
        self.numbers = numbers
        self.max_tokens = max_seq_length - 3  # [CLS] a [SEP] b [SEP]
        self.short_seq_prob = short_seq_prob
        self.mlm_probability = mlm_probability
        self.seed = seed
        self.cls, self.sep, self.mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
        self.vocab_size = len(tokenizer)
        self.planned_epoch = None
        self.length = len(self.pairs(0))

    def pairs(self, epoch: int) -> np.ndarray:
        """The plan of an epoch; only the last one asked for is kept."""
        if epoch != self.planned_epoch:
            self.plan = plan_pairs(
                self.documents, self.numbers, self.max_tokens, self.short_seq_prob, self.seed, epoch
            )
            self.planned_epoch = epoch
        return self.plan

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, np.ndarray | int]:
        epoch, index = divmod(index, self.length)
        rng = np.random.default_rng((self.seed, epoch, index))
        pairs = self.pairs(epoch)
        document_a, start_a, end_a, document_b, start_b, end_b, label = pairs[index % len(pairs)].tolist()
        a, b = truncate_pair(
            self.documents.tokens(document_a)[start_a:end_a],
            self.documents.tokens(document_b)[start_b:end_b],
            self.max_tokens,
            rng,
        )
        input_ids = np.concatenate(([self.cls], a, [self.sep], b, [self.sep])).astype(np.int64)
        token_type_ids = np.zeros_like(input_ids)
        token_type_ids[len(a) + 2 :] = 1
        maskable = np.delete(np.arange(len(input_ids)), [0, len(a) + 1, len(input_ids) - 1])
        masked, labels = mask_tokens(input_ids, maskable, self.mlm_probability, self.mask, self.vocab_size, rng)
        return {
            "input_ids": masked,
            "token_type_ids": token_type_ids,
            "labels": labels,
            "next_sentence_label": label,
        }


class EpochSampler(torch.utils.data.Sampler):
    """
    Every example once, in an order of its own in each epoch, by numbers that name the epoch too.

    The examples themselves hold no epoch, so that worker processes need not be told. accelerate tells either the
    sampler or the data set, depending on how many processes there are and whether a run is continued.
    """

    def __init__(self, examples: PretrainingExamples):
        self.examples = examples
        self.epoch = 0
        examples.set_epoch = self.set_epoch

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self):
        order = np.random.default_rng((self.examples.seed, self.epoch)).permutation(len(self.examples))
        yield from (self.epoch * len(self.examples) + order).tolist()


@dataclass
class PretrainingCollator:
    """Pads examples to the longest of the batch: ids, types, mask and labels (B, L), next_sentence_label (B)."""

    pad_token_id: int

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        length = max(len(example["input_ids"]) for example in examples)
        padding = {"input_ids": self.pad_token_id, "token_type_ids": 0, "labels": -100}
        batch = {name: np.full((len(examples), length), value) for name, value in padding.items()}
        batch["attention_mask"] = np.zeros((len(examples), length), dtype=np.int64)
        for row, example in enumerate(examples):
            for name in padding:
                batch[name][row, : len(example[name])] = example[name]
            batch["attention_mask"][row, : len(example["input_ids"])] = 1
        batch["next_sentence_label"] = np.array([example["next_sentence_label"] for example in examples])
        return {name: torch.from_numpy(array) for name, array in batch.items()}
