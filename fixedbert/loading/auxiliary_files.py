"""Copies the files stored with a model's weights: tokenizer, model card metadata and sentence-transformers modules."""

import logging
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load, snapshot_download
from transformers import AutoConfig, PreTrainedConfig

from ..data.tokenizers import TOKENIZER_FILES, check_vocab_size, load_tokenizer
from ..support.errors import InputError
from ..support.files import reading
from ..support.layouts import MODULES, SENTENCE_FILES, copy_sentence_files, read_modules, transformer_directory
from .families import max_tokens
from .sentence_models import read_activation

logger = logging.getLogger(__name__)

CARD = "README.md"
# Model card fields that remain valid after conversion.
CARD_FIELDS = ("license", "license_name", "license_link", "language", "datasets", "base_model")
RANKING, SIMILARITY = "text-ranking", "sentence-similarity"  # tasks of rerankers and embedding models on the Hub
CROSS_ENCODER = "cross-encoder"  # tag of rerankers, and of sentence-transformers' classifiers for pairs


def auxiliary_directory(source: str | Path, **hub_options) -> Path:
    """Returns the local directory that holds a model's auxiliary files. Downloads them if `source` is a Hub id."""
    if Path(source).is_dir():
        return Path(source)
    patterns = [MODULES, *SENTENCE_FILES, *TOKENIZER_FILES, "config.json", CARD]
    remedy = "check the model's name and your connection to the Hub"
    with reading(source, remedy, "the tokenizer and configuration files cannot be downloaded"):
        return Path(snapshot_download(str(source), allow_patterns=patterns, **hub_options))


def copy_auxiliary_files(source: str | Path, auxiliary: Path, output: Path) -> tuple[str, dict[str, Any]]:
    """
    Copies the tokenizer and sentence-transformers modules of `source` from the directory `auxiliary` to `output`.

    `output` must already contain the new config.json.

    Returns:
        The name of the source (for a local source, its directory name), and metadata for the new model card.
    """
    config = AutoConfig.from_pretrained(output, trust_remote_code=False)
    copy_tokenizer(auxiliary, output, config)
    copy_sentence_files(auxiliary, output)
    metadata = card_metadata(auxiliary, config)
    if Path(source).exists():
        return Path(source).name, metadata
    return str(source), metadata | {"base_model": str(source)}


def copy_tokenizer(source: Path, output: Path, config: PreTrainedConfig):
    """Saves the tokenizer in `source` to `output`. Raises InputError if its vocabulary is too large for the model."""
    directory = Path(transformer_directory(source))
    if not any((directory / name).exists() for name in TOKENIZER_FILES):
        logger.warning("%s contains no tokenizer, so none was copied.", source)
        return
    tokenizer = load_tokenizer(str(source), trust_remote_code=False)
    check_vocab_size(tokenizer, config.vocab_size, source)
    tokenizer.model_max_length = min(tokenizer.model_max_length, max_tokens(config))
    tokenizer.save_pretrained(output)


def card_metadata(source: Path, config: PreTrainedConfig) -> dict[str, Any]:
    """
    Returns the source's model card metadata that remains valid after conversion, and the library that uses the model.
    """
    card, data = source / CARD, {}
    try:
        with reading(card, "correct the metadata between the --- lines", "cannot read the model card"):
            data = (metadata_load(card) if card.exists() else None) or {}
    except InputError as error:
        logger.warning("%s The new card will not contain the license, language or datasets.", error)
    metadata: dict[str, Any] = {name: data[name] for name in CARD_FIELDS if data.get(name)}
    if len(read_modules(source)) > 1:
        task = tag = SIMILARITY
    elif read_activation(source, config) or data.get("pipeline_tag") == RANKING:
        task, tag = RANKING if config.num_labels == 1 else "text-classification", CROSS_ENCODER
    else:
        return metadata
    tags = ["sentence-transformers", tag]
    return metadata | {"library_name": "sentence-transformers", "pipeline_tag": task, "tags": tags}
