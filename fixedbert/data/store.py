"""
The store: the documents of a corpus, prepared as token ids with their sentence boundaries in Arrow files.

A store is a folder, named by a fingerprint of all that it depends on:

    shard-000000.arrow ...   rows of `input_ids`, `sentence_ends`, `text_hash` and `corpus`, one for each document
    documents.npy            the documents that are used, neither empty nor duplicates: DOCUMENT
    plans/                   which tokens make up the examples of an epoch; see epochs.py
    store.json               settings and counts; written last, so that a store without it is unfinished

Each file has its checksum beside it, .sha256. contents.json, beside the stores, has the hashes of the corpora's files.
"""

import hashlib
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow
from accelerate import PartialState
from filelock import FileLock
from huggingface_hub import constants
from transformers import PreTrainedTokenizerBase

from ..support.checksums import content_hash_of, fingerprint_of, is_sealed, sealing, write_sealed
from ..support.errors import InputError
from ..support.files import reading, writing
from ..support.processes import call_work, process_pool
from .boundaries import Document
from .corpora import Corpus, CorpusReader, all_documents
from .documents import DOCUMENT, Documents, as_arrays, shard_name
from .encoding import encode
from .sentences import check_language, split_document
from .token_report import SHOWN, Tokenized, unknown_words

FORMAT = 4  # raise it when the same corpus would give another store
SHARD_CHARACTERS = 4_000_000  # of text; the most that an interruption loses, in each process
SHARD_DOCUMENTS = 50_000
JUST_CHANGED = 2  # seconds, in which another change can leave size and times as they are
PIECE_CHARACTERS = 500_000  # tokenized at once, with more than 100 bytes of memory for each
Item = TypeVar("Item")


def default_store_dir() -> Path:
    return Path(constants.HF_HOME) / "fixedbert"


def prepare_store(
    corpora: list[Corpus],
    tokenizer: PreTrainedTokenizerBase,
    language: str = "en",
    num_proc: int = 1,
    store_dir: str | Path | None = None,
    leave_out_headings: bool = False,
) -> Documents:
    """
    The documents of `corpora` as token ids, from the store if it exists, or else prepared by `num_proc` processes.

    Only one process prepares a store, others wait for it. An interrupted preparation continues where it stopped. Of
    documents with the same text only the first is used. One process of each machine compares the store's checksums.

    Args:
        language, leave_out_headings: of `split_document`.

    Raises:
        InputError: a corpus cannot be read or has no text, or the store cannot be written.
    """
    check_language(language)
    readers = [CorpusReader(corpus) for corpus in corpora]
    store_dir = Path(store_dir or default_store_dir())
    settings = {
        "format": FORMAT,
        "shard": [SHARD_CHARACTERS, SHARD_DOCUMENTS],
        "corpora": corpus_fingerprints(readers, store_dir),
        "tokenizer": tokenizer_state(tokenizer),
        "language": language,
        "leave_out_headings": leave_out_headings,
        "sentencex": version("sentencex"),
        "tokenizers": version("tokenizers"),
    }
    folder = store_dir / f"store-{fingerprint_of(settings)}"
    if not (folder / "store.json").exists():
        with only_one_writes(folder):
            if not (folder / "store.json").exists():
                folder.mkdir(exist_ok=True)
                work = partial(write_shard, str(folder), tokenizer, language, leave_out_headings)
                fill_store(folder, readers, tokenizer, work, num_proc, settings)
    return Documents(folder, verify=PartialState().is_local_main_process)


def corpus_fingerprints(readers: list[CorpusReader], store_dir: Path) -> list[list[object]]:
    """
    What the documents of each reader depend on, the content of files included. Each file is read once for that:
    contents.json keeps its hash as long as its path, size, times and inode are the same.
    """
    cache = store_dir / "contents.json"
    known = known_hashes(cache)
    new: dict[str, tuple[list[int], str]] = {}

    def hash_of(file: Path) -> str:
        with reading(file, "give the command again"):
            stat = file.stat()
            state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
            known_state, content_hash = known.get(str(file.absolute()), (None, ""))
            if known_state != state:
                content_hash = content_hash_of(file)
                if time.time() - stat.st_ctime > JUST_CHANGED:
                    new[str(file.absolute())] = (state, content_hash)
        return content_hash

    found = [reader.fingerprint(hash_of) for reader in readers]
    if new:
        with only_one_writes(store_dir / "contents"):
            write_sealed(cache, json.dumps(known_hashes(cache) | new))
    return found


def known_hashes(cache: Path) -> dict[str, tuple[list[int], str]]:
    """By absolute path: size, times and inode of a file, and the hash of its content."""
    return json.loads(cache.read_bytes()) if is_sealed(cache) else {}


@contextmanager
def only_one_writes(folder: Path):
    """
    Hold the lock on a folder of the store directory.

    Raises:
        InputError: the folder cannot be written, or a worker process was killed.
    """
    remedy = "make room, or give another `store_dir`; the same command goes on where it stopped"
    try:
        with writing(folder.parent, remedy):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(folder.name + ".lock")):
                yield
    except BrokenProcessPool as error:
        raise InputError(
            f"{folder}: a process that prepares the corpus was killed, perhaps for memory; fewer of them "
            "(`preprocessing_num_workers`) need less. The same command goes on where it stopped."
        ) from error


def tokenizer_state(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of all that the tokens of a text depend on. Truncation, padding and special tokens are not part of it."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = ("normalizer", "pre_tokenizer", "model", "added_tokens")
    return fingerprint_of([state[part] for part in parts], tokenizer.sep_token)


def fill_store(
    folder: Path,
    readers: list[CorpusReader],
    tokenizer: PreTrainedTokenizerBase,
    write: Callable[[str, list[Document], list[int]], object],
    num_proc: int,
    settings: dict[str, object],
):
    """Write all missing shards, then documents.npy and store.json."""
    shards = write_shards(folder, readers, write, num_proc)
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for shard in range(shards):
        with pyarrow.memory_map(str(folder / shard_name(shard))) as source:
            metadata = pyarrow.ipc.open_file(source).schema.metadata
        counts.update(json.loads(metadata[b"counts"]))
        for kind, found in json.loads(metadata[b"examples"]).items():
            examples[kind] = [*dict.fromkeys(examples.get(kind, []) + found)][:SHOWN]
    documents = used_documents(folder, shards)
    if not len(documents):
        raise InputError(f"{', '.join(reader.corpus.source for reader in readers)}: the corpus is empty.")
    counts["duplicate_documents"] = counts["documents"] - counts["empty_documents"] - len(documents)
    counts["empty_files"] = sum(reader.empty_files for reader in readers)
    with sealing(folder / "documents.npy") as path:
        with open(path, "wb") as file:  # np.save adds .npy to a path
            np.save(file, documents)
    description = {
        "corpora": [reader.corpus.description() for reader in readers],
        "counts": counts,
        "examples": examples,
        "vocab_size": len(tokenizer),
        "shards": shards,
        "settings": settings,
    }
    write_sealed(folder / "store.json", json.dumps(description, indent=1) + "\n")


def write_shards(
    folder: Path,
    readers: list[CorpusReader],
    write: Callable[[str, list[Document], list[int]], object],
    num_proc: int,
) -> int:
    """Call `write` for each shard that is missing, here or in several processes. Returns how many shards there are."""
    documents_read = all_documents(readers, "Splitting into sentences and tokenizing")
    pool = process_pool(num_proc, write) if num_proc > 1 else None
    pending: deque[Future] = deque()
    shards = 0
    try:
        for shard in in_groups(documents_read, lambda one: characters_of(one[0]), SHARD_CHARACTERS, SHARD_DOCUMENTS):
            documents, corpora = map(list, zip(*shard, strict=True))
            path = folder / shard_name(shards)
            shards += 1
            if is_sealed(path):
                continue
            if pool is None:
                write(path.name, documents, corpora)
            else:
                pending.append(pool.submit(call_work, path.name, documents, corpora))
                if len(pending) > 2 * num_proc:  # one waits for each that is written, so that memory stays bounded
                    pending.popleft().result()
        for future in pending:
            future.result()
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    return shards


def in_groups(items: Iterable[Item], size: Callable[[Item], int], most: int, count: int = 0) -> Iterator[list[Item]]:
    """The items in lists. A list ends with the item that makes it `most` in size, or the `count`-th of it."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= most or len(group) == count:
            yield group
            group, total = [], 0
    if group:
        yield group


def characters_of(document: Document) -> int:
    return len(document) if isinstance(document, str) else sum(map(len, document))


def write_shard(
    folder: str,
    tokenizer: PreTrainedTokenizerBase,
    language: str,
    leave_out_headings: bool,
    name: str,
    documents: list[Document],
    corpora: list[int],
):
    """Split documents, of the corpora with these numbers, into sentences; tokenize and write them to a file."""
    counts = Counter(documents=len(documents))
    sentences: list[list[str]] = []
    examples: dict[str, list[str]] = {"headings": [], "unknown": []}
    for document in documents:
        if isinstance(document, str):
            parts, headings = split_document(document, language, leave_out_headings) if document else ([], [])
            counts["headings_left_out"] += len(headings)
            examples["headings"] = [*dict.fromkeys(examples["headings"] + headings)][:SHOWN]
        else:
            parts = document
        counts["characters"] += characters_of(document)
        sentences.append(parts)
    tokens = tokenize_sentences(sentences, tokenizer)
    counts["sentences"] = sum(len(ends) for _, ends in tokens)
    counts["tokens"] = sum(len(ids) for ids, _ in tokens)
    counts["empty_documents"] = sum(len(ids) == 0 for ids, _ in tokens)
    unknown = [int((ids == tokenizer.unk_token_id).sum()) for ids, _ in tokens]  # of each document
    counts["unknown"] = sum(unknown)
    texts = (part for parts, count in zip(sentences, unknown, strict=True) if count for part in parts)
    examples["unknown"] = unknown_words(texts, tokenizer)
    save_shard(Path(folder) / name, tokens, [text_hash(parts) for parts in sentences], corpora, counts, examples)


def tokenized(documents: Documents) -> Tokenized:
    """What a store says of its texts."""
    counts, examples = documents.description["counts"], documents.description["examples"]
    return Tokenized(
        counts["tokens"],
        counts["unknown"],
        examples["unknown"],
        headings=counts["headings_left_out"],
        heading_lines=examples["headings"],
    )


def text_hash(sentences: list[str]) -> int:
    """64 bits: two different ones of Wikipedia's 6.4 million articles have the same hash with probability 1e-6."""
    return int.from_bytes(hashlib.blake2b("\n".join(sentences).encode(), digest_size=8).digest(), "little")


def tokenize_sentences(
    documents: list[list[str]], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[np.ndarray, np.ndarray]]:
    """
    Token ids (tokens,) of every document, and the number of tokens up to the end of each sentence (sentences,).

    A document is tokenized as a whole, with the separator between its sentences, and the separators are removed. This
    gives the tokens of tokenizing each sentence, in three quarters of the time. A separator in the text is text.
    """
    separator, separator_id = tokenizer.sep_token, tokenizer.sep_token_id
    special = [token for token in tokenizer.all_special_tokens if len(token) > 1]
    options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.int32
    tokens = []
    for sentences in documents:
        ids: list[np.ndarray] = [np.empty(0, dtype)]
        ends: list[np.ndarray] = [np.empty(0, np.int32)]
        length = 0
        for piece in in_groups(sentences, len, PIECE_CHARACTERS):
            if any(token in sentence for sentence in piece for token in special):  # a text about BERT
                found = encode(tokenizer, piece, **options)["input_ids"]
                part = np.array([token for ids in found for token in (*ids, separator_id)], dtype=dtype)
            else:
                tokenizer.backend_tokenizer.encode_special_tokens = False
                text = separator.join(piece) + separator
                (encoding,) = tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)
                part = np.array(encoding.ids, dtype=dtype)
            separators = np.flatnonzero(part == separator_id)
            ids.append(np.delete(part, separators))
            ends.append((length + separators - np.arange(len(separators))).astype(np.int32))
            length += len(ids[-1])
        sentence_ends = np.unique(np.concatenate(ends))
        tokens.append((np.concatenate(ids), sentence_ends[sentence_ends > 0]))  # no empty sentences
    return tokens


def save_shard(
    path: Path,
    tokens: list[tuple[np.ndarray, np.ndarray]],
    hashes: Iterable[int],
    corpora: Iterable[int],
    counts: dict[str, int],
    examples: dict[str, list[str]],
):
    """Write an Arrow file, whole or not at all."""

    def lists(arrays: list[np.ndarray]) -> pyarrow.ListArray:
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
        return pyarrow.ListArray.from_arrays(offsets, np.concatenate(arrays))

    table = pyarrow.table(
        {
            "input_ids": lists([ids for ids, _ in tokens]),
            "sentence_ends": lists([ends for _, ends in tokens]),
            "text_hash": pyarrow.array(hashes, pyarrow.uint64()),
            "corpus": pyarrow.array(corpora, pyarrow.int32()),
        }
    ).replace_schema_metadata({"counts": json.dumps(counts), "examples": json.dumps(examples)})
    with sealing(path) as file:
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)


def used_documents(folder: Path, shards: int) -> np.ndarray:
    """The documents with a text, without duplicates, (documents,) of dtype DOCUMENT."""
    parts, hashes, row = [], [], 0
    for shard in range(shards):
        with pyarrow.memory_map(str(folder / shard_name(shard))) as source:
            table = pyarrow.ipc.open_file(source).read_all()
            part = np.empty(len(table), DOCUMENT)
            part["row"] = np.arange(row, row + len(table))
            part["tokens"] = np.diff(as_arrays(table.column("input_ids").chunk(0))[1])
            part["sentences"] = np.diff(as_arrays(table.column("sentence_ends").chunk(0))[1])
            part["corpus"] = table.column("corpus").to_numpy()
            row += len(table)
            with_text = part["tokens"] > 0
            parts.append(part[with_text])
            hashes.append(table.column("text_hash").to_numpy()[with_text])
    if not parts:
        return np.empty(0, DOCUMENT)
    _, first = np.unique(np.concatenate(hashes), return_index=True)
    return np.concatenate(parts)[np.sort(first)]
