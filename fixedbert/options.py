"""
The options of all commands: names, types, defaults, ranges and help texts.

The command line, keyword arguments, recipes, their checks and docs/options.md come from these dataclasses. This module
imports only the standard library, because the command line reads it before anything else.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

COUNT, NOT_NEGATIVE, POSITIVE = "[1, inf)", "[0, inf)", "(0, inf)"
FRACTION, PROBABILITY = "(0, 1]", "[0, 1]"
Dtype = Literal["float32", "bfloat16", "float16"]
Objective = Literal["mlm+nsp", "mlm", "clm"]
# Languages with rules in sentencex, and Chinese, Korean and Thai, for which its default rules work. It treats other
# codes as English.
Language = (
    Literal["am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy", "it", "ja"]
    | Literal["kk", "kn", "ko", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te", "th", "uk", "zh"]
)
DATA = "train_file|task_name|validation_file|test_file|dataset_name"


def option(
    default: Any, help: str, interval: str = "", needs: str = "", required: bool = False, positional: bool = False
) -> Any:
    """
    Returns a field of a dataclass of options.

    Args:
        interval: The range of a number, or of each number in a list, such as "(0, 1]". NaN is never in the range.
        needs: Another option without which this one has no effect, such as "stride", with its values: "objective=clm".
    """
    metadata = {"help": help, "interval": interval, "needs": needs, "required": required, "positional": positional}
    if isinstance(default, list):
        return field(default_factory=lambda: [*default], metadata=metadata)
    return field(default=default, metadata=metadata)


def required(help: str) -> Any:
    """Returns a field for an option that the user must set."""
    return option(None, help, required=True)


def argument(help: str) -> Any:
    """Returns a field that the user must set. The command line expects its value without a flag."""
    return option(None, help, required=True, positional=True)


# --- Groups of options. The docstring is the heading in the help and in the manual, with a note in parentheses. ---


@dataclass(kw_only=True)
class HubOptions:
    """Hub"""

    model_revision: str = option("main", "Branch, tag or commit of the model on the Hub.")
    cache_dir: str | None = option(None, "Directory for files downloaded from the Hub.")
    token: str | None = option(None, "Hub token. Default: the one saved by `hf auth login`.")

    def hub_options(self) -> dict[str, Any]:
        """Returns the keyword arguments for `from_pretrained`."""
        return {"revision": self.model_revision, **self.download_options()}

    def download_options(self) -> dict[str, Any]:
        """Returns the keyword arguments for `load_dataset`."""
        return {"cache_dir": self.cache_dir, "token": self.token}


@dataclass(kw_only=True)
class ModelOptions(HubOptions):
    """Model and tokenizer"""

    model_name_or_path: str | None = option(None, "Directory or Hub id of a model. Default: random weights.")
    config_name: str | None = option(None, "Directory, Hub id or preset, such as mini. Default: the model's.")
    config_overrides: dict | None = option(None, "Changes to the configuration, such as hidden_size=256.")
    tokenizer_name: str | None = option(None, "Directory, Hub id or vocab.txt file. Default: the model's tokenizer.")
    attn_implementation: str | None = option(None, "Attention function. Default: eager on CPUs, sdpa on GPUs.")
    ignore_mismatched_sizes: bool = option(
        False, "Initialize the task head randomly if its shape does not match.", needs="model_name_or_path"
    )
    trust_remote_code: bool = option(False, "Run custom code from the model's repository.")

    def hub_options(self) -> dict[str, Any]:
        """Returns the keyword arguments for `from_pretrained`."""
        return super().hub_options() | {"trust_remote_code": self.trust_remote_code}


@dataclass(kw_only=True)
class SizeOptions:
    """Sizes of layers (one number for all layers, or one per layer)"""

    num_attention_heads: list[int] | None = option(None, "Number of attention heads.", NOT_NEGATIVE)
    attention_head_size: list[int] | None = option(None, "Size of queries and keys in each head.", COUNT)
    value_head_size: list[int] | None = option(None, "Size of values. Default: that of queries and keys.", COUNT)
    intermediate_size: list[int] | None = option(None, "Number of feed-forward neurons.", NOT_NEGATIVE)

    def sizes(self) -> dict[str, int | list[int]]:
        """Returns the sizes that are set: a number for all layers, or a list with one number per layer."""
        given = {member.name: getattr(self, member.name) for member in fields(SizeOptions)}
        return {name: size[0] if len(size) == 1 else size for name, size in given.items() if size is not None}


@dataclass(kw_only=True)
class TaskOptions:
    """GLUE task"""

    task_name: str | None = option(None, "GLUE task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli.")
    data_dir: str | None = option(None, "Original GLUE download. Default: GLUE from the Hub.", needs="task_name")


@dataclass(kw_only=True)
class RowOptions:
    """Rows"""

    skip_bad_rows: bool = option(False, "Print and skip invalid rows.", needs=DATA)


@dataclass(kw_only=True)
class TextOptions(RowOptions):
    """Columns"""

    text_column_names: str | None = option(None, "Text column, or two: a,b. Default: well-known names.", needs=DATA)

    def check_columns(self):
        """Raises ValueError if there are more than two text columns, or if a column is named twice."""
        texts, labels = (getattr(self, name, None) or "" for name in ("text_column_names", "label_column_name"))
        names = [name for name in f"{texts},{labels}".split(",") if name]
        if len(set(names)) < len(names):
            raise ValueError("`text_column_names` and `label_column_name` must name different columns.")
        if len(texts.split(",")) > 2:
            raise ValueError("`text_column_names` accepts at most two columns.")
        if texts and getattr(self, "task_name", None):
            raise ValueError("`text_column_names` cannot be combined with `task_name`, which determines the columns.")


@dataclass(kw_only=True)
class CalibrationOptions(TextOptions, TaskOptions, HubOptions):
    """Calibration data (labels are ignored)"""

    train_file: list[str] | None = option(
        None, "Files (.csv, .tsv, .jsonl, .parquet, .txt, or .json for questions), instead of a GLUE task."
    )
    max_seq_length: int | None = option(
        None, "Tokens per row. Default: as in fine-tuning, at most 512.", "[3, inf)", needs=DATA
    )
    seed: int = option(0, "Seed for drawing rows.", NOT_NEGATIVE, needs=DATA)


@dataclass(kw_only=True)
class FineTuningDataOptions(RowOptions):
    """Data"""

    alternatives: ClassVar[tuple[str, ...]] = ("dataset_name",)  # options that replace the files

    dataset_name: str | None = option(None, "Hub id of a dataset, instead of files.")
    dataset_config_name: str | None = option(None, "Configuration of the dataset.", needs="dataset_name")
    train_file: str | None = option(None, "Training data in a .csv, .tsv, .json, .jsonl or .parquet file.")
    validation_file: str | None = option(None, "Validation data in the same format.")
    test_file: str | None = option(None, "Test data, with or without labels.")
    max_seq_length: int = option(128, "Truncate examples to this many tokens.", "[8, inf)")
    max_train_samples: int | None = option(None, "Train on a random subset of this many examples.", COUNT)
    max_eval_samples: int | None = option(None, "Evaluate on a random subset of this many examples.", COUNT)
    max_predict_samples: int | None = option(None, "Predict a random subset of this many test examples.", COUNT)

    def __post_init__(self):
        files = ("train_file", "validation_file", "test_file")
        given = [name for name in (*self.alternatives, *files) if getattr(self, name)]
        if len(given) > 1 and given[0] in self.alternatives:
            raise ValueError(f"`{given[0]}` cannot be combined with `{given[1]}`.")


@dataclass(kw_only=True)
class GlueDataOptions(TextOptions, FineTuningDataOptions):
    """Texts and labels"""

    alternatives: ClassVar[tuple[str, ...]] = ("task_name", "dataset_name")

    task_name: list[str] | None = option(None, "GLUE: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax, or all.")
    data_dir: str | None = option(None, "Original GLUE download. Default: GLUE from the Hub.", needs="task_name")
    label_column_name: str = option("label", "Column with labels, lists or scores, or several with 0 or 1: a,b.")
    do_regression: bool | None = option(None, "Whether the labels are scores. Default: floats are scores.")
    validation_split_percentage: int | None = option(None, "Percentage of the training data to hold out.", "(0, 100)")
    group_column_name: str | None = option(
        None, "Rows with equal values in this column stay together.", needs="validation_split_percentage"
    )
    validation_split_name: str = option("validation", "Validation split of the dataset.", needs="dataset_name")
    class_weights: str | None = option(None, "Class weights in the loss: balanced, or one per label, such as 1,5.")
    threshold: float | None = option(
        None, "For several labels: lowest probability of predicted labels. Default: the model's, or 0.5.", "(0, 1)"
    )
    stride: int | None = option(None, "Overlap of the windows of a long text in tokens. Not for pairs.", NOT_NEGATIVE)

    def __post_init__(self):
        super().__post_init__()
        self.check_columns()
        for name in ("validation_file", "task_name"):
            if self.validation_split_percentage is not None and getattr(self, name):
                raise ValueError(f"`validation_split_percentage` cannot be combined with `{name}`.")


@dataclass(kw_only=True)
class AnswerOptions:
    """Answers"""

    version_2_with_negative: bool = option(False, "Accept questions without an answer, as in SQuAD 2.0.")
    null_score_diff_threshold: float = option(
        0.0, "No answer if [CLS] exceeds the best answer by more than this.", needs="version_2_with_negative"
    )
    n_best_size: int = option(20, "Number of starts and ends considered per window, and answers per question.", COUNT)
    max_answer_length: int = option(30, "Maximum answer length in tokens.", COUNT)


@dataclass(kw_only=True)
class SquadDataOptions(AnswerOptions, FineTuningDataOptions):
    """Questions"""

    max_seq_length: int = option(384, "Tokens per window: a question and part of its context.", "[8, inf)")
    doc_stride: int = option(128, "Number of tokens by which the windows of a context overlap.", NOT_NEGATIVE)

    def __post_init__(self):
        super().__post_init__()
        if self.doc_stride >= self.max_seq_length:
            raise ValueError(f"`doc_stride` must be less than `max_seq_length`, which is {self.max_seq_length}.")


@dataclass(kw_only=True)
class NewModelOptions(ModelOptions):
    """New model (the sizes replace those of `config_name`, or of BERT-base with heads of size 128)"""

    do_lower_case: bool | None = option(None, "Lowercase text. Default: as the tokenizer; true for a new one.")
    strip_accents: bool | None = option(
        None, "Remove accents and vowel signs. Default: as the tokenizer; for a new one, if `language` is en."
    )
    num_attention_heads: int | None = option(None, "Number of attention heads.", COUNT)
    attention_head_size: list[int] | None = option(None, "Head size for all layers, or one per layer.", COUNT)
    value_head_size: list[int] | None = option(None, "Size of values. Default: the head size.", COUNT)
    hidden_size: int | None = option(None, "Width.", COUNT)
    num_hidden_layers: int | None = option(None, "Number of layers.", COUNT)
    intermediate_size: list[int] | None = option(None, "Number of feed-forward neurons.", COUNT)

    def __post_init__(self):
        names = ("num_attention_heads", "attention_head_size", "value_head_size", "hidden_size", "num_hidden_layers")
        for name in (*names, "intermediate_size"):
            size = getattr(self, name)
            if size is not None and self.model_name_or_path is not None:
                raise ValueError(f"`{name}` is only for new models; use fixedbert convert for a pretrained one.")
            if size is not None:
                size = size[0] if isinstance(size, list) and len(size) == 1 else size
                self.config_overrides = (self.config_overrides or {}) | {name: size}


# Where a document ends, for each value of `document_boundary`.
BOUNDARIES = {
    "row": "the end of a row (jsonl, csv, parquet, Hub) or of a text file",
    "line": "the end of a line in a text file",
    "blank_line": "a blank line or an empty row",
    "sentence_lines": "a blank line (each line is a sentence, as in BERT's own files)",
}


@dataclass(kw_only=True)
class CorpusOptions:
    """Corpora (several values of an option apply to the Hub datasets and then to the files, in order)"""

    dataset_name: list[str] | None = option(None, "Hub datasets.")
    dataset_config_name: list[str] = option(["none"], "Configuration of the dataset, or none.", needs="dataset_name")
    train_file: list[str] | None = option(
        None, "Files (.txt, .jsonl, .csv, .tsv, .parquet, optionally compressed), directories or glob patterns."
    )
    text_column_name: list[str] = option(["text"], "Name of the text column.")
    document_boundary: list[Literal["row", "line", "blank_line", "sentence_lines"]] = option(
        ["row"], f"Where a document ends. {'; '.join(f'{name}: {text}' for name, text in BOUNDARIES.items())}."
    )
    validation_file: list[str] | None = option(None, "Held-out files, read with the settings of the first corpus.")
    validation_split_percentage: float = option(5.0, "Without a file: percent of documents to hold out.", "(0, 100)")
    language: Language = option("en", "Language code for splitting text into sentences; en for other languages.")
    vocab_size: int | None = option(None, "Size of a new vocabulary. Default: the configuration's.", "[7, inf)")
    store_dir: str | None = option(None, "Directory for prepared corpora. Default: fixedbert/ in HF_HOME.")
    preprocessing_num_workers: int | None = option(None, "Number of processes. Default: the number of cores.", COUNT)


@dataclass(kw_only=True)
class PretrainingDataOptions(CorpusOptions):
    """Examples"""

    objective: Objective = option(
        "mlm+nsp", "mlm+nsp: segment pairs, masked LM and next-sentence labels; mlm: packed rows; clm: causal LM."
    )
    max_seq_length: int = option(128, "Maximum number of tokens in an example, including special tokens.", "[8, inf)")
    short_seq_prob: float = option(
        0.1, "Fraction of segment pairs shortened to a random length.", PROBABILITY, needs="objective=mlm+nsp"
    )
    separate_documents: bool = option(
        False, "In packed rows, restrict attention to tokens of the same document.", needs="objective=mlm|clm"
    )
    mlm_probability: float = option(0.15, "Fraction of tokens to predict.", FRACTION, needs="objective=mlm+nsp|mlm")
    max_eval_samples: int | None = option(None, "Maximum number of examples for evaluation.", COUNT)


@dataclass(kw_only=True)
class TrainerOptions:
    """Training"""

    logging_steps: float = option(0.02, "Steps between log entries, or a fraction of all steps, up to 500.", POSITIVE)
    take_over_output_dir: bool = option(False, "Remove the lock of a dead run on another machine.")


@dataclass(kw_only=True)
class FineTuningTrainerOptions(TrainerOptions):
    """Fine-tuning"""

    per_device_eval_batch_size: int = option(64, "Batch size per device. Does not affect the results.", COUNT)
    train_sampling_strategy: Literal["group_by_length", "random"] = option(
        "group_by_length", "group_by_length: batches of similar length."
    )
    bf16: bool | None = option(None, "Use bf16 mixed precision. Default: true if it is faster on this hardware.")
    early_stopping_patience: int | None = option(None, "Stop after this many evaluations without improvement.", COUNT)
    seeds: list[int] | None = option(None, "Train with each seed and summarize the results.", NOT_NEGATIVE)


@dataclass(kw_only=True)
class PretrainingTrainerOptions(TrainerOptions):
    """Pretraining"""

    learning_rate: float = option(1e-4, "Highest learning rate.", NOT_NEGATIVE)
    weight_decay: float = option(0.01, "Weight decay of AdamW.", NOT_NEGATIVE)
    total_train_batch_size: int | None = option(None, "Examples per step in all; may accumulate gradients.", COUNT)
    stages: list[dict] | None = option(None, "Only in recipes: `steps` and changed options of each stage.")


@dataclass(kw_only=True)
class ConvertOptions(SizeOptions, HubOptions):
    """Conversion"""

    leading: ClassVar[tuple[str, ...]] = ("model", "output_dir")

    model: str = argument("Directory or Hub id of a BERT, RoBERTa, DistilBERT, ELECTRA or FixedHeadBert model.")
    output_dir: str = required("New directory for the result.")
    architecture: str | None = option(None, "Class to load, such as BertForMaskedLM. Drops all other weights.")
    bert: bool = option(False, "Convert a FixedHeadBert back to a transformers BERT.")
    unpad_inputs: bool = option(False, "Skip padding tokens: the same outputs, faster.")
    dtype: Dtype | None = option(None, "Dtype of the weights. Default: unchanged.")
    seed: int = option(0, "Seed for initializing new weights.", NOT_NEGATIVE)

    def __post_init__(self):
        if self.bert and self.unpad_inputs:
            raise ValueError("`unpad_inputs` cannot be combined with `bert`: transformers' BERT cannot skip padding.")


@dataclass(kw_only=True)
class ShrinkOptions(SizeOptions, CalibrationOptions):
    """Model and target (a speed, a size, or sizes of layers)"""

    leading: ClassVar[tuple[str, ...]] = ("model", "output_dir")

    model: str = argument("Directory or Hub id of any model that `fixedbert convert` supports.")
    output_dir: str = required("New directory for the result.")
    speedup: list[float] | None = option(None, "Speedup on this machine. Several: a directory for each.", POSITIVE)
    params: float | None = option(None, "Number of parameters, such as 15e6.", POSITIVE)
    max_train_samples: int | None = option(
        None,
        "Maximum number of rows, drawn at random. Default: 1,500, or more if these have few tokens.",
        COUNT,
    )
    query_column_name: str | None = option(
        None, "For rerankers: rows with equal values belong to one query.", needs="train_file"
    )
    batch_size: int = option(32, "Rows per batch, also for measuring speed.", COUNT)
    unpad_inputs: bool | None = option(None, "Skip padding. Default: with `speedup`, if it is faster; otherwise true.")
    dtype: Dtype | None = option(None, "Dtype of weights. Default: with `speedup`, the fastest; otherwise unchanged.")
    distil_steps: int | None = option(None, "Distillation steps, with the original as teacher, such as 600.", COUNT)
    learning_rate: float | None = option(None, "For distillation. Default: 5e-5.", FRACTION, needs="distil_steps")

    def __post_init__(self):
        self.check_columns()
        targets = [name for name in ("speedup", "params") if getattr(self, name) is not None]
        targets += ["layer sizes"] if self.sizes() else []
        if len(targets) != 1:
            raise ValueError("specify one target: `speedup`, `params`, or layer sizes.")
        if (self.task_name is None) == (self.train_file is None):
            raise ValueError("specify either `task_name` or `train_file` for the calibration rows.")
        if self.distil_steps is not None and len(self.speedup or [1]) > 1:
            raise ValueError("`distil_steps` requires a single target.")


@dataclass(kw_only=True)
class CompareOptions(TextOptions, TaskOptions, HubOptions):
    """Models, rows and runtimes"""

    leading: ClassVar[tuple[str, ...]] = ("models", "validation_file")

    models: list[str] = argument("Directories or Hub ids.")
    validation_file: str | None = option(None, "Texts, words or questions, instead of a GLUE task.")
    label_column_name: str | None = option(
        None, "Label column, or several: a,b. Default: label, if it exists.", needs="validation_file"
    )
    query_column_name: str | None = option(
        None, "For rerankers: rows with equal values belong to one query.", needs="validation_file"
    )
    max_eval_samples: int = option(1000, "Maximum number of rows, drawn at random.", COUNT)
    max_seq_length: int | None = option(None, "Tokens per row. Default: as in fine-tuning, at most 512.", "[3, inf)")
    batch_size: int = option(32, "Rows per batch, also for measuring speed.", COUNT)
    runtime: list[str] | None = option(
        None, "Such as torch-unpadded-bf16 or onnxruntime. Default: all, or for several models, as they are stored."
    )
    output_dir: str | None = option(None, "New directory for the measurements and the changed predictions.")
    tolerance: float | None = option(
        None,
        "Also write the fastest version that loses at most this many points (without labels: percent of the rows).",
        NOT_NEGATIVE,
        needs="output_dir",
    )
    train_file: list[str] | None = option(
        None, "Unlabeled rows for shrinking the model: shrunk versions also compete.", needs="tolerance"
    )

    def __post_init__(self):
        self.check_columns()
        if (self.task_name is None) == (self.validation_file is None):
            raise ValueError("specify either `task_name` or `validation_file`.")
        if self.query_column_name and self.query_column_name in (self.label_column_name or "label").split(","):
            raise ValueError("`query_column_name` and `label_column_name` must name different columns.")
        if self.tolerance is not None and len(self.models) > 1:
            raise ValueError("`tolerance` requires a single model.")


@dataclass(kw_only=True)
class ExportOptions(CalibrationOptions):
    """Model and runtime"""

    leading: ClassVar[tuple[str, ...]] = ("model", "output_dir")

    model: str = argument("Directory or Hub id of an encoder, with or without a task head.")
    output_dir: str = required("New directory for the result.")
    runtime: Literal["onnx", "openvino"] = option("onnx", "Format of the graph.")
    int8: bool = option(False, "Also write an int8 graph. With `runtime` openvino, it needs calibration data.")
    max_train_samples: int = option(200, "Maximum number of calibration rows, drawn at random.", COUNT, needs=DATA)

    def __post_init__(self):
        self.check_columns()
        has_data = self.task_name is not None or self.train_file is not None
        if has_data != (self.runtime == "openvino" and self.int8):
            raise ValueError(
                "calibration data (`train_file` or `task_name`) must be set with `runtime` openvino and `int8`, and "
                "omitted otherwise."
            )


@dataclass(kw_only=True)
class PushOptions:
    """Upload"""

    leading: ClassVar[tuple[str, ...]] = ("folder", "repo_id")

    folder: str = argument("Model directory.")
    repo_id: str = argument("user/name or organization/name; created if it does not exist.")
    license: str | None = option(None, "License for the weights, such as apache-2.0, to write to the model card.")
    private: bool | None = option(None, "Create a private repository.")
    token: str | None = option(None, "Hub token. Default: the one saved by `hf auth login`.")
    dry_run: bool = option(False, "Check the model and list its files, without uploading them.")


@dataclass(kw_only=True)
class InspectOptions(HubOptions):
    """Model and text"""

    leading: ClassVar[tuple[str, ...]] = ("model", "output_dir", "validation_file")

    model: str = argument("Directory or Hub id of a BERT-like encoder.")
    output_dir: str = required("New directory for the result.")
    validation_file: str = required("Text file (.txt, .jsonl, .csv, .parquet), directory or glob pattern.")
    max_seq_length: int = option(128, "Tokens per sequence.", "[3, inf)")
    max_eval_samples: int = option(1000, "Maximum number of sequences.", COUNT)
