"""Fine-tune, evaluate and predict on questions whose answer is a span of a text: SQuAD 1.1 and 2.0."""

from functools import partial
from pathlib import Path

from transformers import AutoModelForQuestionAnswering, PreTrainedConfig, PreTrainedTokenizerBase

from ..data.squad import SquadEvaluation, questions_that_fit, squad_windows
from ..data.token_report import report_tokens, tokenized_features
from ..errors import InputError
from ..files import json_text, write_whole
from ..training.arguments import ModelArguments
from ..training.fine_tuning import FineTuningArguments, FineTuningTrainer, first_rows, longest_first, print_overlap
from ..training.pictures import draw_squad
from ..training.results import record_metrics
from ..training.squad_data import SquadDataArguments, load_questions
from ..training.sweep import sweep
from .fine_tuning import FineTuningTask, fine_tune, parse_fine_tuning


def main(argv: list[str] | None = None, prog: str | None = None):
    """
    Fine-tune on questions, with one seed or more.

    Args:
        argv: flags, perhaps after a recipe; by default sys.argv's.
        prog: what the help calls the program.
    """
    model_args, data_args, training_args, command = parse_fine_tuning(argv, SquadDataArguments, prog)
    if data_args.threshold() == "best" and not training_args.do_eval:
        raise InputError("--null_score_diff_threshold best is chosen on the validation questions: give --do_eval too.")
    sweep(partial(fine_tune, QuestionAnswering), [None], model_args, data_args, training_args, command)


class QuestionAnswering(FineTuningTask):
    """Questions with a context each, in windows of tokens."""

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
