"""Experiments on the expressiveness of a head size: numerical checks of theorems, and synthetic tasks."""

from functools import partial
from pathlib import Path

from experiments.study.registry import Extension, Metric, Task

from .figure import plot_theory
from .report import limits_of_thresholds, threshold_answer
from .tasks import SYNTHETIC, task_settings, train_synthetic

METRICS = {
    "error": Metric("synthetic", ("error",), "mean squared error", logarithmic=True, has_line=False),
    "floor": Metric("synthetic", ("floor",), "lowest known error", unless="floor"),
    "relative_error": Metric(
        "synthetic", ("relative_error",), "squared error relative to the best constant", logarithmic=True
    ),
    "recalled": Metric("synthetic", ("recalled",), "recalled (%)", 100),
    "memorised": Metric("synthetic", ("memorised",), "examples memorised", logarithmic=True),
    "steps_to_goal": Metric(
        "synthetic", ("steps_to_goal",), "steps to the goal", missing="never", unless="memorised", logarithmic=True
    ),
}
METRICS |= {
    name: Metric("synthetic", (name,), missing="none")
    for name in ("steps", "converged", "at_limit", "examples", "null", "goal", "order", "predicted", "threshold")
}
TASKS = {
    name: Task(
        partial(train_synthetic, name),
        task_settings(name),
        has_feed_forward=name == "recall",
        single_queries=name == "memorise",
    )
    for name in SYNTHETIC
}
EXTENSION = Extension(
    TASKS,
    METRICS,
    Path(__file__).with_name("studies.yaml"),
    threshold_answer,
    limits_of_thresholds,
    plot_theory,
)
