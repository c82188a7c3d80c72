"""The result of a comparison, and its report for the terminal."""

from collections.abc import Callable
from dataclasses import dataclass

from ..exporting.export import EMBEDDING, OUTPUTS, loading_code
from ..options import CompareOptions
from ..tasks.predictions import Fidelity
from .candidates import Candidate
from .runtimes import GRAPHS, TORCH

RANDOM, SORTED, SINGLE = "random", "sorted", "single"  # batches in random order or sorted by length, and single rows
SINGLE_ROWS = 64  # number of rows that are timed one at a time
MIN_ROWS = 32  # minimum number of rows for advice
SAME, NEARLY_SAME = 1.0, 0.995  # minimum fractions of identical predictions for choosing the fastest runtime
ROUNDING = 1e-4  # numbers and embeddings are treated as identical if their similarity is above 1 - ROUNDING
TORCH_CODE = """import fixedbert
import torch
from transformers import {model_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{source}")
model = {model_class}.from_pretrained("{source}"{options}).eval()
texts = ["A text.", "A second text."]
batch = tokenizer(texts, padding=True, truncation=True, max_length={longest}, return_tensors="pt")
with torch.inference_mode():
    outputs = model(**batch)
"""
SENTENCE_CODE = """import fixedbert
import torch
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{source}", device="cpu"{options})
model.max_seq_length = {longest}
embeddings = model.encode(["A text.", "A second text."])
"""
CHANGED = "changed.csv"


@dataclass(frozen=True)
class ComparedModel:
    """The measurements for one model."""

    name: str
    label: str  # the name, and the runtime if it is not padded float32 PyTorch
    runtime: str
    megabytes: float  # size of the weights or the graph
    rows_per_second: dict[str, float]  # for RANDOM batches, SORTED batches and SINGLE rows
    speedup: dict[str, float]  # median speedup over the first model in each of these three cases
    scores: dict[str, float]  # metrics by name; empty if the rows have no labels
    lost: int | None  # number of items that the first model predicts correctly, but not this one; None without labels
    gained: int | None  # number of items that this model predicts correctly, but not the first one
    truncated: int  # number of rows with more tokens than `max_seq_length`
    fidelity: Fidelity | None  # fidelity to the predictions of the first model; None for the first model itself

    def has_same_predictions(self, fraction: float) -> bool:
        """Returns True if at least this fraction of the predictions matches those of the first model."""
        if self.fidelity is None:
            return True
        return self.fidelity.similarity >= fraction - (ROUNDING if self.fidelity.agreement is None else 0)


@dataclass(frozen=True)
class Comparison:
    """The result of `fixedbert.compare`."""

    file: str
    rows: int  # number of rows in the random sample that was used
    available: int  # number of rows in the file
    batch_size: int
    max_seq_length: int  # maximum number of tokens per row
    machine: str  # description of the machine on which the speed was measured
    models: list[ComparedModel]
    item: str  # the unit that has a prediction: "row", "word" or "question"
    notes: list[str]  # messages about runtimes, such as why they were skipped
    advice: str  # the fastest ways to run a single model, or how to get this advice for one of several models
    folder: str  # output directory, or ""

    def __str__(self) -> str:
        first, *others = self.models
        metrics, flips = list(first.scores), ["lost", "gained"] if first.lost is not None else []
        flips += ["truncated"] if any(model.truncated for model in self.models) else []
        lines = [["", "rows/s", "speedup", "sorted", "single", "MB", *metrics, *flips, "predictions"]]
        is_single = len({model.name for model in self.models}) == 1
        for model in self.models:
            rate = model.rows_per_second[RANDOM]
            cells = [model.runtime if is_single else model.label, f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"]
            cells += [f"{model.speedup[order]:.2f}" for order in (RANDOM, SORTED, SINGLE)]
            cells += [f"{model.megabytes:,.0f}", *(f"{model.scores[name]:.4f}" for name in metrics)]
            predictions = model.fidelity.summary if model.fidelity else ""
            lines.append([*cells, *(str(getattr(model, name)) for name in flips), predictions])
        rows = f"{self.rows:,} of {self.available:,}" if self.rows < self.available else f"{self.rows:,}"
        notes = [
            f"rows/s, speedup: batches of {self.batch_size} rows in random order, without tokenization",
            f"sorted, single: speedup for batches sorted by length, and for {min(self.rows, SINGLE_ROWS)} single rows",
        ]
        if "lost" in flips:
            notes.append(f"lost: {self.item}s correct in the first line, but not in this one; gained: the opposite")
        if "truncated" in flips:
            notes.append(f"truncated: rows with more than {self.max_seq_length} tokens; the rest is ignored")
        if self.folder and any(model.fidelity and model.fidelity.agreement is not None for model in others):
            notes.append(f"{self.item}s with different predictions: {self.folder}/{CHANGED}")
        header = f"{rows} rows from {self.file} with at most {self.max_seq_length} tokens, on {self.machine}"
        text = [header, "", *aligned(lines), "", *notes, *self.notes]
        return "\n".join([*text, "", self.advice] if self.advice else text)


def aligned(lines: list[list[str]]) -> list[str]:
    """Formats table rows as lines of text. The first and last columns are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides: list[Callable[..., str]] = [str.ljust, *[str.rjust] * (len(widths) - 2), str.ljust]
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)).rstrip()
        for line in lines
    ]


def advice(models: list[ComparedModel], first: Candidate, options: CompareOptions, longest: int) -> str:
    """Returns the fastest runtimes with the same and nearly the same predictions, and Python code that runs them."""
    if len(first.features) < MIN_ROWS:
        return f"There are too few rows for advice; provide at least {MIN_ROWS}."
    lines, winners = [], []
    for fraction in (SAME, NEARLY_SAME):
        best = []
        for order, name in ((RANDOM, "batches"), (SINGLE, "single texts")):
            same = {model.speedup[order]: model for model in models if model.has_same_predictions(fraction)}
            model = same[max(same)]
            best.append(f"{model.runtime} ({model.speedup[order]:.2f} times as fast) for {name}")
            winners.append(model.runtime)
        lines.append(f"Fastest with at least {fraction:.1%} identical predictions: {', '.join(best)}.")
    for runtime in dict.fromkeys(winners):
        lines += ["", f"{runtime}:", instructions(runtime, first, options, longest)]
    return "\n".join(lines)


def instructions(runtime: str, model: Candidate, options: CompareOptions, longest: int) -> str:
    """Returns the command that writes a model for the runtime, if necessary, and Python code that runs the model."""
    if runtime in GRAPHS:
        is_onnx, int8 = runtime.startswith("onnx"), " --int8" * runtime.endswith("int8")
        task = f"--task_name {options.task_name}" + f" --data_dir {options.data_dir}" * bool(options.data_dir)
        rows = f"--train_file {options.validation_file}" if options.validation_file else task
        flags = int8 if is_onnx else f" --runtime openvino{int8}" + f" {rows}" * bool(int8)
        command = f"fixedbert export {model.source} --output_dir {runtime}{flags}"
        names = OUTPUTS.get(f"For{model.head}", ("logits",)) if model.head else [EMBEDDING]
        precision = {"openvino": "f32", "openvino-bf16": "bf16"}.get(runtime)
        code = loading_code(f"{runtime}/{GRAPHS[runtime].file}", names, longest, model.settings, precision)
        return f"$ {command}\n{code}"
    is_unpadded, dtype = TORCH[runtime]
    name = str(dtype).removeprefix("torch.")
    command = f"$ fixedbert convert {model.source} --output_dir {runtime} --unpad_inputs --dtype {name}\n"
    source, arguments = (runtime, "") if is_unpadded else (model.source, f", dtype={dtype}")
    if model.head:
        model_class = f"AutoModelFor{model.head}"
        code = TORCH_CODE.format(model_class=model_class, source=source, options=arguments, longest=longest)
    else:
        arguments = arguments and f', model_kwargs={{"dtype": {dtype}}}'
        code = SENTENCE_CODE.format(source=source, options=arguments, longest=longest)
    return (command if is_unpadded else "") + code
