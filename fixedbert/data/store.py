"""
The store: prepared corpora as token ids and sentence boundaries in memory-mapped Arrow files.

This module alone knows the layout of a store directory:

    store-FINGERPRINT/           a prepared corpus, named by everything that determines its content
        shard-000000.arrow ...   rows of `input_ids`, `sentence_ends`, `text_hash` and `corpus`, one per document
        documents.npy            the documents in use, neither empty nor duplicate, as an array of dtype DOCUMENT
        store.json               settings and counts; written last, so that a store without it is incomplete
    store-FINGERPRINT-plans/     which tokens make up the examples of an epoch (see examples.py)
    tokenizer-FINGERPRINT/       a tokenizer trained on a corpus
    hashes/                      content hashes of corpus files

Files of a store and plans have a checksum next to them (.sha256).
"""

import hashlib
import json
import shutil
import time
import zlib
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
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..support.checksums import (
    checksum_path,
    file_sha256,
    has_valid_checksum,
    stable_hash,
    write_with_checksum,
)
from ..support.errors import InputError
from ..support.files import reading, write_atomically, writing
from ..support.processes import call_task, process_pool
from .corpora import Corpus, CorpusReader, Document, iterate_documents
from .sentences import check_language, split_document
from .tokenizers import check_unknown_tokens, encode, tokenizer_state, train_tokenizer

FORMAT = 5  # raise it when the same corpus would give a different store
TOKENIZER_FORMAT = 2  # raise it when the same corpus would give a different vocabulary
SHARD_CHARACTERS = 4_000_000  # of text; the most that each process loses when it is interrupted
SHARD_DOCUMENTS = 50_000
UNSETTLED = 2  # seconds after a change in which another one can leave size and times as they are
PIECE_CHARACTERS = 500_000  # tokenized at once, which takes more than 100 bytes of memory per character
DOCUMENT = np.dtype([("row", "i8"), ("tokens", "i4"), ("sentences", "i4"), ("corpus", "i4")])
Item = TypeVar("Item")


class Documents:
    """
    Random access to the tokens and sentences of the documents in a prepared store.

    Attributes:
        metadata: for each document its row, number of tokens, number of sentences and corpus index, (documents,) of
            dtype DOCUMENT.
        description: the content of store.json.

    Args:
        verify: compare all files with their checksums first.

    Raises:
        InputError: a file is missing or damaged.
    """

    def __init__(self, directory: str | Path, verify: bool = True):
        self.directory = Path(directory)
        with reading(self.directory, "remove it and run the command again", "incomplete or damaged"):
            self.description = json.loads(self._file("store.json", verify).read_bytes())
            self.metadata = np.load(self._file("documents.npy", verify), mmap_mode="r")
            self._input_ids: list[tuple[np.ndarray, np.ndarray]] = []  # values and offsets of each shard
            self._sentence_ends: list[tuple[np.ndarray, np.ndarray]] = []
            rows = [0]
            for shard in range(self.description["shards"]):
                # The arrays keep the memory map open.
                source = pyarrow.memory_map(str(self._file(shard_name(shard), verify)))
                batch = pyarrow.ipc.open_file(source).get_batch(0)
                self._input_ids.append(as_arrays(batch.column("input_ids")))
                self._sentence_ends.append(as_arrays(batch.column("sentence_ends")))
                rows.append(rows[-1] + len(batch))
        self._shard_starts = np.array(rows)

    def _file(self, name: str, verify: bool) -> Path:
        if verify and not has_valid_checksum(self.directory / name):
            raise ValueError(name)
        return self.directory / name

    def __reduce__(self):  # for worker processes that are spawned
        return Documents, (self.directory, False)

    def __len__(self) -> int:
        return len(self.metadata)

    def _row(self, shards: list[tuple[np.ndarray, np.ndarray]], document: int) -> np.ndarray:
        row = self.metadata["row"][document]
        shard = int(self._shard_starts.searchsorted(row, side="right")) - 1
        values, offsets = shards[shard]
        row -= self._shard_starts[shard]
        return values[offsets[row] : offsets[row + 1]]

    def tokens(self, document: int) -> np.ndarray:
        """Returns all token ids of a document as a view, (tokens,)."""
        return self._row(self._input_ids, document)

    def sentence_ends(self, document: int) -> np.ndarray:
        """Returns the number of tokens up to the end of each sentence of a document as a view, (sentences,)."""
        return self._row(self._sentence_ends, document)

    def plan(self, name: str, blocks: Iterable[np.ndarray]) -> Path:
        """
        Returns the path of a plan file. The first process that needs it writes the `blocks`. A damaged plan is
        written again.
        """
        path = self._plans / name
        if not has_valid_checksum(path):
            with exclusive(path):
                if not has_valid_checksum(path):
                    with write_with_checksum(path) as unfinished, open(unfinished, "wb") as file:
                        for block in blocks:
                            file.write(np.ascontiguousarray(block).data)
        return path

    def remove_plan(self, name: str):
        (self._plans / name).unlink(missing_ok=True)
        checksum_path(self._plans / name).unlink(missing_ok=True)

    @property
    def _plans(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}-plans")


def as_arrays(column: pyarrow.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns values and offsets of an Arrow list array without copying them."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True)


def shard_name(number: int) -> str:
    return f"shard-{number:06}.arrow"


def default_store_dir() -> Path:
    return Path(constants.HF_HOME) / "fixedbert"


def prepare_store(
    corpora: list[Corpus],
    tokenizer: PreTrainedTokenizerBase,
    language: str = "en",
    num_proc: int = 1,
    store_dir: str | Path | None = None,
) -> Documents:
    """
    Returns the documents of `corpora`, from the store if it has them, otherwise prepared by `num_proc` processes.

    Only one process prepares a store while others wait for it. An interrupted preparation resumes where it stopped.
    Of several documents with the same text only the first is used. One process per machine verifies the checksums.

    Args:
        language: for sentence splitting, one of LANGUAGES.

    Raises:
        InputError: a corpus cannot be read, has no text or mostly unknown tokens, or the store cannot be written.
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
        "sentencex": version("sentencex"),
        "tokenizers": version("tokenizers"),
    }
    directory = store_dir / f"store-{stable_hash(settings)}"
    if not (directory / "store.json").exists():
        with exclusive(directory):
            if not (directory / "store.json").exists():
                directory.mkdir(exist_ok=True)
                write = partial(write_shard, str(directory), tokenizer, language)
                fill_store(directory, readers, write, num_proc, settings)
    documents = Documents(directory, verify=PartialState().is_local_main_process)
    counts = documents.description["counts"]
    check_unknown_tokens(sources_of(corpora), counts["unknown_tokens"], counts["tokens"])
    return documents


def prepare_tokenizer(
    corpora: list[Corpus],
    vocab_size: int,
    do_lower_case: bool = True,
    share: float = 1.0,
    store_dir: str | Path | None = None,
) -> PreTrainedTokenizerBase:
    """
    Returns a WordPiece tokenizer trained on a share of the documents, from the store if it has one.

    Training assigns different ids to the tokens each time, so the store keeps the tokenizer for the same corpora and
    settings. Only one process trains while others wait for it.

    Raises:
        InputError: a corpus cannot be read or has no text.
    """
    readers = [CorpusReader(corpus) for corpus in corpora]
    store_dir = Path(store_dir or default_store_dir())
    contents = corpus_fingerprints(readers, store_dir)
    settings = (TOKENIZER_FORMAT, contents, vocab_size, do_lower_case, share, version("tokenizers"))
    directory = store_dir / f"tokenizer-{stable_hash(settings)}"

    def texts() -> Iterator[str]:
        for document, _ in iterate_documents(readers, "Training a tokenizer"):
            text = document if isinstance(document, str) else "\n".join(document)
            if share >= 1 or zlib.crc32(text[:1000].encode()) < share * 2**32:
                yield text

    with exclusive(directory):
        if not directory.exists():
            tokenizer = train_tokenizer(texts, vocab_size, do_lower_case)
            unfinished = directory.with_name(directory.name + ".partial")
            shutil.rmtree(unfinished, ignore_errors=True)
            tokenizer.save_pretrained(unfinished)
            unfinished.rename(directory)
    return AutoTokenizer.from_pretrained(directory)


def sources_of(corpora: list[Corpus]) -> str:
    return ", ".join(corpus.source for corpus in corpora)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """
    Holds the lock on a file or directory in the store directory.

    Raises:
        InputError: it cannot be written, or a worker process was killed.
    """
    try:
        with writing(path.parent, "free some space, or set `store_dir`; the same command resumes where it stopped"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(path.name + ".lock")):
                yield
    except BrokenProcessPool as error:
        raise InputError(
            f"{path}: a worker process was killed, possibly for lack of memory; run the same command again, with "
            "fewer `preprocessing_num_workers`."
        ) from error


def corpus_fingerprints(readers: list[CorpusReader], store_dir: Path) -> list[list[object]]:
    """Returns what determines the documents of each reader. The content of large files is hashed only once."""
    with exclusive(store_dir / "hashes"):
        return [reader.fingerprint(partial(content_hash, cache=store_dir / "hashes")) for reader in readers]


def content_hash(file: Path, cache: Path) -> str:
    """Returns the hash of a file's content, cached for its path, size, times and inode."""
    with reading(file, "run the command again"):
        stat = file.stat()
        state = (str(file.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        entry = cache / stable_hash(*state)
        if entry.exists():
            return entry.read_text()
        content = file_sha256(file)
    if time.time() - stat.st_ctime > UNSETTLED:
        cache.mkdir(exist_ok=True)
        write_atomically(entry, content)
    return content


def fill_store(
    directory: Path,
    readers: list[CorpusReader],
    write: Callable[[str, list[Document], list[int]], object],
    num_proc: int,
    settings: dict[str, object],
):
    """Writes all missing shards, then documents.npy and store.json."""
    shards = write_shards(directory, readers, write, num_proc)
    counts: Counter[str] = Counter()
    for shard in range(shards):
        with pyarrow.memory_map(str(directory / shard_name(shard))) as source:
            counts.update(json.loads(pyarrow.ipc.open_file(source).schema.metadata[b"counts"]))
    documents = select_documents(directory, shards)
    corpora = [reader.corpus for reader in readers]
    if not len(documents):
        raise InputError(f"{sources_of(corpora)}: the corpus contains no text.")
    counts["duplicate_documents"] = counts["documents"] - counts["empty_documents"] - len(documents)
    with write_with_checksum(directory / "documents.npy") as path, open(path, "wb") as file:
        np.save(file, documents)
    description = {
        "corpora": [corpus.description() for corpus in corpora],
        "counts": counts,
        "shards": shards,
        "settings": settings,
    }
    with write_with_checksum(directory / "store.json") as path:
        path.write_text(json.dumps(description, indent=1) + "\n")


def write_shards(
    directory: Path,
    readers: list[CorpusReader],
    write: Callable[[str, list[Document], list[int]], object],
    num_proc: int,
) -> int:
    """Calls `write` for each missing shard, in this process or in several. Returns the number of shards."""
    documents_read = iterate_documents(readers, "Splitting into sentences and tokenizing")
    pool = process_pool(num_proc, write) if num_proc > 1 else None
    pending: deque[Future] = deque()
    shards = 0
    try:
        for shard in in_groups(documents_read, lambda item: size_of(item[0]), SHARD_CHARACTERS, SHARD_DOCUMENTS):
            documents, corpora = map(list, zip(*shard, strict=True))
            path = directory / shard_name(shards)
            shards += 1
            if has_valid_checksum(path):
                continue
            if pool is None:
                write(path.name, documents, corpora)
            else:
                pending.append(pool.submit(call_task, path.name, documents, corpora))
                if len(pending) > 2 * num_proc:  # keeps memory bounded
                    pending.popleft().result()
        for future in pending:
            future.result()
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    return shards


def in_groups(items: Iterable[Item], size: Callable[[Item], int], limit: int, count: int = 0) -> Iterator[list[Item]]:
    """Groups items. A group ends when its size reaches `limit`, or when it has `count` items."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit or len(group) == count:
            yield group
            group, total = [], 0
    if group:
        yield group


def size_of(document: Document) -> int:
    """Returns the number of characters."""
    return len(document) if isinstance(document, str) else sum(map(len, document))


def write_shard(
    directory: str,
    tokenizer: PreTrainedTokenizerBase,
    language: str,
    name: str,
    documents: list[Document],
    corpora: list[int],
):
    """Splits documents into sentences, tokenizes them and writes a shard. `corpora` has the corpus index of each."""
    sentences = [
        split_document(document, language) if isinstance(document, str) else document for document in documents
    ]
    tokens = tokenize_sentences(sentences, tokenizer)
    counts = {
        "documents": len(documents),
        "empty_documents": sum(len(ids) == 0 for ids, _ in tokens),
        "characters": sum(map(size_of, documents)),
        "sentences": sum(len(ends) for _, ends in tokens),
        "tokens": sum(len(ids) for ids, _ in tokens),
        "unknown_tokens": sum(int(np.count_nonzero(ids == tokenizer.unk_token_id)) for ids, _ in tokens),
    }
    save_shard(Path(directory) / name, tokens, map(text_hash, sentences), corpora, counts)


def text_hash(sentences: list[str]) -> int:
    """Returns 64 bits. Among Wikipedia's 6.4 million articles the probability of a collision is 1e-6."""
    return int.from_bytes(hashlib.blake2b("\n".join(sentences).encode(), digest_size=8).digest(), "little")


def tokenize_sentences(
    documents: list[list[str]], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[np.ndarray, np.ndarray]]:
    """
    Returns the token ids (tokens,) of every document and the number of tokens up to each sentence end (sentences,).

    A document is tokenized as a whole with the separator between its sentences, and the separators are removed. The
    result equals tokenizing sentence by sentence and takes three quarters of the time. A separator in the text is
    treated as text.
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
                encoded = encode(tokenizer, piece, **options)["input_ids"]
                part = np.array([token for ids in encoded for token in (*ids, separator_id)], dtype=dtype)
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
        tokens.append((np.concatenate(ids), sentence_ends[sentence_ends > 0]))  # drops empty sentences
    return tokens


def save_shard(
    path: Path,
    tokens: list[tuple[np.ndarray, np.ndarray]],
    hashes: Iterable[int],
    corpora: Iterable[int],
    counts: dict[str, int],
):
    """Writes an Arrow file atomically."""

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
    ).replace_schema_metadata({"counts": json.dumps(counts)})
    with write_with_checksum(path) as file:
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)


def select_documents(directory: Path, shards: int) -> np.ndarray:
    """Returns the documents that have text, without duplicates, (documents,) of dtype DOCUMENT."""
    parts, hashes, row = [], [], 0
    for shard in range(shards):
        with pyarrow.memory_map(str(directory / shard_name(shard))) as source:
            table = pyarrow.ipc.open_file(source).read_all()
            part = np.empty(len(table), DOCUMENT)
            part["row"] = np.arange(row, row + len(table))
            part["tokens"] = np.diff(as_arrays(table.column("input_ids").chunk(0))[1])
            part["sentences"] = np.diff(as_arrays(table.column("sentence_ends").chunk(0))[1])
            part["corpus"] = table.column("corpus").to_numpy()
            row += len(table)
            has_text = part["tokens"] > 0
            parts.append(part[has_text])
            hashes.append(table.column("text_hash").to_numpy()[has_text])
    if not parts:
        return np.empty(0, DOCUMENT)
    _, first = np.unique(np.concatenate(hashes), return_index=True)
    return np.concatenate(parts)[np.sort(first)]
