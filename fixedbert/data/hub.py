"""The Hugging Face Hub: names of models on it, checked before it is asked, and data sets loaded from it."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError

from ..support.errors import InputError

FILE_SUFFIXES = (".txt", ".json", ".yaml", ".yml", ".bin", ".safetensors", ".pt", ".index", ".model")


def check_place(name: str, others: Iterable[str] = ()):
    """
    Check where a model is to be loaded from: a directory, or the name of a model on the Hub.

    Args:
        others: names that are valid too, such as presets.

    Raises:
        InputError: `name` is neither, or probably a misspelt directory or one of `others`.
    """
    path = Path(name)
    if path.is_dir():
        return
    if path.is_file():
        raise InputError(f"{name}: neither a directory nor the name of a model on the Hub; give the directory.")
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    directories = [str(path.with_name(sibling.name)) for sibling in siblings if sibling.is_dir()]
    near = difflib.get_close_matches(name, [*others, *directories], 1, cutoff=0.75)
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) and path.suffix not in FILE_SUFFIXES:
        if not near or (near[0] not in others and is_on_hub(name)):
            return
    hint = f"; did you mean {near[0]}?" if near else "."
    raise InputError(f"{name}: neither a directory nor the name of a model on the Hub{hint}")


def is_on_hub(name: str) -> bool:
    """Whether the Hub, or its cache, has a model of that name. Asks once, for at most 3 seconds."""
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return True
    try:
        HfApi().model_info(name, timeout=3)
    except Exception:  # no such model, no network, offline mode
        return False
    return True


def load_from_hub(name: str, config: str | None = None, **options: Any):
    """
    `datasets.load_dataset`.

    Raises:
        InputError: there is no such data set, or the Hub cannot be reached.
    """
    import datasets  # takes a second, which checking a name should not

    try:
        return datasets.load_dataset(name, config, **options)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetGenerationError, HfHubHTTPError) as error:
        raise InputError(f"{name}: the data set could not be loaded: {error}") from error
