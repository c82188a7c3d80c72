"""Searches for shrunk versions of a model, with and without distillation, that lose at most a few points."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers.utils import CONFIG_NAME

from ..options import ShrinkOptions
from ..support.errors import InputError
from ..support.files import directory_lock, new_directory, read_json_object, to_json, write_atomically
from .context import ShrinkContext
from .shrink import prune, refit_and_write, shrink, statistics_for
from .target import OutOfReach

HIGHEST = 16.0  # speedups between 1 and this are tried
PRUNINGS, DISTILLATIONS, DISTIL_STEPS = 5, 2, 400  # number of versions of each kind that are tried
GAIN = 2.5  # distilled versions are tried up to this many times the speed of the best version without distillation
KEPT = 2  # the fastest versions of each kind that are returned; int8 needs a slower one that loses less
STATE = "search.json"  # the options and files of an interrupted search


def search(
    options: ShrinkOptions, tolerance: float, points_lost: Callable[[Path], float], given: dict[str, Any]
) -> list[Path]:
    """
    Shrinks a model to several speeds. Returns the directories of the fastest versions that lose at most `tolerance`.

    They are in `output_dir`, where an interrupted search resumes.

    Args:
        options: The options of `shrink`. The search chooses the speedup and the distillation steps.
        points_lost: Returns how many points the version in a directory loses. It must always return the same number,
            so that the search takes the same way when it resumes.
        given: Options of the caller and files, which must not change when a search resumes.
    """
    work = Path(options.output_dir)
    with directory_lock(work):
        check_same_search(work, given)
        return Search(options, tolerance, points_lost).run()


def check_same_search(work: Path, given: dict[str, Any]):
    """Raises InputError if the directory belongs to a search with other options, rows or weights."""
    paths = [path for name in given["files"] for path in (Path(name), *sorted(Path(name).rglob("*")))]
    stats = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in paths if path.is_file()}
    state, file = given | {"files": stats}, work / STATE
    if file.exists() and read_json_object(file) != state:
        raise InputError(f"{work} contains an unfinished search with other options, rows or weights; remove it.")
    work.mkdir(parents=True, exist_ok=True)
    write_atomically(file, to_json(state, indent=1) + "\n")


@dataclass
class Search:
    """A search by bisection. `search` explains the arguments."""

    options: ShrinkOptions
    tolerance: float
    points_lost: Callable[[Path], float]
    done: int = field(default=0, init=False)

    def run(self) -> list[Path]:
        pruned = self.bisect(self.prune, 1.0, HIGHEST, PRUNINGS)
        fastest = max(pruned, default=1.0)
        distilled = self.bisect(self.distil, fastest, min(GAIN * fastest, HIGHEST), DISTILLATIONS)
        return [found[speedup] for found in (pruned, distilled) for speedup in sorted(found)[-KEPT:]]

    def bisect(self, make: Callable[[float], Path], low: float, high: float, tries: int) -> dict[float, Path]:
        """Tries speedups between `low` and `high`. Returns the versions that lose at most `tolerance`."""
        found = {}
        for _ in range(tries):
            self.done, speedup = self.done + 1, sqrt(low * high)
            kind = "distilled" if make == self.distil else "pruned"
            title = f"version {self.done} of {PRUNINGS + DISTILLATIONS}, {kind} for {speedup:.3g} times the speed"
            try:
                directory = make(speedup)
            except OutOfReach:
                PartialState().print(f"{title}: out of reach")
                high = speedup
                continue
            lost = self.points_lost(directory)
            PartialState().print(f"{title}: loses {lost:.2f} points")
            if lost <= self.tolerance:
                low, found[speedup] = speedup, directory
            else:
                high = speedup
        return found

    @cached_property
    def statistics(self):
        """The context, the prices of all sublayers and the pruners, from which all versions are pruned."""
        context = ShrinkContext.load(replace(self.options, speedup=[2.0]))
        return context, *statistics_for(context)

    def prune(self, speedup: float) -> Path:
        directory = Path(self.options.output_dir, f"{speedup:.3g}x")
        if not (directory / CONFIG_NAME).exists():
            context, prices, pruners = self.statistics
            one = replace(context, options=replace(context.options, speedup=[speedup]))
            with new_directory(directory) as partial:
                refit_and_write(partial, str(directory), one, prune(one, prices, pruners))
        return directory

    def distil(self, speedup: float) -> Path:
        vars(self).pop("statistics", None)  # frees memory
        directory = Path(self.options.output_dir, f"{speedup:.3g}x-distilled")
        if not (directory / CONFIG_NAME).exists():
            given = {"output_dir": str(directory), "speedup": [speedup], "distil_steps": DISTIL_STEPS}
            shrink(**asdict(self.options) | given)
        return directory
