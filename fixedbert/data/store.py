"""
The store, which keeps prepared corpora as token ids and sentence boundaries in memory-mapped Arrow files.

No other module depends on the layout of the store directory:

    store-FINGERPRINT/           prepared corpora; the fingerprint depends on everything that determines their content
        shard-000000.arrow ...   one row per document: `input_ids`, `sentence_ends` and `text_hash`
        documents.npy            array of dtype DOCUMENT, without empty and duplicate documents
        store.json               settings and counts; written last, so a store without this file is incomplete
    store-FINGERPRINT-plans/     arrays that specify the examples in each epoch (see examples.py)
    tokenizer-FINGERPRINT/       a tokenizer trained on the corpora
    hashes/                      content hashes of corpus files

Each store file and each plan has a checksum file next to it (.sha256).
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from itertools import chain
from multiprocessing import current_process
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow
from accelerate import PartialState
from filelock import FileLock
from huggingface_hub import constants
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..support import processes
from ..support.checksums import checksum_path, file_sha256, has_valid_checksum, stable_hash, write_with_checksum
from ..support.errors import InputError
from ..support.files import new_directory, reading, write_atomically, writing
from ..support.processes import call_task, process_pool
from .corpora import Corpus, CorpusReader, Document, iterate_documents
from .sentences import split_document
from .tokenizers import check_unknown_tokens, count_losses, tokenizer_state, train_tokenizer

FORMAT = 7  # increment it when the same corpora would result in a different store
DEFAULT_DIRECTORY = Path(constants.HF_HOME) / "fixedbert"
TOKENIZER_FORMAT = 3  # increment it when the same corpora would result in a different tokenizer
SHARD_CHARACTERS = 4_000_000  # per shard; an interrupted process loses at most one shard
SHARD_DOCUMENTS = 50_000
PIECE_CHARACTERS = 500_000  # per call of the tokenizer, which needs over 100 bytes of memory per character
DOCUMENT = np.dtype([("row", "i8"), ("tokens", "i4"), ("sentences", "i4")])
Item = TypeVar("Item")
Arrays = tuple[np.ndarray, np.ndarray]  # the tokens and sentence ends of a document, or values and offsets of a shard


class Documents:
    """
    The documents in a prepared store, with random access to their tokens and sentences.

    Attributes:
        metadata: Array (documents,) of dtype DOCUMENT with each document's row (counted across all shards), number of
            tokens and number of sentences. A document id is an index into this array.
        description: The content of store.json.

    Args:
        verify: Whether to verify the checksums of all files.
    """

    def __init__(self, directory: str | Path, verify: bool = True):
        self.directory = Path(directory)
        with reading(self.directory, "remove it and run the command again", "incomplete or corrupted"):
            self.description = json.loads(self._file("store.json", verify).read_bytes())
            self.metadata = np.load(self._file("documents.npy", verify), mmap_mode="r")
            self._input_ids: list[Arrays] = []  # values and offsets for each shard
            self._sentence_ends: list[Arrays] = []
            self._text_hashes: list[np.ndarray] = []
            rows = [0]
            for shard in range(self.description["shards"]):
                # The arrays keep the file mapped.
                source = pyarrow.memory_map(str(self._file(shard_name(shard), verify)))
                batch = pyarrow.ipc.open_file(source).get_batch(0)
                self._input_ids.append(as_arrays(batch.column("input_ids")))
                self._sentence_ends.append(as_arrays(batch.column("sentence_ends")))
                self._text_hashes.append(batch.column("text_hash").to_numpy())
                rows.append(rows[-1] + len(batch))
        self._shard_starts = np.array(rows)

    def _file(self, name: str, verify: bool) -> Path:
        if verify and not has_valid_checksum(self.directory / name):
            raise ValueError(name)
        return self.directory / name

    def __reduce__(self):  # spawned worker processes map the files again
        return Documents, (self.directory, False)

    def __len__(self) -> int:
        return len(self.metadata)

    def _row(self, shards: list[Arrays], document: int) -> np.ndarray:
        row = self.metadata["row"][document]
        shard = int(self._shard_starts.searchsorted(row, side="right")) - 1
        values, offsets = shards[shard]
        row -= self._shard_starts[shard]
        return values[offsets[row] : offsets[row + 1]]

    def tokens(self, document: int) -> np.ndarray:
        """Returns a view of the token ids (tokens,) in a document."""
        return self._row(self._input_ids, document)

    def sentence_ends(self, document: int) -> np.ndarray:
        """Returns a view of the token offsets (sentences,) at which the sentences in a document end."""
        return self._row(self._sentence_ends, document)

    def text_hashes(self) -> np.ndarray:
        """Returns hashes (documents,) of the texts. They do not depend on the tokenizer, spaces and line ends."""
        return np.concatenate(self._text_hashes)[self.metadata["row"]]

    def plan(self, name: str, blocks: Callable[[], Iterable[np.ndarray]], verify: bool = True) -> Path:
        """
        Returns the path to a plan file.

        If the file does not exist or, with `verify`, is corrupted, one process writes the `blocks` to it while the
        others wait.
        """
        path = self._plans / name
        with store_lock(path):
            if not (has_valid_checksum(path) if verify else path.exists()):
                with write_with_checksum(path) as unfinished, open(unfinished, "wb") as file:
                    for block in blocks():
                        file.write(np.ascontiguousarray(block).data)
        return path

    def remove_plan(self, name: str):
        (self._plans / name).unlink(missing_ok=True)
        checksum_path(self._plans / name).unlink(missing_ok=True)

    @property
    def _plans(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}-plans")


def as_arrays(column: pyarrow.ListArray) -> Arrays:
    """Returns the values and offsets of an Arrow list array without copying them."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True)


def shard_name(index: int) -> str:
    return f"shard-{index:06}.arrow"


def prepare_store(
    corpora: list[Corpus],
    tokenizer: PreTrainedTokenizerBase,
    language: str = "en",
    num_proc: int = 1,
    store_dir: str | Path | None = None,
) -> Documents:
    """
    Splits the documents in `corpora` into sentences and tokenizes them, or loads the result from the store.

    Only one process prepares a store while the others wait. After an interruption, the next call resumes preparation.
    A document with the same words as an earlier document is dropped. One process per machine verifies the checksums.

    Args:
        language: Language for sentence splitting, a code of the option `language`.
        num_proc: Number of worker processes.
        store_dir: Store directory, by default `DEFAULT_DIRECTORY`.
    """
    readers = [CorpusReader(corpus) for corpus in corpora]
    store_dir = Path(store_dir or DEFAULT_DIRECTORY)
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
    with store_lock(directory):
        if not (directory / "store.json").exists():
            directory.mkdir(exist_ok=True)
            pool = process_pool(num_proc, write_shard, str(directory), tokenizer, language)
            shards = write_shards(directory, readers, pool, 2 * num_proc)
            write_index(directory, corpora, shards, settings)
    documents = Documents(directory, verify=PartialState().is_local_main_process)
    counts = documents.description["counts"]
    sources = ", ".join(corpus.source for corpus in corpora)
    check_unknown_tokens(sources, counts["unknown_tokens"], counts["tokens"])
    for reader in readers:
        if reader.ignored:
            count = f"{len(reader.ignored):,} hidden paths and files in other formats are left out"
            PartialState().print(f"{reader.corpus.source}: {count}, such as {reader.ignored[-1]}")
    return documents


def prepare_tokenizer(
    corpora: list[Corpus],
    vocab_size: int,
    do_lower_case: bool = True,
    store_dir: str | Path | None = None,
    strip_accents: bool | None = None,
) -> PreTrainedTokenizerBase:
    """
    Trains a WordPiece tokenizer on the documents, or loads it from the store.

    The store keeps trained tokenizers because training again on the same texts can assign different ids to the tokens.
    Only one process trains a tokenizer while the others wait.

    Args:
        strip_accents: Whether to remove accents and other marks. By default, as in BERT, only if text is lowercased.
    """
    readers = [CorpusReader(corpus) for corpus in corpora]
    store_dir = Path(store_dir or DEFAULT_DIRECTORY)
    contents = corpus_fingerprints(readers, store_dir)
    settings = [TOKENIZER_FORMAT, contents, vocab_size, do_lower_case, version("tokenizers")]
    if strip_accents is not None:
        settings.append(strip_accents)
    directory = store_dir / f"tokenizer-{stable_hash(settings)}"

    def texts() -> Iterator[str]:
        for document in iterate_documents(readers, "Training a tokenizer"):
            yield document if isinstance(document, str) else "\n".join(document)

    with store_lock(directory):
        if not directory.exists():
            tokenizer = train_tokenizer(texts, vocab_size, do_lower_case, strip_accents)
            with new_directory(directory) as unfinished:
                tokenizer.save_pretrained(unfinished)
    return AutoTokenizer.from_pretrained(directory)


@contextmanager
def store_lock(path: Path) -> Iterator[None]:
    """Context manager that locks a file or directory in the store and converts write errors to InputError."""
    advice = 'in a script, call fixedbert only below if __name__ == "__main__"'
    # A spawned worker, whose parent has the lock, imports the script.
    if getattr(current_process(), "_inheriting", False):
        raise InputError(f"{path}: {advice}.")
    try:
        with writing(path.parent, "or set `store_dir`, and run the same command again to resume"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(path.name + ".lock")):
                yield
    except BrokenProcessPool as error:
        remedy = "run the same command again with fewer `preprocessing_num_workers`"
        if processes.START_METHOD == "spawn":
            remedy = f"{advice}; otherwise, {remedy}"
        problem = "a worker process ended, possibly because it ran out of memory"
        raise InputError(f"{path}: {problem}; {remedy}.") from error


def corpus_fingerprints(readers: list[CorpusReader], store_dir: Path) -> list[list[object]]:
    """Returns, for each corpus, a list of values that change if its content changes. Caches the hashes of files."""
    with store_lock(store_dir / "hashes"):
        return [reader.fingerprint(partial(content_hash, cache=store_dir / "hashes")) for reader in readers]


def content_hash(file: Path, cache: Path) -> str:
    """Returns the SHA-256 hash of a file's content, cached by the file's path, size, mtime, ctime and inode."""
    with reading(file, "run the command again"):
        stat = file.stat()
        state = (str(file.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        entry = cache / stable_hash(*state)
        if entry.exists():
            return entry.read_text()
        content = file_sha256(file)
    cache.mkdir(exist_ok=True)
    write_atomically(entry, content)
    return content


def write_shards(directory: Path, readers: list[CorpusReader], pool: ProcessPoolExecutor, max_pending: int) -> int:
    """
    Writes the missing shards and returns the total number of shards. The pool must have been created
    for `write_shard`, and is shut down at the end. To limit memory, at most `max_pending` shards wait in the pool.
    """
    documents_read = iterate_documents(readers, "Splitting into sentences and tokenizing")
    pending: deque[Future] = deque()
    shards = 0
    try:
        for documents in in_groups(documents_read, text_length, SHARD_CHARACTERS, SHARD_DOCUMENTS):
            name = shard_name(shards)
            shards += 1
            if not has_valid_checksum(directory / name):
                pending.append(pool.submit(call_task, name, documents))
            if len(pending) > max_pending:
                pending.popleft().result()
        for future in pending:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)
    return shards


def write_index(directory: Path, corpora: list[Corpus], shards: int, settings: dict):
    """Writes documents.npy and store.json."""
    documents, counts = select_documents(directory, shards)
    if not len(documents):
        raise InputError(f"{', '.join(corpus.source for corpus in corpora)}: the corpus contains no text.")
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


def in_groups(items: Iterable[Item], size: Callable[[Item], int], limit: int, count: int = 0) -> Iterator[list[Item]]:
    """
    Yields groups of consecutive items. A group ends when the sum of `size(item)` over its items reaches `limit`, or
    when it contains `count` items. If `count` is 0, the number of items is not limited.
    """
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


def text_length(document: Document) -> int:
    """Returns the number of characters in a document."""
    return len(document) if isinstance(document, str) else sum(map(len, document))


def write_shard(
    directory: str, tokenizer: PreTrainedTokenizerBase, language: str, name: str, documents: list[Document]
):
    """Splits documents into sentences, tokenizes them and writes a shard."""
    sentences = [
        split_document(document, language) if isinstance(document, str) else document for document in documents
    ]
    tokens = tokenize_sentences(sentences, tokenizer)
    counts = {
        "documents": len(documents),
        "empty_documents": sum(len(ids) == 0 for ids, _ in tokens),
        "characters": sum(map(text_length, documents)),
        "sentences": sum(len(ends) for _, ends in tokens),
        "tokens": sum(len(ids) for ids, _ in tokens),
        "unknown_tokens": sum(int(np.count_nonzero(ids == tokenizer.unk_token_id)) for ids, _ in tokens),
        **count_losses(chain.from_iterable(sentences), tokenizer),
    }
    # 64 bits: for 6.4 million texts (English Wikipedia), the probability of a collision is 1e-6.
    texts = (" ".join(" ".join(text).split()) for text in sentences)  # the same in every format and line width
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    hashes = [int.from_bytes(digest, "little") for digest in digests]
    save_shard(Path(directory) / name, tokens, hashes, counts)


def tokenize_sentences(documents: list[list[str]], tokenizer: PreTrainedTokenizerBase) -> list[Arrays]:
    """
    Returns the token ids (tokens,) and the end offsets (sentences,) of the sentences for each document.

    Sentences are joined with the separator token and tokenized together; then the separators are removed. This gives
    the same result as separate calls, in 25% less time. The separator token in a text therefore ends a sentence.
    """
    separator, separator_id = tokenizer.sep_token, tokenizer.sep_token_id
    tokenizer.backend_tokenizer.encode_special_tokens = False  # otherwise the separators would become text
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.int32
    tokens = []
    for sentences in documents:
        ids: list[np.ndarray] = [np.empty(0, dtype)]
        ends: list[np.ndarray] = [np.empty(0, np.int32)]
        length = 0
        for piece in in_groups(sentences, len, PIECE_CHARACTERS):
            text = separator.join(piece) + separator
            (encoding,) = tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)
            part = np.array(encoding.ids, dtype=dtype)
            separators = np.flatnonzero(part == separator_id)
            ids.append(np.delete(part, separators))
            ends.append((length + separators - np.arange(len(separators))).astype(np.int32))
            length += len(ids[-1])
        sentence_ends = np.unique(np.concatenate(ends))
        tokens.append((np.concatenate(ids), sentence_ends[sentence_ends > 0]))  # drop empty sentences
    return tokens


def save_shard(path: Path, tokens: list[Arrays], hashes: Iterable[int], counts: dict):
    """Writes a shard atomically."""

    def lists(arrays: list[np.ndarray]) -> pyarrow.ListArray:
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
        return pyarrow.ListArray.from_arrays(offsets, np.concatenate(arrays))

    table = pyarrow.table(
        {
            "input_ids": lists([ids for ids, _ in tokens]),
            "sentence_ends": lists([ends for _, ends in tokens]),
            "text_hash": pyarrow.array(hashes, pyarrow.uint64()),
        }
    ).replace_schema_metadata({"counts": json.dumps(counts)})
    with write_with_checksum(path) as file:
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)


def select_documents(directory: Path, shards: int) -> tuple[np.ndarray, Counter[str]]:
    """
    Returns the metadata (documents,) of dtype DOCUMENT for the documents that are neither empty nor duplicates, and
    the sums of the counts in all shards.
    """
    counts: Counter[str] = Counter()
    parts, hashes, row = [np.empty(0, DOCUMENT)], [np.empty(0, np.uint64)], 0
    for shard in range(shards):
        with pyarrow.memory_map(str(directory / shard_name(shard))) as source:
            table = pyarrow.ipc.open_file(source).read_all()
            counts.update(json.loads(table.schema.metadata[b"counts"]))
            part = np.empty(len(table), DOCUMENT)
            part["row"] = np.arange(row, row + len(table))
            part["tokens"] = np.diff(as_arrays(table.column("input_ids").chunk(0))[1])
            part["sentences"] = np.diff(as_arrays(table.column("sentence_ends").chunk(0))[1])
            row += len(table)
            has_text = part["tokens"] > 0
            parts.append(part[has_text])
            hashes.append(table.column("text_hash").to_numpy()[has_text])
    _, first = np.unique(np.concatenate(hashes), return_index=True)
    return np.concatenate(parts)[np.sort(first)], counts
