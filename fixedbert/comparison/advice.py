"""Advice on the fastest runtimes of a model, with the commands and code that run it."""

from ..exporting.graphs import GRAPHS
from ..exporting.onnx_graphs import result_names
from ..options import CompareOptions
from ..publishing.snippets import graph_code, sentence_code, threshold_code, transformers_code
from .candidates import Candidate
from .report import RANDOM, SINGLE
from .runtimes import TORCH

MIN_ROWS = 32  # minimum number of rows for advice
SAME, NEARLY_SAME = 1.0, 0.995  # minimum fractions of identical predictions for choosing the fastest runtime


def advice(candidates: list[Candidate], options: CompareOptions, longest: int) -> str:
    """
    Returns the fastest runtimes with the same and nearly the same predictions, and Python code that runs them.

    Args:
        candidates: One model in several runtimes.
        longest: Maximum number of tokens per row.
    """
    if len(candidates[0].features) < MIN_ROWS:
        return f"There are too few rows for advice; provide at least {MIN_ROWS}."
    results = [candidate.result for candidate in candidates]
    lines, winners = [], []
    for fraction in (SAME, NEARLY_SAME):
        same = [result for result in results if result.has_same_predictions(fraction)]
        best = []
        for order, name in ((RANDOM, "batches"), (SINGLE, "single texts")):
            result = max(same, key=lambda result: result.speedup[order])
            best.append(f"{result.runtime} ({result.speedup[order]:.2f} times as fast) for {name}")
            winners.append(result.runtime)
        lines.append(f"Fastest with at least {fraction:.1%} identical predictions: {', '.join(best)}.")
    for runtime in dict.fromkeys(winners):
        lines += ["", f"{runtime}:", instructions(runtime, candidates[0], options, longest)]
    return "\n".join(lines)


def instructions(runtime: str, candidate: Candidate, options: CompareOptions, longest: int) -> str:
    """Returns the command that writes a model for the runtime, if necessary, and Python code that runs the model."""
    model, source, command = candidate.model, candidate.source, ""
    revision = "" if options.model_revision == "main" else f" --model_revision {options.model_revision}"
    if runtime in GRAPHS:
        graph = GRAPHS[runtime]
        code = graph_code(
            f"{runtime}/{graph.file}",
            result_names(f"For{model.head}", pooled=not model.head),
            longest,
            model.settings,
            graph.precision,
        ) + threshold_code("outputs[0]", model.config)
        return f"$ fixedbert export {source}{revision} --output_dir {runtime}{export_flags(runtime, options)}\n{code}"
    serving = TORCH[runtime]
    dtype = str(serving.dtype).removeprefix("torch.")
    if serving.unpad_inputs:
        command = f"$ fixedbert convert {source}{revision} --output_dir {runtime} --unpad_inputs --dtype {dtype}\n"
        source = runtime
    elif revision:
        command = f"# pass revision={options.model_revision!r} when you load the model and the tokenizer\n"
    if model.head:
        code = transformers_code(source, f"AutoModelFor{model.head}", True, longest, dtype)
        return command + code + threshold_code("outputs.logits", model.config)
    return command + sentence_code(source, True, longest, dtype)


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
