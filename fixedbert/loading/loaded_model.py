"""A model with its tokenizer and pooling, from a directory or the Hub."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokenizers import check_vocab_size, load_tokenizer
from .auxiliary_files import auxiliary_directory
from .checkpoints import load_bert
from .sentence_models import SentencePooling, TextSettings, read_activation, read_pooling, read_text_settings


@dataclass
class LoadedModel:
    """
    A model with its tokenizer.

    Args:
        directory: Local directory with the tokenizer, the pooling configuration and the model card.
        pooling: The pooling layer of a sentence-transformers model; None for other models.
        settings: How a sentence-transformers model tokenizes texts.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    directory: Path
    pooling: SentencePooling | None = None
    settings: TextSettings = TextSettings()

    @classmethod
    def load(cls, source: str | Path, any_family: bool = True, **hub_options) -> "LoadedModel":
        """Loads a model in evaluation mode from a directory or the Hub. Supports the same models as `load_bert`."""
        model = load_bert(source, any_family=any_family, **hub_options)
        directory = auxiliary_directory(source, **hub_options)
        tokenizer, settings = load_text_tokenizer(directory, model.config, source)
        return cls(model.eval(), tokenizer, directory, read_pooling(directory), settings)

    @property
    def config(self) -> PreTrainedConfig:
        return self.model.config

    @property
    def head(self) -> str:
        return head_name(type(self.model).__name__)


def load_text_tokenizer(
    directory: Path, config: PreTrainedConfig, source: object
) -> tuple[PreTrainedTokenizerBase, TextSettings]:
    """Loads a tokenizer, with the settings of a sentence-transformers model, and checks its size for a model."""
    tokenizer = load_tokenizer(str(directory), trust_remote_code=False)
    check_vocab_size(tokenizer, config.vocab_size, source)
    settings = read_text_settings(directory)
    settings.apply(tokenizer)
    # A model that was fine-tuned here stores the names of its text columns instead.
    takes_pairs = bool(read_activation(directory, config)) and not getattr(config, "text_column_names", None)
    return tokenizer, replace(settings, takes_pairs=takes_pairs)


def head_name(class_name: str) -> str:
    """Returns the task head, such as "SequenceClassification", or "" for an encoder, such as "RoFormerModel"."""
    return "".join(re.findall(r"For([A-Z]\w+)", class_name))
