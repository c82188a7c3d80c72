"""Builds the tokenizer and the datasets that the arguments describe."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..data.corpora import Corpus
from ..data.examples import Examples, PackedExamples, split_documents
from ..data.segment_pairs import PairExamples
from ..data.store import Documents, prepare_store, prepare_tokenizer
from ..data.tokenizers import load_tokenizer, tokenizer_state
from ..loading.families import max_tokens
from ..options import NewModelOptions, PretrainingDataOptions
from ..support.checksums import stable_hash
from ..support.errors import InputError, error_context
from ..support.machine import cores
from ..training.models import tokenizer_source
from .arguments import PretrainingArguments, corpora_of

MAX_CHANGED = 0.003  # maximum fraction of characters with accents; English novels and Wikipedia have at most 0.001


def make_tokenizer(
    model_args: NewModelOptions, data_args: PretrainingDataOptions, config: PreTrainedConfig, checkpoint: str | None
) -> PreTrainedTokenizerBase:
    """
    Loads the tokenizer that the arguments specify, or else the tokenizer in `checkpoint`, from which the run resumes.

    If there is neither, trains a new tokenizer on the corpora.
    """
    if source := tokenizer_source(model_args):
        tokenizer = load_tokenizer(
            source, model_args.do_lower_case, model_args.strip_accents, **model_args.hub_options()
        )
    elif checkpoint and Path(checkpoint, "tokenizer.json").exists():
        tokenizer = load_tokenizer(checkpoint)  # training again could assign different token ids
    else:
        strip_accents = model_args.strip_accents
        if strip_accents is None and data_args.language != "en":
            strip_accents = False  # in many languages, words differ only in accents or vowel signs
        tokenizer = prepare_tokenizer(
            corpora_of(data_args, model_args),
            data_args.vocab_size or config.vocab_size,
            model_args.do_lower_case is not False,
            data_args.store_dir,
            strip_accents,
        )
    tokenizer.model_max_length = max_tokens(config)
    return tokenizer


def make_examples(
    model_args: NewModelOptions,
    data_args: PretrainingDataOptions,
    training_args: PretrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Examples, Dataset, dict]:
    """
    Prepares the corpora and returns the examples.

    Returns:
        The training examples, the held-out examples, and a description of the corpora for summary.json.

    Raises:
        InputError: If a corpus cannot be read or is unsuitable for the objective, or if the machines in a run have
            different corpora or tokenizers.
    """
    corpora = corpora_of(data_args, model_args)
    documents = held_out_documents = prepare(corpora, tokenizer, data_args)
    is_default = tokenizer_source(model_args) is None and model_args.strip_accents is None
    report_losses(documents.description["counts"], tokenizer, is_default and data_args.language == "en")
    if data_args.validation_file:
        # They have the settings of the first training corpus.
        files = [
            replace(corpora[0], source=file, on_hub=False, config_name=None) for file in data_args.validation_file
        ]
        held_out_documents = prepare(files, tokenizer, data_args)
        document_ids, held_out_ids = np.arange(len(documents)), np.arange(len(held_out_documents))
    else:
        document_ids, held_out_ids = split_documents(documents, data_args.validation_split_percentage / 100)
    create = examples_for(data_args)
    examples = create(documents, document_ids, tokenizer, seed=training_args.seed)
    held_out = create(held_out_documents, held_out_ids, tokenizer, seed=0)
    if data_args.validation_file:
        print_counts(documents, len(examples))
        with error_context("`validation_file`"):
            print_counts(held_out_documents, len(held_out))
        if shared := int(np.isin(held_out_documents.text_hashes(), documents.text_hashes()).sum()):
            PartialState().print(f"{shared:,} of {len(held_out_ids):,} held-out documents are in the training text")
    else:
        print_counts(documents, len(examples) + len(held_out))
    if training_args.world_size > 1:  # without a shared `store_dir`, each machine prepares its own
        states = gather_object([(tokenizer_state(tokenizer), documents.description["counts"], len(examples))])
        if any(state != states[0] for state in states):
            remedy = "use the same `tokenizer_name` and files on all of them, or a shared `store_dir`"
            raise InputError(f"the machines have different tokenizers or texts; {remedy}.")
    corpus = {
        **documents.description,
        "store": str(documents.directory),
        "fingerprint": stable_hash(documents.directory.name, held_out_documents.directory.name),
        "training": {"documents": len(document_ids), "examples": len(examples)},
        "held_out": {"documents": len(held_out_ids), "examples": len(held_out)},
    }
    return examples, held_out.subset(data_args.max_eval_samples), corpus


def prepare(corpora: list[Corpus], tokenizer: PreTrainedTokenizerBase, data_args: PretrainingDataOptions) -> Documents:
    return prepare_store(corpora, tokenizer, data_args.language, processes_of(data_args), data_args.store_dir)


def report_losses(counts: dict[str, int], tokenizer: PreTrainedTokenizerBase, for_english: bool):
    """
    Prints what the tokenizer's normalizer removes from the text.

    Raises:
        InputError: If the vocabulary is `for_english` by default, but more accents are removed than in English text.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    case = "lowercases text" if normalizer and normalizer.normalize_str("A") == "a" else "keeps capital letters"
    PartialState().print(
        f"the tokenizer {case}; of {counts['characters']:,} characters, {counts['changed_characters']:,} lose an "
        f"accent or vowel sign or are split, and {counts['removed_characters']:,} others are removed"
    )
    share = counts["changed_characters"] / counts["characters"]
    if for_english and share > MAX_CHANGED:
        raise InputError(
            f"{share:.1%} of the characters in the corpus have accents or vowel signs, which a vocabulary for English "
            "loses; set `language`, or set `strip_accents` to false to keep them or to true to remove them."
        )


def print_counts(documents: Documents, examples: int):
    """Prints the size of the corpora in a store and the number of examples."""
    counts, settings = documents.description["counts"], documents.description["settings"]
    files = sum(len(content) for *_, content in settings["corpora"] if isinstance(content, list))
    PartialState().print(
        (f"files: {files:,}, " if files else "")  # Hub datasets have rows
        + f"documents: {counts['documents']:,}, of which {counts['duplicate_documents']:,} duplicates and "
        f"{counts['empty_documents']:,} empty ones are left out, tokens: {documents.metadata['tokens'].sum():,}, "
        f"examples: {examples:,}"
    )


def examples_for(data_args: PretrainingDataOptions) -> Callable[..., Examples]:
    """Returns a function that creates the examples for the objective from documents, their ids, and a tokenizer."""
    settings: dict = {
        "max_seq_length": data_args.max_seq_length,
        "mlm_probability": data_args.mlm_probability,
        "num_proc": processes_of(data_args),
    }
    if data_args.objective == "mlm+nsp":
        return partial(PairExamples, short_seq_prob=data_args.short_seq_prob, **settings)
    settings["separate_documents"] = data_args.separate_documents
    return partial(PackedExamples, objective=data_args.objective, **settings)


def processes_of(data_args: PretrainingDataOptions) -> int:
    """Returns the number of processes that prepare the corpus."""
    return data_args.preprocessing_num_workers or cores()
