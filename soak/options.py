"""
Options of all commands, alone and in pairs, with values inside, at and outside their ranges.

The options come from their declarations and from TrainingArguments, so that a new option is covered at once. A command
must succeed with complete results, or refuse with one sentence and leave nothing behind.
"""

import gc
import hashlib
import importlib
import json
import math
import random
import resource
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
import transformers
from matplotlib.figure import Figure
from transformers import AutoTokenizer, TrainingArguments

import fixedbert
import fixedbert_cli
from fixedbert.commands import COMMANDS, Command
from fixedbert.exporting.onnx_graphs import Graph, trace
from fixedbert.option_values import TRAINER_RANGES, kinds_of

from .children import Ending, command, in_child
from .options_inputs import AUTO_CLASSES, INPUTS, TEXTS, base, write_inputs
from .trials import Trial

WRONG = {int: ("x", "1.5", "", "true"), float: ("x", "nan", "inf", ""), bool: ("maybe", "2"), list: ("x",)}
LARGE = ("33", "1000", "4294967296", "100000000000000000000")
IMPORTED = [f"fixedbert.{name}" for name in ("comparison.compare", "inspection.inspect", "shrinking.shrink")]
IMPORTED += ["fixedbert.exporting.export", "matplotlib.backends.backend_agg", "onnxruntime", "onnxscript"]
MEMORY = 6 * 2**30  # bytes that a case can allocate
SLOW = {"torch_compile": ("true",), "torch_compile_mode": ("default",)}  # compilation takes minutes
FEW = ("dataloader_num_workers", "preprocessing_num_workers", "num_hidden_layers", "num_train_epochs", "max_steps")


trainer_names = cache(fixedbert_cli.commands.trainer_names)


def options_of(given: Command) -> dict[str, Any]:
    """Returns the type of each option of a command, with Trainer's if the command trains."""
    types = (*given.options, TrainingArguments) if given.trains else given.options
    hints = {name: hint for cls in reversed(types) for name, hint in get_type_hints(cls).items()}
    return {member.name: hints[member.name] for cls in types for member in fields(cls) if member.init}


def interval_of(given: Command, name: str) -> str:
    members = (member for cls in given.options for member in fields(cls) if member.name == name)
    return next((member.metadata["interval"] for member in members), "") or TRAINER_RANGES.get(name, "")


@cache
def plan() -> list[tuple[str, dict[str, str | None]]]:
    """
    Returns each case as a command and its settings, in random order. None stands for a value still to be drawn.

    Each value occurs alone, and each pair of options together. If the n options of a command are numbered, each pair
    i, j belongs to exactly one triple i, j, k whose sum is a multiple of n. There are n times fewer of these triples
    than of all triples.
    """
    cases: list[tuple[str, dict[str, str | None]]] = []
    for name, given in COMMANDS.items():
        options = options_of(given)
        for option, hint in options.items():
            values = dict(values_of(given, option, hint)).keys() - SLOW.get(option, ())
            cases += [(name, {option: value}) for value in sorted(values)]
        names, count = [*options], len(options)
        triples = {tuple(sorted({i, j, -(i + j) % count})) for i in range(count) for j in range(i)}
        for triple in sorted(triples):
            cases += [(name, {names[index]: None for index in triple})] * (
                1 if given.trains or name == "export" else 4
            )
    random.Random(0).shuffle(cases)
    return cases


def values_of(given: Command, name: str, hint: Any) -> Iterator[tuple[str, bool]]:
    """Yields values of an option, and whether each may be valid."""
    for kind in kinds_of(hint):
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        if origin is Literal:
            yield from ((str(choice).lower(), True) for choice in arguments)
            yield "x", False
        elif isinstance(kind, type) and issubclass(kind, Enum):
            yield from ((member.value, True) for member in kind)
            yield "x", False
        elif origin is bool:
            yield from (("true", True), ("false", True))
        elif origin in (int, float):
            yield from numbers(origin, interval_of(given, name), name in FEW)
        elif origin is list:
            yield from texts_of(name) if arguments[0] is str else values_of(given, name, arguments[0])
            several = [value for value, valid in values_of(given, name, arguments[0]) if valid and value]
            yield from ((" ".join(several[start : start + 2]), True) for start in range(2))
        else:  # a text, a mapping, or a type of Trainer's
            yield from texts_of(name)
        yield from ((value, False) for value in WRONG.get(origin, ()))


def texts_of(name: str) -> Iterator[tuple[str, bool]]:
    yield from ((value, True) for value in TEXTS.get(name, ()))
    yield from (("x", False), ("", False), ("none", not TEXTS.get(name)))


def numbers(kind: type, interval: str, is_small: bool) -> Iterator[tuple[str, bool]]:
    """Yields numbers inside, at and outside an interval such as "(0, 1]"."""
    low, high = (float(bound) for bound in (interval or "[-inf, inf)")[1:-1].split(","))
    step = 1 if kind is int else 0.25
    start = low if math.isfinite(low) else 0
    for value in (
        start - step,
        start,
        start + step,
        start + 2 * step,
        start + 4 * step,
        high,
        high + step,
        high - step,
    ):
        inside = (low <= value if interval[:1] == "[" else low < value) and (
            value <= high if interval[-1:] == "]" else value < high
        )
        if math.isfinite(value):
            yield str(kind(value)), inside or not interval
    yield from (("-1", low < 0), ("2", low <= 2 <= high))
    if math.isinf(high) and not is_small:
        yield from ((value, value == "33") for value in LARGE)


def draw(rng: random.Random, name: str, option: str) -> str:
    """Draws a value of an option, usually a valid one, so that the other options of the case have an effect."""
    given = COMMANDS[name]
    values = dict(values_of(given, option, options_of(given)[option]))
    for slow in SLOW.get(option, ()):
        values.pop(slow, None)
    valid = [value for value, is_valid in values.items() if is_valid]
    return rng.choice(valid if valid and rng.random() < 0.95 else [*values])


def command_line(name: str, arguments: dict[str, str]) -> list[str]:
    """Returns the command line. A switch takes no value, except in training commands."""
    given = COMMANDS[name]
    members = {member.name: member for cls in given.options for member in fields(cls)}
    hints, line = options_of(given), [name]
    positional = [option for option, member in members.items() if member.metadata["positional"]]
    for option in dict.fromkeys((*positional, *arguments)):
        value = arguments[option]
        several = any(get_origin(kind) is list for kind in kinds_of(hints[option]))
        words = value.split() or [""] if several else [value]
        if option in positional:
            line += words
        elif given.trains or bool not in kinds_of(hints[option]):
            line += [f"--{option}", *words]
        elif value != "false":
            line.append(f"--{option}")
    return line


def prepare(inputs: Path):
    INPUTS.directory = inputs
    for module in IMPORTED:
        importlib.import_module(module)
    write_inputs(inputs)
    trainer_names()
    gc.collect()
    gc.freeze()


def skip_slow_parts():
    """Replaces parts of the commands that take longer than all others, and that no option changes."""
    fixedbert.exporting.export.trace = trace_once
    fixedbert_cli.commands.trainer_names = trainer_names
    Figure.savefig = lambda figure, file, **options: Path(file).touch()


def trace_once(graph: Graph, batch: dict[str, torch.Tensor], file: Path):
    """Like `trace`, but copies the graph if a case has traced the same model, because this takes several seconds."""
    weights = b"".join(weight.numpy().tobytes() for weight in graph.model.state_dict().values())
    traced = INPUTS.directory / f"{graph.head}-{hashlib.sha256(weights).hexdigest()}.onnx"
    if not traced.exists():
        trace(graph, batch, traced)
    shutil.copyfile(traced, file)


def trial(number: int, rng: random.Random, directory: Path) -> Trial:
    name, planned = plan()[number % len(plan())]
    settings = {option: draw(rng, name, option) if value is None else value for option, value in planned.items()}
    arguments = base(name, rng) | settings
    line = command_line(name, arguments)
    work = directory / "work"
    ending = in_child(partial(run, name, line, work), work)
    reproduction = (
        f"{' '.join(f'{option}={value!r}' for option, value in settings.items())}\nfixedbert {shlex.join(line)}"
    )
    return Trial(reproduction, f"{name} {ending.outcome}", fault_of(ending, work, arguments))


def run(name: str, line: list[str], directory: Path) -> str:
    """Runs a command in this process and checks what it wrote."""
    skip_slow_parts()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    command(line)
    return "; ".join(problems(name, line, directory))


def fault_of(ending: Ending, directory: Path, arguments: dict[str, str]) -> str:
    if ending.is_fault:
        return f"{ending.outcome}: {ending.details}"
    if ending.outcome == "success":
        return str(ending.details)
    files = [path.relative_to(directory) for path in directory.rglob("*") if path.is_file() or "." in path.name]
    caches = arguments.get("store_dir"), arguments.get("cache_dir")  # a later command can use what they contain
    left = sorted(str(file) for file in files if file.parts[0] not in caches)
    if left and "run the same command to resume from" not in ending.printed:
        return f"refused, but wrote {left[:5]}: {ending.details}"
    return ""


def problems(name: str, line: list[str], directory: Path) -> Iterator[str]:
    """Yields what is wrong with the files that a successful command wrote."""
    files = {str(path.relative_to(directory)) for path in directory.rglob("*")}
    places = tuple({"out", *line[1:]} - {""})  # options can name other places, relative to the working directory
    left = sorted(file for file in files if file.endswith((".partial", ".tmp")) or not file.startswith(places))
    if left:
        yield f"success, but left {left[:5]}"
    output = Path(line[line.index("--output_dir") + 1]) if "--output_dir" in line else None
    if output is None or name in ("push", "plan"):
        return
    output = directory / output
    is_trained = "--do_train" in line and line[line.index("--do_train") + 1] in ("true", "yes", "1")
    if name in ("convert", "shrink") or is_trained:
        yield from model_problems(output)
    elif name not in ("pretrain", "glue", "squad") and not any(output.iterdir()):
        yield "success, but the output directory is empty"
    if (
        name == "export"
        and not any(file.stat().st_size for file in output.glob("**/*.onnx"))
        and "openvino" not in line
    ):
        yield "success, but no graph"
    for file in output.rglob("*.json"):
        content = json.loads(file.read_text(), parse_constant=lambda text: text)
        if "Infinity" in str(content) or "NaN" in str(content):
            yield f"success, but {file.name} contains NaN or infinity"
    if name in ("glue", "squad", "pretrain") and line[line.index("--do_eval") + 1] == "true":
        results = output / "all_results.json"
        if not results.exists() and not (output / "results.json").exists():
            yield "success, but no results"


def model_problems(output: Path) -> Iterator[str]:
    """Yields what is missing in a model directory, or why it cannot be loaded."""
    directories = [file.parent for file in output.rglob("config.json") if "checkpoint-" not in str(file)]
    if not directories:
        yield "success, but no model"
    for directory in directories:
        missing = [
            name
            for name in ("model.safetensors", "README.md", "tokenizer_config.json")
            if not (directory / name).exists()
        ]
        if missing:
            yield f"success, but {missing} is missing"
            continue
        try:
            yield from output_problems(directory)
        except Exception as error:
            yield f"success, but the model cannot be used: {type(error).__name__}: {str(error)[:300]}"


def output_problems(directory: Path) -> Iterator[str]:
    transformers.utils.logging.set_verbosity_error()
    (architecture,) = json.loads((directory / "config.json").read_text())["architectures"]
    suffix = architecture.removeprefix("FixedHead").removeprefix("Bert")
    model, report = AUTO_CLASSES[suffix].from_pretrained(directory, output_loading_info=True)
    if any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        yield f"success, but the weights do not fit: {report}"
    if sum(1 for _ in model.parameters()) == 0 or not all(weight.isfinite().all() for weight in model.parameters()):
        yield "success, but weights are not finite"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        outputs = model.eval()(**tokenizer(["the file", "a list of two"], padding=True, return_tensors="pt"))
    values = [value for value in outputs.values() if isinstance(value, torch.Tensor)]
    if not values or not all(value.isfinite().all() for value in values):
        yield "success, but the outputs are not finite"


assert fixedbert  # registers the Auto classes
