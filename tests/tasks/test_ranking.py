"""Metrics of rerankers: MRR@10, nDCG@10, average precision and accuracy."""

from statistics import mean

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from fixedbert.tasks.ranking import first_results, ranking_scores, relevance_scores


def test_ranking_as_in_sentence_transformers():
    """MRR@10 and nDCG@10 of queries with 2 to 24 rows match sentence-transformers, and scikit-learn for grades."""
    evaluation = pytest.importorskip("sentence_transformers.cross_encoder.evaluation")
    evaluator = evaluation.CrossEncoderRerankingEvaluator([], at_k=10)
    random = np.random.default_rng(0)
    queries = random.permutation(np.repeat(np.arange(23), np.arange(2, 25)))
    labels = random.random(len(queries)) < 0.1
    labels[np.unique(queries, return_index=True)[1]] = True
    scores = random.normal(size=len(queries))
    members = [np.flatnonzero(queries == query) for query in range(23)]
    expected = [evaluator.compute_metrics(labels[rows].astype(int), scores[rows])[:2] for rows in members]
    metrics, correct = ranking_scores(scores, labels, queries)
    assert [metrics["MRR@10"], metrics["nDCG@10"]] == pytest.approx([mean(x) for x in zip(*expected, strict=True)])
    assert correct.tolist() == [bool(labels[rows[scores[rows].argmax()]]) for rows in members]
    assert first_results(scores, queries).tolist() == [rows[scores[rows].argmax()] for rows in members]
    grades = labels * random.integers(1, 4, len(labels))
    gains = [ndcg_score([grades[rows]], [scores[rows]], k=10) for rows in members]
    assert ranking_scores(scores, grades, queries)[0]["nDCG@10"] == pytest.approx(mean(gains))


def test_rankings_with_equal_scores():
    """A model with equal scores does not profit from the order of the file, and rank 11 is too late."""
    queries, labels = np.repeat([0, 1], 12), np.array([1] + [0] * 11 + [0] * 11 + [1])
    constant, correct = ranking_scores(np.zeros(24), labels, queries)
    assert constant["MRR@10"] == 0 and not correct.any()
    assert constant["nDCG@10"] == pytest.approx(sum(1 / np.log2(np.arange(2, 12))) / 12)  # averaged over all orders
    scores = np.array([*range(1, 13), *range(1, 13)], dtype=float)  # the first query has its relevant row last
    metrics, correct = ranking_scores(scores, labels, queries)
    assert (metrics["MRR@10"], metrics["nDCG@10"], correct.tolist()) == (0.5, 0.5, [False, True])


def test_relevance_without_queries():
    """Without queries, rows are ranked together, and scores above the threshold predict the label 1."""
    scores, labels = np.array([2.0, -1.0, 0.3, 0.7, -2.0]), np.array([1.0, 0.0, 0.0, 1.0, 1.0])
    metrics, correct = relevance_scores(scores, labels)
    assert metrics == {"average_precision": average_precision_score(labels, scores), "accuracy": 0.6}
    assert relevance_scores(scores, labels, 0.5)[1].tolist() == [True, True, True, True, False]
    assert correct.tolist() == [True, True, False, True, False]
