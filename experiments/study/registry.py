"""Objectives, metrics and named studies. Other experiments add theirs with `register`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .report import Report

STAGE = ("max_seq_length", "total_train_batch_size", "max_steps")  # required fields of a pretraining stage


@dataclass(frozen=True)
class Metric:
    """
    A number in the results of a run.

    Args:
        task: "pretraining", one of its objectives, "mnli", "squad" or "synthetic".
        names: Names in the results of the task, without the prefix "eval_".
        label: Label in tables and figures. A metric without a label is recorded but not reported.
        factor: Factor that converts the recorded value to the unit in the label.
        missing: Text in reports for a run without a value.
        unless: Name of a metric. Shapes that have it are not compared by this metric. A metric that names itself is
            never compared.
        logarithmic: True if figures use a logarithmic axis.
        has_line: True if figures connect the averages of a series.
    """

    task: str
    names: tuple[str, ...]
    label: str = ""
    factor: float = 1
    missing: str = "diverged"
    unless: str = ""
    logarithmic: bool = False
    has_line: bool = True


@dataclass(frozen=True)
class Task:
    """
    An objective with generated examples instead of text.

    Args:
        train: Function that takes a configuration, a pretraining stage, a learning rate and a seed. It returns a dict
            with `loss`, which is used to compare learning rates, `examples`, and values of METRICS.
        settings: Maps additional fields of a stage to True if they are required.
        has_feed_forward: True if the model has feed-forward networks.
        single_queries: True if an example is a single query instead of a sequence.
    """

    train: Callable[[FixedHeadBertConfig, dict, float, int], dict[str, float | None]]
    settings: dict[str, bool] = field(default_factory=dict)
    has_feed_forward: bool = False
    single_queries: bool = False


@dataclass(frozen=True)
class Extension:
    """
    The tasks of an experiment, and its additions to reports.

    Args:
        tasks: Maps objectives to tasks.
        metrics: Metrics for these tasks.
        studies: YAML file with named studies.
        answer: Function that returns a paragraph and the items of a list, with which the report's answers begin.
        limits: Function that maps sentences about the limitations of a report to True if they apply.
        plot: Function that adds to the panel for a metric and a field of the shapes.
    """

    tasks: dict[str, Task]
    metrics: dict[str, Metric]
    studies: Path
    answer: Callable[[Report], tuple[str, list[str]]]
    limits: Callable[[Report], dict[str, bool]]
    plot: Callable[[Axes, Report, str, str], None]


METRICS = {
    "loss": Metric("pretraining", ("mlm_loss", "clm_loss")),
    "perplexity": Metric("clm", ("perplexity",), "held-out perplexity"),
    "masked_perplexity": Metric("mlm", ("perplexity",), "held-out perplexity of masked tokens"),
    "masked_perplexity_of_pairs": Metric("mlm+nsp", ("perplexity",), "held-out perplexity of masked tokens in pairs"),
    "accuracy": Metric("pretraining", ("mlm_accuracy", "clm_accuracy")),
    "nsp_accuracy": Metric("pretraining", ("nsp_accuracy",)),
    "mnli_accuracy": Metric("mnli", ("accuracy",), "MNLI accuracy, matched (%)", 100),
    "mnli_accuracy_mm": Metric("mnli", ("accuracy_mm",), "MNLI accuracy, mismatched (%)", 100),
    "squad_f1": Metric("squad", ("f1",), "SQuAD 1.1 F1 (%)"),
    "squad_exact_match": Metric("squad", ("exact_match",), "SQuAD 1.1 exact match (%)"),
}
TASKS: dict[str, Task] = {}
STUDIES = [Path(__file__).with_name("studies.yaml")]
EXTENSIONS: list[Extension] = []


def register(extension: Extension):
    """Adds the tasks, metrics and named studies of an experiment, unless they have already been added."""
    if extension.studies not in STUDIES:
        EXTENSIONS.append(extension)
        STUDIES.append(extension.studies)
        TASKS.update(extension.tasks)
        METRICS.update(extension.metrics)


def has_feed_forward(objective: str) -> bool:
    """Returns True if models with this objective have feed-forward networks."""
    return objective not in TASKS or TASKS[objective].has_feed_forward
