"""Documents of a prepared store (see store.py): their tokens and sentences, in memory-mapped Arrow files."""

import json
from pathlib import Path

import numpy as np
import pyarrow

from ..support.checksums import is_sealed
from ..support.files import reading

DOCUMENT = np.dtype([("row", "i8"), ("tokens", "i4"), ("sentences", "i4"), ("corpus", "i4")])


def as_arrays(column: pyarrow.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """Values and offsets of an Arrow list array, without a copy."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True)


def shard_name(number: int) -> str:
    return f"shard-{number:06}.arrow"


class Documents:
    """
    Random access to the tokens and sentences of the documents of a prepared store, in memory-mapped files.

    `len` is the number of documents, `table` has their lengths and corpora (documents,) of dtype DOCUMENT, and
    `description` the content of store.json.

    Args:
        verify: first read all files and compare them with their checksums.

    Raises:
        InputError: a file is missing or damaged.
    """

    def __init__(self, folder: str | Path, verify: bool = True):
        self.folder = Path(folder)
        with reading(self.folder, "remove it, and the same command prepares it anew", "not a whole store"):
            self.description = json.loads(self.checked("store.json", verify).read_bytes())
            self.table = np.load(self.checked("documents.npy", verify), mmap_mode="r")
            self.input_ids: list[tuple[np.ndarray, np.ndarray]] = []  # values and offsets of each shard
            self.sentence_ends: list[tuple[np.ndarray, np.ndarray]] = []
            rows = [0]
            for shard in range(self.description["shards"]):
                # The arrays keep the memory map open.
                source = pyarrow.memory_map(str(self.checked(shard_name(shard), verify)))
                batch = pyarrow.ipc.open_file(source).get_batch(0)
                self.input_ids.append(as_arrays(batch.column("input_ids")))
                self.sentence_ends.append(as_arrays(batch.column("sentence_ends")))
                rows.append(rows[-1] + len(batch))
        self.shard_starts = np.array(rows)

    def checked(self, name: str, verify: bool) -> Path:
        if verify and not is_sealed(self.folder / name):
            raise ValueError(f"{name} is missing, or not as it was written")
        return self.folder / name

    def __reduce__(self):  # for a worker process that is spawned, not forked
        return Documents, (self.folder, False)

    def __len__(self) -> int:
        return len(self.table)

    def _row(self, column: list[tuple[np.ndarray, np.ndarray]], document: int) -> np.ndarray:
        row = self.table["row"][document]
        shard = int(self.shard_starts.searchsorted(row, side="right")) - 1
        values, offsets = column[shard]
        row -= self.shard_starts[shard]
        return values[offsets[row] : offsets[row + 1]]

    def tokens(self, document: int) -> np.ndarray:
        """All token ids of a document, a view (tokens,)."""
        return self._row(self.input_ids, document)

    def ends(self, document: int) -> np.ndarray:
        """The number of tokens up to the end of each sentence of a document, a view (sentences,)."""
        return self._row(self.sentence_ends, document)
