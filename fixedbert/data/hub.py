"""Data sets of the Hugging Face Hub."""

import datasets
from huggingface_hub.errors import HfHubHTTPError as HTTPError

from ..errors import InputError


def load_from_hub(name: str, config: str | None = None, **options):
    """`datasets.load_dataset`, with an InputError where there is no such data set, or no way to it."""
    try:
        return datasets.load_dataset(name, config, **options)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetGenerationError, HTTPError) as error:
        raise InputError(f"{name}: the data set could not be loaded: {error}") from error
