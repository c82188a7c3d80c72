"""
Pretrain a FixedHeadBert with masked-LM and next-sentence prediction.

    python run_pretraining.py recipes/sample.yaml
    python run_pretraining.py --config_name mini --train_file corpus/ --do_train --do_eval --output_dir runs/mini
    accelerate launch --num_processes 4 run_pretraining.py recipe.yaml
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import AutoModelForPreTraining, PreTrainedConfig, TrainingArguments, set_seed

import fixedbert  # noqa: F401  registers the model
from fixedbert.data.corpora import load_corpus
from fixedbert.data.documents import Documents, tokenize_documents
from fixedbert.data.pretraining import (
    PretrainingCollator,
    PretrainingExamples,
    split_documents,
    usable_documents,
)
from fixedbert.data.tokenizers import load_tokenizer, train_tokenizer
from fixedbert.errors import InputError, exit_on_input_error
from fixedbert.training.arguments import ModelArguments, check_length, load_config, load_model, parse, with_recipe
from fixedbert.training.memory import keep_freed_memory
from fixedbert.training.output import output_directory
from fixedbert.training.pretraining import PretrainingTrainer, pretraining_metrics, sums_by_example
from fixedbert.training.reporting import report, train


@dataclass
class DataArguments:
    """Which text, and how examples are made of it."""

    dataset_name: str | None = field(default=None, metadata={"help": "Hub id, or `sample` for the built-in text."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of the Hub data set."})
    train_file: list[str] | None = field(
        default=None, metadata={"help": ".txt, .jsonl and .parquet files, folders and globs.", "nargs": "+"}
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "The same, held out.", "nargs": "+"})
    validation_split_percentage: float = field(
        default=5, metadata={"help": "Without --validation_file: the share of documents held out, in per cent."}
    )
    text_column_name: str = field(default="text", metadata={"help": "Column with the text."})
    document_boundary: str = field(
        default="row",
        metadata={
            "help": "What ends a document: a row (of a text file, its end), or in text files a blank line.",
            "choices": ["row", "blank_line"],
        },
    )
    language: str = field(default="en", metadata={"help": "Language code, for splitting into sentences."})
    vocab_size: int | None = field(
        default=None, metadata={"help": "Size of a vocabulary to train; default: the configuration's."}
    )
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of a pair, special ones counted."})
    short_seq_prob: float = field(default=0.1, metadata={"help": "Share of pairs that are made shorter."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens to predict."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many pairs only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenizing."})


@dataclass
class PretrainingArguments(TrainingArguments):
    """transformers' TrainingArguments, with BERT's optimisation and every token counted by default."""

    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    include_num_input_tokens_seen: str = "non_padding"
    label_names: list[str] | None = field(default_factory=lambda: ["labels", "next_sentence_label"])


def make_examples(
    model_args: ModelArguments, data_args: DataArguments, config: PreTrainedConfig, training_args: TrainingArguments
):
    """From text to (tokenizer, training examples, held-out examples)."""

    def corpus_of(files):
        return load_corpus(
            data_args.dataset_name,
            data_args.dataset_config_name,
            files,
            data_args.text_column_name,
            data_args.document_boundary,
            cache_dir=model_args.cache_dir,
            token=model_args.token,
        )

    def documents_of(corpus):
        return Documents(
            tokenize_documents(corpus, tokenizer, data_args.language, data_args.preprocessing_num_workers)
        )

    corpus = corpus_of(data_args.train_file)
    if model_args.tokenizer:
        tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
    elif Path(training_args.output_dir, "tokenizer.json").exists():
        # Training gives other numbers to tokens each time: other processes, and a continued run, take the first one's.
        tokenizer = load_tokenizer(training_args.output_dir)
    else:
        tokenizer = train_tokenizer(corpus, data_args.vocab_size or config.vocab_size, model_args.do_lower_case)
        tokenizer.save_pretrained(training_args.output_dir)
    tokenizer.model_max_length = config.max_position_embeddings

    documents = documents_of(corpus)
    if data_args.validation_file:
        held_out_documents = documents_of(corpus_of(data_args.validation_file))
        numbers, held_out_numbers = usable_documents(documents), usable_documents(held_out_documents)
    else:
        held_out_documents = documents
        numbers, held_out_numbers = split_documents(documents, data_args.validation_split_percentage / 100)

    settings = {name: getattr(data_args, name) for name in ("max_seq_length", "short_seq_prob", "mlm_probability")}
    examples = PretrainingExamples(documents, numbers, tokenizer, seed=training_args.seed, **settings)
    held_out = PretrainingExamples(held_out_documents, held_out_numbers, tokenizer, seed=0, **settings)
    PartialState().print(
        f"{len(numbers):,} documents give {len(examples):,} pairs of segments; held out: {len(held_out_numbers):,} "
        f"documents, {len(held_out):,} pairs; vocabulary {len(tokenizer):,}"
    )
    if data_args.max_eval_samples is not None and data_args.max_eval_samples < len(held_out):
        some = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))[: data_args.max_eval_samples]
        held_out = torch.utils.data.Subset(held_out, some.tolist())
    return tokenizer, examples, held_out


def main(argv: list[str] | None = None):
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(command, ModelArguments, DataArguments, PretrainingArguments)
    if not (training_args.do_train or training_args.do_eval):
        raise InputError("nothing to do: give --do_train, --do_eval or both.")
    config = load_config(model_args)
    check_length(data_args.max_seq_length, config)
    set_seed(training_args.seed)
    keep_freed_memory(training_args.device)

    with output_directory(training_args, command) as checkpoint:
        with training_args.main_process_first(desc="preparing the corpus"):
            tokenizer, examples, held_out = make_examples(model_args, data_args, config, training_args)

        model = load_model(AutoModelForPreTraining, model_args, config, tokenizer)
        model.sparse_prediction = True  # the same loss for a fraction of the work; stock BERT takes no notice
        inner = model.num_parameters(exclude_embeddings=True)
        PartialState().print(f"{model.num_parameters():,} parameters, {inner:,} of them besides the embeddings")

        trainer = PretrainingTrainer(
            model=model,
            args=training_args,
            train_dataset=examples,
            eval_dataset=held_out,
            data_collator=PretrainingCollator(tokenizer.pad_token_id),
            processing_class=tokenizer,
            compute_metrics=pretraining_metrics,
            preprocess_logits_for_metrics=sums_by_example,
        )
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            report(trainer, "eval", trainer.evaluate())


if __name__ == "__main__":
    exit_on_input_error(main)
