"""
Fine-tune, evaluate and predict on questions whose answer is a span of a text: SQuAD 1.1 and 2.0.

    python run_squad.py --model_name_or_path runs/mini --train_file train-v1.1.json --validation_file dev-v1.1.json \
        --do_train --do_eval --output_dir runs/mini-squad
    python run_squad.py --model_name_or_path runs/mini --dataset_name rajpurkar/squad_v2 --version_2_with_negative \
        --null_score_diff_threshold best --do_train --do_eval --output_dir runs/mini-squad2
    accelerate launch --num_processes 4 run_squad.py recipe.yaml

docs/fine_tuning.md lists the arguments beside those of transformers' run_qa.py.
"""

import sys
from dataclasses import dataclass, field

import fixedbert_start

if __name__ == "__main__":
    fixedbert_start.leave_quietly()

import datasets
from transformers import AutoModelForQuestionAnswering, set_seed

import fixedbert  # noqa: F401  registers the model
from fixedbert.data.features import data_fingerprint
from fixedbert.data.hub import load_from_hub
from fixedbert.data.squad import SquadEvaluation, load_squad, question_rows, questions_that_fit, squad_windows
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.errors import InputError, exit_on_input_error
from fixedbert.training.arguments import ModelArguments, check_length, load_config, load_model, parse, with_recipe
from fixedbert.training.fine_tuning import (
    FineTuningArguments,
    FineTuningTrainer,
    at_most,
    check_counts,
    longest_first,
    write_json,
)
from fixedbert.training.memory import keep_freed_memory
from fixedbert.training.output import check_same_data, output_directory
from fixedbert.training.pictures import draw_squad
from fixedbert.training.reporting import publish, report, train
from fixedbert.training.sweep import sweep


@dataclass
class DataArguments:
    """Which questions, and how they become windows of tokens."""

    dataset_name: str | None = field(default=None, metadata={"help": "Hub id: rajpurkar/squad, rajpurkar/squad_v2."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(
        default=None, metadata={"help": "SQuAD's JSON, or rows with its columns in .json, .jsonl or .parquet."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to answer; it needs no answers."})
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "Questions may have no answer, as in SQuAD 2.0."}
    )
    null_score_diff_threshold: str = field(
        default="0.0",
        metadata={"help": "No answer where [CLS] is more than this above the best span; best: chosen for F1."},
    )
    skip_bad_rows: bool = field(default=False, metadata={"help": "Leave out rows that cannot be used, and name them."})
    max_seq_length: int = field(default=384, metadata={"help": "Tokens of a window."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Pad to that length, not to a batch's longest."})
    doc_stride: int = field(default=128, metadata={"help": "Tokens of the context that two windows share."})
    n_best_size: int = field(default=20, metadata={"help": "Starts and ends looked at in a window, answers kept."})
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of the longest answer."})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Use so many training questions only, and so many of their windows."}
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use so many evaluation questions only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Answer so many questions only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again what is in the cache."})

    def threshold(self) -> float | str:
        if self.null_score_diff_threshold == "best":
            return "best"
        try:
            return float(self.null_score_diff_threshold)
        except ValueError:
            raise InputError(
                f"--null_score_diff_threshold {self.null_score_diff_threshold}: a number, or best."
            ) from None


def load_questions(arguments: DataArguments, kind: str, **hub_options) -> datasets.Dataset:
    """The questions for "train", "validation" or "test"."""
    options = (arguments.version_2_with_negative, kind != "test", arguments.skip_bad_rows)
    if arguments.dataset_name and (arguments.train_file or arguments.validation_file or arguments.test_file):
        raise InputError("--dataset_name and files: give one of the two.")
    if arguments.dataset_name:
        splits = load_from_hub(arguments.dataset_name, arguments.dataset_config_name, **hub_options)
        if kind not in splits:
            raise InputError(f"{arguments.dataset_name}: it has no split {kind}; there are {', '.join(splits)}.")
        return question_rows(((row, row, row) for row in splits[kind]), name_of(arguments, kind), *options)
    file = name_of(arguments, kind)
    if file is None:
        raise InputError(f"no questions for {kind}: give --{kind}_file or --dataset_name.")
    return load_squad(file, *options)


def name_of(arguments: DataArguments, kind: str) -> str | None:
    return f"{arguments.dataset_name}, {kind}" if arguments.dataset_name else getattr(arguments, f"{kind}_file")


def fine_tune(task: None, model_args, data_args, training_args, command: list[str]):
    """From the model to results, weights, answers and a picture in the output directory."""
    set_seed(training_args.seed)
    threshold = data_args.threshold()
    kinds = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    counts = {"train": data_args.max_train_samples, "validation": data_args.max_eval_samples}
    counts["test"] = data_args.max_predict_samples
    with output_directory(training_args, command) as checkpoint:
        with training_args.main_process_first(desc="preparing the questions"):
            config = load_config(model_args)
            check_length(data_args.max_seq_length, config)
            tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
            windows, evaluations = {}, {}
            for kind in [kind for kind, wanted in kinds.items() if wanted]:
                rows = load_questions(data_args, kind, cache_dir=model_args.cache_dir, token=model_args.token)
                rows = at_most(rows, counts[kind])
                size = (data_args.max_seq_length, data_args.doc_stride)
                rows = questions_that_fit(rows, name_of(data_args, kind), tokenizer, *size, data_args.skip_bad_rows)
                windows[kind] = squad_windows(
                    rows,
                    tokenizer,
                    *size,
                    for_training=kind == "train",
                    num_proc=data_args.preprocessing_num_workers,
                    overwrite_cache=data_args.overwrite_cache,
                )
                if kind == "train":
                    windows[kind] = at_most(windows[kind], counts[kind])  # as in transformers' run_qa.py
                else:
                    windows[kind], _ = longest_first(windows[kind])
                    evaluations[kind] = SquadEvaluation(
                        rows,
                        windows[kind],
                        data_args.n_best_size,
                        data_args.max_answer_length,
                        data_args.version_2_with_negative,
                        threshold,
                    )
        check_same_data(training_args.output_dir, data_fingerprint(windows))
        trainer = FineTuningTrainer(
            model=load_model(AutoModelForQuestionAnswering, model_args, config, tokenizer, training_args.do_train),
            args=training_args,
            train_dataset=windows.get("train"),
            eval_dataset=windows.get("validation"),
            processing_class=tokenizer,
            compute_metrics=evaluations.get("validation"),
            pad_to=data_args.max_seq_length if data_args.pad_to_max_length else None,
        )
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            evaluation = evaluations["validation"]
            report(trainer, "eval", trainer.evaluate() | {"eval_samples": len(windows["validation"])})
            if trainer.is_world_process_zero():
                write_answers(training_args.output_dir, "eval", evaluation)
                draw_squad(trainer, "questions", evaluation.null_odds, evaluation.answers, evaluation.threshold)
            threshold = evaluation.threshold
        if training_args.do_predict:
            evaluation = evaluations["test"]
            evaluation.asked_threshold = threshold  # one that was chosen on the validation questions stays
            known = (
                any(evaluation.answers.values())
                if data_args.version_2_with_negative
                else all(evaluation.answers.values())
            )
            trainer.compute_metrics = evaluation if known else None
            output = trainer.predict(windows["test"], metric_key_prefix="predict")
            if known:
                report(trainer, "predict", output.metrics | {"predict_samples": len(windows["test"])})
            else:
                evaluation.predict(*output.predictions[:2])
            if trainer.is_world_process_zero():
                write_answers(training_args.output_dir, "predict", evaluation)
        if training_args.do_train:
            trainer.create_model_card()
    publish(trainer)


def write_answers(folder: str, prefix: str, evaluation: SquadEvaluation):
    """The files of transformers' run_qa.py: predictions, in the official form, n-best answers, null odds."""
    write_json(folder, f"{prefix}_predictions.json", evaluation.predictions)
    write_json(folder, f"{prefix}_nbest_predictions.json", evaluation.n_best)
    if evaluation.version_2_with_negative:
        write_json(folder, f"{prefix}_null_odds.json", evaluation.null_odds)


def main(argv: list[str] | None = None):
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(command, ModelArguments, DataArguments, FineTuningArguments)
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise InputError("nothing to do: give --do_train, --do_eval or --do_predict.")
    check_counts(data_args)
    if data_args.threshold() == "best" and not training_args.do_eval:
        raise InputError("--null_score_diff_threshold best is chosen on the validation questions: give --do_eval too.")
    keep_freed_memory(training_args.device)
    sweep(fine_tune, [None], model_args, data_args, training_args, command)


if __name__ == "__main__":
    exit_on_input_error(main)
