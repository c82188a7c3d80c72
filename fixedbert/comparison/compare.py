"""
Compares the speed, scores and predictions of models, or of different ways to run one model, on the same rows. They run
on the CPU with the same number of threads, in random order for each batch.
"""

from collections import Counter
from dataclasses import asdict
from math import inf, isnan
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

from ..commands import takes_options
from ..exporting.openvino_graphs import CALIBRATION_ROWS
from ..loading.loaded_model import LoadedModel
from ..options import CompareOptions
from ..support.errors import InputError
from ..support.files import check_output_free, new_directory, short_name, to_csv, to_json
from ..support.machine import machine_name
from ..tasks.fidelity import NEARLY_SAME, Keys, criterion
from ..tasks.rows import RowPredictions, Rows
from ..tasks.task_heads import compared_rows, row_length
from .advice import advice
from .candidates import MAX_SPREAD, Candidate, build_candidates, load_candidates, race
from .report import CHANGED, RANDOM, ROUNDS, SINGLE, SINGLE_ROWS, SORTED, Comparison
from .runtimes import RUNTIMES

RUNS = 64  # minimum number of runs of all batches together
PROBES = 8  # batches on which the fastest runtime of each of several models is found
MIN_COSINE = 0.999  # of the embeddings of a text, alone and in a batch; a note reports lower values
INT8 = "openvino-int8"  # takes minutes to build; several models use it only if it is named
RESULTS = "comparison.json"


@takes_options("compare")
def compare(options: CompareOptions) -> Comparison:
    """
    Compares several models, or different ways to run one model on this machine, on the same rows.

    With a single model, the result contains every installed runtime. With several models, it contains the fastest
    runtime of each that preserves its predictions. Predictions and speeds are compared with those of the first model
    in padded float32 PyTorch. The models predict classes, scores, embeddings, classes of words, or answers to
    questions. A directory can contain exported graphs instead of weights. Labels are optional.

    Raises:
        InputError: If the models have different tasks, the rows are unsuitable, or a runtime is not installed.
    """
    check_options(options)
    by_model = [load_candidates(*pair, **options.hub_options()) for pair in names_of(options.models)]
    candidates = [candidate for own in by_model for candidate in own]
    align_classes(candidates)
    models = [(each.model.config, each.model.tokenizer) for each in candidates]
    length = row_length(options.max_seq_length, models)
    rows = compared_rows(options, candidates[0].model.head, models, length)
    available = len(rows.data)
    rows.sample(options.max_eval_samples)
    for each in candidates:
        each.features, each.result.truncated = rows.features(each.model.tokenizer, each.model.settings, length)
    with TemporaryDirectory() as directory:
        candidates, notes = choose_runtimes(by_model, rows, options, Path(directory))
        notes += run(candidates, len(rows.data), options.batch_size)
    all_features = [model.features for model in candidates]
    answers = [rows.interpret(model.outputs(), model.features, all_features) for model in candidates]
    pairs = zip(candidates, answers, strict=True)
    changed = [measure(*pair, rows, candidates[0], answers[0]) for pair in pairs]
    if not any(isinstance(each.model, LoadedModel) for each in candidates):  # only exported graphs
        advised = ""
    elif len(by_model) > 1:
        advised = "To print the command for a runtime, compare the model alone."
    else:
        advised = advice(candidates, options)
    result = Comparison(
        file=options.validation_file or f"GLUE {options.task_name}",
        rows=len(rows.data),
        available=available,
        batch_size=options.batch_size,
        max_seq_length=length,
        machine=machine_name(),
        models=[model.result for model in candidates],
        item=rows.item,
        notes=[rows.note, *notes] if rows.note else notes,
        advice=advised,
        folder=options.output_dir or "",
    )
    if options.output_dir is not None:
        with new_directory(options.output_dir) as directory:
            (directory / RESULTS).write_text(to_json(asdict(result), indent=1) + "\n")
            if any(each.fidelity and each.fidelity.unit != "score" for each in result.models):
                units = sorted({unit for units in changed for unit in units})
                columns = changed_units(rows, units, candidates, answers)
                (directory / CHANGED).write_bytes(to_csv(columns).encode())
    return result


def check_options(options: CompareOptions):
    """Raises InputError, before any model is loaded, for an unknown runtime or a full directory."""
    unknown = [name for name in options.runtime or () if name not in RUNTIMES]
    if unknown:
        raise InputError(f"{unknown[0]!r}: must be one of {', '.join(RUNTIMES)}.", "runtime")
    if options.output_dir is not None:
        check_output_free(Path(options.output_dir))


def names_of(sources: list[str]) -> list[tuple[str, str]]:
    """Returns each model's directory or Hub id, and its name in the report: the id itself if short names collide."""
    names = Counter(map(short_name, sources))
    return [(source, source if names[short_name(source)] > 1 else short_name(source)) for source in sources]


def align_classes(candidates: list[Candidate]):
    """Puts the classes of all models in the order of the first model's. Raises InputError if their tasks differ."""
    first = candidates[0]
    for model in candidates:
        model.order = first.task.order_of(model.task)
        if model.order is None:
            raise InputError(f"{model.source} predicts {model.task}, but {first.source} predicts {first.task}.")


def choose_runtimes(
    models: list[list[Candidate]], rows: Rows, options: CompareOptions, directory: Path
) -> tuple[list[Candidate], list[str]]:
    """
    Returns the candidates to compare, and notes about runtimes.

    - A single model runs in all runtimes, and each of several models in the fastest that preserves its predictions.
    - A directory with only exported graphs contributes all of them.
    - The first candidate is the first model in padded float32 PyTorch, or its first graph if it has only graphs.
    """
    chosen, notes = models[0][:1], list[str]()
    for index, candidates in enumerate(models):
        reference = candidates[0]
        if isinstance(reference.model, LoadedModel):
            default = [name for name in RUNTIMES if len(models) == 1 or name != INT8]
            names, is_required = options.runtime or default, options.runtime is not None
            candidates, remarks = build_candidates(reference, names, is_required, directory / str(index))
            if not candidates:
                raise InputError(f"{reference.result.name}: no runtime works: {'; '.join(remarks)}.", "runtime")
            if len(models) > 1 and len(candidates) > 1:
                remarks.append("the runtime of each model was chosen on the same rows")
                if not is_required:
                    remarks.append(f"{INT8}: not tried, because its calibration takes minutes; name it as a runtime")
                candidates = [fastest(candidates, reference, rows, options.batch_size, notes)]
            if any(candidate.runtime == INT8 for candidate in candidates):
                count = min(CALIBRATION_ROWS, len(reference.features))
                remarks.append(f"{INT8}: calibrated on {count} of these rows, so it may agree less on new rows")
            notes += [note for note in remarks if note not in notes]
        chosen += [candidate for candidate in candidates if candidate is not chosen[0]]
    return chosen, notes


@torch.inference_mode()
def fastest(
    candidates: list[Candidate], reference: Candidate, rows: Rows, batch_size: int, notes: list[str]
) -> Candidate:
    """
    Returns the fastest candidate whose predictions are nearly the reference's. If there is none, returns the candidate
    that changes least, and adds this to the notes.
    """
    name, count = reference.result.name, len(reference.features)
    batches = [range(begin, min(begin + batch_size, count)) for begin in range(0, count, batch_size)]

    def answers(candidate: Candidate) -> RowPredictions:
        candidate.predictions[RANDOM] = [candidate.timed(batch)[0] for batch in batches]
        return rows.interpret(candidate.outputs(), candidate.features, [candidate.features])

    expected = answers(reference)
    seconds = race(candidates, batches[:PROBES], f"choosing a runtime for {name}").seconds
    found: list[tuple[float, Candidate]] = []
    for candidate in (candidates[index] for index in np.argsort(seconds)):
        if candidate is reference:
            return candidate
        result, _ = rows.fidelity(expected, answers(candidate))
        if result.is_within(NEARLY_SAME):
            return candidate
        found.append((inf if isnan(result.change) else result.change, candidate))
    best = min(found, key=lambda pair: pair[0])[1]
    limit = criterion(result.unit, NEARLY_SAME)
    notes.append(f"{name}: every runtime misses the limit ({limit}); {best.runtime} changes least")
    return best


@torch.inference_mode()
def run(candidates: list[Candidate], rows: int, batch_size: int) -> list[str]:
    """
    Runs all candidates on random batches, on batches of rows with similar lengths, and on single rows. Stores their
    predictions and latencies, and returns notes about them.
    """
    notes = []
    lengths = [sum(len(window["input_ids"]) for window in windows) for windows in candidates[0].features]
    orders = {RANDOM: range(rows), SORTED: sorted(range(rows), key=lengths.__getitem__), SINGLE: range(SINGLE_ROWS)}
    for name, order in orders.items():
        size, count = 1 if name == SINGLE else batch_size, min(len(order), rows)
        batches = [order[begin : min(begin + size, count)] for begin in range(0, count, size)]
        results = race(candidates, batches, f"comparing, {name}", max(ROUNDS, RUNS // len(batches)))
        for model, predictions, seconds in zip(candidates, results.predictions, results.seconds, strict=True):
            model.seconds[name] = float(seconds)
            model.predictions[name] = predictions
        if results.spread > MAX_SPREAD:
            column = name.replace(RANDOM, "speedup")
            notes.append(f"{column}: repeated runs differ by {results.spread:.0%}; compare again on an idle machine")
    return notes + batch_notes(candidates)


def batch_notes(candidates: list[Candidate]) -> list[str]:
    """Returns a note for each model whose embedding of a text depends on the other texts in a batch."""
    notes = []
    for model in candidates:
        single, batch = (model.outputs(kind)[0] for kind in (SINGLE, RANDOM))
        if single.kind == "embeddings":
            lowest = float(cosine_similarity(single.values, batch.values[: len(single.values)]).min())
            if lowest < MIN_COSINE:
                text = f"the embeddings of a text alone and in a batch have a cosine of {lowest:.3f} or more"
                notes.append(f"{model.result.label}: {text}")
    return notes


def measure(model: Candidate, answers: RowPredictions, rows: Rows, first: Candidate, expected: RowPredictions) -> Keys:
    """
    Computes the speed, scores and fidelity of a model, relative to the first model and its answers. Returns the units
    that change.
    """
    count, result = len(model.features), model.result
    for order, number in {RANDOM: count, SORTED: count, SINGLE: min(count, SINGLE_ROWS)}.items():
        result.rows_per_second[order] = number / model.seconds[order]
        result.speedup[order] = first.seconds[order] / model.seconds[order]
    result.scores = answers.scores
    if expected.correct is not None and answers.correct is not None:
        result.lost = int((expected.correct & ~answers.correct).sum())
        result.gained = int((~expected.correct & answers.correct).sum())
    if model is first:
        return []
    result.fidelity, changed = rows.fidelity(expected, answers)
    return changed


def changed_units(rows: Rows, units: Keys, candidates: list[Candidate], answers: list[RowPredictions]) -> list[list]:
    """
    Returns a header, and a line for each unit that changes, in the order of the file. A line contains the cells of the
    unit, and the prediction of each model.
    """
    columns = [*rows.cells(units, [model.features for model in candidates])]
    for model, own in zip(candidates, answers, strict=True):
        columns.append((model.result.label, rows.predicted(units, own, answers[0])))
    lines = [[*line] for line in zip(*(values for _, values in columns), strict=True)]
    return [[name for name, _ in columns], *sorted(lines, key=lambda line: line[0])]
