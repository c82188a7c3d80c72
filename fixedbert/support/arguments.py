"""Arguments from Python: of the type that a function or a field says, or refused by their name."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from huggingface_hub.dataclasses import type_validator

from .errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """
    A decorator: an argument that the function does not have, or of another type than its hint, is an InputError that
    names it. Tuples can stand
    for lists, whole numbers for others, numpy's numbers for Python's, and paths for texts.
    """
    parameters, hints = signature(function), get_type_hints(function)
    del hints["return"]

    @wraps(function)
    def call(*args, **kwargs):
        for name in kwargs:
            if name not in hints:
                near = " or ".join(f"`{one}`" for one in get_close_matches(name, hints, 2))
                raise InputError(f"`{name}`: no such argument{f'; did you mean {near}?' if near else '.'}")
        try:
            given = parameters.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        return function(**{name: of_type(name, value, hints[name]) for name, value in given.items()})

    return call  # type: ignore[return-value]  # it takes what the function takes


def of_type(name: str, value: Any, kind: Any) -> Any:
    """A value for the parameter `name` of the type `kind`, as `checked` says."""
    value = plain(value)
    readings = [value, with_floats(value), *([str(value)] if isinstance(value, Path) else [])]
    return first_fitting(name, readings, kind)


def first_fitting(name: str, readings: Iterable[Any], kind: Any) -> Any:
    """The first reading of a value that has the type `kind`. InputError if there is none, with the first of all."""
    readings = list(readings)
    for fitting in readings:
        with suppress(TypeError):
            type_validator(name, fitting, kind)
            return fitting
    value, text = readings[0], str(kind)
    quotes = ": put it in quotes" if isinstance(value, int | float) and "str" in text else ""
    shown = repr(value) if isinstance(value, str | int | float | list | dict | None) else f"a {type(value).__name__}"
    types = kind.__name__ if isinstance(kind, type) else re.sub(r"(\w+\.)+", "", text)
    raise InputError(f"{shown} is not of the type {types.removesuffix(' | None')}{quotes}.", name)


def plain(value: Any) -> Any:
    """A list for a tuple, and a number of Python's for any other."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


def with_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [with_floats(one) for one in value]
    return float(value) if type(value) is int else value
