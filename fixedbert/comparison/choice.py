"""Chooses the fastest versions of a model that lose at most as many points as the user tolerates, and writes them."""

import copy
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from ..exporting.export import write_exported
from ..exporting.graphs import GRAPHS
from ..loading.auxiliary_files import CARD, copy_auxiliary_files
from ..loading.loaded_model import LoadedModel
from ..options import CompareOptions
from ..publishing.model_card import checkpoint_card
from ..support.errors import InputError
from ..tasks.fidelity import UNITS
from ..tasks.rows import POINTS, Rows
from .candidates import Candidate
from .report import RANDOM, SINGLE
from .runtimes import TORCH, torch_model

FOLDERS = {RANDOM: "batches", SINGLE: "single"}
MIN_ROWS = 64  # half of them are for the choice, and half for confirming it
FOLDS = 10  # groups of rows for standard errors


def halve(rows: Rows, first: Candidate) -> int:
    """
    Puts the rows for the choice of a version before those that confirm it. Returns how many there are.

    Rows of one query are in the same half.

    Raises:
        InputError: If there are too few rows or queries, or the points that a version loses cannot be measured.
    """
    if not isinstance(first.model, LoadedModel):
        raise InputError(f"needs a model with weights, but {first.source} contains only graphs.", "tolerance")
    if first.task.kind.endswith("numbers") and "label" not in rows.data.column_names and rows.item != "query":
        raise InputError("needs labels or `query_column_name`, because the model predicts scores.", "tolerance")
    count = int(rows.groups.max()) + 1
    if count < MIN_ROWS:
        unit = "queries" if count < len(rows.data) else "rows"
        raise InputError(f"needs at least {MIN_ROWS} {unit}, but there are {count}.", "tolerance")
    chosen = np.isin(rows.groups, np.random.default_rng(0).permutation(count)[: count // 2])
    rows.data = rows.data.select([*np.flatnonzero(chosen), *np.flatnonzero(~chosen)])
    return int(chosen.sum())


def main_metric(scores: dict[str, float]) -> str:
    """Returns the most important of the metrics, or "" if there are none."""
    return next((name for name in POINTS if name in scores), "")


def points_lost(first: Candidate, model: Candidate, rows: Rows, indices: Iterable[int]) -> float:
    """
    Returns how many points of the main metric a model loses on the rows with these indices, compared with the first.

    Without labels, returns the percentage of the units, such as rows or entities, whose prediction changes.
    """
    selected, models = rows.select(indices), (first, model)
    features = [[each.features[index] for index in indices] for each in models]
    expected, answers = (
        selected.interpret(each.outputs_for(indices), own, features)
        for each, own in zip(models, features, strict=True)
    )
    if metric := main_metric(expected.scores):
        return 100 * (expected.scores[metric] - answers.scores[metric])
    return 100 * selected.fidelity(expected, answers)[0].change


def standard_error(first: Candidate, model: Candidate, rows: Rows, indices: np.ndarray) -> float:
    """Returns the standard error of `points_lost`: the jackknife, which leaves out each of ten groups of rows."""
    folds = rows.groups[indices] % FOLDS
    lost = np.array([points_lost(first, model, rows, indices[folds != fold]) for fold in range(FOLDS)])
    return float(np.sqrt((FOLDS - 1) * lost.var()))


def write_fastest(directory: Path, candidates: list[Candidate], rows: Rows, half: int, options: CompareOptions) -> str:
    """
    Writes the fastest version for batches, and if another version is faster for single rows, also that one.

    Each loses at most `tolerance` on the first `half` of the rows, on which it is chosen, and on the others, which
    confirm the choice.

    Returns:
        Sentences that name each version, its speed, and the points that it loses on the rows that confirm the choice.
    """
    tolerance = options.tolerance or 0.0
    first, halves = candidates[0], (np.arange(half), np.arange(half, len(rows.data)))

    @cache
    def lost(index: int, part: int) -> float:
        return points_lost(first, candidates[index], rows, halves[part])

    def is_within(index: int) -> bool:
        return all(lost(index, part) <= tolerance + 1e-9 for part in range(2))

    winners: dict[int, list[str]] = {}
    for order in FOLDERS:
        ranked = sorted(range(len(candidates)), key=lambda index: -candidates[index].result.speedup[order])
        winners.setdefault(next(index for index in ranked if index == 0 or is_within(index)), []).append(order)
    unit, _ = UNITS[rows.item]
    metric = main_metric(first.result.scores)
    measure = f"points of {metric}" if metric else f"percent of the {unit}"
    lines = []
    for index, orders in winners.items():
        best, name = candidates[index], FOLDERS[orders[0]]
        if index == 0:
            lines.append(f"No version within {tolerance:g} points is faster for {describe(orders)}.")
            continue
        write_version(best, directory / name)
        error, seconds = standard_error(first, best, rows, halves[1]), best.result.speedup
        speeds = " and ".join(f"{seconds[order]:.2f} times as fast for {describe([order])}" for order in FOLDERS)
        lines.append(
            f"{options.output_dir}/{name}: {best.result.label}, {speeds}. On {len(halves[1]):,} rows that were not "
            f"used for the choice, it loses {lost(index, 1):.2f} {measure} (standard error {error:.2f})."
        )
        if 2 * error > tolerance > 0:
            needed = len(rows.data) * (2 * error / tolerance) ** 2
            lines.append(f"To tell {tolerance:g} points from chance takes about {needed:,.0f} rows.")
    return "\n".join(lines)


def describe(orders: list[str]) -> str:
    return " and ".join({RANDOM: "batches", SINGLE: "single rows"}[order] for order in orders)


def write_version(version: Candidate, directory: Path):
    """Writes a model in its runtime to a new directory, with its tokenizer and a card with code that runs it."""
    directory.mkdir()
    loaded, runtime = version.model, version.runtime
    assert isinstance(loaded, LoadedModel)
    if runtime in GRAPHS:
        graph = GRAPHS[runtime]
        runtimes = [GRAPHS[graph.format.replace("onnx", "onnxruntime")], graph]
        exported = replace(loaded, model=copy.deepcopy(loaded.model))
        write_exported(exported, version.source, directory, directory.name, runtimes, version.calibration)
    elif version.is_shrunk:
        shutil.copytree(version.source, directory, dirs_exist_ok=True)
    else:
        model = torch_model(loaded, TORCH[runtime])
        model.save_pretrained(directory)
        origin, metadata = copy_auxiliary_files(version.source, loaded.directory, directory)
        provenance = f"Converted from `{origin}`. It runs {TORCH[runtime]}."
        checkpoint_card(model, directory.name, provenance, **metadata).save(directory / CARD)
