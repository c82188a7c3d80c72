"""
What a head size can express: theorems in numbers, and tasks with a predicted threshold.

This file adds the tasks to the studies of the package, with their metrics and named studies, and what a report says of
them.
"""

from functools import partial
from pathlib import Path

from fixedbert.study.records import METRICS, Metric
from fixedbert.study.report_files import BESIDE
from fixedbert.study.report_text import FIRST, LIMITS
from fixedbert.study.studies import NAMED_STUDIES
from fixedbert.study.tasks import TASKS, Task

from .figure import plot_beside
from .report import limits_of_thresholds, threshold_answer
from .tasks import SYNTHETIC, task_settings, train_synthetic

for name in SYNTHETIC:
    TASKS[name] = Task(
        partial(train_synthetic, name),
        task_settings(name),
        has_feed_forward=name == "recall",
        single_queries=name == "memorise",
    )
METRICS |= {
    "error": Metric("synthetic", ("error",), "mean squared error", logarithmic=True, has_line=False),
    "floor": Metric("synthetic", ("floor",), "least error found", unless="floor"),
    "relative_error": Metric(
        "synthetic", ("relative_error",), "squared error relative to the best constant", logarithmic=True
    ),
    "recalled": Metric("synthetic", ("recalled",), "recalled (%)", 100),
    "memorised": Metric("synthetic", ("memorised",), "examples memorised", logarithmic=True),
    "steps_to_goal": Metric(
        "synthetic", ("steps_to_goal",), "steps to the goal", missing="never", unless="memorised", logarithmic=True
    ),
    "steps": Metric("synthetic", ("steps",)),
    "converged": Metric("synthetic", ("converged",)),
    "at_limit": Metric("synthetic", ("at_limit",)),
    "examples": Metric("synthetic", ("examples",)),
    "null": Metric("synthetic", ("null",)),
    "goal": Metric("synthetic", ("goal",)),
    "order": Metric("synthetic", ("order",), missing="none"),
    "predicted": Metric("synthetic", ("predicted",)),
    "threshold": Metric("synthetic", ("threshold",), missing="none"),
}
NAMED_STUDIES.append(Path(__file__).with_name("studies.yaml"))
FIRST.append(threshold_answer)
LIMITS.append(limits_of_thresholds)
BESIDE.append(plot_beside)
