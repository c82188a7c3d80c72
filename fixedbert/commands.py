"""
The commands: the function of each, its help and its options.

Like options.py, this module needs neither torch nor transformers, so that the command line answers at once.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields
from functools import wraps
from glob import glob, iglob
from importlib.util import find_spec
from inspect import Parameter, Signature, formatannotation, get_annotations, signature
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple, TypeVar

from .option_values import as_list, default_of, describe_range, make
from .options import (
    CompareOptions,
    ConvertOptions,
    ExportOptions,
    FineTuningTrainerOptions,
    GlueDataOptions,
    InspectOptions,
    ModelOptions,
    NewModelOptions,
    PretrainingDataOptions,
    PretrainingTrainerOptions,
    PushOptions,
    ShrinkOptions,
    SquadDataOptions,
    TrainerOptions,
)

Result = TypeVar("Result")
PRETRAINING = (PretrainingDataOptions, NewModelOptions, PretrainingTrainerOptions)
GLUE = (GlueDataOptions, ModelOptions, FineTuningTrainerOptions)
SQUAD = (SquadDataOptions, ModelOptions, FineTuningTrainerOptions)
PATHS = ("recipe", "data_dir", "train_file", "validation_file", "test_file", "folder")
MODELS = ("model", "models", "model_name_or_path")
PACKAGE = Path(__file__).parent  # contains recipes


class Command(NamedTuple):
    """A command: the function of the package that it calls, its description and its options."""

    function: str
    help: str
    options: tuple[type, ...]

    @property
    def trains(self) -> bool:
        """Whether the command also accepts a recipe and the arguments of transformers' TrainingArguments."""
        return issubclass(self.options[-1], TrainerOptions)


COMMANDS = {
    "pretrain": Command("pretrain", "pretrain a masked LM, with or without NSP, or a causal LM", PRETRAINING),
    "glue": Command("fine_tune_glue", "fine-tune on GLUE or on your own texts or text pairs", GLUE),
    "squad": Command("fine_tune_squad", "fine-tune on SQuAD or on your own questions and answers", SQUAD),
    "convert": Command("convert", "give a BERT more or larger heads without changing its outputs", (ConvertOptions,)),
    "shrink": Command("shrink", "make a model faster or smaller with nearly the same predictions", (ShrinkOptions,)),
    "compare": Command("compare", "compare the speed, accuracy and predictions of models", (CompareOptions,)),
    "export": Command("export", "export a model to ONNX or OpenVINO and compare the outputs", (ExportOptions,)),
    "push": Command("push", "upload a model to the Hub with its code and model card", (PushOptions,)),
    "inspect": Command("inspect", "show what each head does and how much of its size it uses", (InspectOptions,)),
}


class Described(NamedTuple):
    """An option as the help and the manual show it."""

    name: str
    hint: Any
    help: str
    default: str  # empty if the help states it
    positional: bool
    required: bool

    @property
    def text(self) -> str:
        """The help, with the default."""
        return self.help + (f" Default: {self.default}." if self.default else "")


def groups(command: Command) -> Iterator[tuple[str, list[Described]]]:
    """Yields the heading and the options of each group of a command."""
    seen: set[str] = set()
    for cls in command.options:
        members = {member.name: member for member in fields(cls)}
        for group in cls.__mro__:
            names = [name for name in get_annotations(group) if name in members and name not in seen]
            seen.update(names)
            if names:
                yield (group.__doc__ or "").strip(), [described(members[name]) for name in names]


def described(member: Field) -> Described:
    metadata = member.metadata
    default = default_of(member)
    text = metadata["help"]
    if "inf" not in metadata["interval"] and metadata["interval"]:
        text += f" Range: {describe_range(metadata['interval'])}."
    is_shown = not ("Default:" in text or default is None or default is False)
    shown = " ".join(map(str, default if isinstance(default, list) else [default])) if is_shown else ""
    return Described(member.name, member.type, text, shown, metadata["positional"], metadata["required"])


def trainer_names() -> list[str]:
    """Returns the names of transformers' TrainingArguments from its source, because importing it takes seconds."""
    package = find_spec("transformers")
    assert package is not None and package.origin is not None
    tree = ast.parse(Path(package.origin).with_name("training_args.py").read_text("utf-8"))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments")
    return [x.target.id for x in body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)]


def problems(given: Mapping[str, Any]) -> list[str]:
    """
    Returns what is wrong with the values of options, as far as it can be found before the imports, which take seconds:
    paths that do not exist, and an output directory that is not empty.
    """
    paths = [path for name in PATHS for path in as_list(given.get(name))]
    paths += [path for name in MODELS for path in as_list(given.get(name)) if path.startswith((".", "/"))]  # no Hub id
    absent = [path for path in paths if not (Path(path).exists() or any(iglob(path, recursive=True)))]
    full = [path for path in as_list(given.get("output_dir")) if glob("*", root_dir=path)]
    return [
        *(f"{path} does not exist" for path in absent if not (PACKAGE / path).exists()),
        *(f"{path} is not empty" for path in full if not Path(path, "command.json").exists()),  # of no repeated run
    ]


def parameters_of(command: Command) -> list[Parameter]:
    """Returns the options of a command as parameters: the leading ones by position, all others by name."""
    members = {member.name: member for cls in command.options for member in fields(cls)}
    leading = getattr(command.options[0], "leading", ())
    parameters = []
    for name in dict.fromkeys((*leading, *members)):
        kind = Parameter.POSITIONAL_OR_KEYWORD if name in leading else Parameter.KEYWORD_ONLY
        default = Parameter.empty if members[name].metadata["required"] else default_of(members[name])
        parameters.append(Parameter(name, kind, default=default, annotation=members[name].type))
    return parameters


def takes_options(name: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """
    Decorator for the function of the command `name`, which takes one dataclass of options, or a recipe and options.

    The decorated function takes the options as arguments, in the order of `leading`, or by name. help() shows them.
    """
    command = COMMANDS[name]

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        *first, last = signature(function).parameters.values()
        own = Signature([*first, *parameters_of(command), *([last] if command.trains else [])])

        @wraps(function)
        def call(*values: Any, **given: Any) -> Result:
            if command.trains:
                return function(*values, **given)
            return function(*make(own.bind(*values, **given).arguments, *command.options))

        lines = [f"    {x.name} ({formatannotation(x.hint)}): {x.text}" for _, group in groups(command) for x in group]
        text = dedent(function.__doc__ or "").strip()
        call.__doc__ = "\n".join([text, *([] if "Args:" in text else ["", "Args:"]), *lines])
        call.__signature__ = own  # type: ignore[attr-defined]
        return call

    return decorate
