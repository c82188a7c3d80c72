"""Features: the tokens of fine-tuning examples, made by several processes and cached for the next run."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow
from accelerate import PartialState
from filelock import FileLock

from ..support.checksums import checksum_file, fingerprint_of, is_sealed, seal
from ..support.errors import InputError
from ..support.files import writing
from ..support.processes import check_shared_memory

FORMAT = 4  # raise it when the same rows would give other features
ROWS_A_PROCESS = 10_000  # for fewer another process takes more time than it saves


def prepare_features(
    rows: datasets.Dataset,
    function: Callable[..., dict],
    settings: dict,
    keep: tuple[str, ...] = (),
    num_proc: int | None = None,
    overwrite_cache: bool = False,
    desc: str | None = None,
) -> datasets.Dataset:
    """
    `rows.map(function)` in batches, cached by the content of the rows in the cache of `datasets`.

    The files of the cache have checksums; damaged ones are made again. The first process of a machine verifies them,
    before the others (`main_process_first`).

    Args:
        function: from a batch of rows, and `settings`, to columns of features.
        settings: keyword arguments of `function`, among them `tokenizer`.
        keep: columns that the features take from the rows, if these have them.
        num_proc: number of processes; by default as many as cores, but one for few rows.

    Raises:
        InputError: the cache cannot be written, or a process was killed.
    """
    tokenizer = json.loads(settings["tokenizer"].backend_tokenizer.to_str())
    tokenizer |= {"truncation": None, "padding": None}  # left by the last call
    others = {name: value for name, value in settings.items() if name != "tokenizer"}
    for name in ("model_input_names", "truncation_side", "cls_token"):
        others[name] = getattr(settings["tokenizer"], name)
    fingerprint = fingerprint_of(FORMAT, function.__name__, content_hash(rows), tokenizer, others)
    folder = Path(datasets.config.HF_DATASETS_CACHE, "fixedbert", fingerprint)
    if num_proc is None:
        num_proc = min(os.cpu_count() or 1, len(rows) // ROWS_A_PROCESS)
    if num_proc > 1:
        check_shared_memory()
    with writing(folder, "make room, or name another cache with HF_DATASETS_CACHE in the environment"):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "features.lock"):
            for file in folder.glob("features*.arrow") if PartialState().is_local_main_process else ():
                if overwrite_cache or not is_sealed(file):
                    file.unlink()
                    checksum_file(file).unlink(missing_ok=True)
            try:
                features = rows.map(
                    function,
                    batched=True,
                    num_proc=num_proc if num_proc > 1 else None,
                    remove_columns=[column for column in rows.column_names if column not in keep],
                    fn_kwargs=settings,
                    cache_file_name=str(folder / "features.arrow"),
                    load_from_cache_file=True,
                    new_fingerprint=fingerprint,
                    desc=desc or "Tokenizing",
                )
            except RuntimeError as error:
                if "abruptly died" not in str(error):
                    raise
                raise InputError(
                    "a process that tokenizes was killed, perhaps for memory; fewer of them "
                    "(`preprocessing_num_workers`) need less."
                ) from error
            for file in folder.glob("features*.arrow"):
                if not checksum_file(file).exists():
                    seal(file, file)
    return features


def content_hash(rows: datasets.Dataset) -> str:
    """A hash of all values, the same for any file that they came from."""
    table = rows.with_format("arrow")[:]
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema.remove_metadata()) as stream:
        stream.write_table(table.replace_schema_metadata().combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()


def data_fingerprint(features: dict[str, datasets.Dataset], *others: object) -> str:
    """
    A fingerprint of the data of a fine-tuning run.

    Args:
        features: from `prepare_features`, or a selection of these: their own fingerprints depend on all values.
        others: what else the run depends on, such as the names of labels.
    """
    return fingerprint_of({kind: rows._fingerprint for kind, rows in features.items()}, others)
