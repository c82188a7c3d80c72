"""
Values of options: creates dataclasses of options from flags, recipes and keyword arguments, and checks the values.

Like options.py, this module imports only the standard library.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from enum import Enum
from fnmatch import fnmatch
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .options import COUNT, NOT_NEGATIVE, POSITIVE

WORDS: dict[type, dict[str, bool | None]] = {
    bool: {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False},
    NoneType: {"none": None, "null": None},
}
# Ranges of Trainer's own arguments, which TrainingArguments does not check.
TRAINER_RANGES = {
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), "[0, 1)"),
    **dict.fromkeys(("adam_epsilon", "num_train_epochs", "save_steps", "eval_steps"), POSITIVE),
    **dict.fromkeys(("seed", "data_seed", "dataloader_num_workers", "warmup_steps", "eval_delay"), NOT_NEGATIVE),
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm"), NOT_NEGATIVE),
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), COUNT),
    **dict.fromkeys(("gradient_accumulation_steps", "eval_accumulation_steps", "save_total_limit"), COUNT),
    **dict.fromkeys(("dataloader_prefetch_factor", "torch_empty_cache_steps"), COUNT),
    **dict.fromkeys(("ddp_bucket_cap_mb", "ddp_timeout"), COUNT),
}
# Other arguments without which Trainer ignores an argument.
TRAINER_NEEDS = {
    "eval_steps": "eval_strategy=steps",
    "eval_delay": "eval_strategy=steps|epoch",
    "save_steps": "save_strategy=steps",
    "greater_is_better": "metric_for_best_model",
    "fsdp_config": "fsdp",
    "optim_target_modules": "optim=galore*|apollo*",
    **dict.fromkeys(
        ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"),
        "activation_checkpointing|gradient_checkpointing",
    ),
    **dict.fromkeys(
        ("hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision"),
        "push_to_hub",
    ),
}
LARGEST = 2**32 - 1  # the largest seed of numpy


@contextmanager
def input_errors() -> Iterator[None]:
    """Context manager that turns any error into an InputError. TrainingArguments raises many types of errors."""
    from .support.errors import InputError  # not above, because the command line imports this module on its own

    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(" ".join(str(error).split()) or repr(error)) from error  # some messages have several lines


def make(given: Mapping[str, Any], *types: type) -> tuple:
    """Like `build`, but raises InputError."""
    with input_errors():
        return build(given, *types)


def build(given: Mapping[str, Any], *types: type) -> tuple:
    """
    Creates an instance of each dataclass in `types` from the values in `given`. None selects a field's default.

    Raises:
        ValueError: If an option does not exist, or if a value has the wrong type or is out of range.
    """
    values = convert_all(given, types)
    own = [{member.name for member in fields(cls) if member.init} & values.keys() for cls in types]
    instances = tuple(cls(**{name: values[name] for name in names}) for cls, names in zip(types, own, strict=True))
    actual = {name: value for instance in instances for name, value in vars(instance).items()}
    for name, others, patterns in without_effect(values, actual, types):
        required = or_list([f"`{other}`" for other in others if other in actual])
        raise ValueError(f"`{name}` requires {required} {or_list(patterns)}".rstrip() + ".")
    return instances


def without_effect(
    given: Mapping[str, Any], values: Mapping[str, Any], types: tuple[type, ...]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """
    Yields each option in `given` that differs from its default, but has no effect, because no option that it needs has
    a suitable value. Also yields the names of the needed options, and the patterns of suitable values.

    Args:
        values: The values of all options, except those with default values.
    """
    members = {member.name: member for cls in types for member in fields(cls)}
    defaults = {name: default_of(member) for name, member in members.items()}
    for name, value in given.items():
        others, _, patterns = (members[name].metadata.get("needs") or TRAINER_NEEDS.get(name, "")).partition("=")
        found = [item for other in others.split("|") for item in as_list(values.get(other, defaults.get(other)))]
        has_effect = any(fnmatch(item, pattern) for item in found for pattern in (patterns or "*").split("|"))
        if others and value != defaults[name] and not has_effect:
            yield name, others.split("|"), patterns.split("|")


def default_of(member: Field) -> Any:
    return member.default if member.default_factory is MISSING else member.default_factory()


def as_list(value: Any) -> list[str]:
    """Returns one or several values as texts, without None and False, the values of an option that is not set."""
    items = value if isinstance(value, list) else [value]
    return [str(getattr(item, "value", item)) for item in items if item is not None and item is not False]


def convert_all(given: Mapping[str, Any], types: tuple[type, ...]) -> dict[str, Any]:
    """
    Returns the values that are not None, converted to the types of their fields.

    Raises:
        ValueError: If an option is unknown or missing, or if a value has the wrong type or is out of range.
    """
    hints = {name: hint for cls in types for name, hint in get_type_hints(cls).items()}
    members = {member.name: member for cls in types for member in fields(cls) if member.init}
    required = [name for name, member in members.items() if member.metadata.get("required")]
    if absent := [f"`{name}`" for name in required if given.get(name) is None]:
        raise ValueError(f"{' and '.join(absent)} must be set.")
    values = {}
    for name, value in given.items():
        if name not in members:
            similar = ", ".join(get_close_matches(name, members, cutoff=0))
            raise ValueError(f"`{name}`: no such option; similar names: {similar}.")
        converted = None if value is None else convert(name, value, hints[name])
        if converted is not None:
            interval = members[name].metadata.get("interval") or TRAINER_RANGES.get(name, "")
            check_range(name, converted, interval)
            values[name] = converted
    return values


def convert(name: str, value: Any, hint: Any) -> Any:
    """Converts a value from a flag, a recipe or a keyword argument to the type of an option. Raises ValueError."""
    kinds = kinds_of(hint)
    if any(get_origin(kind) is dict or kind is dict for kind in kinds) and not os.path.exists(str(value)):
        kinds = [kind for kind in kinds if kind is not str]  # a mapping, or the path of a file with one
    for kind in kinds:
        try:
            return convert_to(value, kind)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    shown = repr(value) if isinstance(value, str | int | float | list | tuple) else type(value).__name__
    raise ValueError(f"`{name}` is {shown}, but must be {describe(hint)}.")


def kinds_of(hint: Any) -> list[Any]:
    """Returns the types in a union: bool first, so that "true" is no text; None last, so that "none" can be text."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return sorted(kinds, key=lambda kind: (kind is NoneType, kind is not bool))


def convert_to(value: Any, kind: Any) -> Any:
    """Converts a value to one type, which is not a union. Raises TypeError, ValueError or KeyError if it cannot."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return {str(choice): choice for choice in arguments}[str(value)]
    if origin is list:
        items = value if isinstance(value, list | tuple) else [value]
        return [convert("", item, arguments[0]) for item in items]
    if origin is dict:
        return mapping(value) if isinstance(value, str) else dict(value)
    if origin in WORDS:
        return value if isinstance(value, origin) else WORDS[origin][value.lower()]
    if origin in (int, float):
        return number(value, origin)
    if origin is str:
        return text(value)
    if issubclass(origin, Enum):
        return origin(value).value
    if not isinstance(value, origin):
        raise TypeError(value)
    return value


def text(value: Any) -> str:
    """Converts a text or path to text. Raises ValueError if it is empty, like an unset variable of a shell."""
    result = os.fspath(value)
    if not result.strip():
        raise ValueError(value)
    return result


def number(value: Any, kind: type) -> int | float:
    """Converts a number or its text to an int or a finite float. Raises TypeError or ValueError."""
    accepted = (str, int) if kind is int else (str, int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise TypeError(value)
    result = kind(value)
    if not math.isfinite(result):
        raise ValueError(value)
    return result


def mapping(text: str) -> dict:
    """Parses a JSON object, or `name=value,...` with YAML values. Raises ValueError."""
    from .support.files import parse_yaml  # not above, because the command line imports this module on its own

    is_json = text.lstrip().startswith("{")
    if not is_json and "=" not in text:
        raise ValueError(text)
    return parse_yaml(text if is_json else "{" + text.replace("=", ": ") + "}")


def check_range(name: str, value: Any, interval: str):
    """Raises ValueError if a number, or a number in a list, is outside an interval such as "(0, 1]"."""
    items = value if isinstance(value, list) else [value]
    if too_large := [item for item in items if isinstance(item, int) and item > LARGEST]:
        raise ValueError(f"`{name}` is {too_large[0]}, but must be at most {LARGEST}.")
    if not interval:
        return
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    for item in items:
        above = item >= low if interval[0] == "[" else item > low
        below = item <= high if interval[-1] == "]" else item < high
        if not (above and below):
            raise ValueError(f"`{name}` is {item}, but must be {describe_range(interval)}.")


def describe_range(interval: str) -> str:
    """Returns an interval in words: "(0, 1]" is greater than 0 and at most 1."""
    low, high = interval[1:-1].split(", ")
    words = [f"{'at least' if interval[0] == '[' else 'greater than'} {low}"]
    if high != "inf":
        words.append(f"{'at most' if interval[-1] == ']' else 'less than'} {high}")
    return " and ".join(words)


def describe(hint: Any) -> str:
    """Returns a description of a type for messages and the manual, such as "one or more integers"."""
    names = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "text",
        dict: "name=value,...",
    }
    several = {int: "integers", float: "numbers", str: "names", dict: "mappings"}
    words: list[str] = []
    if any((get_origin(kind) or kind) is dict for kind in kinds_of(hint)):
        names[str] = "an existing file"
    for kind in kinds_of(hint):
        if get_origin(kind) is Literal:
            words += map(str, get_args(kind))
        elif get_origin(kind) is list:
            (item,) = get_args(kind)
            words.append(f"one or more {several.get(item) or 'of ' + describe(item)}")
        elif kind is not NoneType:
            words.append(names.get(get_origin(kind) or kind, getattr(kind, "__name__", str(kind))))
    return or_list(words)


def or_list(words: list[str]) -> str:
    """Returns "a, b or c"."""
    return ", ".join(words[:-1]) + (" or " if words[:-1] else "") + words[-1]
