"""Data sets of the Hugging Face Hub."""

import datasets
import huggingface_hub.errors

from ..errors import InputError


def load_from_hub(name: str, config: str | None = None, **options):
    """`datasets.load_dataset`, with an InputError where there is no such data set, or no way to it."""
    try:
        return datasets.load_dataset(name, config, **options)
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise InputError(f"{name}: the data set could not be loaded: {error}") from error
