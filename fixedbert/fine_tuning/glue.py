"""Fine-tuning, evaluation and prediction for text classification and regression, on GLUE or the user's own data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
from accelerate import PartialState
from scipy.special import expit, softmax
from sklearn.metrics import classification_report
from transformers import AutoModelForSequenceClassification, EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.glue import TASKS
from ..data.tokenizers import check_features
from ..support.errors import InputError
from ..support.files import write_atomically
from ..training.arguments import ModelArguments, read_arguments, with_recipe
from ..training.output import Trained, record_metrics
from ..training.plots import draw_glue
from .class_weights import read_class_weights
from .examples import SAMPLE_SEED, longest_first, warn_of_overlap
from .fine_tune import FineTuningTask
from .glue_metrics import METRICS, glue_scores
from .label_columns import encode_labels
from .labels import MULTI, REGRESSION, align_labels, default_names, match_names, problem_type_of
from .prediction_files import prediction_columns, write_predictions, write_submission
from .sweep import sweep
from .target_scaling import choose_scaling, is_unit_scale, scale, unscale
from .texts import ReadingOptions, RowSource, TextData, dataset_rows, load_task, read_splits, text_features
from .trainer import FineTuningArguments, FineTuningDataArguments, FineTuningTrainer

REPORT = "classification_report.txt"


@dataclass
class GlueDataArguments(FineTuningDataArguments):
    """Arguments for the texts and their labels or scores."""

    alternatives: ClassVar[str] = "`task_name` or `dataset_name`"

    task_name: list[str] | None = field(
        default=None, metadata={"help": f"One or more GLUE tasks ({', '.join(TASKS)}), or all."}
    )
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Directory with the original GLUE download; by default, GLUE comes from the Hub."},
    )
    text_column_names: str | None = field(
        default=None, metadata={"help": "The text column, or two columns for text pairs, separated by a comma."}
    )
    label_column_name: str = field(
        default="label",
        metadata={
            "help": "The column with labels, lists of labels, or scores. Several columns, separated by commas, "
            "contain 0 or 1 for each label, or the scores for each target."
        },
    )
    id_column_name: str | None = field(
        default=None, metadata={"help": "Columns of the test file that identify the rows, for predictions.csv."}
    )
    do_regression: bool | None = field(
        default=None, metadata={"help": "Whether the labels are scores. By default, floats are scores."}
    )
    validation_split_percentage: int | None = field(
        default=None, metadata={"help": "Percentage of the training data to use for validation instead of a file."}
    )
    validation_split_name: str = field(
        default="validation", metadata={"help": "Name of the validation split of a dataset on the Hub."}
    )
    class_weights: str | None = field(
        default=None,
        metadata={
            "help": "Weights of the classes in the training loss: balanced, or one number per label, such as 1,5."
        },
    )
    threshold: float = field(
        default=0.5, metadata={"help": "For several labels per text: predict those with at least this probability."}
    )
    stride: int | None = field(
        default=None,
        metadata={"help": "Split long texts into windows that overlap by this many tokens, instead of truncating."},
    )
    pool: str = field(default="mean", metadata={"help": "How to combine the logits of windows: mean or max."})

    def __post_init__(self):
        if not 0 < self.threshold < 1:
            raise InputError(f"{self.threshold}: must be between 0 and 1.", "threshold")
        if self.pool not in ("mean", "max"):
            raise InputError(f"{self.pool!r}: must be mean or max.", "pool")
        if taken := {"row", "prediction", "probability"} & {*split_names(self.id_column_name)}:
            raise InputError(f"{taken.pop()}: a column of predictions.csv has this name.", "id_column_name")
        percentage = self.validation_split_percentage
        if percentage is not None and not 0 < percentage < 100:
            raise InputError(f"{percentage}: must be between 1 and 99.", "validation_split_percentage")
        if percentage is not None and (self.validation_file or self.task_name):
            other = "task_name" if self.task_name else "validation_file"
            raise InputError(f"cannot be combined with `{other}`.", "validation_split_percentage")

    def tasks(self, predict: bool) -> list[str | None]:
        """Returns the tasks in the order in which they run, or [None] for the user's own data."""
        if not self.task_name:
            return [None]
        names = [name.lower() for name in self.task_name]
        if names == ["all"]:
            names = [name for name in TASKS if name != "ax" or predict]
        for name in names:
            if name not in TASKS:
                raise InputError(f"unknown `task_name` {name!r}; available tasks: {', '.join(TASKS)}, all.")
        return sorted(dict.fromkeys(names), key=lambda name: name == "ax")  # ax needs the model trained on MNLI


def load_texts(
    task: str | None,
    arguments: GlueDataArguments,
    kinds: tuple[str, ...],
    seed: int = SAMPLE_SEED,
    expected_columns: tuple[str, ...] = (),
    **hub_options,
) -> TextData:
    """
    Loads the splits in `kinds` ("train", "validation", "test") from a GLUE task, a dataset on the Hub or files.

    `seed` draws the rows for `max_*_samples`. `expected_columns` are the text columns on which the model was trained.
    """
    if arguments.task_name and (arguments.dataset_name or arguments.train_file):
        other = "dataset_name" if arguments.dataset_name else "train_file"
        raise InputError(f"cannot be combined with `{other}`.", "task_name")
    options: dict[str, Any] = {"max_samples": {kind: arguments.max_samples(kind) for kind in kinds}, "seed": seed}
    if task:
        return load_task(task, arguments.data_dir, kinds, arguments.skip_bad_rows, hub_options, **options)
    texts = split_names(arguments.text_column_names) or None
    if texts and len(texts) > 2:
        raise InputError("accepts at most two columns.", "text_column_names")
    if arguments.validation_split_percentage and "validation" in kinds:  # its rows come from the training data
        kinds = ("train", *(kind for kind in kinds if kind == "test"))
    names = {kind: arguments.validation_split_name if kind == "validation" else kind for kind in kinds}
    sources = {
        kind: RowSource.from_file(Path(name)) if rows is None else RowSource(name, dataset_rows(rows))
        for kind, (name, rows) in arguments.sources(names, **hub_options).items()
    }
    return read_splits(
        sources,
        ReadingOptions(
            text_columns=texts,
            expected_columns=expected_columns,
            label_columns=split_names(arguments.label_column_name),
            id_columns=split_names(arguments.id_column_name),
            do_regression=arguments.do_regression,
            skip_bad_rows=arguments.skip_bad_rows,
            validation_percentage=arguments.validation_split_percentage,
            **options,
        ),
    )


def main(argv: list[str] | None = None, prog: str | None = None):
    """Fine-tunes with command-line flags (by default `sys.argv`), and prints the results."""
    PartialState().print(fine_tune_glue(**read_arguments(argv, *TextClassification.arguments, prog=prog)))


def fine_tune_glue(recipe: str | Path | None = None, **given: Any) -> Trained:
    """
    Fine-tunes a model for text classification or regression, evaluates it, and writes predictions.

    Args:
        recipe: path to a YAML file with arguments. Keyword arguments take precedence.
        given: the flags listed by `fixedbert glue --help`, as keyword arguments. The most important ones are
            `model_name_or_path`, `task_name` or `train_file` and `validation_file`, `do_train=True`, `do_eval=True`,
            `output_dir`, `num_train_epochs`, `learning_rate`, `per_device_train_batch_size` and `seeds`.

    Returns:
        The output directory and the metrics.

    Raises:
        InputError: If the arguments contradict each other, or the data are invalid.
        KeyboardInterrupt: If the user presses Ctrl-C. The same call then resumes from the last checkpoint.
    """
    return sweep(TextClassification, **with_recipe(recipe, given))


class TextClassification(FineTuningTask):
    """Text classification or regression, on a GLUE task or the user's own texts."""

    arguments = (ModelArguments, GlueDataArguments, FineTuningArguments)
    auto_class = AutoModelForSequenceClassification

    def __init__(
        self, name: str | None, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, arguments: tuple
    ):
        model_args, data_args, training_args = arguments
        trained_on = tuple(getattr(config, "text_column_names", None) or ())
        hub_options = {"cache_dir": model_args.cache_dir, "token": model_args.token}
        self.name, self.data_args = name, data_args
        self.data = load_texts(
            name, data_args, training_args.kinds, training_args.sample_seed, trained_on, **hub_options
        )
        check_text_columns(self.data.text_columns, trained_on, training_args.do_train)
        label_ids, self.new_head = align_labels(
            self.data.labels, config, training_args.do_train, self.data.problem_type
        )
        train = self.data.splits.get("train")
        if train is not None:
            config.text_column_names = [*self.data.text_columns]
        if train is not None and config.problem_type == REGRESSION:
            self.fit_scale(encode_labels(train["label"], label_ids, config).reshape(len(train), -1), config)
        self.evaluation = GlueEvaluation(name, config, data_args.threshold)
        self.compute_metrics, self.metric_names = self.evaluation, self.evaluation.metric_names
        self.trainer_options: dict[str, Any] = {"pool": data_args.pool}
        if data_args.class_weights and train is not None:
            labels = encode_labels(train["label"], label_ids, config)
            self.trainer_options["class_weights"] = read_class_weights(data_args.class_weights, labels, config)
        check_stride(data_args, tokenizer, len(self.data.text_columns))
        self.features, options = {}, {"stride": data_args.stride, **data_args.map_options()}
        for split, rows in self.data.splits.items():
            targets = None
            if "label" in rows.column_names:
                targets = scale(encode_labels(rows["label"], label_ids, config), config)
            features = text_features(rows, tokenizer, data_args.max_seq_length, targets, **options)
            check_features(split, features, tokenizer)
            self.features[split] = features
            report_truncation(split, features, len(rows), data_args.max_seq_length)
        for split, rows in self.data.of_kind("validation").items():
            warn_of_overlap(split, train, rows, ("sentence1", "sentence2"))
        self.evaluated = {split: longest_first(self.features[split]) for split in self.data.of_kind("validation")}

    def fit_scale(self, targets: np.ndarray, config: PreTrainedConfig):
        """Chooses the scale of targets (rows, outputs) for a new head, or replaces a head with a different scale."""
        is_new = self.new_head or not any("SequenceClass" in name for name in config.architectures or ())
        if is_new or not is_unit_scale(scale(targets, config)):
            if not is_new:
                PartialState().print("replacing the model's head, whose targets have a different scale")
            self.new_head = self.new_head or not is_new
            choose_scaling(targets, config)

    def evaluate(self, trainer: FineTuningTrainer):
        metrics: dict[str, float] = {}
        panels = []
        for split, rows in self.evaluated.items():
            count = len(self.data.splits[split])
            if split == "validation_mismatched":  # named eval_accuracy_mm, as in run_glue.py
                results = trainer.evaluate(rows, metric_key_prefix="eval_mm") | {"eval_mm_samples": count}
                results = {f"{name.replace('eval_mm_', 'eval_')}_mm": value for name, value in results.items()}
            else:
                results = trainer.evaluate(rows) | {"eval_samples": count}
            metrics |= results
            panels.append((split, self.evaluation.label_ids, self.evaluation.predictions))
        record_metrics(trainer, "eval", metrics)
        if not trainer.is_world_process_zero():
            return
        if self.name is None and self.evaluation.problem_type != REGRESSION:
            text = self.evaluation.report()
            print(text)
            write_atomically(trainer.args.directory / REPORT, text + "\n")
        title, file = self.name or "validation file", trainer.args.directory / "glue.png"
        draw_glue(trainer.state.log_history, title, panels, self.evaluation.class_names, file)

    def predict(self, trainer: FineTuningTrainer):
        for split, rows in self.data.of_kind("test").items():
            output = trainer.predict(longest_first(self.features[split]), metric_key_prefix="predict")
            predictions, probabilities = self.evaluation.predict(output.predictions)
            names, directory = self.evaluation.class_names, trainer.args.directory
            if not trainer.is_world_process_zero():
                continue
            if self.name:
                write_submission(directory, self.name, split, rows, names, predictions)
                continue
            columns = prediction_columns(self.evaluation.problem_type, names, predictions, probabilities)
            skipped = self.data.skipped.get(split, [])
            write_predictions(directory, rows, skipped, split_names(self.data_args.id_column_name), columns)


def split_names(names: str | None) -> tuple[str, ...]:
    """Returns column names that are separated by commas."""
    return tuple(names.split(",")) if names else ()


def check_text_columns(columns: tuple[str, ...], trained_on: tuple[str, ...], train: bool):
    """
    Compares the text columns in the data with those on which the model was trained, and prints swapped columns.

    Raises:
        InputError: If a model for text pairs is applied to single texts or vice versa, without training.
    """
    if not trained_on or train:
        return
    if len(columns) != len(trained_on):
        raise InputError(
            f"the texts are {', '.join(columns)}, but the model was trained on {', '.join(trained_on)}; use data with "
            "the same columns."
        )
    if columns != trained_on and {*columns} == {*trained_on}:
        PartialState().print(
            f"the texts are {', '.join(columns)}, but the model was trained on {', '.join(trained_on)}"
        )


def check_stride(arguments: GlueDataArguments, tokenizer: PreTrainedTokenizerBase, columns: int):
    """Raises InputError if texts cannot be split into windows with `stride`."""
    room = arguments.max_seq_length - tokenizer.num_special_tokens_to_add()
    if arguments.stride is not None and columns > 1:
        raise InputError("text pairs cannot be split into windows; combine them into one column.", "stride")
    if arguments.stride is not None and not 0 <= arguments.stride < room:
        raise InputError(f"{arguments.stride}: must be between 0 and {room - 1} tokens.", "stride")


def report_truncation(split: str, features: datasets.Dataset, rows: int, max_seq_length: int):
    """Prints how many rows were truncated, or split into several windows."""
    if truncated := sum(features["truncated"][:]):
        PartialState().print(f"{split}: {truncated:,} of {rows:,} rows are truncated to {max_seq_length} tokens")
    if len(features) > rows:
        PartialState().print(f"{split}: {rows:,} rows are split into {len(features):,} windows")


class GlueEvaluation:
    """
    Computes the metrics for a task. Also keeps the labels and predictions from the last evaluation, for the plot.

    Instances can be passed to Trainer as `compute_metrics`.

    Args:
        task: the GLUE task, or None for other data.
        config: configuration of the model, with the label names in the order of its logits.
        threshold: for several labels per text, all labels with at least this probability are predicted.
    """

    def __init__(self, task: str | None, config: PreTrainedConfig, threshold: float = 0.5):
        self.problem_type, self.config, self.threshold = problem_type_of(config), config, threshold
        self.task = task or self.problem_type
        is_single_score = self.problem_type == REGRESSION and config.num_labels == 1
        self.class_names = [] if is_single_score else default_names(config)
        self.label_ids = self.predictions = np.array([])  # (examples,) or (examples, outputs)
        names = [*TASKS[task].labels] if task in TASKS else []
        # GLUE's positive class is 1, but the model can use different label ids.
        matched = match_names(names, self.class_names)
        self.positive = matched[1] if matched else 1

    @property
    def metric_names(self) -> list[str]:
        """Names of the metrics that an evaluation returns."""
        names = ["loss", *METRICS.get(self.task, ())]
        if self.task in TASKS and len(names) > 2:
            names.append("combined_score")
        if self.task == MULTI:
            names.append("average_precision")
        if self.problem_type == REGRESSION:
            names += [f"pearson_{name}" for name in self.class_names]
        return names

    def predict(self, output: np.ndarray | tuple) -> tuple[np.ndarray, np.ndarray | None]:
        """
        Returns the predictions and the probabilities (examples, labels) for the logits (examples, outputs).

        Predictions are label ids or scores (examples,), or 0/1 flags or scores (examples, outputs). For regression,
        the probabilities are None. `output` can also be a tuple of outputs that begins with the logits.
        """
        logits = output[0] if isinstance(output, tuple) else output
        if self.problem_type == REGRESSION:
            scores = unscale(logits, self.config)
            return scores if self.class_names else scores[:, 0], None
        if self.problem_type == MULTI:
            probabilities = expit(logits.astype(np.float64))
            return (probabilities >= self.threshold).astype(int), probabilities
        return logits.argmax(axis=1), softmax(logits.astype(np.float64), axis=1)

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        labels = np.asarray(prediction.label_ids)
        self.predictions, probabilities = self.predict(prediction.predictions)
        self.label_ids = unscale(labels, self.config) if self.problem_type == REGRESSION else labels
        probabilities = probabilities if self.task == MULTI else None
        names = self.class_names
        metrics = glue_scores(self.task, self.predictions, self.label_ids, self.positive, names, probabilities)
        if self.task in TASKS and len(metrics) > 1:
            metrics["combined_score"] = float(np.mean(list(metrics.values())))
        return metrics

    def report(self) -> str:
        """Returns a table with precision, recall, F1 and support for each label in the last evaluation."""
        labels, names = range(len(self.class_names)), self.class_names
        return classification_report(
            self.label_ids, self.predictions, labels=[*labels], target_names=names, zero_division=0.0
        )
