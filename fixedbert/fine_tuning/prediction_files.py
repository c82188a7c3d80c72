"""Files with predictions: GLUE submissions, and predictions.csv for other data."""

import csv
from io import StringIO
from pathlib import Path

import datasets
import numpy as np

from ..data.glue import TASKS
from ..support.files import write_atomically
from .labels import MULTI, SINGLE, submitted_names

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
        problem_type: as in transformers.
        names: label names, or the names of the targets of a regression, if there are several.
        predictions: label ids (rows,), flags of 0 and 1 (rows, labels), or scores (rows,) or (rows, outputs).
        probabilities: probabilities (rows, labels). None for a regression.
    """
    if probabilities is None:
        columns = predictions.reshape(len(predictions), -1).T
        titles = [f"prediction_{name}" for name in names] if len(columns) > 1 else ["prediction"]
        return {title: [f"{score:.6g}" for score in column] for title, column in zip(titles, columns, strict=True)}
    each = {f"probability_{name}": column for name, column in zip(names, probabilities.T, strict=True)}
    columns = {title: [f"{probability:.6f}" for probability in column] for title, column in each.items()}
    if problem_type == MULTI:
        flags = {f"prediction_{name}": column for name, column in zip(names, predictions.T, strict=True)}
        return {title: [str(int(flag)) for flag in column] for title, column in flags.items()} | columns
    assert problem_type == SINGLE
    chosen = probabilities[np.arange(len(predictions)), predictions]
    names_and_probabilities = [names[number] for number in predictions], [f"{value:.6f}" for value in chosen]
    return dict(zip(("prediction", "probability"), names_and_probabilities, strict=True)) | columns


def write_predictions(
    directory: Path,
    rows: datasets.Dataset,
    skipped: list[dict],
    id_columns: tuple[str, ...],
    columns: dict[str, list[str]],
):
    """
    Writes predictions.csv, with a line for each row of the test file that was read.

    Its columns are `row`, which is the position of the row in the file and starts at 0, the id columns, and `columns`.
    The predictions for rows that were skipped because they are invalid are empty.

    Args:
        skipped: the values of `row` and `ids` for the invalid rows.
        columns: predictions and probabilities for `rows`.
    """
    header = ["row", *id_columns, *columns]
    ids = rows["ids"][:] if id_columns else [[]] * len(rows)
    lines = [[row["row"], *row.get("ids", []), *[""] * len(columns)] for row in skipped]
    for row, keys, values in zip(rows["row"][:], ids, zip(*columns.values(), strict=True), strict=True):
        lines.append([row, *keys, *values])
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *sorted(lines)])
    write_atomically(directory / PREDICTIONS, buffer.getvalue())
