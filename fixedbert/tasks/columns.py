"""Columns of text in a dataset."""

from accelerate import PartialState

from ..support.errors import InputError


def split_names(names: str | None) -> tuple[str, ...]:
    """Returns the column names in a comma-separated string."""
    return tuple(names.split(",")) if names else ()


def check_text_columns(columns: tuple[str, ...], trained_on: tuple[str, ...]):
    """
    Compares the text columns with those that the model was trained on, and prints a message if the order differs.

    Raises InputError if a model for text pairs is applied to single texts or vice versa.
    """
    message = f"the text columns are {', '.join(columns)}, but the model was trained on {', '.join(trained_on)}"
    if trained_on and len(columns) != len(trained_on):
        raise InputError(f"{message}; use data with the same columns.")
    if columns != trained_on and {*columns} == {*trained_on}:
        PartialState().print(message)
