"""Fine-tuning, evaluation and prediction for extractive question answering, on SQuAD or the user's own questions."""

from pathlib import Path
from typing import Any

import datasets
from transformers import AutoModelForQuestionAnswering, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.tokenizers import check_features
from ..options import ModelOptions, SquadDataOptions
from ..support.files import to_json, write_atomically
from ..tasks.answers import SquadEvaluation
from ..tasks.examples import longest_first, max_samples, sample_rows, warn_of_overlap
from ..tasks.questions import question_rows, questions_that_fit, warn_of_long_answers
from ..tasks.reading import data_sources
from ..tasks.squad_metrics import note_on_spaces, squad_scores, squad_v2_scores
from ..tasks.windows import squad_windows
from ..training.arguments import with_recipe
from ..training.output import Trained, record_metrics
from ..training.plots import draw_fine_tuning
from .fine_tune import FineTuningTask
from .sweep import sweep
from .trainer import FineTuningArguments, FineTuningTrainer


def fine_tune_squad(recipe: str | Path | None = None, **given: Any) -> Trained:
    """
    Fine-tunes a model for extractive question answering, evaluates it, and writes predictions.

    If the call is interrupted, for example with Ctrl-C, the same call resumes from the last checkpoint.

    Args:
        recipe: Path to a YAML file with arguments. Keyword arguments take precedence.
        given: The flags listed by `fixedbert squad --help`, as keyword arguments.

    Returns:
        The output directory and the metrics.
    """
    return sweep(QuestionAnswering, **with_recipe(recipe, given, *QuestionAnswering.arguments))


class QuestionAnswering(FineTuningTask):
    """Extractive question answering, on SQuAD or the user's own questions."""

    arguments = (ModelOptions, SquadDataOptions, FineTuningArguments)
    auto_class = AutoModelForQuestionAnswering

    def __init__(self, name: str | None, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, arguments: Any):
        model_args, data_args, training_args = arguments
        self.features, self.evaluations = {}, {}
        examples: dict[str, datasets.Dataset] = {}
        size = data_args.max_seq_length, data_args.doc_stride
        splits = {kind: kind for kind in training_args.kinds}
        for kind, questions in data_sources(data_args, splits, **model_args.download_options()).items():
            options = {"version_2_with_negative": data_args.version_2_with_negative, "answered": kind != "test"}
            source, options["skip_bad_rows"] = questions.name, data_args.skip_bad_rows
            rows = question_rows(questions, **options)
            fitting = questions_that_fit(rows, source, tokenizer, *size, data_args.skip_bad_rows)
            # `max_train_samples` limits the number of questions and then the number of windows, as in run_qa.py.
            limit, seed = max_samples(data_args, kind), training_args.sample_seed
            examples[kind] = sample_rows(fitting, limit, seed)
            is_train = kind == "train"
            windows = squad_windows(examples[kind], tokenizer, *size, is_train)
            check_features(source, windows, tokenizer)
            warn_of_long_answers(source, examples[kind], tokenizer, data_args.max_answer_length)
            self.features[kind] = sample_rows(windows, limit, seed) if is_train else longest_first(windows)
            if not is_train:
                self.evaluations[kind] = SquadEvaluation(examples[kind], self.features[kind], data_args)
        if {"train", "validation"} <= {*examples}:
            warn_of_overlap("validation", examples["train"], examples["validation"], ("question", "context"))
        self.evaluated = {kind: rows for kind, rows in self.features.items() if kind == "validation"}
        self.compute_metrics = self.evaluations.get("validation")
        answers = getattr(self.compute_metrics, "answers", {"": []})  # they determine which metrics exist
        scores = squad_v2_scores({}, answers, {}) if data_args.version_2_with_negative else squad_scores({}, answers)
        self.metric_names = ["loss", *(name for name in scores if not name.endswith(("total", "thresh")))]

    def evaluate(self, trainer: FineTuningTrainer):
        evaluation, windows = self.evaluations["validation"], self.features["validation"]
        record_metrics(trainer, "eval", trainer.evaluate() | {"eval_samples": len(windows)})
        if trainer.is_world_process_zero():
            write_answers(trainer.args.directory, "eval", evaluation)
            note_on_spaces(evaluation.answers.values())
            draw_fine_tuning(trainer.state.log_history, "SQuAD", trainer.args.directory / "squad.png", scale=1)

    def predict(self, trainer: FineTuningTrainer):
        evaluation, windows = self.evaluations["test"], self.features["test"]
        trainer.compute_metrics = None
        output = trainer.predict(windows, metric_key_prefix="predict")
        evaluation.predict(*output.predictions[:2])
        if trainer.is_world_process_zero():
            write_answers(trainer.args.directory, "predict", evaluation)


def write_answers(directory: Path, prefix: str, evaluation: SquadEvaluation):
    """Writes the predictions, n-best answers and null odds to the same files and in the same format as run_qa.py."""
    contents: dict[str, dict] = {"predictions": evaluation.predictions, "nbest_predictions": evaluation.n_best}
    if evaluation.version_2_with_negative:
        contents["null_odds"] = evaluation.null_odds
    for name, content in contents.items():
        text = to_json(content, indent=2, ensure_ascii=False)
        write_atomically(directory / f"{prefix}_{name}.json", text + "\n")
