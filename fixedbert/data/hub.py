"""Datasets from the Hugging Face Hub."""

from typing import Any

from huggingface_hub.errors import HfHubHTTPError

from ..support.errors import InputError


def load_from_hub(name: str, config: str | None = None, **options: Any):
    """Calls `datasets.load_dataset`. Raises InputError if the dataset does not exist or cannot be downloaded."""
    import datasets  # takes a second to import

    try:
        return datasets.load_dataset(name, config, **options)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetGenerationError, HfHubHTTPError) as error:
        raise InputError(f"{name}: the dataset could not be loaded: {error}") from error
