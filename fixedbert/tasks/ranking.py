"""How well scores rank the rows of queries, such as the passages that a reranker scores for each question."""

import numpy as np
from sklearn.metrics import average_precision_score, ndcg_score

DEPTH = 10  # number of results that count


def first_results(scores: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Returns the index of the row with the highest score for each query, in the order of the query numbers."""
    order = np.lexsort((-scores, queries))
    return order[np.unique(queries[order], return_index=True)[1]]


def ranking_scores(
    scores: np.ndarray, relevance: np.ndarray, queries: np.ndarray
) -> tuple[dict[str, float], np.ndarray]:
    """
    Returns MRR@10 and nDCG@10, averaged over the queries with a relevant row, and whether the first result of each of
    these queries is relevant.

    The reciprocal rank is that of the first relevant row, or 0 below rank 10. Among equal scores, it counts relevant
    rows last, so that a model with equal scores does not profit from the order of the file. nDCG averages over equal
    scores and has linear gains, as in scikit-learn.

    Args:
        scores: Predicted scores (rows,).
        relevance: 0 or 1, or grades. Rows with a grade above 0 are relevant.
        queries: The number of each row's query. Each query has at least two rows.
    """
    ranks, gains = [], []
    for query in np.unique(queries):
        own, grades = scores[queries == query], relevance[queries == query]
        if (grades > 0).any():
            ranks.append(1 + int((own[grades <= 0] >= own[grades > 0].max()).sum()))
            gains.append(ndcg_score([grades], [own], k=DEPTH))
    reciprocal = [1 / rank if rank <= DEPTH else 0.0 for rank in ranks]
    names = (f"MRR@{DEPTH}", f"nDCG@{DEPTH}")
    return {names[0]: float(np.mean(reciprocal)), names[1]: float(np.mean(gains))}, np.array(ranks) == 1


def relevance_scores(
    scores: np.ndarray, labels: np.ndarray, threshold: float = 0.0
) -> tuple[dict[str, float], np.ndarray]:
    """
    Returns the average precision and accuracy of scores for labels 0 and 1, and whether each row is correct.

    Scores above `threshold` predict label 1.
    """
    correct = (scores > threshold) == (labels > 0)
    precision = float(average_precision_score(labels, scores)) if labels.any() else 0.0
    return {"average_precision": precision, "accuracy": float(correct.mean())}, correct
