"""Advice on the fastest runtimes of a model."""

from ..loading.loaded_model import LoadedModel
from ..options import CompareOptions
from ..tasks.fidelity import NEARLY_SAME, SAME, criterion
from .candidates import Candidate
from .report import RANDOM, SINGLE

MIN_ROWS = 32  # minimum number of rows for advice


def advice(candidates: list[Candidate], options: CompareOptions) -> str:
    """
    Returns the fastest of a model's runtimes with the same and nearly the same predictions, and how to get them.
    Returns "" for exported graphs.
    """
    if not any(isinstance(each.model, LoadedModel) for each in candidates):
        return ""
    if len(options.models) > 1:
        return "Each model runs as it is stored. Compare a model alone to find its fastest runtime."
    if len(candidates[0].features) < MIN_ROWS:
        return f"There are too few rows for advice; provide at least {MIN_ROWS}."
    results = [candidate.result for candidate in candidates]
    unit = next((result.fidelity.unit for result in results if result.fidelity), "row")
    lines = []
    for limit in (SAME, NEARLY_SAME):
        same = [result for result in results if not result.fidelity or result.fidelity.is_within(limit)]
        best = []
        for order, name in ((RANDOM, "batches"), (SINGLE, "single texts")):
            result = max(same, key=lambda result: result.speedup[order])
            best.append(f"{result.runtime} ({result.speedup[order]:.2f} times as fast) for {name}")
        lines.append(f"Fastest, if {criterion(unit, limit)}: {', '.join(best)}.")
    lines.append("To write the fastest version that loses at most half a point, add --tolerance 0.5 --output_dir DIR.")
    return "\n".join(lines)
