"""Uploads a model directory to the Hugging Face Hub, with code for loading the model without fixedbert."""

import shutil
from pathlib import Path

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import filter_repo_objects, validate_repo_id

from ..commands import takes_options
from ..data.tokenizers import TOKENIZER_FILES, load_tokenizer
from ..loading.auxiliary_files import CARD, SENTENCE_FILES, card_metadata
from ..loading.checkpoints import load_bert
from ..model import modeling_fixed_head_bert
from ..model.configuration_fixed_head_bert import AUTO_MAP
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..options import PushOptions
from ..support.errors import InputError, shorten
from ..support.files import error_reason, read_json_object, writing
from .model_card import checkpoint_card

UPLOADED = "config.json generation_config.json model*.safetensors model*.safetensors.index.json".split()
CODE = sorted(Path(modeling_fixed_head_bert.__file__).parent.glob("*_fixed_head_bert.py"))
UPLOADED += [*(file.name for file in CODE), *TOKENIZER_FILES, *SENTENCE_FILES, CARD]
UPLOADED += "LICENSE* *.png *_results.json summary.json command.json trainer_state.json".split()
IGNORED = ["checkpoint-*"]
# Weight files from earlier commits, which might otherwise be loaded instead of the new ones.
DELETED = "model*.safetensors model*.safetensors.index.json pytorch_model*".split()


@takes_options("push")
def push(options: PushOptions) -> str:
    """
    Uploads a FixedHeadBert with its tokenizer, code, model card and results to the Hub in one commit.

    Creates the repository if it does not exist, and deletes weights from earlier uploads. If the directory contains no
    model card, adds one. Updates the model's code in the directory.

    Returns:
        The URL of the commit. With `dry_run`, a list of the files to upload.

    Raises:
        InputError: If the model or tokenizer cannot be loaded, the repository is public although `private` is set, or
            the Hub cannot be reached or refuses the upload.
    """
    repo_id, directory, api = options.repo_id, Path(options.folder), HfApi(token=options.token)
    try:
        validate_repo_id(repo_id)  # before the directory changes
    except HFValidationError as error:
        raise InputError(f"{repo_id}: must be user/name, with letters, digits, '-', '_' and '.' only.") from error
    model = load_complete(directory)
    if options.dry_run:
        names = {file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()}
        names |= {CARD, *(file.name for file in CODE)}
        files = filter_repo_objects(sorted(names), allow_patterns=UPLOADED, ignore_patterns=IGNORED)
        return "\n".join([f"Files to upload to {repo_id}:", *files])
    with writing(directory, "or push a copy of it"):
        write_card(directory / CARD, model, repo_id, options.license)
        for file in CODE:  # the copy in the directory can be older
            shutil.copy(file, directory)
    try:
        repo_id = api.create_repo(repo_id, private=options.private, exist_ok=True).repo_id
        if options.private and not api.model_info(repo_id).private:
            raise InputError(f"{repo_id}: this repository is public; make it private on the Hub first.")
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=directory,
            commit_message="Upload with fixedbert",
            allow_patterns=UPLOADED,
            ignore_patterns=IGNORED,
            delete_patterns=DELETED,
        ).commit_url
    except (HTTPError, HFValidationError, OSError, RuntimeError) as error:
        raise InputError(f"{repo_id}: the upload to {api.endpoint} failed: {error_reason(error)}.") from error


def check_code(directory: Path):
    """Raises InputError if a file names code other than fixedbert's."""
    for name, own in {"config.json": AUTO_MAP, "tokenizer_config.json": {}}.items():
        file = directory / name
        named = read_json_object(file).get("auto_map") or {} if file.exists() else {}
        if foreign := [auto_class for auto_class, code in named.items() if own.get(auto_class) != code]:
            raise InputError(f"{file}: auto_map names code that is not fixedbert's; remove {shorten(foreign)}.")


def load_complete(directory: Path) -> FixedHeadBertPreTrainedModel:
    """Loads the model. Raises InputError if it is no FixedHeadBert, a file is missing, or a file names other code."""
    if not directory.is_dir():
        raise InputError(f"{directory}: directory not found.")
    model = load_bert(directory)
    if not isinstance(model, FixedHeadBertPreTrainedModel):
        raise InputError(f"{directory}: contains a {type(model).__name__}, not a FixedHeadBert; use `hf upload`.")
    load_tokenizer(str(directory), trust_remote_code=False)
    check_code(directory)
    return model


def write_card(file: Path, model: FixedHeadBertPreTrainedModel, repo_id: str, license: str | None):
    """Writes a model card if there is none. Adds the license to the card unless it is None."""
    if file.exists():
        card = ModelCard.load(file)
    else:
        card = checkpoint_card(model, repo_id, **card_metadata(file.parent, model.config))
    if license:
        card.data["license"] = license
    if license or not file.exists():
        card.save(file)
