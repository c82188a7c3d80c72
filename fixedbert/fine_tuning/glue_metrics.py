"""Metrics for GLUE, and for text classification and regression in general."""

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


def correlation(function, predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns a correlation coefficient, or 0 if scipy would return NaN, for example for constant predictions."""
    if len(labels) < 2 or np.ptp(labels) == 0 or not np.ptp(predictions) > 0:
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

# The metrics for each task (Wang et al., 2018, table 1), with the names used by transformers.
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
    Returns the metrics for `task`, which is a GLUE task, "classification" or "regression".

    `predictions` and `labels` are label ids or scores (examples,). `positive` is the positive class for F1.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    return {name: MEASURES[name](predictions, labels, positive) for name in METRICS[task]}
