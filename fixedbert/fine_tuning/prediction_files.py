"""Files with predictions: GLUE submissions, and predictions.csv for other data."""

from pathlib import Path

import datasets
import numpy as np

from ..support.errors import InputError
from ..support.files import to_csv, write_atomically
from ..tasks.glue import TASKS
from ..tasks.labels import MULTI, Labels, match_names

PREDICTIONS = "predictions.csv"
ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def write_submission(
    directory: Path, task: str, split: str, rows: datasets.Dataset, labels: Labels, predictions: np.ndarray
):
    """
    Writes the columns `index` and `prediction` to the submission file for a GLUE task.

    `predictions` (rows,) are label ids or scores.
    """
    names = submitted_names(task, labels.outputs)
    if task == "stsb":
        values = [f"{score:.3f}" for score in predictions.clip(0, 5)]
    else:
        values = [names[int(label)] for label in predictions]
    lines = [("index", "prediction"), *zip(rows["index"], values, strict=True)]
    content = "".join("\t".join(cell.translate(ESCAPES) for cell in line) + "\n" for line in lines)
    write_atomically(directory / TASKS[task].submission(split), content)


def submitted_names(task: str, names: list[str]) -> list[str]:
    """Converts label names to the labels in GLUE's submission format. Raises InputError if they are not the task's."""
    labels = [*TASKS[task].labels]
    matched = match_names(names, labels) if labels else []
    if matched is None:
        raise InputError(
            f"the model predicts {', '.join(names)}, but a submission for {task} must contain {', '.join(labels)}; "
            "write these names to id2label in the model's config.json, in the order of the model's outputs."
        )
    return [str(n) if TASKS[task].numbered else labels[n] for n in matched]


def prediction_columns(
    labels: Labels, predictions: np.ndarray, probabilities: np.ndarray | None
) -> dict[str, list[str]]:
    """Returns the columns of predictions.csv for the results of `GlueEvaluation.predict`."""

    def columns(prefix: str, values: np.ndarray, form: str) -> dict[str, list[str]]:
        pairs = zip(labels.outputs, values.T, strict=True)
        return {f"{prefix}_{name}": [format(value, form) for value in column] for name, column in pairs}

    if probabilities is None:
        return {"prediction": [f"{score:.6g}" for score in predictions]}
    if labels.problem_type == MULTI:
        result = columns("prediction", predictions, "d")
    else:
        chosen = [f"{row[label]:.6f}" for row, label in zip(probabilities, predictions, strict=True)]
        result = {"prediction": labels.decode(predictions), "probability": chosen}
    return result | columns("probability", probabilities, ".6f")


def write_predictions(directory: Path, rows: datasets.Dataset, skipped: list[int], columns: dict[str, list[str]]):
    """
    Writes predictions.csv, with a line for each row that was read from the test file.

    The columns are `row` (the 0-based index in the file), and `columns`, which contain the predictions for `rows`. The
    predictions for the invalid rows, whose positions are in `skipped`, are empty.
    """
    lines = [[position, *[""] * len(columns)] for position in skipped]
    for row, values in zip(rows, zip(*columns.values(), strict=True), strict=True):
        lines.append([row["row"], *values])
    write_atomically(directory / PREDICTIONS, to_csv([["row", *columns], *sorted(lines)]))
