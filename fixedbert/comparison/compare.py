"""
Compares the speed, scores and predictions of models on the same rows.

All models run on the CPU with the same number of threads. For each batch, they run in random order.
"""

import csv
import random
from collections import Counter
from dataclasses import asdict, replace
from itertools import chain
from math import nan
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tqdm.auto import tqdm

from ..fine_tuning.glue import split_names
from ..fine_tuning.texts import Columns
from ..shrinking.calibration import row_length
from ..shrinking.latency import machine_name
from ..shrinking.predictions import Fidelity, fidelity
from ..support.files import new_directory, to_json
from .candidates import QUESTIONS, WORDS, Candidate, check_same_task, load_candidates
from .report import CHANGED, SINGLE_ROWS, ComparedModel, Comparison
from .rows import Answers, Cells, QuestionRows, TextRows, WordRows

RESULTS = "comparison.json"
ROWS: dict[str, type[TextRows | WordRows | QuestionRows]] = {WORDS: WordRows, QUESTIONS: QuestionRows}


def compare(  # noqa: PLR0913  the options of the command
    models: list[str | Path],
    validation_file: str | Path,
    text_column_names: str | None = None,
    label_column_name: str | None = None,
    id_column_name: str | None = None,
    skip_bad_rows: bool = False,
    max_seq_length: int | None = None,
    max_samples: int = 1000,
    batch_size: int = 32,
    output_dir: str | Path | None = None,
    cache_dir: str | None = None,
    token: str | None = None,
) -> Comparison:
    """
    Compares the speed and scores of models on the same rows, and their predictions with those of the first model.

    Args:
        models: directories or Hub ids of models for the same task: classification, regression, embeddings, token
            classification or question answering. The first is the original. Each ONNX graph in a directory counts as a
            model.
        validation_file: file with rows for the task, preferably not used in training. Labels are optional. For token
            classification, the rows contain lists of words. For question answering, they are in SQuAD's format.
        text_column_names: names of the text columns, such as "premise,hypothesis". For token classification, the
            column with the words, "tokens" by default.
        label_column_name: name of the label column, or names of several label columns separated by commas. By
            default, this is "label" (for words "ner_tags" or "labels") if the file has such a column.
        id_column_name: names of columns that identify the rows, for the file with different predictions.
        skip_bad_rows: skip and print invalid rows.
        max_seq_length: maximum tokens per row. By default, this is the limit that all models support, at most 512.
        max_samples: maximum number of rows, sampled at random.
        batch_size: rows per batch.
        output_dir: a new directory for the measurements and the rows with different predictions.
        cache_dir, token: options for models on the Hub.

    Raises:
        InputError: If the models have different tasks, or the rows are unsuitable for them.
    """
    loaded = [load_candidates(str(source), cache_dir=cache_dir, token=token) for source in models]
    candidates = list(chain(*loaded))
    check_same_task(candidates)
    names = Counter(model.name for model in candidates)
    for model in candidates:
        model.name = model.source if names[model.name] > 1 else model.name  # the full path replaces a duplicate name
    length = row_length(max_seq_length, [(model.config, model.tokenizer) for model in candidates])
    columns = Columns(*map(split_names, (text_column_names, label_column_name, id_column_name)))
    rows = ROWS.get(candidates[0].head, TextRows)(Path(validation_file), candidates, columns, skip_bad_rows, length)
    available = len(rows.data)
    rows.data = rows.data.select(random.Random(0).sample(range(available), min(available, max_samples)))
    for model in candidates:
        model.features, model.truncated = rows.features(model, length)
    run(candidates, len(rows.data), batch_size)
    answers = [rows.answers(model, candidates) for model in candidates]
    compared = [measurements(*pair, candidates[0], answers[0]) for pair in zip(candidates, answers, strict=True)]
    result = Comparison(
        file=str(validation_file),
        rows=len(rows.data),
        available=available,
        batch_size=batch_size,
        max_seq_length=length,
        machine=machine_name(),
        models=compared,
        item=rows.item,
    )
    if output_dir is None:
        return result
    with new_directory(output_dir) as directory:
        result = replace(result, folder=str(output_dir))
        (directory / RESULTS).write_text(to_json(asdict(result), indent=1) + "\n")
        if answers[0].texts:
            lines = changed_items(rows.cells(candidates), candidates, answers)
            with (directory / CHANGED).open("w", newline="", encoding="utf-8") as output:
                csv.writer(output, lineterminator="\n").writerows(lines)
    return result


@torch.inference_mode()
def run(candidates: list[Candidate], rows: int, batch_size: int):
    """Runs all models on each batch and on single rows, in random order, and stores their predictions and times."""
    batches = [range(begin, min(begin + batch_size, rows)) for begin in range(0, rows, batch_size)]
    single = [range(row, row + 1) for row in range(min(rows, SINGLE_ROWS))]
    for model in candidates:  # warm-up
        model.timed(batches[0])
        model.timed(single[0])
    order = random.Random(0)
    for index, batch in enumerate(tqdm([*batches, *single], "comparing", unit="batch")):
        for model in order.sample(candidates, len(candidates)):
            predictions, seconds = model.timed(batch)
            if index < len(batches):
                model.predictions.append(predictions)
                model.seconds.append(seconds)
            else:
                model.single_seconds.append(seconds)


def measurements(model: Candidate, answers: Answers, first: Candidate, expected: Answers) -> ComparedModel:
    """Computes the speed and fidelity of a model from its times and answers, and those of the first model."""
    rows, lost, gained = len(model.features), None, None
    if expected.correct is not None and answers.correct is not None:
        lost = int((expected.correct & ~answers.correct).sum())
        gained = int((~expected.correct & answers.correct).sum())
    return ComparedModel(
        name=model.name,
        rows_per_second=(rows / sum(model.seconds), len(model.single_seconds) / sum(model.single_seconds)),
        speedup=(
            median(np.divide(first.seconds, model.seconds).tolist()),
            median(np.divide(first.single_seconds, model.single_seconds).tolist()),
        ),
        scores=answers.scores,
        lost=lost,
        gained=gained,
        truncated=model.truncated,
        fidelity=None if model is first else fidelity_of(answers, expected, rows),
    )


def fidelity_of(answers: Answers, expected: Answers, rows: int) -> Fidelity:
    """Returns the fidelity of answers to those of the first model. The agreement is the fraction of equal texts."""
    if answers.outputs:
        result = fidelity([(expected.outputs, answers.outputs)], rows)
    else:
        result = Fidelity(divergence=nan, agreement=None, kind="classes", rows=rows)
    if not expected.texts:
        return result
    same = np.array(expected.texts) == np.array(answers.texts)
    return replace(result, agreement=float(same.mean()), distinct=len({*expected.texts}))


def changed_items(cells: Cells, candidates: list[Candidate], answers: list[Answers]) -> list[list]:
    """
    Returns a header, and a line for each item on which the models disagree, in the order of the file: its cells, and
    the prediction of each model with its probability.
    """
    for model, each in zip(candidates, answers, strict=True):
        probabilities = [f"{probability:.6f}" for probability in each.probabilities]
        cells = [*cells, (model.name, each.texts), (f"{model.name} probability", probabilities)]
    texts = zip(*(each.texts for each in answers), strict=True)
    changed = [index for index, predictions in enumerate(texts) if len({*predictions}) > 1]
    lines = [[values[index] for _, values in cells] for index in changed]
    return [[name for name, _ in cells], *sorted(lines, key=lambda line: line[0])]
