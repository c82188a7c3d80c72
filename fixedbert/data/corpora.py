"""Corpora: documents of plain text from files, folders, globs, the Hub, or the built-in sample."""

import glob
from pathlib import Path

import datasets

from ..errors import InputError
from . import sample
from .hub import load_from_hub

BUILDERS = {".txt": "text", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}


def corpus_files(patterns: list[str]) -> list[str]:
    """The files that paths, folders (searched whole) and globs stand for, sorted, each once."""
    files = set()
    for pattern in patterns:
        if Path(pattern).is_dir():
            found = [str(path) for path in Path(pattern).rglob("*") if path.suffix in BUILDERS]
        else:
            found = glob.glob(pattern, recursive=True) or ([pattern] if Path(pattern).is_file() else [])
        if not found:
            raise InputError(f"{pattern}: no such file, and no folder or glob with {', '.join(BUILDERS)} files in it.")
        files.update(found)
    for file in files:
        if Path(file).suffix not in BUILDERS:
            raise InputError(f"{file}: not one of the formats that can be read: {', '.join(BUILDERS)}.")
    return sorted(files)


def load_files(patterns: list[str], text_column: str, document_boundary: str) -> datasets.Dataset:
    """Local files as one data set with the column "text": a row of jsonl or parquet is a document."""
    by_builder: dict[str, list[str]] = {}
    for file in corpus_files(patterns):
        by_builder.setdefault(BUILDERS[Path(file).suffix], []).append(file)
    parts = []
    for builder, files in by_builder.items():
        options = {}
        if builder == "text":  # utf-8-sig: with or without a byte order mark
            by = "paragraph" if document_boundary == "blank_line" else "document"
            options = {"sample_by": by, "encoding": "utf-8-sig"}
        try:
            part = datasets.load_dataset(builder, data_files=list(map(glob.escape, files)), split="train", **options)
        except (datasets.exceptions.DatasetGenerationError, ValueError, StopIteration) as error:
            reason = str(error.__cause__ or error).strip().splitlines()
            place = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
            raise InputError(f"{place}: could not be read: {reason[0] if reason else 'no rows'}") from error
        parts.append(text_only(part, "text" if builder == "text" else text_column, files[0]))
    return datasets.concatenate_datasets(parts)


def text_only(dataset: datasets.Dataset, column: str, place: str) -> datasets.Dataset:
    if column not in dataset.column_names:
        raise InputError(
            f"{place}: no column {column!r} (there are {', '.join(dataset.column_names)}); name the one that holds "
            "the text with --text_column_name."
        )
    dataset = dataset.select_columns([column])
    if column != "text":
        dataset = dataset.rename_column(column, "text")
    if dataset.features["text"] != datasets.Value("string"):
        dataset = dataset.cast_column("text", datasets.Value("string"))
    return dataset


def load_corpus(
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    files: list[str] | None = None,
    text_column: str = "text",
    document_boundary: str = "row",
    **hub_options,
) -> datasets.Dataset:
    """
    One row for each document, in the column "text".

    Args:
        dataset_name: "sample" for the built-in sample, else a data set of the Hub, with `dataset_config_name`.
        files: .txt, .jsonl and .parquet files, folders and globs, in the place of `dataset_name`.
        text_column: the column that holds the text.
        hub_options: `cache_dir` and `token`, for a data set of the Hub.
        document_boundary: what ends a document: a "row" (of a text file, its end), or in text files a "blank_line".

    Raises:
        InputError: nothing there, a format or column that is not there, or no text in it.
    """
    if files:
        place, corpus = ", ".join(files), load_files(files, text_column, document_boundary)
    elif dataset_name == "sample":
        place, corpus = "sample", datasets.Dataset.from_dict({"text": sample.documents()})
    elif dataset_name:
        place, corpus = dataset_name, load_from_hub(dataset_name, dataset_config_name, split="train", **hub_options)
        corpus = text_only(corpus, text_column, dataset_name)
    else:
        raise InputError("no corpus: give --train_file, or --dataset_name (`sample` is the built-in one).")
    if not any(text and not text.isspace() for batch in corpus.iter(100) for text in batch["text"]):
        raise InputError(f"{place}: the corpus is empty.")
    return corpus
