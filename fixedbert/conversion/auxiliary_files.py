"""Files that accompany a model's weights: tokenizer, model card and the modules of sentence-transformers."""

import logging
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load, snapshot_download

from ..data.tokenizers import TOKENIZER_FILES, check_vocab_size, load_tokenizer
from ..support.errors import InputError
from ..support.files import read_json_object, reading

logger = logging.getLogger(__name__)

CARD = "README.md"
# sentence-transformers keeps how it pools token embeddings, and the maximum text length, in these files.
SENTENCE_FILES = ("modules.json", "*sentence*.json", "[0-9]*_*/*")
# Fields of a model card that also hold for converted weights.
CARD_FIELDS = ("license", "license_name", "license_link", "language", "datasets", "base_model")


def auxiliary_directory(source: str | Path, **hub_options) -> Path:
    """Returns the local directory with the auxiliary files of a model. Downloads them from the Hub."""
    if Path(source).is_dir():
        return Path(source)
    patterns = [*SENTENCE_FILES, *TOKENIZER_FILES, "config.json", CARD]
    remedy = "check the model's name and your connection to the Hub"
    with reading(source, remedy, "the tokenizer and other small files cannot be downloaded"):
        return Path(snapshot_download(str(source), allow_patterns=patterns, **hub_options))


def copy_auxiliary_files(
    source: str | Path, auxiliary: Path, output: Path, do_lower_case: bool | None = None
) -> tuple[str, dict[str, Any]]:
    """
    Copies tokenizer and sentence-transformers modules from the directory `auxiliary` of the model `source` into
    `output`, which already holds the new config.json.

    Returns:
        For a model card, the name of the source without local directories, and metadata from the source's card.
    """
    copy_tokenizer(auxiliary, output, do_lower_case)
    copy_sentence_files(auxiliary, output)
    metadata = card_metadata(auxiliary)
    if Path(source).exists():
        return Path(source).name, metadata
    return str(source), metadata | {"base_model": str(source)}


def copy_tokenizer(source: Path, output: Path, do_lower_case: bool | None):
    """Saves the tokenizer from `source` in `output`, if the model there has embeddings for all of its tokens."""
    files = [name for name in TOKENIZER_FILES if (source / name).exists()]
    if not files:
        logger.warning("%s has no tokenizer, so the new directory has none.", source)
        return
    # The config.json that a bare vocab.txt belongs to can be from 2019, without a model type.
    tokenizer_source = source / "vocab.txt" if files == ["vocab.txt"] else source
    tokenizer = load_tokenizer(str(tokenizer_source), do_lower_case, trust_remote_code=False)
    check_vocab_size(tokenizer, read_json_object(output / "config.json", "convert it again")["vocab_size"], source)
    tokenizer.save_pretrained(output)


def copy_sentence_files(source: Path, output: Path):
    """Copies the modules of a sentence-transformers model, such as its pooling."""
    files = source.rglob("*") if (source / "modules.json").is_file() else ()
    for file in files:
        name = file.relative_to(source).as_posix()
        if file.is_file() and any(fnmatch(name, pattern) for pattern in SENTENCE_FILES):
            (output / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(file, output / name)


def card_metadata(source: Path) -> dict[str, Any]:
    """Returns the fields of the source's model card that also hold for converted weights."""
    card = source / CARD
    if not card.exists():
        return {}
    try:
        with reading(card, "correct the metadata between the lines of dashes", "the card cannot be read"):
            data = metadata_load(card) or {}
    except InputError as error:
        logger.warning("%s The new card lacks its license, language and datasets.", error)
        return {}
    metadata: dict[str, Any] = {name: data[name] for name in CARD_FIELDS if data.get(name)}
    if (source / "modules.json").is_file():
        metadata |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
        metadata["tags"] = ["sentence-transformers", "sentence-similarity"]
    return metadata
