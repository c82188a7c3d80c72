"""A checkpoint on the Hub: checked before anything is sent, and sent as one commit, there whole or not at all."""

import json
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import (  # HTTPError: also a connection that breaks
    HfHubHTTPError,
    HTTPError,
    LocalTokenNotFoundError,
)
from safetensors import SafetensorError, safe_open

from . import configuration_fixed_head_bert, modeling_fixed_head_bert
from .configuration_fixed_head_bert import AUTO_MAP, FixedHeadBertConfig
from .errors import InputError, explain_hub_error
from .model_card import check_card, checkpoint_card, read_card

# Pickles, checkpoints of training, and what is hidden stay at home.
LEFT_OUT = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt", "checkpoint-*", "*.partial", ".*", "__pycache__")
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
CODE = (configuration_fixed_head_bert, modeling_fixed_head_bert)


def push(
    folder: str | Path,
    repo_id: str,
    license: str | None = None,
    private: bool | None = None,
    commit_message: str | None = None,
    token: str | None = None,
) -> str:
    """
    Upload a FixedHeadBert's directory: weights, configuration with the whole auto_map, the two files of code,
    tokenizer, card and results, in one commit. The repository is made if there is none; weights of other names in it
    are removed, because they might be loaded instead.

    Args:
        license: of the weights, for a card that does not say.
        private: of a repository that is made.
        token: with the right to write; default: the one logged in with.

    Returns:
        The address of the commit.

    Raises:
        InputError: the directory is not whole, its card lacks a field, or the Hub refuses or cannot be reached; then
            nothing has changed there.
    """
    folder = Path(folder)
    files = checkpoint_files(folder)
    contents = {"config.json": json.dumps(read_config(folder), indent=2, sort_keys=True).encode() + b"\n"}
    for module in CODE:
        file = Path(module.__file__)
        if file.name not in files:
            contents[file.name] = file.read_bytes()
    contents["README.md"] = str(card_of(folder, repo_id, license)).encode()
    operations = [CommitOperationAdd(name, data) for name, data in contents.items()]
    operations += [CommitOperationAdd(name, str(file)) for name, file in files.items() if name not in contents]

    api = HfApi(token=token)
    try:
        check_token(api)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        before = api.model_info(repo_id)
        there = [sibling.rfilename for sibling in before.siblings]
        stale = [name for name in there if any(fnmatch(name, kind) for kind in WEIGHTS) and name not in files]
        operations += [CommitOperationDelete(name) for name in stale]
        return api.create_commit(
            repo_id,
            operations,
            commit_message=commit_message or "Upload with fixedbert",
            parent_commit=before.sha,
        ).commit_url
    except InputError:
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{repo_id}: {explain_hub_error(error)}") from error


def checkpoint_files(folder: Path) -> dict[str, Path]:
    """What is to be uploaded, by name; weights are opened, so that none is cut short."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json; give the directory of a model.")
    files = {
        file.relative_to(folder).as_posix(): file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        and not any(fnmatch(part, kind) for part in file.relative_to(folder).parts for kind in LEFT_OUT)
    }
    weights = [file for name, file in files.items() if fnmatch(name, "*.safetensors")]
    if not weights:
        raise InputError(f"{folder}: no weights in safetensors; save them with save_pretrained.")
    for file in weights:
        try:
            with safe_open(file, framework="np") as tensors:  # its header says how long the file must be
                tensors.keys()
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file}: the weights cannot be read ({error}); save them anew.") from error
    if "model.safetensors.index.json" in files:
        named = set(json.loads(files["model.safetensors.index.json"].read_text())["weight_map"].values())
        if absent := sorted(named - files.keys()):
            raise InputError(f"{folder}: {', '.join(absent)} is missing, which the index names; save them anew.")
    if "tokenizer_config.json" not in files:
        raise InputError(f"{folder}: no tokenizer; save the one that the model was trained with there.")
    return files


def read_config(folder: Path) -> dict:
    """config.json with the whole auto_map, also where an older version of fixedbert wrote it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = config["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'}: not a model's configuration ({error}).") from error
    if model_type != FixedHeadBertConfig.model_type:
        raise InputError(f"{folder}: a {model_type} model; `hf upload` takes what is no FixedHeadBert.")
    return config | {"auto_map": AUTO_MAP}


def card_of(folder: Path, repo_id: str, license: str | None) -> ModelCard:
    """The card in the directory, or a new one."""
    if (folder / "README.md").exists():
        card = read_card(folder / "README.md")
    else:
        config = FixedHeadBertConfig.from_pretrained(folder)
        card = checkpoint_card(config, (config.architectures or ["FixedHeadBertModel"])[0], repo_id)
    if license:
        card.data.license = license
    check_card(card, folder / "README.md")
    return card


def check_token(api: HfApi):
    """Raises InputError where there is no token, or one that may only read: before a repository is made."""
    try:
        token = api.whoami().get("auth", {}).get("accessToken", {})
    except LocalTokenNotFoundError as error:
        raise InputError("no token; log in with `hf auth login`, or give --token.") from error
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code == 401:
            raise InputError("the Hub knows no such token; log in with `hf auth login`, or give --token.") from error
        raise
    if token.get("role") == "read":
        raise InputError(f"the token {token.get('displayName', '')!r} may only read; make one that may write.")
