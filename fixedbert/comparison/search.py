"""Searches for shrunk versions of a model, with and without distillation, that lose at most a few points."""

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import sqrt
from pathlib import Path

from accelerate import PartialState
from transformers.utils import CONFIG_NAME

from ..options import CompareOptions, ShrinkOptions
from ..shrinking.context import ShrinkContext
from ..shrinking.shrink import prune, refit_and_write, shrink, statistics_for
from ..shrinking.target import OutOfReach
from ..support.errors import InputError
from ..support.files import directory_lock, new_directory, read_json_object, to_json, write_atomically
from ..tasks.rows import Rows
from .candidates import Candidate, shrunk_candidate
from .choice import points_lost

HIGHEST = 16.0  # speedups between 1 and this are tried
PRUNINGS, DISTILLATIONS, DISTIL_STEPS = 5, 2, 400  # number of versions of each kind that are tried
GAIN = 2.5  # distilled versions are tried up to this many times the speed of the best version without distillation
KEPT = 2  # the fastest versions of each kind that compete; int8 needs a slower one that loses less
# A version takes as long as this many passes over the calibration rows. The first one also collects statistics.
PRUNING_PASSES, DISTILLATION_PASSES = 12, 60
STATE = "search.json"  # the options and files of an interrupted search
NOT_COMPARED = ("output_dir", "cache_dir", "token", "runtime")  # options that may change when a search resumes


def shrunk_versions(options: CompareOptions, first: Candidate, rows: Rows, half: int) -> list[Candidate]:
    """
    Shrinks the first model in several ways. Returns versions that lose at most `tolerance` on the first `half` of the
    rows.

    Their files are in a directory next to the output. An interrupted search resumes there. `remove_search` removes it.
    """
    work = search_directory(options)
    with directory_lock(work):
        check_same_search(work, options)
        return Search(options, work, first, rows, half).run()


def search_directory(options: CompareOptions) -> Path:
    return Path(f"{options.output_dir}.search")


def remove_search(options: CompareOptions):
    shutil.rmtree(search_directory(options), ignore_errors=True)


def check_same_search(work: Path, options: CompareOptions):
    """Raises InputError if the directory belongs to a search with other options, rows or weights."""
    files = [*(options.train_file or ()), *([options.validation_file] if options.validation_file else ())]
    paths = [*map(Path, files), *sorted(Path(options.models[0]).rglob("*"))]
    given = {name: value for name, value in asdict(options).items() if name not in NOT_COMPARED}
    stats = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in paths if path.is_file()}
    state, file = {"options": given, "files": stats}, work / STATE
    if file.exists() and read_json_object(file) != state:
        raise InputError(f"{work} contains an unfinished search with other options, rows or weights; remove it.")
    work.mkdir(parents=True, exist_ok=True)
    write_atomically(file, to_json(state, indent=1) + "\n")


@dataclass
class Search:
    """
    A search by bisection. Whether a version loses too much is a function of its files, so that the search takes the
    same way when it resumes.
    """

    options: CompareOptions
    work: Path
    first: Candidate
    rows: Rows
    half: int
    done: int = field(default=0, init=False)

    def run(self) -> list[Candidate]:
        features = self.first.features[: self.half]
        self.original = replace(self.first, features=features, predictions={})
        begin = time.perf_counter()
        self.original.predict_all(self.options.batch_size)
        print_estimate(len(features), time.perf_counter() - begin)
        pruned = self.bisect(self.prune, 1.0, HIGHEST, PRUNINGS)
        fastest = max(pruned, default=1.0)
        distilled = self.bisect(self.distil, fastest, min(GAIN * fastest, HIGHEST), DISTILLATIONS)
        versions = [found[speedup] for found in (pruned, distilled) for speedup in sorted(found)[-KEPT:]]
        return [replace(version, features=self.first.features, predictions={}) for version in versions]

    def bisect(self, make: Callable[[float], Path], low: float, high: float, tries: int) -> dict[float, Candidate]:
        """Tries speedups between `low` and `high`. Returns the versions that lose at most `tolerance`."""
        found = {}
        for _ in range(tries):
            self.done, speedup = self.done + 1, sqrt(low * high)
            kind = "distilled" if make == self.distil else "pruned"
            title = f"{self.done} of {PRUNINGS + DISTILLATIONS}: {kind} for {speedup:.3g} times the speed"
            try:
                directory = make(speedup)
            except OutOfReach:
                PartialState().print(f"{title}: out of reach")
                high = speedup
                continue
            version = shrunk_candidate(self.original, directory)
            version.predict_all(self.options.batch_size)
            lost = points_lost(self.original, version, self.rows, range(self.half))
            PartialState().print(f"{title}, it loses {lost:.2f} points")
            if lost <= (self.options.tolerance or 0.0):
                low, found[speedup] = speedup, version
            else:
                high = speedup
        return found

    @cached_property
    def statistics(self):
        """The context, the prices of all sublayers and the pruners, from which all versions are pruned."""
        context = ShrinkContext.load(self.shrink_options(self.work, 2.0))
        return context, *statistics_for(context)

    def prune(self, speedup: float) -> Path:
        directory = self.work / f"{speedup:.3g}x"
        if not (directory / CONFIG_NAME).exists():
            context, prices, pruners = self.statistics
            one = replace(context, options=replace(context.options, speedup=[speedup]))
            with new_directory(directory) as partial:
                refit_and_write(partial, str(directory), one, prune(one, prices, pruners))
        return directory

    def distil(self, speedup: float) -> Path:
        vars(self).pop("statistics", None)  # frees memory
        directory = self.work / f"{speedup:.3g}x-distilled"
        if not (directory / CONFIG_NAME).exists():
            shrink(**asdict(self.shrink_options(directory, speedup, DISTIL_STEPS)))
        return directory

    def shrink_options(self, directory: Path, speedup: float, steps: int | None = None) -> ShrinkOptions:
        options, (model,) = self.options, self.options.models
        names = ("text_column_names", "query_column_name", "max_seq_length", "skip_bad_rows", "batch_size")
        names += ("train_file", "model_revision", "cache_dir", "token")
        given = {name: getattr(options, name) for name in names}
        return ShrinkOptions(model=model, output_dir=str(directory), speedup=[speedup], distil_steps=steps, **given)


def print_estimate(rows: int, seconds: float):
    """Prints about how long the search takes, if the model needs some seconds for these rows."""
    passes = PRUNINGS * PRUNING_PASSES + DISTILLATIONS * DISTILLATION_PASSES
    minutes = passes * seconds / rows * 1500 / 60
    PartialState().print(f"searching for shrunk versions, which takes about {minutes:.0f} minutes")
