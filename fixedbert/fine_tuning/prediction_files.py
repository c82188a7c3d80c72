"""Files with predictions: GLUE submissions, and predictions.csv for other data."""

import csv
from io import StringIO
from pathlib import Path

import datasets
import numpy as np

from ..data.glue import TASKS
from ..support.files import write_atomically
from .labels import MULTI, submitted_names

PREDICTIONS = "predictions.csv"
ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def write_submission(
    directory: Path, task: str, split: str, rows: datasets.Dataset, class_names: list[str], predictions: np.ndarray
):
    """
    Writes the columns `index` and `prediction` to the submission file for a GLUE task.

    `predictions` (rows,) are indices into `class_names`, or scores if `class_names` is empty.
    """
    if task == "stsb":
        predictions = predictions.clip(0, 5)
    names = submitted_names(task, class_names)
    values = [names[int(number)] for number in predictions] if names else [f"{score:.3f}" for score in predictions]
    lines = [("index", "prediction"), *zip(rows["index"], values, strict=True)]
    content = "".join("\t".join(cell.translate(ESCAPES) for cell in line) + "\n" for line in lines)
    write_atomically(directory / TASKS[task].submission(split), content)


def prediction_columns(
    problem_type: str, names: list[str], predictions: np.ndarray, probabilities: np.ndarray | None
) -> dict[str, list[str]]:
    """
    Returns the columns of predictions.csv that describe the predictions.

    Args:
        problem_type: the `problem_type` of the model.
        names: label names. For regression with several targets, their names.
        predictions: label ids (rows,), 0/1 flags (rows, labels), or scores (rows,) or (rows, outputs).
        probabilities: probabilities (rows, labels). None for regression.
    """

    def columns(prefix: str, values: np.ndarray, form: str) -> dict[str, list[str]]:
        pairs = zip(names, values.T, strict=True)
        return {f"{prefix}_{name}": [format(value, form) for value in column] for name, column in pairs}

    if probabilities is None:
        if predictions.ndim == 2 and predictions.shape[1] > 1:
            return columns("prediction", predictions, ".6g")
        return {"prediction": [f"{score:.6g}" for score in predictions.ravel()]}
    each = columns("probability", probabilities, ".6f")
    if problem_type == MULTI:
        return columns("prediction", predictions, "d") | each
    chosen = [f"{row[label]:.6f}" for row, label in zip(probabilities, predictions, strict=True)]
    return {"prediction": [names[label] for label in predictions], "probability": chosen} | each


def write_predictions(
    directory: Path,
    rows: datasets.Dataset,
    skipped: list[dict],
    id_columns: tuple[str, ...],
    columns: dict[str, list[str]],
):
    """
    Writes predictions.csv, with a line for each row that was read from the test file.

    The columns are `row` (the position of the row in the file, from 0), the id columns, and `columns`, which are the
    predictions and probabilities for `rows`. They are empty for the invalid rows in `skipped`, which have the values
    `row` and `ids`.
    """
    lines = [[row["row"], *row.get("ids", []), *[""] * len(columns)] for row in skipped]
    for row, values in zip(rows, zip(*columns.values(), strict=True), strict=True):
        lines.append([row["row"], *row.get("ids", []), *values])
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([["row", *id_columns, *columns], *sorted(lines)])
    write_atomically(directory / PREDICTIONS, buffer.getvalue())
