"""Arguments of pretraining: which model, which text, and how to train."""

import os
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from transformers.integrations import is_tensorboard_available

from ..data.corpora import DOCUMENT_BOUNDARIES, Corpus
from ..data.sentences import LANGUAGES, check_language
from ..support.errors import InputError
from ..training.arguments import CommonArguments, ModelArguments


def size(what: str, per_layer: bool = False):
    text = f"{what}, or one for each layer" if per_layer else what
    return field(default=None, metadata={"help": f"For a new model: {text}."} | ({"nargs": "+"} if per_layer else {}))


@dataclass
class NewModelArguments(ModelArguments):
    """Which model, and the shape of a new one, on top of `config_name` or of BERT-base with heads of 128."""

    can_be_new: ClassVar[bool] = True

    num_attention_heads: int | None = size("number of heads")
    attention_head_size: list[int] | None = size("size of a head, whatever the width", per_layer=True)
    value_head_size: list[int] | None = size("size of a head's values, where it is another", per_layer=True)
    hidden_size: int | None = size("width")
    num_hidden_layers: int | None = size("number of layers")
    intermediate_size: list[int] | None = size("neurons of a feed-forward network", per_layer=True)

    def __post_init__(self):
        names = {member.name for member in fields(self)} - {member.name for member in fields(ModelArguments)}
        shape = {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}
        if shape and self.model_name_or_path is not None:
            raise InputError(
                "is for a new model; the shape of `model_name_or_path` is changed by fixedbert convert.", min(shape)
            )
        for name, value in shape.items():
            one = value[0] if isinstance(value, list) and len(value) == 1 else value
            self.config_overrides = (self.config_overrides or {}) | {name: one}


BOUNDARIES = "; ".join(f"{name}: {text}" for name, text in DOCUMENT_BOUNDARIES.items())


def corpus_option(default: str | None, help: str):
    return field(
        default_factory=lambda: [default], metadata={"help": f"{help} One for all corpora, or one each.", "nargs": "+"}
    )


Objective = Literal["mlm+nsp", "mlm", "clm"]


@dataclass
class PretrainingDataArguments:
    """Which text, and how examples are made of it. Corpora of `dataset_name` come first, then `train_file`."""

    objective: Objective = field(
        default="mlm+nsp",
        metadata={
            "help": "Pairs of segments with masked tokens (mlm+nsp), packed rows with masked tokens (mlm), or "
            "packed rows whose next tokens are predicted (clm).",
        },
    )
    dataset_name: list[str] | None = field(
        default=None, metadata={"help": "Hub ids, or `sample` for the built-in text.", "nargs": "+"}
    )
    dataset_config_name: list[str] = corpus_option(None, "Configuration of the Hub data set, or none.")
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": ".txt, .jsonl, .csv, .tsv and .parquet files, folders and globs, also compressed.",
            "nargs": "+",
        },
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "The same, held out, read as the first corpus.", "nargs": "+"}
    )
    validation_split_percentage: float = field(
        default=5, metadata={"help": "Without --validation_file: the share of documents held out, in per cent."}
    )
    text_column_name: list[str] = corpus_option("text", "Column with the text.")
    document_boundary: list[str] = corpus_option(
        "row",
        f"What ends a document. {BOUNDARIES}.",
    )
    document_column_name: list[str] = corpus_option(None, "The column for --document_boundary column, or none.")
    corpus_weights: list[float] | None = field(
        default=None, metadata={"help": "How often an epoch uses the documents of each corpus.", "nargs": "+"}
    )
    language: str = field(default="en", metadata={"help": f"For splitting into sentences: {', '.join(LANGUAGES)}."})
    vocab_size: int | None = field(
        default=None, metadata={"help": "Size of a vocabulary to train; default: the configuration's."}
    )
    tokenizer_train_share: float = field(
        default=1.0, metadata={"help": "The share of the documents that a vocabulary is trained on."}
    )
    store_dir: str | None = field(
        default=None, metadata={"help": "Where prepared corpora are kept; default: fixedbert/ in HF_HOME."}
    )
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of an example, special ones counted."})
    short_seq_prob: float = field(default=0.1, metadata={"help": "Share of pairs that are made shorter."})
    separate_documents: bool = field(
        default=False, metadata={"help": "In packed rows: no attention from one document to another."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens to predict."})
    whole_word_mask: bool = field(default=False, metadata={"help": "Mask whole words, 80/10/10 drawn by word."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many examples only."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes for preparing the corpus; default: one for each core."}
    )

    def __post_init__(self):
        if self.separate_documents and self.objective == "mlm+nsp":
            raise InputError("is for packed rows: `objective` mlm or clm.", "separate_documents")
        check_language(self.language)
        if self.whole_word_mask and self.objective == "clm":
            raise InputError("is for masked-LM: `objective` mlm+nsp or mlm.", "whole_word_mask")
        if not 0 <= self.short_seq_prob <= 1:
            raise InputError(f"{self.short_seq_prob}: a share, from 0 to 1.", "short_seq_prob")
        for name, most in (("mlm_probability", 1), ("tokenizer_train_share", 1), ("validation_split_percentage", 99)):
            if not 0 < getattr(self, name) <= most:
                raise InputError(f"{getattr(self, name)}: more than 0 and at most {most}.", name)
        for name in ("max_eval_samples", "preprocessing_num_workers", "vocab_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)}: at least 1.", name)
        if self.corpus_weights and (min(self.corpus_weights) < 0 or not any(self.corpus_weights)):
            raise InputError("`corpus_weights`: none may be negative, and not all 0.")

    @property
    def processes(self) -> int:
        """Processes for preparing the corpus."""
        return self.preprocessing_num_workers or os.cpu_count() or 1

    def corpora(self, model_args: ModelArguments) -> list[Corpus]:
        """The corpora that the arguments name, those of the Hub first."""
        sources = [(name, True) for name in self.dataset_name or []]
        sources += [(file, False) for file in self.train_file or []]
        if not sources:
            raise InputError("no corpus: give `train_file`, or `dataset_name` (sample is the built-in one).")
        options = ("dataset_config_name", "text_column_name", "document_boundary", "document_column_name")
        columns = []
        for name in (*options, "corpus_weights"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, len(sources)):
                raise InputError(f"`{name}`: {len(values)} values for {len(sources)} corpora; give one, or one each.")
            if name in options:
                values = [None if value in (None, "none") else value for value in values]
                columns.append(values * len(sources) if len(values) == 1 else values)
        hub_options = {"cache_dir": model_args.cache_dir, "token": model_args.token}
        return [
            Corpus(
                source,
                on_hub=on_hub,
                config_name=config_name,
                text_column=text_column,
                document_boundary=boundary,
                document_column=document_column,
                hub_options=hub_options,
            )
            for (source, on_hub), config_name, text_column, boundary, document_column in zip(
                sources, *columns, strict=True
            )
        ]


@dataclass
class PretrainingArguments(CommonArguments):
    """transformers' TrainingArguments, with BERT's optimisation and every token counted by default."""

    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    report_to: str | list[str] = field(
        default_factory=lambda: ["tensorboard"] if is_tensorboard_available() else ["none"],
        metadata={"help": "Integrations to report to; default: tensorboard where it is installed."},
    )
    total_train_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Examples of a step on all devices together; reached by gradient accumulation, with at most "
            "--per_device_train_batch_size examples on a device at once."
        },
    )
    stages: list[dict] | None = field(
        default=None,
        metadata={
            "help": "In a recipe, a list of mappings: the steps of each stage, and what is another from then on: "
            "sizes of the model, max_seq_length, per_device_train_batch_size, total_train_batch_size.",
            "nargs": "+",
        },
    )

    refused: ClassVar[dict[str, tuple[object, str]]] = CommonArguments.refused | {
        "label_smoothing_factor": (0.0, "the losses of pretraining are those of BERT, without label smoothing"),
        "label_names": (None, "the labels follow from `objective`"),
        "train_sampling_strategy": ("random", "the order of the examples follows from `seed` and the epoch"),
        "data_seed": (None, "the examples follow from `seed`"),
        "include_num_input_tokens_seen": ("no", "tokens without padding are counted anyway"),
        "accelerator_config.dispatch_batches": (None, "a batch has places of tokens, and cannot be divided"),
        "do_predict": (False, "pretraining has nothing to predict; it has `do_eval`"),
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
