"""How close the predictions of two models for the same rows are, in the measure of their task."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isnan

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from ..loading.loaded_model import head_name
from .entities import OUTSIDE, entities_of, split_tags
from .labels import default_names
from .predictions import (
    PREDICTED_POSITIONS,
    QUERIES,
    QUESTIONS,
    TEXTS,
    WORDS,
    Batch,
    Predict,
    Predictions,
    predict,
    predicted_labels,
)
from .ranking import first_results
from .similarity import ROUNDING, nearest_neighbours

# The units that are counted, in the plural, and what two models have in common for one that stays.
UNITS = {
    "row": ("rows", "have the same prediction"),
    "query": ("queries", "have the same first result"),
    "text": ("texts", "have the same nearest neighbour"),
    "entity": ("entities", "are the same"),
    "word": ("words", "have the same tag"),
    "question": ("questions", "have the same answer"),
    "position": ("start and end positions", "are the same"),
    "token": ("tokens", "have the same prediction"),
    "score": ("scores", ""),
    "state": ("hidden states", ""),
}
SAME, NEARLY_SAME = 0.0, 0.005  # maximum fraction of the units that change
SCORE_LIMITS = {SAME: 0.01, NEARLY_SAME: 0.1}  # maximum difference of scores, in standard deviations
Pairs = Iterable[tuple[list[Predictions], list[Predictions]]]
Result = Callable[..., "Fidelity"]  # Fidelity without its last fields
Keys = list  # of units: their indices, or for entities, pairs with the first word and the one after the last


@dataclass(frozen=True)
class Fidelity:
    """
    How close a model's predictions are to those of the original.

    Args:
        divergence: KL(original || model) in nats per row. For scores, half the squared difference. For embeddings and
            hidden states, 1 - cosine similarity, averaged over texts or tokens. For question answering models with
            different tokenizers, NaN.
        rows: Number of rows that were compared.
        unit: What counts, one of UNITS.
        agreement: Fraction of the units that stay. Entities that only one of the models finds also count. None for
            scores without queries and for hidden states.
        measures: Differences of scores, or cosine similarities of embeddings or hidden states, by name.
        warning: Why the agreement says little, or "".
    """

    divergence: float
    rows: int
    unit: str
    agreement: float | None = None
    measures: dict[str, float] = field(default_factory=dict)
    warning: str = ""

    @property
    def change(self) -> float:
        """The fraction of the units that change, or the largest difference of scores in standard deviations."""
        if self.unit == "score":
            largest, deviation = self.measures["largest difference"], self.measures["standard deviation"]
            return largest / deviation if deviation else (inf if largest else 0.0)
        return inf if self.agreement is None else 1 - self.agreement

    def is_within(self, limit: float) -> bool:
        """Returns True if no more changes than `limit` allows, which is SAME or NEARLY_SAME."""
        return self.change <= (SCORE_LIMITS[limit] if self.unit == "score" else limit) + 1e-9

    def __str__(self) -> str:
        text = self.summary.replace(f"of the {UNITS[self.unit][0]}", f"of the {' '.join(UNITS[self.unit])}", 1)
        has_divergence = self.unit not in ("score", "query", "text", "state") and not isnan(self.divergence)
        return text + (f", KL divergence {self.divergence:.2g} nats per row" if has_divergence else "")

    @property
    def summary(self) -> str:
        """The share of units that stay, and the measures."""
        parts = []
        if self.agreement is not None:
            rounded = self.agreement if self.agreement == 1 else min(self.agreement, 0.999)  # 100% means all
            parts.append(f"{rounded:.1%} of the {UNITS[self.unit][0]}")
        for name, value in self.measures.items():
            parts.append(f"{name} {value:.4f}" if "cosine" in name else f"{name} {value:.2g}")
        return ", ".join(parts) + (f", but {self.warning}" if self.warning else "")


def criterion(unit: str, limit: float) -> str:
    """Returns the condition that `Fidelity.is_within` checks."""
    if unit == "score":
        return f"no score differs by more than {SCORE_LIMITS[limit]:.0%} of the standard deviation"
    share = f"at least {1 - limit:.1%} of the" if limit else "all"
    return f"{share} {' '.join(UNITS[unit])}"


@torch.no_grad()
def measure_fidelity(
    original: PreTrainedModel, other: PreTrainedModel, batches: list[Batch], predict: Predict = predict
) -> Fidelity:
    """Compares the predictions of two models with the same task head, by query or by entity if the batches say so."""
    pairs = ((predict(original, batch), predict(other, batch)) for batch in batches)
    head, rows = head_name(type(original).__name__), sum(len(batch["input_ids"]) for batch in batches)
    groups, tags = groups_of(batches), default_names(original.config) if head == WORDS else ()
    is_word = head == WORDS and groups is not None  # taggers predict all tokens of texts that are not split into words
    unit = "word" if is_word else {TEXTS: "row", QUESTIONS: "position"}.get(head, "token")
    return fidelity(pairs, rows, unit, groups, tags)[0]


def groups_of(batches: list[Batch]) -> np.ndarray | None:
    """Returns the number of each row's query, or of the row of each predicted token, or None if neither is known."""
    if QUERIES in batches[0]:
        return np.concatenate([batch[QUERIES].cpu() for batch in batches])
    if PREDICTED_POSITIONS not in batches[0]:
        return None
    masks = [mask for batch in batches for mask in batch[PREDICTED_POSITIONS].cpu()]
    return np.repeat(np.arange(len(masks)), [int(mask.sum()) for mask in masks])


def fidelity(
    pairs: Pairs, rows: int, unit: str, groups: np.ndarray | None = None, tags: Sequence[str] = ()
) -> tuple[Fidelity, Keys]:
    """
    Compares the predictions of two models.

    Args:
        pairs: For each batch, the predictions of the original and those of the other model.
        rows: Total number of rows.
        unit: What has a class or a set of labels. The unit of other predictions follows from their kind.
        groups: The number of the query of each score, or of the sentence of each word.
        tags: For taggers, the tag of each class. With "O" among them, entities are counted instead of words.

    Returns:
        The fidelity, and the units that change.
    """
    divergence, kind, count = 0.0, "", 0
    expected: list[Tensor] = []
    found: list[Tensor] = []
    for originals, others in pairs:
        for one, other in zip(originals, others, strict=True):
            divergence, kind, count = divergence + float(one.kl_divergence(other)), one.kind, count + len(one.values)
            if kind != "states":  # which can be large
                expected.append(reduced(one))
                found.append(reduced(other))
    divergence = max(0.0, divergence / (count if kind in ("states", "embeddings") else rows))
    result = partial(Fidelity, divergence, rows)
    if kind == "states":
        return result("state", measures={"mean cosine of hidden states": 1 - divergence}), []
    pair = torch.cat(expected), torch.cat(found)
    if kind == "numbers":
        return compare_scores(result, *pair, groups)
    if kind == "embeddings":
        return compare_embeddings(result, *pair)
    if OUTSIDE in tags and groups is not None:
        return compare_entities(result, pair[0][:, 0].numpy(), pair[1][:, 0].numpy(), groups, tags)
    kept = (pair[0] == pair[1]).all(dim=-1)
    warning = "the original predicts the same label for all rows" if len(pair[0].unique(dim=0)) == 1 else ""
    agreement, changed = split(kept)
    return result(unit, agreement, warning=warning), changed


def reduced(predictions: Predictions) -> Tensor:
    """Returns the predicted classes or labels, without the logits, which can be large, or the scores or embeddings."""
    labels = predictions.kind in ("classes", "labels")
    return (predicted_labels(predictions) if labels else predictions.values.float()).cpu()


def compare_scores(result: Result, one: Tensor, other: Tensor, queries: np.ndarray | None) -> tuple[Fidelity, Keys]:
    """Compares scores (rows, outputs), and with `queries`, also the row of each query that has the highest score."""
    difference, deviation = (one - other).abs(), float((one - one.mean(dim=0)).square().mean().sqrt())
    measures = {"largest difference": float(difference.max()), "mean difference": float(difference.mean())}
    warning = "" if deviation else "the original gives all rows the same score"
    if queries is None:
        return result("score", measures=measures | {"standard deviation": deviation}, warning=warning), []
    scores, others = one[:, 0].numpy(), other[:, 0].numpy()
    best, found = scores[first_results(scores, queries)], scores[first_results(others, queries)]
    agreement, changed = split(torch.from_numpy(found >= best - ROUNDING * deviation))  # for copies, and rounding
    return result("query", agreement, measures, warning), changed


def compare_embeddings(result: Result, one: Tensor, other: Tensor) -> tuple[Fidelity, Keys]:
    """Compares embeddings (texts, D), and the nearest neighbour of each text."""
    neighbours, cosines = nearest_neighbours(other, one), cosine_similarity(one, other)
    measures = {"lowest cosine": float(cosines.min()), "mean cosine": float(cosines.mean())}
    counted = neighbours.cosines != -inf
    if not counted.any():
        return result("text", measures=measures, warning="there are no two texts with different embeddings"), []
    kept = neighbours.unchanged
    return result("text", split(kept[counted])[0], measures), split(kept | ~counted)[1]


def compare_entities(
    result: Result, one: np.ndarray, other: np.ndarray, sentences: np.ndarray, tags: Sequence[str]
) -> tuple[Fidelity, Keys]:
    """Compares the entities in the class ids (words,) of two taggers."""
    parts, names = split_tags(tags), np.array(tags)
    first, second = (entities_of(names[ids], sentences, parts) for ids in (one, other))
    union = len(first.items() | second.items())
    agreement = len(first.items() & second.items()) / union if union else 1.0
    keys = sorted(key for key in {*first} | {*second} if first.get(key) != second.get(key))
    return result("entity", agreement, warning="" if union else "no model finds an entity"), keys


def split(kept: Tensor) -> tuple[float, Keys]:
    """Returns the fraction of the units that stay, and those that change."""
    return float(kept.double().mean()), (~kept).nonzero()[:, 0].tolist()
