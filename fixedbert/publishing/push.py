"""
Uploads a model directory to the Hugging Face Hub.

`save_pretrained` writes the model's code next to the weights because the model classes are registered for it
(`FixedHeadBertPreTrainedModel.__init_subclass__`), so the directory opens without fixedbert.
"""

from pathlib import Path

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HTTPError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.auxiliary_files import CARD, SENTENCE_FILES
from ..conversion.checkpoints import load_bert, model_directory
from ..data.tokenizers import TOKENIZER_FILES, load_tokenizer
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..support.errors import InputError
from ..support.files import error_reason
from .model_card import checkpoint_card

CODE = [file.name for file in (Path(__file__).parents[1] / "model").glob("*_fixed_head_bert.py")]
UPLOADED = "config.json generation_config.json model*.safetensors model*.safetensors.index.json".split()
UPLOADED += [*CODE, *TOKENIZER_FILES, *SENTENCE_FILES, CARD]
UPLOADED += "LICENSE* *.png *_results.json summary.json command.json trainer_state.json".split()
# Weights with different file names, which could be loaded in place of the new ones.
DELETED = "model*.safetensors model*.safetensors.index.json pytorch_model*".split()


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
    Upload a FixedHeadBert with its tokenizer, code, model card and results to the Hub, in one commit.

    Creates the repository if it does not exist, and deletes older weights from it. A directory without a model card
    gets one; a card without a license gets `license`.

    Args:
        folder: directory of the model, or a model in memory with its `tokenizer`.
        repo_id: `user/name` or `organization/name`.
        license: license of the weights, such as apache-2.0. Required unless the card states one.
        private: create a private repository.
        token: a token with write access. Default: the token saved by `hf auth login`.

    Returns:
        The URL of the commit.

    Raises:
        InputError: the model cannot be loaded, no license is stated, or the Hub refuses the upload.
    """
    with model_directory(folder, tokenizer) as directory:
        prepare_directory(Path(directory), repo_id, license)
        api = HfApi(token=token)
        try:
            repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            repository = api.model_info(repo_id)
            if private and not repository.private:
                raise InputError(f"{repo_id}: this repository is public; make it private on the Hub first.")
            return api.upload_folder(
                repo_id=repo_id,
                folder_path=directory,
                commit_message=commit_message or "Upload with fixedbert",
                parent_commit=repository.sha,
                allow_patterns=UPLOADED,
                ignore_patterns=["checkpoint-*"],
                delete_patterns=DELETED,
            ).commit_url
        except (HTTPError, OSError, RuntimeError) as error:
            raise InputError(f"{repo_id}: {error_reason(error)}") from error


def prepare_directory(directory: Path, repo_id: str, license: str | None):
    """Checks that model and tokenizer can be loaded, and completes the model card."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory.")
    model = load_bert(directory)
    if not isinstance(model, FixedHeadBertPreTrainedModel):
        raise InputError(f"{directory}: contains a {type(model).__name__}; upload it with `hf upload`.")
    load_tokenizer(str(directory), trust_remote_code=False)

    file = directory / CARD
    if file.exists():
        card = ModelCard.load(file)
    else:
        card = checkpoint_card(model.config, type(model).__name__, repo_id, count=model.num_parameters())
    stated = card.data.get("license")
    if not license and not stated:
        raise InputError("is missing: the model card does not state one. Pass one, such as apache-2.0.", "license")
    if license and stated and license != stated:
        raise InputError(f"{file}: states the license {stated}, not {license}; change one of them.")
    if not stated:
        card.data["license"] = license
        card.save(file)
