"""Metrics for GLUE, and for text classification and regression in general."""

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, matthews_corrcoef, recall_score

from .labels import MULTI, REGRESSION, SINGLE


def lower_is_better(metric: str) -> bool:
    """Returns True if lower values of a metric are better. The name may begin with "eval_"."""
    return metric.removeprefix("eval_") in ("loss", "mse", "mae")


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
    "macro_f1": lambda predictions, labels, positive: float(
        f1_score(labels, predictions, average="macro", zero_division=0.0)
    ),
    "micro_f1": lambda predictions, labels, positive: float(
        f1_score(labels, predictions, average="micro", zero_division=0.0)
    ),
    "balanced_accuracy": lambda predictions, labels, positive: float(  # the average recall of classes with labels
        recall_score(labels, predictions, labels=np.unique(labels), average="macro", zero_division=0.0)
    ),
    "matthews_correlation": lambda predictions, labels, positive: float(matthews_corrcoef(labels, predictions)),
    "mse": lambda predictions, labels, positive: float(((predictions - labels) ** 2).mean()),
    "mae": lambda predictions, labels, positive: float(abs(predictions - labels).mean()),
    "pearson": lambda predictions, labels, positive: correlation(pearsonr, predictions, labels),
    "spearmanr": lambda predictions, labels, positive: correlation(spearmanr, predictions, labels),
}
MEASURES["exact_match"] = MEASURES["accuracy"]  # as scikit-learn defines the accuracy of sets of labels

# The metrics for each task (Wang et al., 2018, table 1), with the names used by transformers, and for other data.
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
    SINGLE: ("accuracy", "macro_f1", "balanced_accuracy", "matthews_correlation"),
    MULTI: ("micro_f1", "macro_f1", "exact_match"),  # and average_precision
    REGRESSION: ("pearson", "spearmanr", "mse", "mae"),
}


def glue_scores(
    task: str,
    predictions: np.ndarray,
    labels: np.ndarray,
    positive: int = 1,
    targets: list[str] | None = None,
    probabilities: np.ndarray | None = None,
) -> dict[str, float]:
    """
    Returns the metrics for `task`, which is a GLUE task or a `problem_type`.

    Args:
        predictions, labels: label ids or scores (examples,), or 0/1 flags or scores (examples, outputs).
        positive: label id of the positive class for F1.
        targets: names of the targets, if a regression has several. The metrics are averages over the targets, and
            there is a correlation for each target, such as pearson_price.
        probabilities: probabilities (examples, labels) of each label, for several labels per text. Average precision
            is averaged over the labels that occur.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if task == REGRESSION and labels.ndim == 2:
        names = targets or [str(number) for number in range(labels.shape[1])]
        each = [glue_scores(task, *pair) for pair in zip(predictions.T, labels.T, strict=True)]
        averages = {metric: float(np.mean([scores[metric] for scores in each])) for metric in METRICS[task]}
        return averages | {f"pearson_{name}": scores["pearson"] for name, scores in zip(names, each, strict=True)}
    scores = {name: MEASURES[name](predictions, labels, positive) for name in METRICS[task]}
    if probabilities is not None:
        occurs = labels.any(axis=0)
        scores["average_precision"] = (
            float(average_precision_score(labels[:, occurs], probabilities[:, occurs])) if occurs.any() else 0.0
        )
    return scores
