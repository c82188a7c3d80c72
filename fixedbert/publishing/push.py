"""
A checkpoint on the Hub: checked before anything is sent, and uploaded in one commit, whole or not at all.

`save_pretrained` writes the model's code beside the weights, as the classes are registered for it
(`FixedHeadBertPreTrainedModel.__init_subclass__`); where it is not there, `push` adds it (`CODE`).
"""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import HTTPError
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.checkpoints import SENTENCE_FILES, model_directory
from ..conversion.families import head_of
from ..data.tokenizers import TOKENIZER_FILES
from ..model.configuration_fixed_head_bert import AUTO_MAP, FixedHeadBertConfig
from ..support.arguments import checked
from ..support.errors import InputError, explain_hub_error, listed
from ..support.files import read_object, reading, reason_of
from .model_card import check_card, checkpoint_card, read_card

# Files of a model, of sentence-transformers, and of the scripts. No others are sent.
PARTS = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    *TOKENIZER_FILES,
    *SENTENCE_FILES,
    "README.md",
    "LICENSE*",
    "*.png",
    "all_results.json",
    "*_results.json",
    "summary.json",
    "command.json",
    "trainer_state.json",
)
SAVE_AGAIN = "save the model again"
WEIGHTS = re.compile(r"(model|pytorch_model)[^/]*\.(safetensors|safetensors\.index\.json|bin|bin\.index\.json)")
CODE = {file.name: file for file in (Path(__file__).parents[1] / "model").glob("*_fixed_head_bert.py")}


@checked
def push(
    folder: str | Path | PreTrainedModel,
    repo_id: str,
    license: str | None = None,
    private: bool | None = None,
    commit_message: str | None = None,
    token: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> str:
    """
    Upload a FixedHeadBert's directory in one commit: weights, configuration with the whole auto_map, the four files
    of code, tokenizer, card and results. Creates the repository if there is none. Removes weights of other names from
    it, because they could be loaded instead.

    Args:
        folder: the directory, or a model in memory with its `tokenizer`.
        license: of the weights, for a card without one.
        private: whether a new repository is private.
        token: one with the right to write; by default the login's.

    Returns:
        The address of the commit.

    Raises:
        InputError: the directory is incomplete, its card lacks a field, or the Hub refuses or cannot be reached. Then
            nothing on the Hub has changed.
    """
    with model_directory(folder, tokenizer) as place:
        return push_directory(Path(place), repo_id, license, private, commit_message, token)


def push_directory(
    folder: Path,
    repo_id: str,
    license: str | None,
    private: bool | None,
    commit_message: str | None,
    token: str | None,
) -> str:
    config = checked_config(folder)
    files = checkpoint_files(folder)
    contents = {"README.md": card_of(folder, config["architectures"][0], repo_id, license)}
    if not (CODE.keys() <= files.keys() and AUTO_MAP.keys() <= config.get("auto_map", {}).keys()):  # of older versions
        foreign = {key: value for key, value in config.get("auto_map", {}).items() if key not in AUTO_MAP}
        config["auto_map"] = AUTO_MAP | foreign
        contents["config.json"] = json.dumps(config, indent=2, sort_keys=True).encode() + b"\n"
        contents |= {name: file.read_bytes() for name, file in CODE.items()}
    operations: list[CommitOperationAdd | CommitOperationDelete] = []
    operations += [CommitOperationAdd(name, data) for name, data in contents.items()]
    operations += [CommitOperationAdd(name, str(file)) for name, file in files.items() if name not in contents]

    api = HfApi(token=token)
    try:
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        before = api.model_info(repo_id)
        if private and not before.private:
            raise InputError(f"{repo_id}: everybody can see this repository; make it private on the Hub first.")
        uploaded = [sibling.rfilename for sibling in before.siblings or ()]
        stale = [name for name in uploaded if WEIGHTS.fullmatch(name) and name not in files]
        operations += [CommitOperationDelete(name) for name in stale]
        return api.create_commit(
            repo_id, operations, commit_message=commit_message or "Upload with fixedbert", parent_commit=before.sha
        ).commit_url
    except InputError:
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:  # HTTPError also where the connection breaks
        raise InputError(f"{repo_id}: {explain_hub_error(error)}") from error


def checkpoint_files(folder: Path) -> dict[str, Path]:
    """The files to upload, by name; a directory that is incomplete, or has damaged weights, is refused."""
    names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if file.is_file()]
    files = {
        name: folder / name
        for name in names
        if name in CODE or any(fnmatch(name, part) and name.count("/") == part.count("/") for part in PARTS)
    }
    weights = [file for name, file in files.items() if fnmatch(name, "*.safetensors")]
    if not weights:
        raise InputError(f"{folder}: no weights in safetensors; save them with save_pretrained.")
    for file in weights:
        with reading(file, "save them again", "the weights cannot be read"):
            with safe_open(file, framework="np") as tensors:  # its header says how long the file must be
                tensors.keys()
    if "model.safetensors.index.json" in files:
        index = read_object(files["model.safetensors.index.json"], SAVE_AGAIN)
        named = index["weight_map"].values() if isinstance(index.get("weight_map"), dict) else ["its weight_map"]
        if absent := sorted({str(name) for name in named} - files.keys()):
            raise InputError(f"{folder}: {listed(absent)} is missing, which the index names; save them again.")
    if "tokenizer_config.json" not in files:
        raise InputError(f"{folder}: no tokenizer; save the one that the model was trained with there.")
    return files


def checked_config(folder: Path) -> dict:
    """The content of a FixedHeadBert's config.json; another model is refused."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json; give the directory of a model.")
    config = read_object(folder / "config.json", SAVE_AGAIN)
    if config.get("model_type") != FixedHeadBertConfig.model_type:
        kind = config.get("model_type", "nameless")
        raise InputError(f"{folder}: a {kind} model; use `hf upload` for it.")
    try:
        head_of(config["architectures"][0], FixedHeadBertConfig.model_type)
        FixedHeadBertConfig.from_dict(config)
    except Exception as error:  # of any kind, for an unusable value
        raise InputError(f"{folder / 'config.json'}: {reason_of(error)}") from error
    return config


def card_of(folder: Path, architecture: str, repo_id: str, license: str | None) -> bytes:
    """The card in the directory, with `license` if it has none, or a new card."""
    file = folder / "README.md"
    if not file.exists():
        card = checkpoint_card(FixedHeadBertConfig.from_pretrained(folder), architecture, repo_id, license=license)
        check_card(card, file)
        return str(card).encode()
    stated, content = read_card(file).data.get("license"), file.read_bytes()
    if license and stated and license != stated:
        raise InputError(f"{file}: it states {stated}, not `license` {license}; change one of the two.")
    if license and not stated:
        content = content.replace(b"---", f"---\nlicense: {license}".encode(), 1)
    check_card(ModelCard(content.decode(), ignore_metadata_errors=False), file)
    return content
