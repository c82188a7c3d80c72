"""Metrics for GLUE tasks and for other classifications and regressions, from scikit-learn and scipy."""

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


def correlation(function, predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns 0 if either side is constant or not finite, like the Matthews correlation, where scipy returns NaN."""
    if len(labels) < 2 or np.ptp(labels) == 0 or not np.ptp(predictions) > 0:  # NaN is not
        return 0.0
    return float(function(predictions, labels)[0])


MEASURES = {
    "accuracy": lambda predictions, labels, positive: float(accuracy_score(labels, predictions)),
    "f1": lambda predictions, labels, positive: float(
        f1_score(labels == positive, predictions == positive, zero_division=0.0)
    ),
    "matthews_correlation": lambda predictions, labels, positive: float(matthews_corrcoef(labels, predictions)),
    "mse": lambda predictions, labels, positive: float(((predictions - labels) ** 2).mean()),
    "pearson": lambda predictions, labels, positive: correlation(pearsonr, predictions, labels),
    "spearmanr": lambda predictions, labels, positive: correlation(spearmanr, predictions, labels),
}

# The metrics of each GLUE task (Wang et al., 2018, table 1) and of other data, under transformers' names.
METRICS = {
    "cola": ("matthews_correlation",),
    "sst2": ("accuracy",),
    "mrpc": ("accuracy", "f1"),
    "stsb": ("pearson", "spearmanr"),
    "qqp": ("accuracy", "f1"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
    "classification": ("accuracy",),
    "regression": ("pearson", "spearmanr", "mse"),
}


def glue_scores(task: str, predictions: np.ndarray, labels: np.ndarray, positive: int = 1) -> dict[str, float]:
    """
    Compute the METRICS of a task. All are between -1 and 1, except the mean squared error.

    Args:
        predictions: class numbers, or scores for a regression, (examples,).
        labels: the true ones, likewise.
        positive: the positive class for F1.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    return {name: MEASURES[name](predictions, labels, positive) for name in METRICS[task]}
