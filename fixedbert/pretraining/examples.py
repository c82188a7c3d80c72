"""Builds the tokenizer, the datasets and the collator that the arguments describe."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from accelerate.utils import gather_object
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..data.corpora import Corpus, corpus_files
from ..data.examples import Examples, PackedExamples, split_documents
from ..data.masking import tokens_inside_words
from ..data.segment_pairs import PairExamples, check_documents
from ..data.store import Documents, prepare_store, prepare_tokenizer
from ..data.tokenizers import check_same_vocabulary, check_vocab_size, load_tokenizer, tokenizer_state
from ..loading.families import max_tokens
from ..options import NewModelOptions, PretrainingDataOptions
from ..support.checksums import stable_hash
from ..support.errors import InputError
from ..training.loading import tokenizer_source
from .arguments import PretrainingArguments, corpora_of


def make_examples(
    model_args: NewModelOptions,
    data_args: PretrainingDataOptions,
    training_args: PretrainingArguments,
    config: PreTrainedConfig,
    checkpoint: str | None,
) -> tuple[PreTrainedTokenizerBase, Examples, Dataset, dict]:
    """
    Prepares the corpora and returns the examples.

    Args:
        checkpoint: Checkpoint to resume from, or None. Its tokenizer is used unless the arguments specify one.

    Returns:
        The tokenizer, the training examples, the held-out examples, and a description of the corpora for summary.json.

    Raises:
        InputError: If a corpus or the tokenizer is invalid, or if the machines in a run have different ones.
    """
    corpora = corpora_of(data_args, model_args)
    tokenizer = make_tokenizer(corpora, model_args, data_args, config, checkpoint)
    (documents, document_ids), (held_out_documents, held_out_ids) = prepare_documents(corpora, tokenizer, data_args)
    kind, settings = example_settings(data_args, tokenizer)
    examples = kind(documents, document_ids, tokenizer, seed=training_args.seed, **settings)
    held_out = kind(held_out_documents, held_out_ids, tokenizer, seed=0, **settings)
    if training_args.world_size > 1:  # without a shared `store_dir`, each machine prepares its own
        states = gather_object([(tokenizer_state(tokenizer), documents.description["counts"], len(examples))])
        if any(state != states[0] for state in states):
            raise InputError(
                "the machines have different tokenizers or texts; use the same `tokenizer_name` and files on all of "
                "them, or a shared `store_dir`."
            )
    corpus = {
        **documents.description,
        "store": str(documents.directory),
        "fingerprint": stable_hash(documents.directory.name, held_out_documents.directory.name),
        "training": {"documents": len(document_ids), "examples": len(examples)},
        "held_out": {"documents": len(held_out_ids), "examples": len(held_out)},
    }
    return tokenizer, examples, held_out.subset(data_args.max_eval_samples), corpus


def make_tokenizer(
    corpora: list[Corpus],
    model_args: NewModelOptions,
    data_args: PretrainingDataOptions,
    config: PreTrainedConfig,
    checkpoint: str | None,
) -> PreTrainedTokenizerBase:
    """
    Loads the tokenizer that the arguments specify, or else the tokenizer in `checkpoint`.

    If there is neither, trains a new tokenizer on the corpora.
    """
    if source := tokenizer_source(model_args):
        tokenizer = load_tokenizer(source, model_args.do_lower_case, **model_args.hub_options())
        check_same_vocabulary(tokenizer, source, model_args.model_name_or_path, **model_args.hub_options())
        if model_args.model_name_or_path and not model_args.resize_embeddings:
            check_vocab_size(tokenizer, config.vocab_size, model_args.model_name_or_path)
    elif checkpoint and Path(checkpoint, "tokenizer.json").exists():
        tokenizer = load_tokenizer(checkpoint)  # training again could assign different token ids
    else:
        tokenizer = prepare_tokenizer(
            corpora,
            data_args.vocab_size or config.vocab_size,
            model_args.do_lower_case is not False,
            data_args.store_dir,
        )
    tokenizer.model_max_length = max_tokens(config)
    return tokenizer


def prepare_documents(
    corpora: list[Corpus], tokenizer: PreTrainedTokenizerBase, data_args: PretrainingDataOptions
) -> tuple[tuple[Documents, np.ndarray], tuple[Documents, np.ndarray]]:
    """
    Prepares the stores with the training documents and the held-out documents.

    Returns:
        Two pairs (store, document ids), for training and for held-out data. Both can use the same store.

    Raises:
        InputError: If a corpus cannot be read or is unsuitable for segment pairs, or if a file is both a training
            file and a held-out file.
    """

    def prepare(sources: list[Corpus]) -> Documents:
        return prepare_store(sources, tokenizer, data_args.language, processes_of(data_args), data_args.store_dir)

    documents = prepare(corpora)
    if data_args.objective == "mlm+nsp":
        check_documents(documents, np.arange(len(documents)))
    if not data_args.validation_file:
        document_ids, held_out_ids = split_documents(documents, data_args.validation_split_percentage / 100)
        return (documents, document_ids), (documents, held_out_ids)
    training_files = {file.resolve() for name in data_args.train_file or [] for file in corpus_files(name)}
    for name in data_args.validation_file:
        for file in corpus_files(name):
            if file.resolve() in training_files:
                raise InputError(f"{file} is in both `train_file` and `validation_file`; remove it from one.")
    settings = replace(corpora[0], on_hub=False, config_name=None)
    held_out = prepare([replace(settings, source=file) for file in data_args.validation_file])
    return (documents, np.arange(len(documents))), (held_out, np.arange(len(held_out)))


def example_settings(
    data_args: PretrainingDataOptions, tokenizer: PreTrainedTokenizerBase
) -> tuple[type[Examples], dict]:
    """Returns the class of the examples for the objective, and keyword arguments for its constructor."""
    settings: dict = {
        "max_seq_length": data_args.max_seq_length,
        "mlm_probability": data_args.mlm_probability,
        "num_proc": processes_of(data_args),
    }
    if data_args.whole_word_mask:
        settings["inside_word"] = tokens_inside_words(tokenizer)
        if settings["inside_word"] is None:
            raise InputError("requires a WordPiece tokenizer.", "whole_word_mask")
    if data_args.objective == "mlm+nsp":
        return PairExamples, settings | {"short_seq_prob": data_args.short_seq_prob}
    return PackedExamples, settings | {
        "objective": data_args.objective,
        "separate_documents": data_args.separate_documents,
    }


def processes_of(data_args: PretrainingDataOptions) -> int:
    """Returns the number of processes that prepare the corpus."""
    return data_args.preprocessing_num_workers or os.cpu_count() or 1
