"""From the arguments of pretraining to its examples."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.boundaries import DOCUMENT_BOUNDARIES
from ..data.collator import PretrainingCollator
from ..data.corpora import Corpus
from ..data.corpus_files import corpus_files
from ..data.documents import Documents
from ..data.epochs import Examples, split_documents
from ..data.masking import target_count, tokens_inside_words
from ..data.packing import PackedExamples
from ..data.pairs import PairExamples, check_pairs
from ..data.sentences import LANGUAGES, check_language
from ..data.store import prepare_store, tokenized, tokenizer_state
from ..data.token_report import report_tokens
from ..data.tokenizers import check_same_vocabulary, load_tokenizer, trained_tokenizer
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..support.checksums import fingerprint_of
from ..support.errors import InputError
from ..training.arguments import ModelArguments
from .trainer import PretrainingArguments

BOUNDARIES = "; ".join(f"{name}: {text}" for name, text in DOCUMENT_BOUNDARIES.items())


def corpus_option(default: str | None, help: str):
    return field(
        default_factory=lambda: [default], metadata={"help": f"{help} One for all corpora, or one each.", "nargs": "+"}
    )


Objective = Literal["mlm+nsp", "mlm", "clm"]


@dataclass
class PretrainingDataArguments:
    """Which text, and how examples are made of it. Corpora of `dataset_name` come first, then `train_file`."""

    objective: Objective = field(
        default="mlm+nsp",
        metadata={
            "help": "Pairs of segments with masked tokens (mlm+nsp), packed rows with masked tokens (mlm), or "
            "packed rows whose next tokens are predicted (clm).",
        },
    )
    dataset_name: list[str] | None = field(
        default=None, metadata={"help": "Hub ids, or `sample` for the built-in text.", "nargs": "+"}
    )
    dataset_config_name: list[str] = corpus_option(None, "Configuration of the Hub data set, or none.")
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": ".txt, .jsonl, .csv, .tsv and .parquet files, folders and globs, also compressed.",
            "nargs": "+",
        },
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "The same, held out, read as the first corpus.", "nargs": "+"}
    )
    validation_split_percentage: float = field(
        default=5, metadata={"help": "Without --validation_file: the share of documents held out, in per cent."}
    )
    text_column_name: list[str] = corpus_option("text", "Column with the text.")
    document_boundary: list[str] = corpus_option(
        "row",
        f"What ends a document. {BOUNDARIES}.",
    )
    document_column_name: list[str] = corpus_option(None, "The column for --document_boundary column, or none.")
    corpus_weights: list[float] | None = field(
        default=None, metadata={"help": "How often an epoch uses the documents of each corpus.", "nargs": "+"}
    )
    language: str = field(default="en", metadata={"help": f"For splitting into sentences: {', '.join(LANGUAGES)}."})
    leave_out_headings: bool = field(
        default=False,
        metadata={"help": "Leave out lines that look like headings of sections, for the English Wikipedia."},
    )
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
            raise InputError("is for packed rows: `objective` mlm or clm.", "separate_documents")
        check_language(self.language)
        if self.leave_out_headings and self.language != "en":
            raise InputError(f"`leave_out_headings`: headings are told by English words, not in {self.language!r}.")
        if self.whole_word_mask and self.objective == "clm":
            raise InputError("is for masked-LM: `objective` mlm+nsp or mlm.", "whole_word_mask")
        if not 0 <= self.short_seq_prob <= 1:
            raise InputError(f"{self.short_seq_prob}: a share, from 0 to 1.", "short_seq_prob")
        for name, most in (("mlm_probability", 1), ("tokenizer_train_share", 1), ("validation_split_percentage", 99)):
            if not 0 < getattr(self, name) <= most:
                raise InputError(f"{getattr(self, name)}: more than 0 and at most {most}.", name)
        for name in ("max_eval_samples", "preprocessing_num_workers", "vocab_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)}: at least 1.", name)
        if self.corpus_weights and (min(self.corpus_weights) < 0 or not any(self.corpus_weights)):
            raise InputError("`corpus_weights`: none may be negative, and not all 0.")

    @property
    def processes(self) -> int:
        """Processes for preparing the corpus."""
        return self.preprocessing_num_workers or os.cpu_count() or 1

    def corpora(self, model_args: ModelArguments) -> list[Corpus]:
        """The corpora that the arguments name, those of the Hub first."""
        sources = [(name, True) for name in self.dataset_name or []]
        sources += [(file, False) for file in self.train_file or []]
        if not sources:
            raise InputError("no corpus: give `train_file`, or `dataset_name` (sample is the built-in one).")
        options = ("dataset_config_name", "text_column_name", "document_boundary", "document_column_name")
        columns = []
        for name in (*options, "corpus_weights"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, len(sources)):
                raise InputError(f"`{name}`: {len(values)} values for {len(sources)} corpora; give one, or one each.")
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


def make_examples(
    model_args: ModelArguments,
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
    config: PreTrainedConfig,
    checkpoint: str | None,
) -> tuple[PreTrainedTokenizerBase, Examples, Dataset, dict]:
    """
    From text to (tokenizer, training examples, held-out examples, description of the corpus).

    Raises:
        InputError: something about the corpus or the tokenizer, or processes that disagree about them.
    """
    corpora = data_args.corpora(model_args)
    tokenizer = make_tokenizer(corpora, model_args, data_args, config, checkpoint)
    (documents, numbers), (held_out_documents, held_out_numbers) = prepare_documents(corpora, tokenizer, data_args)
    kind, settings = example_settings(data_args, tokenizer)
    weights = data_args.corpus_weights
    if weights is not None and len(weights) == 1:
        weights = weights * len(corpora)
    examples = kind(documents, numbers, tokenizer, seed=training_args.seed, weights=weights, **settings)
    held_out = kind(held_out_documents, held_out_numbers, tokenizer, seed=0, **settings)
    if training_args.world_size > 1:  # machines that share no `store_dir` each train a tokenizer and read their files
        made = gather_object([(tokenizer_state(tokenizer), documents.description["counts"], len(examples))])
        if any(other != made[0] for other in made):
            raise InputError(
                "the machines have different tokenizers or texts: give all the same `tokenizer_name` and files, or a "
                "`store_dir` that they share."
            )
    corpus = {
        **documents.description,
        "store": str(documents.folder),
        "fingerprint": fingerprint_of(documents.folder.name, held_out_documents.folder.name),
        "weights": weights,
        "training": {"documents": len(numbers), "examples": len(examples)},
        "held_out": {"documents": len(held_out_numbers), "examples": len(held_out)},
    }
    return tokenizer, examples, held_out.some(data_args.max_eval_samples), corpus


def make_tokenizer(
    corpora: list[Corpus],
    model_args: ModelArguments,
    data_args: PretrainingDataArguments,
    config: PreTrainedConfig,
    checkpoint: str | None,
) -> PreTrainedTokenizerBase:
    """The tokenizer that the arguments name, else the checkpoint's, else one trained on the corpora."""
    if model_args.tokenizer:
        tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
        others = {"do_lower_case": model_args.do_lower_case} | model_args.hub_options()
        check_same_vocabulary(tokenizer, model_args.tokenizer, model_args.model_name_or_path, **others)
    elif checkpoint and Path(checkpoint, "tokenizer.json").exists():
        tokenizer = load_tokenizer(checkpoint)  # training gives other numbers to tokens each time
    else:
        tokenizer = trained_tokenizer(
            corpora,
            data_args.vocab_size or config.vocab_size,
            model_args.do_lower_case is not False,
            data_args.tokenizer_train_share,
            data_args.store_dir,
        )
    tokenizer.model_max_length = config.max_position_embeddings
    return tokenizer


def prepare_documents(
    corpora: list[Corpus], tokenizer: PreTrainedTokenizerBase, data_args: PretrainingDataArguments
) -> tuple[tuple[Documents, np.ndarray], tuple[Documents, np.ndarray]]:
    """
    The stores of the documents to train on and of those held out, each with the numbers of its documents.

    Raises:
        InputError: a corpus cannot be read or has no pairs, or a file is to be trained on and held out.
    """

    def prepared(sources: list[Corpus]) -> Documents:
        documents = prepare_store(
            sources,
            tokenizer,
            data_args.language,
            data_args.processes,
            data_args.store_dir,
            data_args.leave_out_headings,
        )
        report_tokens(", ".join(corpus.source for corpus in sources), tokenized(documents), tokenizer)
        return documents

    documents = prepared(corpora)
    if data_args.objective == "mlm+nsp":
        check_pairs(documents, np.arange(len(documents)))
    if not data_args.validation_file:
        numbers, held_out_numbers = split_documents(documents, data_args.validation_split_percentage / 100)
        return (documents, numbers), (documents, held_out_numbers)
    trained_on = {file.resolve() for name in data_args.train_file or [] for file in corpus_files(name)}
    for name in data_args.validation_file:
        for file in corpus_files(name):
            if file.resolve() in trained_on:
                raise InputError(f"{file}: in `validation_file`, and in `train_file` too; it cannot be held out.")
    first = corpora[0]
    held_out = prepared(
        [
            Corpus(
                file,
                text_column=first.text_column,
                document_boundary=first.document_boundary,
                document_column=first.document_column,
            )
            for file in data_args.validation_file
        ]
    )
    return (documents, np.arange(len(documents))), (held_out, np.arange(len(held_out)))


def example_settings(
    data_args: PretrainingDataArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[type[Examples], dict]:
    """The kind of examples of the objective, and its keyword arguments."""
    settings: dict = {
        "max_seq_length": data_args.max_seq_length,
        "mlm_probability": data_args.mlm_probability,
        "num_proc": data_args.processes,
    }
    if data_args.whole_word_mask:
        settings["inside_word"] = tokens_inside_words(tokenizer)
        if settings["inside_word"] is None:
            raise InputError("`whole_word_mask`: the tokenizer is not WordPiece, which marks what is inside of words.")
    if data_args.objective == "mlm+nsp":
        return PairExamples, settings | {"short_seq_prob": data_args.short_seq_prob}
    return PackedExamples, settings | {
        "objective": data_args.objective,
        "separate_documents": data_args.separate_documents,
    }


def make_collator(
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
) -> PretrainingCollator:
    """Batches for the model: of one shape with `torch_compile`, and with places of tokens for a FixedHeadBert."""
    collator = PretrainingCollator(tokenizer.pad_token_id)
    if isinstance(model, FixedHeadBertPreTrainedModel) and training_args.n_gpu < 2:  # DataParallel splits all by rows
        collator.objective = data_args.objective
    if training_args.torch_compile:
        collator.row_length = data_args.max_seq_length
        collator.row_labels = target_count(data_args.max_seq_length, data_args.mlm_probability)
    return collator


def print_corpus(corpus: dict):
    """Print the sizes of the corpus, and of its two parts."""
    counts = corpus["counts"]
    PartialState().print("\n".join(corpus["corpora"]))
    PartialState().print(
        f"{counts['documents']:,} documents, of which {counts['empty_documents']:,} are empty and "
        f"{counts['duplicate_documents']:,} repeat another; {counts['sentences']:,} sentences, {counts['tokens']:,} "
        f"tokens; store: {corpus['store']}"
    )
    for part in ("training", "held_out"):
        PartialState().print(
            f"{part.replace('_', ' ')}: {corpus[part]['documents']:,} documents, {corpus[part]['examples']:,} examples"
        )


def print_pairs(examples: list[Examples]):
    """Print how many second segments are random, for each length of rows."""
    shares = {pairs.max_seq_length: pairs.random_share for pairs in examples if isinstance(pairs, PairExamples)}
    if shares:
        lengths = ", ".join(f"{share:.1%} in rows of {length} tokens" for length, share in shares.items())
        PartialState().print(f"random second segments: {lengths}")
