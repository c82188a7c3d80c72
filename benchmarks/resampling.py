"""Scores of resampled evaluation rows, which show how much a score depends on the rows."""

from collections.abc import Callable, Sequence

import numpy as np

from fixedbert.tasks.entities import entities_of, entity_scores
from fixedbert.tasks.ranking import ranking_scores
from fixedbert.tasks.rows import RowPredictions, Rows
from fixedbert.tasks.similarity import similarity_scores
from fixedbert.tasks.text_rows import EmbeddingRows
from fixedbert.tasks.words import WordRows, read_by_all

RESAMPLES = 400
Score = Callable[[np.ndarray], float]  # maps the numbers of queries, rows or sentences to a score


def resampled(rows: Rows, answers: Sequence[RowPredictions], metric: str, all_features: list) -> np.ndarray:
    """
    Returns the scores (models, RESAMPLES) of models for queries, rows or sentences drawn with replacement.

    The draws are the same for all models, so that the differences between models can be used as well.
    """
    pairs = [score_of(rows, own, metric, all_features) for own in answers]
    units = pairs[0][0]
    generator = np.random.default_rng(1)
    draws = [generator.integers(units, size=units) for _ in range(RESAMPLES)]
    return np.array([[score(draw) for draw in draws] for _, score in pairs])


def score_of(rows: Rows, answers: RowPredictions, metric: str, all_features: list) -> tuple[int, Score]:
    """Returns the number of units, and the function that scores a model's answers for some of them."""
    if isinstance(rows, WordRows):
        return entity_score(rows, answers, metric, all_features)
    labels = np.array(rows.data["label"][:])
    if isinstance(rows, EmbeddingRows):
        pairs = answers.outputs[0].values.unflatten(0, (len(labels), 2))
        return len(labels), lambda draw: similarity_scores(pairs[draw].flatten(0, 1), labels[draw], False)[metric]
    if answers.groups is None:
        values = np.asarray(answers.correct, dtype=float)
    else:
        scores, queries = answers.outputs[0].values[:, 0].double().numpy(), answers.groups
        by_query = [queries == query for query in np.unique(queries)]
        values = np.array([ranking_scores(scores[own], labels[own], queries[own])[0][metric] for own in by_query])
    return len(values), lambda draw: float(values[draw].mean())


def entity_score(rows: WordRows, answers: RowPredictions, metric: str, all_features: list) -> tuple[int, Score]:
    """Returns the number of sentences, and the function that scores the entities in some of them."""
    labels = np.concatenate(rows.data["labels"][:])[read_by_all(all_features)]
    assert answers.groups is not None
    sentences, tags = np.unique(answers.groups, return_inverse=True)
    by_sentence: list[list[dict]] = [[] for _ in sentences]
    for names in (rows.names[labels], answers.texts):
        for number, own in enumerate(by_sentence):
            words = tags == number
            own.append(entities_of(np.array(names)[words], [0] * words.sum(), rows.parts))

    def score(draw: np.ndarray) -> float:
        expected, found = (
            {
                (copy, *words): kind
                for copy, number in enumerate(draw)
                for words, kind in by_sentence[number][side].items()
            }
            for side in (0, 1)
        )
        return entity_scores(expected, found)[metric]

    return len(sentences), score
