"""
BERT's pretraining examples: pairs of segments for next-sentence prediction, with masked tokens.

After Devlin et al., 2019 (arXiv 1810.04805), section 3.1 and appendix A.1.
"""

import multiprocessing
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from ..support.errors import InputError
from ..support.processes import call_work, process_pool
from .documents import Documents
from .epochs import Examples

CONTINUES, RANDOM = 0, 1  # next_sentence_label, as in transformers' BERT
PAIR_FIELDS = ("document_a", "start_a", "end_a", "document_b", "start_b", "end_b", "next_sentence_label")
PLANNED_TOGETHER = 4096  # documents
CHECKED_PAIRS = 300  # by chance the share of fewer can be far from half
FARTHEST_FROM_HALF = 0.1


def check_pairs(documents: Documents, numbers: np.ndarray):
    """
    Raises:
        InputError: one document alone, or mostly single sentences, which next-sentence prediction cannot use.
    """
    remedy = "choose what ends a document with `document_boundary`, or train with `objective` mlm"
    if len(numbers) < 2:
        raise InputError(
            f"the corpus has {len(numbers)} document(s) with text, and next-sentence prediction needs at least 2 for "
            f"training and 2 held out: give more files, {remedy}."
        )
    single = int((documents.table["sentences"][numbers] == 1).sum())
    if 2 * single > len(numbers):
        raise InputError(
            f"{single} of the {len(numbers)} documents are a single sentence, and next-sentence prediction needs two: "
            f"put the sentences of a document into one row, {remedy}."
        )


def check_labels(labels: np.ndarray):
    """
    Args:
        labels: next-sentence labels (pairs,).

    Raises:
        InputError: of CHECKED_PAIRS or more the share of random second segments is far from half.
    """
    share = (labels == RANDOM).mean() if len(labels) else 0.5
    if len(labels) >= CHECKED_PAIRS and abs(share - 0.5) > FARTHEST_FROM_HALF:
        raise InputError(
            f"{share:.0%} of {len(labels):,} second segments are random and not the continuation, so that "
            "next-sentence prediction learns to say so: most documents are too short for a pair that continues; put "
            "more text into each with `document_boundary`, or train with `objective` mlm."
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
    The two segments of every example, int32 (pairs, 7) with the columns PAIR_FIELDS. Starts and ends count tokens.

    Reads each of the documents `numbers` once. Sentences of up to `max_tokens` in all (or fewer, with the probability
    `short_seq_prob`), at least two, are cut into two segments at a random sentence. Half of the second segments are
    replaced by one from another document, drawn from `others`; the sentences that they replace begin the next example.
    A sentence that fills the row is cut first (see `ends_in_rows`), and one that is alone at the end of its document
    continues within itself, so that no kind of text decides the label.
    """
    rng = random.Random(" ".join(map(str, seed)))
    pairs = []
    for number in numbers.tolist():
        ends = ends_in_rows(documents.ends(number), max_tokens).tolist()
        sentence = 0  # the first one that is not used yet
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
                wanted = max(target - (ends[middle - 1] - start), 1)
                start_b, end_b = random_segment(documents.ends(other), wanted, max_tokens, rng)
                pairs.append((number, start, ends[middle - 1], other, start_b, end_b, RANDOM))
                sentence = middle
            else:
                cut = rng.randint(start + 1, end - 1) if alone else ends[middle - 1]
                pairs.append((number, start, cut, number, cut, end, CONTINUES))
                sentence = after
    return np.array(pairs, dtype=np.int32).reshape(-1, len(PAIR_FIELDS))


def ends_in_rows(ends: np.ndarray, max_tokens: int) -> np.ndarray:
    """
    The ends of sentences (sentences,) and of the pieces of those that fill a row: as few pieces as are shorter than
    `max_tokens`, as equal as can be.
    """
    lengths = np.diff(ends, prepend=0)
    pieces = -(-lengths // (max_tokens - 1))
    if len(pieces) == pieces.sum():
        return ends
    last = np.cumsum(pieces)  # of each sentence
    number = np.arange(last[-1]) - np.repeat(last - pieces, pieces) + 1  # of a piece in its sentence
    return np.repeat(ends - lengths, pieces) + np.repeat(lengths, pieces) * number // np.repeat(pieces, pieces)


def random_segment(ends: np.ndarray, wanted: int, max_tokens: int, rng: random.Random) -> tuple[int, int]:
    """
    Start and end of sentences or pieces, as `ends_in_rows` has them, from a random one on: at least `wanted` tokens if
    there are as many.

    Each piece is as likely as any other, without a list of all. Sentences are drawn with the weight 1 + length /
    (max_tokens - 1), which is more than their pieces but not twice as much, and the surplus is drawn again.
    """
    longest = max_tokens - 1
    while True:
        place = rng.random() * (len(ends) + int(ends[-1]) / longest)
        first = int(place) if place < len(ends) else bisect_right(ends, (place - len(ends)) * longest)
        first = min(first, len(ends) - 1)  # a float can be rounded up
        start, length, pieces = sentence_of(ends, first, longest)
        if rng.random() * (1 + length / longest) < pieces:
            break
    start += length * rng.randrange(pieces) // pieces
    last = min(bisect_left(ends, start + wanted, lo=first), len(ends) - 1)
    start_of_last, length, pieces = sentence_of(ends, last, longest)
    needed = min(-(-(start + wanted - start_of_last) * pieces // length), pieces)
    return start, start_of_last + length * needed // pieces


def sentence_of(ends: np.ndarray, number: int, longest: int) -> tuple[int, int, int]:
    """Start, tokens and pieces of a sentence."""
    start = int(ends[number - 1]) if number else 0
    length = int(ends[number]) - start
    return start, length, -(-length // longest)


def truncate_pair(
    a: np.ndarray, b: np.ndarray, max_tokens: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the longer of two segments until both fit, each token at the front or at the end with equal probability."""
    surplus = len(a) + len(b) - max_tokens
    if surplus > 0:
        from_longer = min(surplus, abs(len(a) - len(b)))
        rest = surplus - from_longer  # now both are equally long, and cut in turn
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
    """The pairs of the PLANNED_TOGETHER documents from `start` on, of an epoch with the documents `numbers`."""
    block = numbers[start : start + PLANNED_TOGETHER]
    return plan_pairs(documents, block, numbers, max_tokens, short_seq_prob, (*seed, start))


class PairExamples(Examples):
    """
    `[CLS] a [SEP] b [SEP]` with masked tokens and the next-sentence label. Every epoch draws other pairs.

    Args:
        short_seq_prob: the share of pairs that are shorter.
    """

    kind = "pairs"
    plan_row = np.int32, len(PAIR_FIELDS)

    def __init__(self, *args, short_seq_prob: float = 0.1, **kwargs):
        super().__init__(*args, **kwargs)
        self.short_seq_prob = short_seq_prob
        self.length = self.rows(self.plan(0))

    @property
    def max_tokens(self) -> int:
        return self.max_seq_length - 3

    def settings(self) -> tuple:
        return *super().settings(), self.short_seq_prob

    def make_plan(self, epoch: int) -> Iterator[np.ndarray]:
        numbers = self.documents_of_epoch(epoch)
        check_pairs(self.documents, np.unique(numbers))
        starts = range(0, len(numbers), PLANNED_TOGETHER)
        arguments = (self.documents, numbers, self.max_tokens, self.short_seq_prob, (self.seed, epoch))
        # A worker of a data loader may have no children.
        if self.num_proc == 1 or len(starts) < 16 or multiprocessing.current_process().daemon:
            yield from (plan_block(*arguments, start) for start in starts)
        else:
            with process_pool(self.num_proc, plan_block, *arguments) as pool:
                yield from pool.map(call_work, starts)

    def rows(self, plan: np.ndarray) -> int:
        check_labels(plan[:, -1])
        return len(plan)

    @property
    def random_share(self) -> float:
        """The share of random second segments in epoch 0."""
        return float((self.plan(0)[:, -1] == RANDOM).mean())

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
            **self.masked(input_ids, maskable, rng),
            "token_type_ids": token_type_ids,
            "next_sentence_label": label,
        }
