"""
BERT's pretraining examples: segment pairs A and B with masked tokens and a next-sentence label.

After Devlin et al., 2019 (arXiv 1810.04805), section 3.1 and appendix A.1.
"""

import multiprocessing
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from ..support.errors import InputError
from ..support.processes import call_task, process_pool
from .examples import Examples
from .store import Documents

IS_NEXT, NOT_NEXT = 0, 1  # next_sentence_label, as in transformers' BERT
PAIR_FIELDS = ("document_a", "start_a", "end_a", "document_b", "start_b", "end_b", "next_sentence_label")
PLAN_BLOCK = 4096  # documents
MIN_CHECKED_PAIRS = 300  # among fewer, the share of random pairs can be far from half by chance
MAX_DEVIATION = 0.1


def check_documents(documents: Documents, numbers: np.ndarray):
    """Raises InputError for a single document or mostly single sentences, from which no pairs can be made."""
    remedy = "add files, or set `document_boundary`, or train with `objective` mlm"
    if len(numbers) < 2:
        raise InputError(
            f"next-sentence prediction needs 2 documents for training and 2 held out, but the corpus has "
            f"{len(numbers)}; {remedy}."
        )
    single = int((documents.metadata["sentences"][numbers] == 1).sum())
    if 2 * single > len(numbers):
        raise InputError(
            f"{single} of the {len(numbers)} documents are a single sentence, but next-sentence prediction needs two; "
            f"{remedy}."
        )


def check_labels(labels: np.ndarray):
    """Raises InputError if far more or less than half of the next-sentence labels (pairs,) are NOT_NEXT."""
    share = (labels == NOT_NEXT).mean() if len(labels) else 0.5
    if len(labels) >= MIN_CHECKED_PAIRS and abs(share - 0.5) > MAX_DEVIATION:
        raise InputError(
            f"{share:.0%} of {len(labels):,} pairs have a random second segment, which next-sentence prediction would "
            "learn to guess, because most documents are too short; set `document_boundary` so that documents are "
            "longer, or train with `objective` mlm."
        )


def plan_pairs(
    documents: Documents,
    numbers: np.ndarray,
    others: np.ndarray,
    max_tokens: int,
    short_seq_prob: float,
    seed: tuple[int, ...],
) -> np.ndarray:
    """
    Returns the two segments of every example, int32 (pairs, 7) with the columns PAIR_FIELDS. Starts and ends count
    tokens.

    Goes through each of the documents `numbers` once. Takes sentences of up to `max_tokens` in total (fewer with
    probability `short_seq_prob`), at least two, and divides them into segments A and B at a random sentence. Half of
    the segments B are replaced by one from a different document, drawn from `others`; the replaced sentences then
    begin the next example. So that the label does not depend on the kind of text, a sentence that would fill an
    example is first divided into pieces (see `split_long_sentences`), and a last sentence that is alone is divided
    into A and B.
    """
    rng = random.Random(" ".join(map(str, seed)))
    pairs = []
    for number in numbers.tolist():
        ends = split_long_sentences(documents.sentence_ends(number), max_tokens).tolist()
        sentence = 0  # the first unused one
        while sentence < len(ends):
            start = ends[sentence - 1] if sentence else 0
            target = max_tokens if rng.random() >= short_seq_prob else rng.randint(2, max_tokens)
            after = min(max(bisect_left(ends, start + target, lo=sentence) + 1, sentence + 2), len(ends))
            alone = after - sentence == 1
            middle = after if alone else rng.randint(sentence + 1, after - 1)
            end = ends[after - 1]
            if rng.random() < 0.5 or end - start == 1:
                other = number
                while other == number:
                    other = int(others[rng.randrange(len(others))])
                min_tokens = max(target - (ends[middle - 1] - start), 1)
                start_b, end_b = random_segment(documents.sentence_ends(other), min_tokens, max_tokens, rng)
                pairs.append((number, start, ends[middle - 1], other, start_b, end_b, NOT_NEXT))
                sentence = middle
            else:
                cut = rng.randint(start + 1, end - 1) if alone else ends[middle - 1]
                pairs.append((number, start, cut, number, cut, end, IS_NEXT))
                sentence = after
    return np.array(pairs, dtype=np.int32).reshape(-1, len(PAIR_FIELDS))


def split_long_sentences(ends: np.ndarray, max_tokens: int) -> np.ndarray:
    """
    Divides sentences of `max_tokens` or more into the smallest number of pieces that are shorter, of nearly equal
    length. Takes the ends of sentences (sentences,) and returns the ends of the pieces.
    """
    lengths = np.diff(ends, prepend=0)
    pieces = -(-lengths // (max_tokens - 1))
    if len(pieces) == pieces.sum():
        return ends
    last = np.cumsum(pieces)  # of each sentence
    number = np.arange(last[-1]) - np.repeat(last - pieces, pieces) + 1  # of a piece in its sentence
    return np.repeat(ends - lengths, pieces) + np.repeat(lengths, pieces) * number // np.repeat(pieces, pieces)


def random_segment(ends: np.ndarray, min_tokens: int, max_tokens: int, rng: random.Random) -> tuple[int, int]:
    """
    Returns start and end of a segment that begins at a random piece of `split_long_sentences` and has at least
    `min_tokens`, if the document is long enough.

    All pieces are equally likely, without a list of them: sentences are drawn with weight
    1 + length / (max_tokens - 1), which is more than their number of pieces but less than twice as much, and rejection
    removes the surplus.
    """
    longest = max_tokens - 1
    while True:
        drawn = rng.random() * (len(ends) + int(ends[-1]) / longest)
        first = int(drawn) if drawn < len(ends) else bisect_right(ends, (drawn - len(ends)) * longest)
        first = min(first, len(ends) - 1)  # a float can be rounded up
        start, length, pieces = sentence_at(ends, first, longest)
        if rng.random() * (1 + length / longest) < pieces:
            break
    start += length * rng.randrange(pieces) // pieces
    last = min(bisect_left(ends, start + min_tokens, lo=first), len(ends) - 1)
    start_of_last, length, pieces = sentence_at(ends, last, longest)
    needed = min(-(-(start + min_tokens - start_of_last) * pieces // length), pieces)
    return start, start_of_last + length * needed // pieces


def sentence_at(ends: np.ndarray, index: int, longest: int) -> tuple[int, int, int]:
    """Returns the start of a sentence, its length in tokens and its number of pieces."""
    start = int(ends[index - 1]) if index else 0
    length = int(ends[index]) - start
    return start, length, -(-length // longest)


def truncate_pair(
    a: np.ndarray, b: np.ndarray, max_tokens: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Removes tokens from the longer segment until both fit, each at the front or the end with equal probability."""
    surplus = len(a) + len(b) - max_tokens
    if surplus > 0:
        from_longer = min(surplus, abs(len(a) - len(b)))
        rest = surplus - from_longer  # now both are equally long and are truncated alternately
        cut_a, cut_b = rest // 2, rest - rest // 2
        if len(a) > len(b):
            cut_a += from_longer
        else:
            cut_b += from_longer
        front_a, front_b = rng.binomial((cut_a, cut_b), 0.5)
        a = a[front_a : len(a) - (cut_a - front_a)]
        b = b[front_b : len(b) - (cut_b - front_b)]
    return a, b


def plan_block(
    documents: Documents,
    numbers: np.ndarray,
    max_tokens: int,
    short_seq_prob: float,
    seed: tuple[int, ...],
    start: int,
) -> np.ndarray:
    """Returns the pairs for PLAN_BLOCK of the documents `numbers` in an epoch, beginning with the one at `start`."""
    block = numbers[start : start + PLAN_BLOCK]
    return plan_pairs(documents, block, numbers, max_tokens, short_seq_prob, (*seed, start))


class PairExamples(Examples):
    """
    `[CLS] A [SEP] B [SEP]` with masked tokens and the next-sentence label. Every epoch draws new pairs.

    Args:
        short_seq_prob: share of pairs that are made shorter.
    """

    kind = "pairs"
    plan_dtype, plan_columns = np.int32, len(PAIR_FIELDS)

    def __init__(self, *args, short_seq_prob: float = 0.1, **kwargs):
        super().__init__(*args, **kwargs)
        self.short_seq_prob = short_seq_prob
        self.length = self.count_examples(self.plan(0))

    @property
    def max_tokens(self) -> int:
        return self.max_seq_length - 3

    def plan_settings(self) -> tuple:
        return *super().plan_settings(), self.short_seq_prob

    def make_plan(self, epoch: int) -> Iterator[np.ndarray]:
        numbers = self.documents_in_epoch(epoch)
        check_documents(self.documents, np.unique(numbers))
        starts = range(0, len(numbers), PLAN_BLOCK)
        arguments = (self.documents, numbers, self.max_tokens, self.short_seq_prob, (self.seed, epoch))
        # A daemonic data-loader worker cannot start processes.
        if self.num_proc == 1 or len(starts) < 16 or multiprocessing.current_process().daemon:
            yield from (plan_block(*arguments, start) for start in starts)
        else:
            with process_pool(self.num_proc, plan_block, *arguments) as pool:
                yield from pool.map(call_task, starts)

    def count_examples(self, plan: np.ndarray) -> int:
        check_labels(plan[:, -1])
        return len(plan)

    @property
    def random_share(self) -> float:
        """The share of random second segments in epoch 0."""
        return float((self.plan(0)[:, -1] == NOT_NEXT).mean())

    def __getitem__(self, index: int) -> dict[str, np.ndarray | int]:
        epoch, index = divmod(index, self.length)
        rng = self.generator(epoch, index)
        pairs = self.plan(epoch)
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
        return {
            **self.mask_example(input_ids, maskable, rng),
            "token_type_ids": token_type_ids,
            "next_sentence_label": label,
        }
