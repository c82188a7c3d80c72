"""Metrics for GLUE, and for text classification and regression in general."""

from functools import partial

import evaluate
import numpy as np
from datasets import Features, List, Value
from scipy.special import expit, softmax
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, matthews_corrcoef, recall_score
from transformers import EvalPrediction

from .glue import TASKS
from .labels import MULTI, REGRESSION, SINGLE, Labels, match_names


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
CITATION = "Wang et al., 2018: GLUE: A Multi-Task Benchmark and Analysis Platform. BlackboxNLP."


class GlueMetric(evaluate.Metric):
    """
    The metrics for a task.

    Args:
        name: A GLUE task, or a problem type of transformers for other data.
    """

    def __init__(self, name: str):
        super().__init__(name, keep_in_memory=True)

    def _build_data_dir(self):
        return ""  # not used in memory; the default creates a directory

    def _info(self):
        feature = List(Value("float64")) if self.config_name == MULTI else Value("float64")  # checked by `_compute`
        return evaluate.MetricInfo(
            description=f"The metrics for {self.config_name}: {', '.join(METRICS[self.config_name])}.",
            citation=CITATION if self.config_name in TASKS else "",
            features=Features(predictions=feature, references=feature),
        )

    def _compute(self, predictions, references, positive: int = 1, probabilities: np.ndarray | None = None):
        """
        Computes the metrics.

        Args:
            predictions, references: Label ids, lists with 0 or 1 for each label, or scores.
            positive: Label id of the positive class for F1.
            probabilities: For several labels per text, the probabilities (texts, labels) for the average precision,
                which excludes labels that do not occur.

        Returns:
            A dictionary with the metrics of the task.
        """
        predictions, labels = np.array(predictions), np.array(references)
        scores: dict[str, float] = {}
        for name in METRICS[self.config_name]:
            if name in MEASURES:
                pair = (labels == positive, predictions == positive) if name == "f1" else (labels, predictions)
                scores[name] = float(MEASURES[name](*pair))
        if "combined_score" in METRICS[self.config_name]:
            scores["combined_score"] = float(np.mean([*scores.values()]))
        if "average_precision" in METRICS[self.config_name] and probabilities is not None:
            occurs = labels.any(axis=0)
            precision = average_precision_score(labels[:, occurs], probabilities[:, occurs]) if occurs.any() else 0.0
            scores["average_precision"] = float(precision)
        return scores


class GlueEvaluation:
    """
    Computes the metrics for a task from logits. Also keeps the labels and predictions of the last evaluation for the
    plot.

    Instances can be passed to Trainer as `compute_metrics`.

    Args:
        task: The GLUE task, or None for other data.
        labels: The labels, matched with the outputs of the model.
        threshold: If texts can have several labels, each label with at least this probability is predicted.

    Attributes:
        metric_names: Names of the metrics that an evaluation returns.
    """

    def __init__(self, task: str | None, labels: Labels, threshold: float = 0.5):
        self.labels, self.threshold = labels, threshold
        self.task = task or labels.problem_type
        self.label_ids = self.predictions = np.array([])  # (examples,) or (examples, labels)
        self.metric_names = ["loss", *METRICS.get(self.task, ())]
        # GLUE's positive class is 1, but the model can use different label ids.
        matched = match_names([*TASKS[task].labels] if task in TASKS else [], labels.outputs)
        self.positive = matched[1] if matched else 1

    def predict(
        self, output: np.ndarray | tuple, threshold: float | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """
        Returns the predictions and the probabilities (examples, labels) for the logits (examples, outputs).

        The predictions have the format of `Labels.encode`. For regression, the probabilities are None. `output` is the
        logits, or a tuple that begins with the logits. A `threshold` replaces that of the evaluation.
        """
        logits = output[0] if isinstance(output, tuple) else output
        if self.labels.problem_type == REGRESSION:
            return logits[:, 0], None
        if self.labels.problem_type == MULTI:
            probabilities = expit(logits.astype(np.float64))
            return (probabilities >= (threshold or self.threshold)).astype(int), probabilities
        return logits.argmax(axis=1), softmax(logits.astype(np.float64), axis=1)

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        self.predictions, probabilities = self.predict(prediction.predictions)
        self.label_ids = np.asarray(prediction.label_ids)
        return self.scores(self.predictions, self.label_ids, probabilities)

    def scores(
        self, predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray | None = None
    ) -> dict[str, float]:
        """
        Returns the metrics.

        Args:
            predictions, labels: Label ids, multi-hot labels or scores, in the format of `Labels.encode`.
            probabilities: Probabilities (examples, labels). Only used for several labels per text.
        """
        return GlueMetric(self.task).compute(
            predictions=predictions, references=labels, positive=self.positive, probabilities=probabilities
        )
