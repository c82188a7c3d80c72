"""
Fine-tune and evaluate on questions whose answer is a span of a text: SQuAD 1.1.

    python run_squad.py --model_name_or_path runs/mini --train_file train-v1.1.json --validation_file dev-v1.1.json \
        --do_train --do_eval --output_dir runs/mini-squad
    accelerate launch --num_processes 4 run_squad.py recipe.yaml
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import datasets
from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

import fixedbert  # noqa: F401  registers the model
from fixedbert.data.hub import load_from_hub
from fixedbert.data.squad import SquadEvaluation, check_answers, load_squad, squad_windows
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.errors import InputError, exit_on_input_error
from fixedbert.training.arguments import ModelArguments, check_length, load_config, load_model, parse, with_recipe
from fixedbert.training.memory import keep_freed_memory
from fixedbert.training.output import output_directory
from fixedbert.training.reporting import report, train


@dataclass
class DataArguments:
    """Which questions, and how they become windows of tokens."""

    dataset_name: str | None = field(default=None, metadata={"help": "Hub id: rajpurkar/squad."})
    train_file: str | None = field(default=None, metadata={"help": "A file in SQuAD 1.1's JSON layout."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    max_seq_length: int = field(default=384, metadata={"help": "Tokens of a window."})
    doc_stride: int = field(default=128, metadata={"help": "Tokens of the context that two windows share."})
    n_best_size: int = field(default=20, metadata={"help": "Starts and ends looked at in a window."})
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of the longest answer."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use so many training questions only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use so many evaluation questions only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})


def load_questions(arguments: DataArguments, **hub_options) -> dict[str, datasets.Dataset]:
    """The splits that are there, of train and validation."""
    if arguments.dataset_name:
        splits = load_from_hub(arguments.dataset_name, **hub_options)
        for split in splits.values():
            for row in split:
                check_answers(row, arguments.dataset_name)
        return splits
    files = {"train": arguments.train_file, "validation": arguments.validation_file}
    return {split: load_squad(file) for split, file in files.items() if file}


def main(argv: list[str] | None = None):
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(command, ModelArguments, DataArguments, TrainingArguments)
    if training_args.do_predict or not (training_args.do_train or training_args.do_eval):
        raise InputError("give --do_train, --do_eval or both; --do_predict is not there yet.")
    set_seed(training_args.seed)
    keep_freed_memory(training_args.device)

    with output_directory(training_args, command) as checkpoint:
        with training_args.main_process_first(desc="preparing the questions"):
            config = load_config(model_args)
            check_length(data_args.max_seq_length, config)
            tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
            questions = load_questions(data_args, cache_dir=model_args.cache_dir, token=model_args.token)

            def prepare(split, size):
                if split not in questions:
                    raise InputError(f"no questions for {split}: give --{split}_file or --dataset_name.")
                rows = (
                    questions[split]
                    if size is None
                    else questions[split].select(range(min(size, len(questions[split]))))
                )
                windows = squad_windows(
                    rows,
                    tokenizer,
                    data_args.max_seq_length,
                    data_args.doc_stride,
                    data_args.preprocessing_num_workers,
                )
                return rows, windows

            training = prepare("train", data_args.max_train_samples)[1] if training_args.do_train else None
            if training_args.do_eval:
                rows, windows = prepare("validation", data_args.max_eval_samples)
                evaluation = SquadEvaluation(rows, windows, data_args.n_best_size, data_args.max_answer_length)
            else:
                windows = evaluation = None

        trainer = Trainer(
            model=load_model(AutoModelForQuestionAnswering, model_args, config, tokenizer),
            args=training_args,
            train_dataset=training,
            eval_dataset=windows,
            data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None),
            processing_class=tokenizer,
            compute_metrics=evaluation,
        )
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            metrics = trainer.evaluate()
            report(trainer, "eval", metrics)
            if training_args.should_save:
                file = Path(training_args.output_dir, "eval_predictions.json")
                file.write_text(json.dumps(evaluation.predictions, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    exit_on_input_error(main)
