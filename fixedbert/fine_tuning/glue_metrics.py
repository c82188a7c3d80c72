"""Metrics for GLUE, and for text classification and regression in general."""

from functools import partial

import numpy as np
from scipy.special import expit, softmax
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, matthews_corrcoef, recall_score
from transformers import EvalPrediction, PreTrainedConfig

from ..data.glue import TASKS
from .labels import MULTI, REGRESSION, SINGLE, default_names, match_names, problem_type_of
from .target_scaling import unscale


def lower_is_better(metric: str) -> bool:
    """Returns True if lower values of a metric are better. The name may begin with "eval_"."""
    return metric.removeprefix("eval_") in ("loss", "mse", "mae")


def correlation(function, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns a correlation coefficient, or 0 if scipy would return NaN, for example for constant predictions."""
    if len(labels) < 2 or np.ptp(labels) == 0 or not np.ptp(predictions) > 0:
        return 0.0
    return function(predictions, labels)[0]


def balanced_accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the average recall of the classes that occur among the labels."""
    return recall_score(labels, predictions, labels=np.unique(labels), average="macro", zero_division=0.0)


# Each function takes the labels (ids, multi-hot labels or scores) and the predictions. F1 takes booleans.
MEASURES = {
    "accuracy": accuracy_score,
    "exact_match": accuracy_score,  # as scikit-learn defines the accuracy of sets of labels
    "f1": partial(f1_score, zero_division=0.0),
    "macro_f1": partial(f1_score, average="macro", zero_division=0.0),
    "micro_f1": partial(f1_score, average="micro", zero_division=0.0),
    "balanced_accuracy": balanced_accuracy,
    "matthews_correlation": matthews_corrcoef,
    "mse": lambda labels, predictions: ((predictions - labels) ** 2).mean(),
    "mae": lambda labels, predictions: abs(predictions - labels).mean(),
    "pearson": partial(correlation, pearsonr),
    "spearmanr": partial(correlation, spearmanr),
}
# The metrics for each task (Wang et al., 2018, table 1), with the names used by transformers, and for other data.
# GLUE's combined score is the average of the other metrics.
METRICS = {
    "cola": ("matthews_correlation",),
    "sst2": ("accuracy",),
    "mrpc": ("accuracy", "f1", "combined_score"),
    "stsb": ("pearson", "spearmanr", "combined_score"),
    "qqp": ("accuracy", "f1", "combined_score"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
    SINGLE: ("accuracy", "macro_f1", "balanced_accuracy", "matthews_correlation"),
    MULTI: ("micro_f1", "macro_f1", "exact_match", "average_precision"),
    REGRESSION: ("pearson", "spearmanr", "mse", "mae"),
}


class GlueEvaluation:
    """
    Computes the metrics for a task. Also keeps the labels and predictions from the last evaluation, for the plot.

    Instances can be passed to Trainer as `compute_metrics`.

    Args:
        task: The GLUE task, or None for other data.
        config: Configuration of the model, with the label names in the order of its logits.
        threshold: If texts can have several labels, each label with at least this probability is predicted.

    Attributes:
        class_names: Names of the labels or targets. Empty for regression with a single target.
        metric_names: Names of the metrics that an evaluation returns.
    """

    def __init__(self, task: str | None, config: PreTrainedConfig, threshold: float = 0.5):
        self.problem_type, self.config, self.threshold = problem_type_of(config), config, threshold
        self.task = task or self.problem_type
        is_single_score = self.problem_type == REGRESSION and config.num_labels == 1
        self.class_names = [] if is_single_score else default_names(config)
        self.label_ids = self.predictions = np.array([])  # (examples,) or (examples, outputs)
        targets = self.class_names if self.problem_type == REGRESSION else []
        self.metric_names = ["loss", *METRICS.get(self.task, ()), *(f"pearson_{name}" for name in targets)]
        # GLUE's positive class is 1, but the model can use different label ids.
        matched = match_names([*TASKS[task].labels] if task in TASKS else [], self.class_names)
        self.positive = matched[1] if matched else 1

    def predict(self, output: np.ndarray | tuple) -> tuple[np.ndarray, np.ndarray | None]:
        """
        Returns the predictions and the probabilities (examples, labels) for the logits (examples, outputs).

        The predictions have the format of `encode_labels`. For regression, they are scores in the units of the data,
        and the probabilities are None. `output` is the logits, or a tuple that begins with the logits.
        """
        logits = output[0] if isinstance(output, tuple) else output
        if self.problem_type == REGRESSION:
            scores = unscale(logits, self.config)
            return scores if self.class_names else scores[:, 0], None
        if self.problem_type == MULTI:
            probabilities = expit(logits.astype(np.float64))
            return (probabilities >= self.threshold).astype(int), probabilities
        return logits.argmax(axis=1), softmax(logits.astype(np.float64), axis=1)

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        labels = np.asarray(prediction.label_ids)
        self.predictions, probabilities = self.predict(prediction.predictions)
        self.label_ids = unscale(labels, self.config) if self.problem_type == REGRESSION else labels
        return self.scores(self.predictions, self.label_ids, probabilities)

    def scores(
        self, predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray | None = None
    ) -> dict[str, float]:
        """
        Returns the metrics.

        With several targets, the metrics are averages over the targets, and each target also has its own correlation,
        such as pearson_price. For several labels per text, the average precision excludes labels that do not occur.

        Args:
            predictions, labels: Label ids, multi-hot labels or scores, in the format of `encode_labels`.
            probabilities: Probabilities (examples, labels). Only used for several labels per text.
        """
        if self.problem_type == REGRESSION and self.class_names:
            each = [self.measure(*pair) for pair in zip(predictions.T, labels.T, strict=True)]
            averages = {metric: float(np.mean([scores[metric] for scores in each])) for metric in each[0]}
            named = zip(self.class_names, each, strict=True)
            return averages | {f"pearson_{name}": scores["pearson"] for name, scores in named}
        scores = self.measure(predictions, labels)
        if self.problem_type == MULTI and probabilities is not None:
            occurs = labels.any(axis=0)
            precision = average_precision_score(labels[:, occurs], probabilities[:, occurs]) if occurs.any() else 0.0
            scores["average_precision"] = float(precision)
        return scores

    def measure(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Returns the metrics that depend only on predictions and labels."""
        scores: dict[str, float] = {}
        for name in METRICS[self.task]:
            if name in MEASURES:
                pair = (
                    (labels == self.positive, predictions == self.positive) if name == "f1" else (labels, predictions)
                )
                scores[name] = float(MEASURES[name](*pair))
        if "combined_score" in METRICS[self.task]:
            scores["combined_score"] = float(np.mean([*scores.values()]))
        return scores
