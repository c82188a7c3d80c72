"""STS-B's dev set: embeddings of its sentences, and how well their cosines rank its pairs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import BatchEncoding, PreTrainedTokenizerBase

LONGEST, BATCH = 128, 64  # tokens of a sentence; sentences
Texts = Sequence[str | tuple[str, str]]  # sentences, or pairs of them


class SentencePairs:
    """The 1,500 pairs: `texts` has all first sentences, then all second ones."""

    def __init__(self, data: Path):
        lines = (data / "glue/STS-B/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
        rows = [line.split("\t") for line in lines]
        self.texts = [row[7] for row in rows] + [row[8] for row in rows]
        self.scores = [float(row[9]) for row in rows]

    def embed(self, embed: Callable[[BatchEncoding], Tensor], tokenizer: PreTrainedTokenizerBase) -> Tensor:
        """Embeddings (texts, D) by a function of batches."""
        return in_batches(self.texts, embed, tokenizer)

    def spearman(self, found: Tensor) -> float:
        """Spearman's correlation of the cosines of embeddings (texts, D) with the scores, times 100."""
        half = len(self.scores)
        return 100 * float(spearmanr(cosine_similarity(found[:half], found[half:]), self.scores)[0])


@torch.no_grad()
def in_batches(texts: Texts, work: Callable[[BatchEncoding], Tensor], tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """The results (texts, ...) of a function of batches, in which texts have about the same length."""
    order = sorted(range(len(texts)), key=lambda row: len("".join(texts[row])))
    groups = [order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)]
    found = [work(batch_of([texts[row] for row in rows], tokenizer)) for rows in groups]
    return torch.cat(found)[torch.tensor(order).argsort()]


def batch_of(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> BatchEncoding:
    return tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
