"""Examples for pretraining: from the arguments to tokenizer, data sets and collator."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from accelerate.utils import gather_object
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.collator import PretrainingCollator
from ..data.corpora import Corpus, corpus_files
from ..data.examples import Examples, PackedExamples, split_documents, target_count, tokens_inside_words
from ..data.segment_pairs import PairExamples, check_documents
from ..data.store import Documents, prepare_store, prepare_tokenizer
from ..data.tokenizers import check_same_vocabulary, load_tokenizer, tokenizer_state
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..support.checksums import stable_hash
from ..support.errors import InputError
from ..training.arguments import ModelArguments
from .arguments import PretrainingArguments, PretrainingDataArguments


def make_examples(
    model_args: ModelArguments,
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
    config: PreTrainedConfig,
    checkpoint: str | None,
) -> tuple[PreTrainedTokenizerBase, Examples, Dataset, dict]:
    """
    Prepares the corpus.

    Args:
        checkpoint: the checkpoint that the run resumes from, which has its tokenizer.

    Returns:
        The tokenizer, the training examples, the held-out examples, and a description of the corpora for summary.json.

    Raises:
        InputError: the corpus or tokenizer cannot be used, or differs between processes.
    """
    corpora = data_args.corpora(model_args)
    tokenizer = make_tokenizer(corpora, model_args, data_args, config, checkpoint)
    (documents, numbers), (held_out_documents, held_out_numbers) = prepare_documents(corpora, tokenizer, data_args)
    kind, settings = example_settings(data_args, tokenizer)
    weights = data_args.corpus_weights
    examples = kind(documents, numbers, tokenizer, seed=training_args.seed, weights=weights, **settings)
    held_out = kind(held_out_documents, held_out_numbers, tokenizer, seed=0, **settings)
    if training_args.world_size > 1:  # machines without a shared `store_dir` each train a tokenizer
        states = gather_object([(tokenizer_state(tokenizer), documents.description["counts"], len(examples))])
        if any(state != states[0] for state in states):
            raise InputError(
                "tokenizer or texts differ between machines; use the same `tokenizer_name` and files everywhere, or a "
                "shared `store_dir`."
            )
    corpus = {
        **documents.description,
        "store": str(documents.directory),
        "fingerprint": stable_hash(documents.directory.name, held_out_documents.directory.name),
        "weights": weights,
        "training": {"documents": len(numbers), "examples": len(examples)},
        "held_out": {"documents": len(held_out_numbers), "examples": len(held_out)},
    }
    return tokenizer, examples, held_out.subset(data_args.max_eval_samples), corpus


def make_tokenizer(
    corpora: list[Corpus],
    model_args: ModelArguments,
    data_args: PretrainingDataArguments,
    config: PreTrainedConfig,
    checkpoint: str | None,
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer that the arguments name, or the checkpoint's; without either, trains one on the corpora."""
    if model_args.tokenizer:
        tokenizer = load_tokenizer(model_args.tokenizer, model_args.do_lower_case, **model_args.hub_options())
        others = {"do_lower_case": model_args.do_lower_case} | model_args.hub_options()
        check_same_vocabulary(tokenizer, model_args.tokenizer, model_args.model_name_or_path, **others)
    elif checkpoint and Path(checkpoint, "tokenizer.json").exists():
        tokenizer = load_tokenizer(checkpoint)  # training numbers tokens differently each time
    else:
        tokenizer = prepare_tokenizer(
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
    Prepares the stores for training and for held-out data, and selects the documents in each.

    Returns:
        For training and for held-out data, the store and the numbers of its documents.

    Raises:
        InputError: a corpus cannot be read or has no segment pairs, or a file is used for training and held out.
    """

    def prepare(sources: list[Corpus]) -> Documents:
        return prepare_store(sources, tokenizer, data_args.language, data_args.processes, data_args.store_dir)

    documents = prepare(corpora)
    if data_args.objective == "mlm+nsp":
        check_documents(documents, np.arange(len(documents)))
    if not data_args.validation_file:
        numbers, held_out_numbers = split_documents(documents, data_args.validation_split_percentage / 100)
        return (documents, numbers), (documents, held_out_numbers)
    trained_on = {file.resolve() for name in data_args.train_file or [] for file in corpus_files(name)}
    for name in data_args.validation_file:
        for file in corpus_files(name):
            if file.resolve() in trained_on:
                raise InputError(f"{file} is in both `train_file` and `validation_file`.")
    settings = replace(corpora[0], on_hub=False, config_name=None)
    held_out = prepare([replace(settings, source=file) for file in data_args.validation_file])
    return (documents, np.arange(len(documents))), (held_out, np.arange(len(held_out)))


def example_settings(
    data_args: PretrainingDataArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[type[Examples], dict]:
    """Returns the class of the objective's examples, and its keyword arguments."""
    settings: dict = {
        "max_seq_length": data_args.max_seq_length,
        "mlm_probability": data_args.mlm_probability,
        "num_proc": data_args.processes,
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


def make_collator(
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
) -> PretrainingCollator:
    """Returns a collator with a fixed shape for `torch_compile`, and with token indices for a FixedHeadBert."""
    collator = PretrainingCollator(tokenizer.pad_token_id)
    # DataParallel, on several GPUs in one process, splits every tensor by rows, so it cannot use token indices.
    if isinstance(model, FixedHeadBertPreTrainedModel) and training_args.n_gpu < 2:
        collator.objective = data_args.objective
    if training_args.torch_compile:
        collator.row_length = data_args.max_seq_length
        collator.row_labels = target_count(data_args.max_seq_length, data_args.mlm_probability)
    return collator
