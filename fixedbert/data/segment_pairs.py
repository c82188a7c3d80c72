"""
Segment pairs A and B with masked tokens and a next-sentence label, for BERT pretraining.

Follows Devlin et al., 2019 (arXiv 1810.04805), section 3.1 and appendix A.1.
"""

import multiprocessing
import random
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ..support.errors import InputError
from ..support.processes import call_task, process_pool
from .examples import Examples
from .store import Documents

IS_NEXT, NOT_NEXT = 0, 1  # values of next_sentence_label, as in transformers
PAIR_FIELDS = ("document_a", "start_a", "end_a", "document_b", "start_b", "end_b", "next_sentence_label")
PLAN_BLOCK = 4096  # documents per task for a worker process


def check_documents(documents: Documents, document_ids: np.ndarray):
    """Raises InputError if there are fewer than two documents, or if most documents contain only one sentence."""
    if len(document_ids) < 2:
        problem = f"next-sentence prediction needs at least 2 documents, but the corpus has {len(document_ids)}"
        raise InputError(f"{problem}; add files, set `document_boundary`, or train with `objective` mlm.")
    single = int((documents.metadata["sentences"][document_ids] == 1).sum())
    if 2 * single > len(document_ids):
        raise InputError(
            f"{single} of {len(document_ids)} documents contain only one sentence, but next-sentence prediction needs "
            "two or more; train with `objective` mlm, or put the sentences of a document on lines between blank lines "
            "and set `document_boundary` to sentence_lines."
        )


def plan_pairs(
    documents: Documents,
    document_ids: np.ndarray,
    max_tokens: int,
    short_seq_prob: float,
    seed: tuple[int, ...],
    first: int = 0,
) -> np.ndarray:
    """
    Divides a block of PLAN_BLOCK documents into segment pairs, starting at index `first` in `document_ids`.

    Each example takes the next sentences from a document: at least two, and enough to contain `max_tokens` tokens, or
    a random smaller number of tokens with probability `short_seq_prob`. The sentences are divided into A and B at a
    random sentence boundary. In half of the examples, B is replaced by a random segment from a different document, and
    the next example starts with the replaced sentences.

    Two rules keep the labels balanced in any text. Sentences that would fill an entire example are first split into
    pieces (see `split_long_sentences`). If only one sentence is left in a document, it is split into A and B.

    Args:
        document_ids: All documents in the epoch, from which random segments are drawn.

    Returns:
        An int32 array (pairs, 7) with one row per pair and the columns PAIR_FIELDS. Starts and ends are token offsets.
    """

    @lru_cache(32)  # a few long documents take a while to split
    def pieces(document: int) -> np.ndarray:
        return split_long_sentences(documents.sentence_ends(document), max_tokens)

    rng = random.Random(" ".join(map(str, (*seed, first))))
    pairs = []
    for document in document_ids[first : first + PLAN_BLOCK].tolist():
        ends = pieces(document).tolist()
        sentence = 0  # index of the first unused sentence
        while sentence < len(ends):
            start = ends[sentence - 1] if sentence else 0
            target = max_tokens if rng.random() >= short_seq_prob else rng.randint(2, max_tokens)
            after = min(max(bisect_left(ends, start + target, lo=sentence) + 1, sentence + 2), len(ends))
            alone = after - sentence == 1
            middle = after if alone else rng.randint(sentence + 1, after - 1)
            end = ends[after - 1]
            if rng.random() < 0.5 or end - start == 1:
                other = document
                while other == document:
                    other = int(document_ids[rng.randrange(len(document_ids))])
                min_tokens = max(target - (ends[middle - 1] - start), 1)
                start_b, end_b = random_segment(pieces(other), min_tokens, rng)
                pairs.append((document, start, ends[middle - 1], other, start_b, end_b, NOT_NEXT))
                sentence = middle
            else:
                cut = rng.randint(start + 1, end - 1) if alone else ends[middle - 1]
                pairs.append((document, start, cut, document, cut, end, IS_NEXT))
                sentence = after
    return np.array(pairs, dtype=np.int32).reshape(-1, len(PAIR_FIELDS))


def split_long_sentences(ends: np.ndarray, max_tokens: int) -> np.ndarray:
    """
    Splits sentences of `max_tokens` or more tokens into as few pieces of nearly equal length as possible, so that
    each leaves room for a second segment. Takes the end offsets of the sentences, and returns those of the pieces.
    """
    lengths = np.diff(ends, prepend=0)
    pieces = -(-lengths // (max_tokens - 1))
    if len(pieces) == pieces.sum():
        return ends
    last = np.cumsum(pieces)  # index of the last piece in each sentence, plus 1
    position = np.arange(last[-1]) - np.repeat(last - pieces, pieces) + 1  # 1-based, in the sentence
    return np.repeat(ends - lengths, pieces) + np.repeat(lengths, pieces) * position // np.repeat(pieces, pieces)


def random_segment(ends: np.ndarray, min_tokens: int, rng: random.Random) -> tuple[int, int]:
    """
    Returns the start and end offsets of a random segment in a document.

    The segment starts with a random piece, and all pieces are equally likely. It has at least `min_tokens` tokens
    unless the document ends first. `ends` are the ends of the pieces from `split_long_sentences`.
    """
    first = rng.randrange(len(ends))
    start = int(ends[first - 1]) if first else 0
    last = min(bisect_left(ends, start + min_tokens, lo=first), len(ends) - 1)
    return start, int(ends[last])


def truncate_pair(
    a: np.ndarray, b: np.ndarray, max_tokens: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """
    Removes tokens one by one, from the start or end of the currently longer segment at random, until both segments
    together have at most `max_tokens` tokens.
    """
    surplus = len(a) + len(b) - max_tokens
    if surplus > 0:
        from_longer = min(surplus, abs(len(a) - len(b)))
        rest = surplus - from_longer  # once both are equally long, they are shortened alternately
        cut_a, cut_b = rest // 2, rest - rest // 2
        if len(a) > len(b):
            cut_a += from_longer
        else:
            cut_b += from_longer
        front_a, front_b = rng.binomial((cut_a, cut_b), 0.5)
        a = a[front_a : len(a) - (cut_a - front_a)]
        b = b[front_b : len(b) - (cut_b - front_b)]
    return a, b


class PairExamples(Examples):
    """
    Dataset of segment pairs `[CLS] A [SEP] B [SEP]` with masked tokens and a next-sentence label.

    Each epoch draws new random pairs.

    Args:
        short_seq_prob: Fraction of pairs that are shortened to a random length.
    """

    kind = "pairs"
    plan_dtype, plan_columns = np.int32, len(PAIR_FIELDS)

    def __init__(self, *args, short_seq_prob: float = 0.1, **kwargs):
        super().__init__(*args, **kwargs)
        self.short_seq_prob = short_seq_prob

    @property
    def max_tokens(self) -> int:
        return self.max_seq_length - 3

    def plan_settings(self) -> tuple:
        return *super().plan_settings(), self.max_seq_length, self.short_seq_prob

    def make_plan(self, document_ids: np.ndarray, epoch: int) -> Iterator[np.ndarray]:
        check_documents(self.documents, document_ids)
        starts = range(0, len(document_ids), PLAN_BLOCK)
        arguments = (self.documents, document_ids, self.max_tokens, self.short_seq_prob, (self.seed, epoch))
        # Data loader workers are daemonic and cannot start processes.
        if self.num_proc == 1 or len(starts) < 16 or multiprocessing.current_process().daemon:
            yield from (plan_pairs(*arguments, start) for start in starts)
        else:
            with process_pool(self.num_proc, plan_pairs, *arguments) as pool:
                yield from pool.map(call_task, starts)

    def count_examples(self, plan: np.ndarray) -> int:
        return len(plan)

    def __getitem__(self, index: int) -> dict[str, np.ndarray | int]:
        epoch, index = divmod(index, self.length)
        rng = np.random.default_rng((self.seed, epoch, index))
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
        example = self.mask_example(input_ids, rng)
        return {**example, "token_type_ids": token_type_ids, "next_sentence_label": label}
