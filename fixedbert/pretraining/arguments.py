"""Arguments of pretraining: model, corpus and training."""

import os
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from transformers.integrations import is_tensorboard_available

from ..data.corpora import DOCUMENT_BOUNDARIES, Corpus
from ..data.sentences import LANGUAGES, check_language
from ..support.errors import InputError
from ..training.arguments import CommonArguments, ModelArguments

Objective = Literal["mlm+nsp", "mlm", "clm"]
BOUNDARIES = "; ".join(f"{name}: {text}" for name, text in DOCUMENT_BOUNDARIES.items())


def option(default: Any, help: str):
    return field(default=default, metadata={"help": help})


def list_option(help: str, default: list | None = None):
    return field(default_factory=lambda: default, metadata={"help": help, "nargs": "+"})


def corpus_option(default: str | None, help: str):
    return list_option(f"{help} One value for all corpora, or one per corpus.", [default])


@dataclass
class NewModelArguments(ModelArguments):
    """The model. Sizes describe a new model, as changes to `config_name` or to BERT-base with a head size of 128."""

    can_be_new: ClassVar[bool] = True

    num_attention_heads: int | None = option(None, "For a new model: number of heads.")
    attention_head_size: list[int] | None = list_option("For a new model: head size, or one per layer.")
    value_head_size: list[int] | None = list_option("For a new model: size of values, if it differs from head size.")
    hidden_size: int | None = option(None, "For a new model: width.")
    num_hidden_layers: int | None = option(None, "For a new model: number of layers.")
    intermediate_size: list[int] | None = list_option("For a new model: feed-forward neurons, or one per layer.")

    def __post_init__(self):
        names = {member.name for member in fields(self)} - {member.name for member in fields(ModelArguments)}
        sizes = {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}
        if sizes and self.model_name_or_path is not None:
            raise InputError("is for a new model; use fixedbert convert for `model_name_or_path`.", min(sizes))
        for name, value in sizes.items():
            size = value[0] if isinstance(value, list) and len(value) == 1 else value
            self.config_overrides = (self.config_overrides or {}) | {name: size}


@dataclass
class PretrainingDataArguments:
    """The corpora, those of `dataset_name` before those of `train_file`, and the examples made from them."""

    objective: Objective = option(
        "mlm+nsp",
        "mlm+nsp: segment pairs with masked tokens; mlm: packed rows with masked tokens; clm: packed rows, in which "
        "the next token is predicted.",
    )
    dataset_name: list[str] | None = list_option("Datasets on the Hub, or `sample` for the built-in text.")
    dataset_config_name: list[str] = corpus_option(None, "Configuration of the Hub dataset, or none.")
    train_file: list[str] | None = list_option(
        "Files (.txt, .jsonl, .csv, .tsv, .parquet, also compressed), directories and globs."
    )
    validation_file: list[str] | None = list_option("Held-out files, read with the settings of the first corpus.")
    validation_split_percentage: float = option(5, "Percentage of documents to hold out without --validation_file.")
    text_column_name: list[str] = corpus_option("text", "Column with the text.")
    document_boundary: list[str] = corpus_option("row", f"Where a document ends. {BOUNDARIES}.")
    document_column_name: list[str] = corpus_option(None, "Column for --document_boundary column, or none.")
    corpus_weights: list[float] | None = list_option("How often an epoch uses the documents of each corpus.")
    language: str = option("en", f"Language for sentence splitting: {', '.join(LANGUAGES)}.")
    vocab_size: int | None = option(None, "Size of a new vocabulary; default: the configuration's.")
    tokenizer_train_share: float = option(1.0, "Share of the documents from which a new vocabulary is trained.")
    store_dir: str | None = option(None, "Directory for prepared corpora; default: fixedbert/ in HF_HOME.")
    max_seq_length: int = option(128, "Maximum number of tokens in an example, including special tokens.")
    short_seq_prob: float = option(0.1, "Share of segment pairs that are shortened.")
    separate_documents: bool = option(False, "In packed rows, restrict attention to tokens of the same document.")
    mlm_probability: float = option(0.15, "Share of tokens to predict.")
    whole_word_mask: bool = option(False, "Mask whole words.")
    max_eval_samples: int | None = option(None, "Maximum number of examples for evaluation.")
    preprocessing_num_workers: int | None = option(
        None, "Processes that prepare the corpus; default: the number of cores."
    )

    def __post_init__(self):
        check_language(self.language)
        if self.separate_documents and self.objective == "mlm+nsp":
            raise InputError("requires packed rows, that is, `objective` mlm or clm.", "separate_documents")
        if self.whole_word_mask and self.objective == "clm":
            raise InputError("requires `objective` mlm+nsp or mlm.", "whole_word_mask")
        for name in ("mlm_probability", "tokenizer_train_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError("must be greater than 0 and at most 1.", name)
        if not 0 <= self.short_seq_prob <= 1:
            raise InputError("must be from 0 to 1.", "short_seq_prob")
        if not 0 < self.validation_split_percentage < 100:
            raise InputError("must be between 0 and 100.", "validation_split_percentage")
        if self.corpus_weights and (min(self.corpus_weights) < 0 or not any(self.corpus_weights)):
            raise InputError("must not be negative, and must not all be 0.", "corpus_weights")

    @property
    def processes(self) -> int:
        """Number of processes that prepare the corpus."""
        return self.preprocessing_num_workers or os.cpu_count() or 1

    def corpora(self, model_args: ModelArguments) -> list[Corpus]:
        """Returns the corpora that the arguments describe."""
        sources = [(name, True) for name in self.dataset_name or []]
        sources += [(file, False) for file in self.train_file or []]
        if not sources:
            raise InputError("no corpus: set `train_file` or `dataset_name` (`sample` is a built-in text).")
        if self.corpus_weights:
            self.corpus_weights = self.per_corpus("corpus_weights", len(sources))
        names = ("dataset_config_name", "text_column_name", "document_boundary", "document_column_name")
        columns = [self.per_corpus(name, len(sources)) for name in names]
        hub_options = {"cache_dir": model_args.cache_dir, "token": model_args.token}
        return [
            Corpus(source, on_hub, config_name, text_column, boundary, boundary_column, hub_options)
            for (source, on_hub), config_name, text_column, boundary, boundary_column in zip(
                sources, *columns, strict=True
            )
        ]

    def per_corpus(self, name: str, count: int) -> list:
        """Returns one value of an argument per corpus, with None for "none"."""
        values = [None if value == "none" else value for value in getattr(self, name)]
        if len(values) not in (1, count):
            raise InputError(f"has {len(values)} values for {count} corpora; give one, or one per corpus.", name)
        return values * count if len(values) == 1 else values


@dataclass
class PretrainingArguments(CommonArguments):
    """transformers' TrainingArguments with the defaults of BERT's pretraining."""

    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    report_to: str | list[str] = field(
        default_factory=lambda: ["tensorboard"] if is_tensorboard_available() else ["none"],
        metadata={"help": "Integrations to report to; default: tensorboard, if it is installed."},
    )
    total_train_batch_size: int | None = option(
        None,
        "Examples per step on all devices, reached by gradient accumulation from at most "
        "--per_device_train_batch_size examples per device.",
    )
    stages: list[dict] | None = list_option(
        "In a recipe, a list of mappings: the number of `steps` of each stage, and changes to the sizes of the model, "
        "max_seq_length, per_device_train_batch_size and total_train_batch_size from this stage on."
    )

    refused: ClassVar[dict[str, tuple[object, str]]] = CommonArguments.refused | {
        "label_smoothing_factor": (0.0, "the losses of pretraining are those of BERT"),
        "label_names": (None, "`objective` determines the labels"),
        "train_sampling_strategy": ("random", "`seed` and epoch determine the order of examples"),
        "data_seed": (None, "`seed` determines the examples"),
        "include_num_input_tokens_seen": ("no", "tokens without padding are always counted"),
        "accelerator_config.dispatch_batches": (None, "batches contain token indices and cannot be divided"),
        "do_predict": (False, "use `do_eval`"),
    }

    def __post_init__(self):
        super().__post_init__()
        if self.total_train_batch_size is not None:
            self.set_batch_size(self.total_train_batch_size)

    def set_batch_size(self, total: int):
        """Sets the batch size per device and the gradient accumulation so that a step has `total` examples."""
        devices = self.world_size * max(self.n_gpu, 1)
        if self.gradient_accumulation_steps != 1:
            raise InputError("cannot be combined with `gradient_accumulation_steps`.", "total_train_batch_size")
        per_device, rest = divmod(total, devices)
        if rest or not per_device:
            raise InputError(f"must be a multiple of {devices}, the number of devices.", "total_train_batch_size")
        batch_size = min(self.per_device_train_batch_size, per_device)
        while per_device % batch_size:
            batch_size -= 1
        self.per_device_train_batch_size = batch_size
        self.gradient_accumulation_steps = per_device // batch_size


ARGUMENTS = (NewModelArguments, PretrainingDataArguments, PretrainingArguments)
