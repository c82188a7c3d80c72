"""
Pretrain a FixedHeadBert: masked-LM with next-sentence prediction (BERT, the paper), masked-LM alone, or causal LM.

    python run_pretraining.py recipes/sample.yaml
    python run_pretraining.py --config_name mini --train_file corpus/ --do_train --do_eval --output_dir runs/mini
    accelerate launch --num_processes 4 run_pretraining.py recipe.yaml

docs/pretraining.md says how to name a corpus, how a run is spread over many devices, and what it costs.
"""

import json
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining, set_seed
from transformers.trainer_callback import ProgressCallback

import fixedbert
from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.corpora import DOCUMENT_BOUNDARIES, Corpus
from fixedbert.data.epochs import split_documents
from fixedbert.data.masking import tokens_inside_words
from fixedbert.data.packing import PackedExamples
from fixedbert.data.pairs import PairExamples
from fixedbert.data.store import prepare_store
from fixedbert.data.tokenizers import check_same_vocabulary, load_tokenizer, trained_tokenizer
from fixedbert.errors import InputError, exit_on_input_error
from fixedbert.training.arguments import ModelArguments, check_length, load_config, load_model, parse, with_recipe
from fixedbert.training.curves import draw_curves
from fixedbert.training.memory import keep_freed_memory
from fixedbert.training.output import output_directory
from fixedbert.training.pretraining import OBJECTIVES, PretrainingArguments, PretrainingTrainer
from fixedbert.training.progress import ProgressLine
from fixedbert.training.reporting import report, train

MODELS = {"mlm+nsp": AutoModelForPreTraining, "mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


def corpus_option(default: str | None, help: str):
    return field(
        default_factory=lambda: [default], metadata={"help": f"{help} One for all corpora, or one each.", "nargs": "+"}
    )


@dataclass
class DataArguments:
    """Which text, and how examples are made of it. A corpus is a --dataset_name or a --train_file."""

    objective: str = field(
        default="mlm+nsp",
        metadata={
            "help": "Pairs of segments with masked tokens (mlm+nsp), packed rows with masked tokens (mlm), or "
            "packed rows whose next tokens are predicted (clm).",
            "choices": list(OBJECTIVES),
        },
    )
    dataset_name: list[str] | None = field(
        default=None, metadata={"help": "Hub ids, or `sample` for the built-in text.", "nargs": "+"}
    )
    dataset_config_name: list[str] = corpus_option(None, "Configuration of the Hub data set, or none.")
    train_file: list[str] | None = field(
        default=None,
        metadata={"help": ".txt, .jsonl, .csv, .tsv and .parquet files, folders and globs, also compressed.", "nargs": "+"},
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "The same, held out, read as the first corpus.", "nargs": "+"}
    )
    validation_split_percentage: float = field(
        default=5, metadata={"help": "Without --validation_file: the share of documents held out, in per cent."}
    )
    text_column_name: list[str] = corpus_option("text", "Column with the text.")
    document_boundary: list[str] = corpus_option(
        "row", "What ends a document: " + "; ".join(f"{name}: {text}" for name, text in DOCUMENT_BOUNDARIES.items()) + "."
    )
    document_column_name: list[str] = corpus_option(None, "The column for --document_boundary column, or none.")
    corpus_weights: list[float] | None = field(
        default=None, metadata={"help": "How often an epoch uses the documents of each corpus.", "nargs": "+"}
    )
    language: str = field(default="en", metadata={"help": "Language code, for splitting into sentences."})
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
            raise ValueError("--separate_documents is for packed rows: --objective mlm or clm.")
        if self.whole_word_mask and self.objective == "clm":
            raise ValueError("--whole_word_mask is for masked-LM: --objective mlm+nsp or mlm.")
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"--mlm_probability {self.mlm_probability}: a share between 0 and 1.")

    def corpora(self, model_args: ModelArguments) -> list[Corpus]:
        """The corpora that the arguments name, those of the Hub first."""
        sources = [(name, True) for name in self.dataset_name or []] + [(file, False) for file in self.train_file or []]
        if not sources:
            raise InputError("no corpus: give --train_file, or --dataset_name (`sample` is the built-in one).")
        options = ("dataset_config_name", "text_column_name", "document_boundary", "document_column_name")
        columns = []
        for name in (*options, "corpus_weights"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, len(sources)):
                raise InputError(f"--{name}: {len(values)} values for {len(sources)} corpora; give one, or one each.")
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


def make_examples(model_args: ModelArguments, data_args: DataArguments, training_args, config):
    """From text to (tokenizer, training examples, held-out examples, what there is to say about the corpus)."""
    processes = data_args.preprocessing_num_workers or os.cpu_count()
    corpora = data_args.corpora(model_args)
    if model_args.tokenizer:
        tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
        check_same_vocabulary(tokenizer, model_args.model_name_or_path, **model_args.hub_options())
    else:
        tokenizer = trained_tokenizer(
            corpora,
            data_args.vocab_size or config.vocab_size,
            model_args.do_lower_case,
            data_args.tokenizer_train_share,
            data_args.store_dir,
        )
    tokenizer.model_max_length = config.max_position_embeddings

    store = (tokenizer, data_args.language, processes, data_args.store_dir)
    documents = held_out_documents = prepare_store(corpora, *store)
    if data_args.validation_file:
        first = corpora[0]
        held_out_documents = prepare_store(
            [
                Corpus(
                    file,
                    text_column=first.text_column,
                    document_boundary=first.document_boundary,
                    document_column=first.document_column,
                )
                for file in data_args.validation_file
            ],
            *store,
        )
        numbers, held_out_numbers = range(len(documents)), range(len(held_out_documents))
    else:
        numbers, held_out_numbers = split_documents(documents, data_args.validation_split_percentage / 100)

    settings = {name: getattr(data_args, name) for name in ("max_seq_length", "mlm_probability")}
    if data_args.whole_word_mask:
        settings["inside_word"] = tokens_inside_words(tokenizer)
    if data_args.objective == "mlm+nsp":
        kind, settings["short_seq_prob"] = PairExamples, data_args.short_seq_prob
    else:
        kind = PackedExamples
        settings |= {"objective": data_args.objective, "separate_documents": data_args.separate_documents}
    weights = data_args.corpus_weights
    if weights is not None and len(weights) == 1:
        weights = weights * len(corpora)
    settings["num_proc"] = processes
    examples = kind(documents, numbers, tokenizer, seed=training_args.seed, weights=weights, **settings)
    held_out = kind(held_out_documents, held_out_numbers, tokenizer, seed=0, **settings)
    corpus = {
        **documents.description,
        "store": str(documents.folder),
        "weights": weights,
        "training": {"documents": len(numbers), "examples": len(examples)},
        "held_out": {"documents": len(held_out_numbers), "examples": len(held_out)},
    }
    return tokenizer, examples, held_out.some(data_args.max_eval_samples), corpus


def tell(corpus: dict):
    """Print what came out of the corpus."""
    counts = corpus["counts"]
    PartialState().print("\n".join(corpus["corpora"]))
    PartialState().print(
        f"{counts['documents']:,} documents, of which {counts['empty_documents']:,} are empty and "
        f"{counts['duplicate_documents']:,} repeat another; {counts['sentences']:,} sentences, {counts['tokens']:,} "
        f"tokens, {counts['headings_left_out']:,} headings left out; store: {corpus['store']}"
    )
    for part in ("training", "held_out"):
        PartialState().print(
            f"{part.replace('_', ' ')}: {corpus[part]['documents']:,} documents, {corpus[part]['examples']:,} examples"
        )


def main(argv: list[str] | None = None):
    command = with_recipe(sys.argv[1:] if argv is None else argv)
    model_args, data_args, training_args = parse(command, ModelArguments, DataArguments, PretrainingArguments)
    if not (training_args.do_train or training_args.do_eval):
        raise InputError("nothing to do: give --do_train, --do_eval or both.")
    objective = data_args.objective
    config = load_config(model_args, is_decoder=objective == "clm")
    check_length(data_args.max_seq_length, config)
    training_args.reach_total_train_batch_size()
    set_seed(training_args.seed)
    keep_freed_memory(training_args.device)
    training_args.dataloader_pin_memory &= training_args.device.type != "cpu"

    with output_directory(training_args, command) as checkpoint:
        tokenizer, examples, held_out, corpus = make_examples(model_args, data_args, training_args, config)
        tell(corpus)
        model = load_model(MODELS[objective], model_args, config, tokenizer)
        model.sparse_prediction = True  # the same loss for a fraction of the work; stock BERT takes no notice
        parameters = {
            "all": model.num_parameters(),
            "besides embeddings": model.num_parameters(exclude_embeddings=True),
        }
        PartialState().print(
            f"{parameters['all']:,} parameters, {parameters['besides embeddings']:,} of them besides the embeddings"
        )
        trainer = PretrainingTrainer(
            model=model,
            args=training_args,
            objective=objective,
            inside_word=tokens_inside_words(tokenizer) if objective == "clm" else None,
            train_dataset=examples,
            eval_dataset=held_out,
            data_collator=PretrainingCollator(tokenizer.pad_token_id),
            processing_class=tokenizer,
        )
        if not training_args.disable_tqdm:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(ProgressLine)
        if training_args.do_train:
            train(trainer, checkpoint)
        if training_args.do_eval:
            report(trainer, "eval", trainer.evaluate())
        if trainer.is_world_process_zero():
            write_summary(trainer, corpus, parameters, command)


def write_summary(trainer: PretrainingTrainer, corpus: dict, parameters: dict, command: list[str]):
    """summary.json, and pretraining.png if there was training, beside the model."""
    output, args = Path(trainer.args.output_dir), trainer.args
    batch = args.per_device_train_batch_size * max(args.n_gpu, 1) * args.gradient_accumulation_steps * args.world_size
    summary = {
        "objective": trainer.objective,
        "config": trainer.model.config.to_diff_dict(),
        "parameters": parameters,
        "corpus": corpus,
        "steps": trainer.state.global_step,
        "examples in a step": batch,
        "real tokens seen": trainer.state.num_input_tokens_seen,
        "results": json.loads((output / "all_results.json").read_text()),
        "command": ["run_pretraining.py", *command],
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "processes": args.world_size,
        "versions": {
            **{module.__name__: module.__version__ for module in (fixedbert, torch, transformers)},
            "python": platform.python_version(),
        },
    }
    (output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    if args.do_train:
        title = f"{trainer.objective}, {parameters['all'] / 1e6:.1f} M parameters, {batch} examples a step"
        draw_curves(trainer.state.log_history, trainer.objective[:3], title, output / "pretraining.png")


if __name__ == "__main__":
    exit_on_input_error(main)
