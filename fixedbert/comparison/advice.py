"""Advice on the fastest runtimes of a model, with the commands that write it for them."""

from ..exporting.graphs import GRAPHS
from ..options import CompareOptions
from ..tasks.fidelity import NEARLY_SAME, SAME, criterion
from .candidates import Candidate
from .report import RANDOM, SINGLE
from .runtimes import TORCH

MIN_ROWS = 32  # minimum number of rows for advice


def advice(candidates: list[Candidate], options: CompareOptions) -> str:
    """
    Returns the fastest of a model's runtimes with the same and nearly the same predictions, and how to use them.
    """
    if len(candidates[0].features) < MIN_ROWS:
        return f"There are too few rows for advice; provide at least {MIN_ROWS}."
    results = [candidate.result for candidate in candidates]
    unit = next((result.fidelity.unit for result in results if result.fidelity), "row")
    lines, winners = [], []
    for limit in (SAME, NEARLY_SAME):
        same = [result for result in results if not result.fidelity or result.fidelity.is_within(limit)]
        best = []
        for order, name in ((RANDOM, "batches"), (SINGLE, "single texts")):
            result = max(same, key=lambda result: result.speedup[order])
            best.append(f"{result.runtime} ({result.speedup[order]:.2f} times as fast) for {name}")
            winners.append(result.runtime)
        lines.append(f"Fastest, if {criterion(unit, limit)}: {', '.join(best)}.")
    lines += ["", "How to use them (each command writes a directory, with code that runs the model in its README.md):"]
    lines += [f"{name}: {instructions(name, candidates[0], options)}" for name in dict.fromkeys(winners)]
    return "\n".join(lines)


def instructions(runtime: str, candidate: Candidate, options: CompareOptions) -> str:
    """Returns the command that writes a model for the runtime, or code that loads it if no command is necessary."""
    source, is_main = candidate.source, options.model_revision == "main"
    flags = "" if is_main else f" --model_revision {options.model_revision}"
    flags += f" --output_dir {runtime}"
    if runtime in GRAPHS:
        hint = "\n# in the code in its README.md, change f32 to bf16" if GRAPHS[runtime].precision == "bf16" else ""
        return f"fixedbert export {source}{flags}{export_flags(runtime, options)}{hint}"
    serving = TORCH[runtime]
    dtype = str(serving.dtype).removeprefix("torch.")
    if serving.unpad_inputs:
        return f"fixedbert convert {source}{flags} --unpad_inputs --dtype {dtype}"
    revision = "" if is_main else f', revision="{options.model_revision}"'
    takes_pairs = candidate.model.settings.takes_pairs
    if candidate.model.head and not takes_pairs:
        return f'AutoModelFor{candidate.model.head}.from_pretrained("{source}", dtype="{dtype}"{revision})'
    kind = "CrossEncoder" if takes_pairs else "SentenceTransformer"
    return f'{kind}("{source}", device="cpu", model_kwargs={{"dtype": "{dtype}"}}{revision})'


def export_flags(runtime: str, options: CompareOptions) -> str:
    """Returns the options of `fixedbert export` for a graph. OpenVINO's int8 graph is calibrated on the same rows."""
    graph = GRAPHS[runtime]
    int8 = " --int8" if graph.int8 else ""
    if graph.format == "onnx":
        return int8
    if not graph.int8:
        return " --runtime openvino"
    names = ("task_name", "data_dir", "text_column_names")
    given = {"train_file": options.validation_file, **{name: getattr(options, name) for name in names}}
    rows = "".join(f" --{flag} {value}" for flag, value in given.items() if value)
    rows += " --skip_bad_rows" if options.skip_bad_rows else ""
    return f" --runtime openvino{int8}{rows}"
