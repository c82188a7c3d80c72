"""
BERT's pretraining examples: pairs of segments for next-sentence prediction, with masked tokens.

After Devlin et al., 2019 (arXiv 1810.04805), section 3.1 and appendix A.1.
"""

import multiprocessing
import random
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from ..errors import InputError
from .documents import Documents
from .epochs import Examples
from .processes import call_work, process_pool

CONTINUES, RANDOM = 0, 1  # next_sentence_label, as in transformers' BERT
PAIR_FIELDS = ("document_a", "start_a", "end_a", "document_b", "start_b", "end_b", "next_sentence_label")
PLANNED_TOGETHER = 4096  # documents


def check_pairs(documents: Documents, numbers: np.ndarray):
    """
    Raises:
        InputError: one document alone, or mostly single sentences, which next-sentence prediction cannot use.
    """
    remedy = "choose what ends a document with --document_boundary, or train with --objective mlm"
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

    Reads each of the documents `numbers` once. Whole sentences of up to `max_tokens` (or fewer, with the probability
    `short_seq_prob`) are cut into two segments at a random sentence. Half of the second segments are replaced by one
    from another document, drawn from `others`; the sentences that they replace begin the next example.
    """
    rng = random.Random(" ".join(map(str, seed)))
    pairs = []
    for number in numbers.tolist():
        ends = documents.ends(number).tolist()
        sentence = 0  # the first one that is not used yet
        while sentence < len(ends):
            start = ends[sentence - 1] if sentence else 0
            target = max_tokens if rng.random() >= short_seq_prob else rng.randint(2, max_tokens)
            after = min(bisect_left(ends, start + target, lo=sentence) + 1, len(ends))
            # At least one sentence for each segment. The last sentence, if alone, gets a random second segment.
            middle = rng.randint(sentence + 1, after - 1) if after - sentence > 1 else after
            if middle == after or rng.random() < 0.5:
                other = number
                while other == number:
                    other = int(others[rng.randrange(len(others))])
                other_ends = documents.ends(other)
                first = rng.randrange(len(other_ends))
                start_b = int(other_ends[first - 1]) if first else 0
                wanted = max(target - (ends[middle - 1] - start), 1)
                last = min(bisect_left(other_ends, start_b + wanted, lo=first), len(other_ends) - 1)
                pairs.append((number, start, ends[middle - 1], other, start_b, int(other_ends[last]), RANDOM))
                sentence = middle
            else:
                pairs.append((number, start, ends[middle - 1], number, ends[middle - 1], ends[after - 1], CONTINUES))
                sentence = after
    return np.array(pairs, dtype=np.int32).reshape(-1, len(PAIR_FIELDS))


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
        return len(plan)

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
