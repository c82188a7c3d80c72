"""Similarities between the embeddings of texts."""

from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.nn.functional import normalize

from .glue_metrics import MEASURES

CHUNK = 512  # texts whose similarities to all others are in memory at once
SAME_TEXT = 1 - 1e-6  # lowest cosine of two copies of a text, which are not neighbours of each other
ROUNDING = 1e-4  # difference of two cosines that are treated as equal


class Neighbours(NamedTuple):
    """The most similar other text for each of n texts. Texts without any other have the cosine -inf."""

    indices: Tensor  # (n,)
    cosines: Tensor  # (n,)
    unchanged: Tensor  # (n,), whether it is also, up to rounding, the most similar text for the original model


@torch.no_grad()
def nearest_neighbours(embeddings: Tensor, original: Tensor) -> Neighbours:
    """
    Finds the nearest neighbours among the embeddings (n, D) of a model.

    Args:
        original: The embeddings of the original model. Texts that have the same embedding there are copies of one
            text, which every model finds most similar; therefore, they are not neighbours.
    """
    embeddings, original = (normalize(x.double(), dim=-1) for x in (embeddings, original))
    parts = []
    for begin in range(0, len(embeddings), CHUNK):
        rows = slice(begin, begin + CHUNK)
        similarity, reference = embeddings[rows] @ embeddings.T, original[rows] @ original.T
        copies = reference > SAME_TEXT
        copies[:, rows].fill_diagonal_(True)
        similarity, reference = (x.masked_fill(copies, -torch.inf) for x in (similarity, reference))
        cosines, indices = similarity.max(dim=1)
        unchanged = reference.gather(1, indices[:, None])[:, 0] >= reference.amax(dim=1) - ROUNDING
        parts.append(Neighbours(indices, cosines, unchanged))
    return Neighbours(*map(torch.cat, zip(*parts, strict=True)))


def similarity_scores(embeddings: Tensor, labels: np.ndarray, are_relevant: bool) -> dict[str, float]:
    """
    Scores the cosine similarity of pairs of texts.

    Args:
        embeddings: Embeddings (2 * n, D) of both texts of each pair, one after the other.
        labels: The expected similarities (n,).
        are_relevant: Whether labels are 0 or 1. If so, returns the average precision, otherwise Pearson and Spearman
            correlation.
    """
    first, second = normalize(embeddings.double(), dim=-1).view(len(labels), 2, -1).unbind(1)
    cosines = (first * second).sum(-1).numpy()
    if are_relevant:
        return {"average_precision": float(average_precision_score(labels, cosines)) if labels.any() else 0.0}
    return {name: float(MEASURES[name](labels, cosines)) for name in ("pearson", "spearmanr")}


def are_binary(labels: np.ndarray) -> bool:
    """Returns True if all labels are 0 or 1, so that they say which rows are relevant instead of how much."""
    return bool(np.isin(labels, (0, 1)).all())
