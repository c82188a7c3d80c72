"""Metrics of GLUE's tasks, and of other classifications and regressions, by scikit-learn and scipy."""

import datasets
import evaluate
import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


def correlation(measure, predictions: np.ndarray, labels: np.ndarray) -> float:
    """A correlation of scipy's; 0 where one side is constant or not finite and there is none, as for Matthews'."""
    if len(labels) < 2 or np.ptp(labels) == 0 or not np.ptp(predictions) > 0:  # NaN is not
        return 0.0
    return float(measure(predictions, labels)[0])


MEASURES = {
    "accuracy": lambda predictions, labels: float(accuracy_score(labels, predictions)),
    "f1": lambda predictions, labels: float(f1_score(labels == 1, predictions == 1, zero_division=0.0)),
    "matthews_correlation": lambda predictions, labels: float(matthews_corrcoef(labels, predictions)),
    "mse": lambda predictions, labels: float(((predictions - labels) ** 2).mean()),
    "pearson": lambda predictions, labels: correlation(pearsonr, predictions, labels),
    "spearmanr": lambda predictions, labels: correlation(spearmanr, predictions, labels),
}

# The metrics of each task of GLUE (Wang et al., 2018, table 1), with transformers' names, and of other data.
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


def glue_scores(task: str, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """
    The METRICS of a task. Each is between -1 and 1, except the mean squared error.

    Args:
        predictions: numbers of classes, or scores for a regression, (examples,).
        labels: the true ones, likewise. For F1, class 1 is positive.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    return {name: MEASURES[name](predictions, labels) for name in METRICS[task]}


class Glue(evaluate.Metric):
    """`glue_scores` as an `evaluate` module; its configuration is a key of METRICS."""

    def _info(self):
        if self.config_name not in METRICS:
            raise ValueError(f"{self.config_name}: no such task; there are {', '.join(METRICS)}")
        kind = datasets.Value("float64" if "pearson" in METRICS[self.config_name] else "int64")
        return evaluate.MetricInfo(
            description="The metrics of a task of GLUE.",
            citation="Wang et al., 2018, GLUE: A Multi-Task Benchmark and Analysis Platform, arXiv:1804.07461",
            inputs_description=glue_scores.__doc__,
            features=datasets.Features({"predictions": kind, "references": kind}),
            format="numpy",
        )

    def _compute(self, predictions, references):
        return glue_scores(self.config_name, predictions, references)
