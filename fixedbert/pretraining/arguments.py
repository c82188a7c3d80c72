"""Arguments for pretraining: the model, the corpora and the training."""

import os
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from transformers.integrations import is_tensorboard_available

from ..data.corpora import DOCUMENT_BOUNDARIES, Corpus
from ..data.sentences import LANGUAGES, check_language
from ..support.errors import InputError
from ..training.arguments import CommonArguments, ModelArguments, option

Objective = Literal["mlm+nsp", "mlm", "clm"]
BOUNDARIES = "; ".join(f"{name}: {text}" for name, text in DOCUMENT_BOUNDARIES.items())


def list_option(help: str, default: list | None = None):
    return field(default_factory=lambda: default, metadata={"help": help, "nargs": "+"})


def corpus_option(default: str | None, help: str):
    return list_option(f"{help} One value for all corpora, or one per corpus.", [default])


@dataclass
class NewModelArguments(ModelArguments):
    """
    Arguments for the model.

    The sizes describe a new model. They replace those of `config_name` (default: BERT-base with a head size of 128).
    """

    can_be_new: ClassVar[bool] = True

    num_attention_heads: int | None = option(None, "For a new model: number of attention heads.")
    attention_head_size: list[int] | None = list_option("For a new model: head size for all layers, or one per layer.")
    value_head_size: list[int] | None = list_option("For a new model: value size. Default: the head size.")
    hidden_size: int | None = option(None, "For a new model: width.")
    num_hidden_layers: int | None = option(None, "For a new model: number of layers.")
    intermediate_size: list[int] | None = list_option("For a new model: number of feed-forward neurons.")
    do_lower_case: bool | None = option(
        None, "For a new vocabulary or a vocab.txt file: convert the text to lowercase. Default: true."
    )

    def __post_init__(self):
        names = {member.name for member in fields(self)} - {member.name for member in fields(ModelArguments)}
        names -= {"do_lower_case"}
        sizes = {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}
        if sizes and self.model_name_or_path is not None:
            raise InputError("is only for new models; use fixedbert convert for a pretrained one.", min(sizes))
        for name, value in sizes.items():
            size = value[0] if isinstance(value, list) and len(value) == 1 else value
            self.config_overrides = (self.config_overrides or {}) | {name: size}


@dataclass
class PretrainingDataArguments:
    """Arguments for the corpora and their examples. Corpora from `dataset_name` precede those from `train_file`."""

    objective: Objective = option(
        "mlm+nsp",
        "mlm+nsp: segment pairs with masked tokens and a next-sentence label. mlm: packed rows with masked tokens. "
        "clm: packed rows for causal LM.",
    )
    dataset_name: list[str] | None = list_option("Hub datasets, or `sample` for the text shipped with the package.")
    dataset_config_name: list[str] = corpus_option(None, "Configuration of the Hub dataset, or `none`.")
    train_file: list[str] | None = list_option(
        "Files (.txt, .jsonl, .csv, .tsv, .parquet, optionally compressed), directories or glob patterns."
    )
    validation_file: list[str] | None = list_option("Held-out files, read with the settings of the first corpus.")
    validation_split_percentage: float = option(5, "Without --validation_file: percentage of documents to hold out.")
    text_column_name: list[str] = corpus_option("text", "Name of the text column.")
    document_boundary: list[str] = corpus_option("row", f"Where a document ends. {BOUNDARIES}.")
    document_column_name: list[str] = corpus_option(None, "For --document_boundary column: name of that column.")
    corpus_weights: list[float] | None = list_option("Number of times that an epoch uses each corpus, such as 1 2.5.")
    language: str = option("en", f"Language for sentence splitting: {', '.join(LANGUAGES)}.")
    vocab_size: int | None = option(None, "Size of a new vocabulary. Default: the configuration's.")
    tokenizer_train_share: float = option(1.0, "Fraction of documents for training a new tokenizer.")
    store_dir: str | None = option(None, "Directory for prepared corpora. Default: fixedbert/ in HF_HOME.")
    max_seq_length: int = option(128, "Maximum number of tokens in an example, including special tokens.")
    short_seq_prob: float = option(0.1, "Fraction of segment pairs shortened to a random length.")
    separate_documents: bool = option(False, "In packed rows, restrict attention to tokens of the same document.")
    mlm_probability: float = option(0.15, "Fraction of tokens to predict.")
    whole_word_mask: bool = option(False, "Mask all tokens of a word together.")
    max_eval_samples: int | None = option(None, "Maximum number of examples for evaluation.")
    preprocessing_num_workers: int | None = option(
        None, "Number of processes that prepare the corpus. Default: the number of cores."
    )

    def __post_init__(self):
        check_language(self.language)
        if self.separate_documents and self.objective == "mlm+nsp":
            raise InputError("requires `objective` mlm or clm.", "separate_documents")
        if self.whole_word_mask and self.objective == "clm":
            raise InputError("requires `objective` mlm+nsp or mlm.", "whole_word_mask")
        for name in ("mlm_probability", "tokenizer_train_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError("must be greater than 0 and at most 1.", name)
        if not 0 <= self.short_seq_prob <= 1:
            raise InputError("must be between 0 and 1.", "short_seq_prob")
        if not 0 < self.validation_split_percentage < 100:
            raise InputError("must be greater than 0 and less than 100.", "validation_split_percentage")
        if self.corpus_weights and (min(self.corpus_weights) < 0 or not any(self.corpus_weights)):
            raise InputError("must contain at least one positive number and no negative numbers.", "corpus_weights")

    @property
    def processes(self) -> int:
        """Number of processes that prepare the corpus."""
        return self.preprocessing_num_workers or os.cpu_count() or 1

    def corpora(self, model_args: ModelArguments) -> list[Corpus]:
        """Returns the corpora that the arguments describe."""
        sources = [(name, True) for name in self.dataset_name or []]
        sources += [(file, False) for file in self.train_file or []]
        if not sources:
            raise InputError("no corpus: set `train_file`, or set `dataset_name` to a Hub dataset or 'sample'.")
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
        """Returns the values of an argument, one per corpus. Replaces "none" with None."""
        values = [None if value == "none" else value for value in getattr(self, name)]
        if len(values) not in (1, count):
            raise InputError(f"has {len(values)} values for {count} corpora; set one value, or one per corpus.", name)
        return values * count if len(values) == 1 else values


@dataclass
class PretrainingArguments(CommonArguments):
    """Arguments for training: transformers' TrainingArguments with the defaults of BERT's pretraining."""

    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    report_to: str | list[str] = field(
        default_factory=lambda: ["tensorboard"] if is_tensorboard_available() else ["none"],
        metadata={"help": "Integrations that receive the logs. Default: tensorboard, if it is installed."},
    )
    total_train_batch_size: int | None = option(
        None,
        "Examples per step across all devices. Sets gradient accumulation so that a device processes at most "
        "--per_device_train_batch_size examples at once.",
    )
    stages: list[dict] | None = list_option(
        "Only in recipes: a list with one mapping per stage. `steps` is the number of steps. All other entries change "
        "model sizes, max_seq_length, per_device_train_batch_size or total_train_batch_size from this stage on."
    )

    refused: ClassVar[dict[str, tuple[object, str]]] = CommonArguments.refused | {
        "label_smoothing_factor": (0.0, "pretraining uses the same losses as BERT"),
        "label_names": (None, "`objective` determines the labels"),
        "train_sampling_strategy": ("random", "`seed` and the epoch determine the order of the examples"),
        "data_seed": (None, "`seed` determines the examples"),
        "include_num_input_tokens_seen": ("no", "non-padding tokens are always counted"),
        "accelerator_config.dispatch_batches": (None, "batches contain token indices and cannot be split"),
        "do_predict": (False, "use `do_eval`"),
    }

    def __post_init__(self):
        super().__post_init__()
        if self.total_train_batch_size is not None:
            self.set_batch_size(self.total_train_batch_size)

    def set_batch_size(self, total: int):
        """Sets the batch size per device and the gradient accumulation so that a step contains `total` examples."""
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
