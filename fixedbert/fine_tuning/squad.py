"""Fine-tune, evaluate and predict on questions whose answer is a span of a text: SQuAD 1.1 and 2.0."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from accelerate import PartialState
from transformers import AutoModelForQuestionAnswering, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.hub import load_from_hub
from ..data.token_report import report_tokens, tokenized_features
from ..support.errors import InputError
from ..support.files import json_text, write_whole
from ..training.arguments import ModelArguments, beside_recipe, read_arguments
from ..training.results import Trained, record_metrics
from .fine_tune import FineTuningTask
from .pictures import draw_squad
from .questions import SquadEvaluation, load_squad, question_rows, questions_that_fit, squad_windows
from .sweep import sweep
from .trainer import (
    FineTuningArguments,
    FineTuningDataArguments,
    FineTuningTrainer,
    first_rows,
    longest_first,
    print_overlap,
)


@dataclass
class SquadDataArguments(FineTuningDataArguments):
    """Which questions, and how they become windows of tokens."""

    dataset_name: str | None = field(default=None, metadata={"help": "Hub id: rajpurkar/squad, rajpurkar/squad_v2."})
    train_file: str | None = field(
        default=None, metadata={"help": "SQuAD's JSON, or rows with its columns in .json, .jsonl or .parquet."}
    )
    test_file: str | None = field(default=None, metadata={"help": "The same, to answer; it needs no answers."})
    max_seq_length: int = field(default=384, metadata={"help": "Tokens of a window."})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Use so many training questions only, and so many of their windows."}
    )
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "Questions may have no answer, as in SQuAD 2.0."}
    )
    null_score_diff_threshold: str = field(
        default="0.0",
        metadata={"help": "No answer where [CLS] is more than this above the best span; best: chosen for F1."},
    )
    doc_stride: int = field(default=128, metadata={"help": "Tokens of the context that two windows share."})
    n_best_size: int = field(default=20, metadata={"help": "Starts and ends looked at in a window, answers kept."})
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of the longest answer."})

    def threshold(self) -> float | str:
        if self.null_score_diff_threshold == "best":
            return "best"
        try:
            return float(self.null_score_diff_threshold)
        except ValueError:
            raise InputError(
                f"{self.null_score_diff_threshold}: a number, or best.", "null_score_diff_threshold"
            ) from None

    def source(self, kind: str) -> str:
        """Where the questions for "train", "validation" or "test" are; InputError if no argument says."""
        if self.dataset_name:
            return f"{self.dataset_name}, {kind}"
        file = getattr(self, f"{kind}_file")
        if file is None:
            raise InputError(f"no questions for {kind}: give `{kind}_file` or `dataset_name`.")
        return file


def load_questions(arguments: SquadDataArguments, kind: str, **hub_options) -> datasets.Dataset:
    """The questions for "train", "validation" or "test"."""
    options = (arguments.version_2_with_negative, kind != "test", arguments.skip_bad_rows)
    if not arguments.dataset_name:
        return load_squad(arguments.source(kind), *options)
    if arguments.train_file or arguments.validation_file or arguments.test_file:
        raise InputError("and files: give one of the two.", "dataset_name")
    splits = load_from_hub(arguments.dataset_name, arguments.dataset_config_name, **hub_options)
    if kind not in splits:
        raise InputError(f"{arguments.dataset_name}: it has no split {kind}; there are {', '.join(splits)}.")
    return question_rows(((row, row, row) for row in splits[kind]), arguments.source(kind), *options)


def main(argv: list[str] | None = None, prog: str | None = None):
    """Fine-tune on questions, with one seed or more. `argv` are flags, as in `read_arguments`."""
    PartialState().print(fine_tune_squad(**read_arguments(argv, *QuestionAnswering.arguments, prog=prog)))


def fine_tune_squad(recipe: str | Path | None = None, **given: Any) -> Trained:
    """
    Fine-tune, evaluate and predict on SQuAD, or on questions of one's own.

    Args:
        recipe: a YAML file of arguments; those of the call win.
        given: the flags of run_squad.py, such as `train_file="train-v1.1.json"` and `do_train=True`.
            `fixedbert squad --help` lists them all.

    Returns:
        The output directory, with the metrics.

    Raises:
        InputError: arguments that contradict each other, or input that cannot be used.
        KeyboardInterrupt: Ctrl-C, after a checkpoint; the message says from where the same call goes on.
    """
    return sweep(QuestionAnswering, **beside_recipe(recipe, given))


class QuestionAnswering(FineTuningTask):
    """Questions with a context each, in windows of tokens."""

    arguments = (ModelArguments, SquadDataArguments, FineTuningArguments)
    auto_class = AutoModelForQuestionAnswering

    def __init__(
        self,
        name: None,
        config: PreTrainedConfig,
        tokenizer: PreTrainedTokenizerBase,
        model_args: ModelArguments,
        data_args: SquadDataArguments,
        training_args: FineTuningArguments,
    ):
        if data_args.threshold() == "best" and not training_args.do_eval:
            raise InputError(
                "best is chosen on the validation questions: give `do_eval` too.", "null_score_diff_threshold"
            )
        self.features, self.evaluations = {}, {}
        train = None
        size = (data_args.max_seq_length, data_args.doc_stride)
        for kind in training_args.kinds:
            limit = data_args.max_samples(kind)
            rows = load_questions(data_args, kind, cache_dir=model_args.cache_dir, token=model_args.token)
            rows = first_rows(rows, limit)
            rows = questions_that_fit(rows, data_args.source(kind), tokenizer, *size, data_args.skip_bad_rows)
            windows = squad_windows(
                rows,
                tokenizer,
                *size,
                for_training=kind == "train",
                num_proc=data_args.preprocessing_num_workers,
                overwrite_cache=data_args.overwrite_cache,
            )
            texts = (row[column] for row in rows for column in ("question", "context"))
            report_tokens(data_args.source(kind), tokenized_features(windows, texts, tokenizer), tokenizer)
            if kind == "train":
                train = rows
                self.features[kind] = first_rows(windows, limit)  # as in transformers' run_qa.py
            else:
                if kind == "validation":
                    print_overlap(kind, train, rows, ("question", "context"))
                self.features[kind], _ = longest_first(windows)
                self.evaluations[kind] = SquadEvaluation(
                    rows,
                    self.features[kind],
                    data_args.n_best_size,
                    data_args.max_answer_length,
                    data_args.version_2_with_negative,
                    data_args.threshold(),
                )
        self.evaluated = {kind: rows for kind, rows in self.features.items() if kind == "validation"}
        self.compute_metrics = self.evaluations.get("validation")

    def evaluate(self, trainer: FineTuningTrainer):
        evaluation, windows = self.evaluations["validation"], self.features["validation"]
        record_metrics(trainer, "eval", trainer.evaluate() | {"eval_samples": len(windows)})
        if trainer.is_world_process_zero():
            write_answers(trainer.args.folder, "eval", evaluation)
            draw_squad(trainer, "questions", evaluation.null_odds, evaluation.answers, evaluation.threshold)

    def predict(self, trainer: FineTuningTrainer):
        evaluation, windows = self.evaluations["test"], self.features["test"]
        if "validation" in self.evaluations:  # a threshold that was chosen on the validation questions stays
            evaluation.asked_threshold = self.evaluations["validation"].threshold
        answers = evaluation.answers.values()
        known = any(answers) if evaluation.version_2_with_negative else all(answers)
        trainer.compute_metrics = evaluation if known else None
        output = trainer.predict(windows, metric_key_prefix="predict")
        if known:
            record_metrics(trainer, "predict", {**(output.metrics or {}), "predict_samples": len(windows)})
        else:
            evaluation.predict(*output.predictions[:2])
        if trainer.is_world_process_zero():
            write_answers(trainer.args.folder, "predict", evaluation)


def write_answers(folder: Path, prefix: str, evaluation: SquadEvaluation):
    """The files of transformers' run_qa.py: predictions, in the official form, n-best answers, null odds."""
    contents = {"predictions": evaluation.predictions, "nbest_predictions": evaluation.n_best}
    if evaluation.version_2_with_negative:
        contents["null_odds"] = evaluation.null_odds
    for name, content in contents.items():
        text = json_text(content, indent=2, ensure_ascii=False)
        write_whole(folder / f"{prefix}_{name}.json", text + "\n")
