"""
Fine-tune and evaluate on pairs of sentences: GLUE tasks, or csv, tsv and jsonl files.

    python run_glue.py --model_name_or_path runs/mini --task_name mnli --data_dir glue/ --do_train --do_eval \
        --output_dir runs/mini-mnli
    accelerate launch --num_processes 4 run_glue.py recipe.yaml
"""

import sys
from dataclasses import dataclass, field

from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedConfig,
    Trainer,
    TrainingArguments,
    set_seed,
)

import fixedbert  # noqa: F401  registers the model
from fixedbert.data import glue
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.errors import InputError, exit_on_input_error
from fixedbert.metrics import accuracy
from fixedbert.training.arguments import ModelArguments, check_length, load_config, load_model, parse, with_recipe
from fixedbert.training.memory import keep_freed_memory
from fixedbert.training.output import output_directory
from fixedbert.training.reporting import report, train


@dataclass
class DataArguments:
    """Which pairs, and how they become tokens."""

    task_name: str | None = field(default=None, metadata={"help": f"A task of GLUE: {', '.join(glue.TASKS)}."})
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with the task in the layout of the GLUE download; default: the Hub."}
    )
    train_file: str | None = field(default=None, metadata={"help": "A .csv, .tsv or .jsonl file of your own."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of a pair; longer ones are cut."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Pad to that length, not to a batch's longest."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use so many training pairs only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use so many evaluation pairs only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})


def load_pairs(arguments: DataArguments, training_args: TrainingArguments, **hub_options) -> glue.SentencePairs:
    if arguments.task_name:
        pairs = glue.load_task(arguments.task_name, arguments.data_dir, **hub_options)
    elif arguments.train_file or arguments.validation_file:
        pairs = glue.load_files(arguments.train_file, arguments.validation_file)
    else:
        raise InputError("no data: give --task_name, or --train_file and --validation_file.")
    if training_args.do_train and pairs.train is None:
        raise InputError("--do_train needs training pairs: give --train_file, or a --data_dir with them.")
    if training_args.do_eval and not pairs.validation:
        raise InputError("--do_eval needs a --validation_file.")
    return pairs


def with_labels_of(config: PreTrainedConfig, pairs: glue.SentencePairs, train: bool) -> glue.SentencePairs:
    """The pairs with the label numbers of a model that knows their labels: its classifier keeps its meaning."""
    known = [config.id2label[number] for number in sorted(config.id2label)]
    if set(pairs.labels) <= set(known):
        return pairs.numbered_as(known)
    if not train and known[0] != "LABEL_0":  # what transformers calls labels that nobody has named
        raise InputError(f"the labels {', '.join(pairs.labels)} are not those of the model: {', '.join(known)}.")
    return pairs


def main(argv: list[str] | None = None):
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(command, ModelArguments, DataArguments, TrainingArguments)
    if training_args.do_predict or not (training_args.do_train or training_args.do_eval):
        raise InputError("give --do_train, --do_eval or both; --do_predict is not there yet.")
    set_seed(training_args.seed)
    keep_freed_memory(training_args.device)

    with output_directory(training_args, command) as checkpoint:
        with training_args.main_process_first(desc="preparing the pairs"):
            pairs = load_pairs(data_args, training_args, cache_dir=model_args.cache_dir, token=model_args.token)
            tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
            config = load_config(model_args)
            pairs = with_labels_of(config, pairs, training_args.do_train)
            config.id2label = dict(enumerate(pairs.labels))
            config.label2id = {label: number for number, label in enumerate(pairs.labels)}
            check_length(data_args.max_seq_length, config)

            def tokenize(batch):
                return tokenizer(
                    batch["sentence1"],
                    batch["sentence2"],
                    max_length=data_args.max_seq_length,
                    truncation=True,
                    padding="max_length" if data_args.pad_to_max_length else False,
                )

            def prepare(data, size):
                data = data if size is None else data.select(range(min(size, len(data))))
                return data.map(tokenize, batched=True, num_proc=data_args.preprocessing_num_workers)

            training = prepare(pairs.train, data_args.max_train_samples) if training_args.do_train else None
            validation = {split: prepare(data, data_args.max_eval_samples) for split, data in pairs.validation.items()}

        trainer = Trainer(
            model=load_model(AutoModelForSequenceClassification, model_args, config, tokenizer),
            args=training_args,
            train_dataset=training,
            eval_dataset=next(iter(validation.values()), None),
            data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None),
            processing_class=tokenizer,
            compute_metrics=pair_metrics,
        )
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            metrics = {}
            for split, data in validation.items():
                suffix = "_mm" if split == "validation_mismatched" else ""  # as in transformers' run_glue.py
                metrics |= {name + suffix: value for name, value in trainer.evaluate(data).items()}
            report(trainer, "eval", metrics)


def pair_metrics(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": accuracy(prediction.predictions.argmax(axis=1), prediction.label_ids)}


if __name__ == "__main__":
    exit_on_input_error(main)
