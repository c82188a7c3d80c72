"""Creates small stores in which each token id encodes the document and the position."""

import json
from pathlib import Path

import numpy as np

from fixedbert.data.store import Documents, save_shard, select_documents, shard_name
from fixedbert.support.checksums import write_with_checksum


def make_store(directory: Path, *sentence_lengths: list[int], shard_size: int = 100) -> Documents:
    """Writes a store with one document per list of sentence lengths. Token i of document d has the id 1000 d + i."""
    directory = directory / "store"
    directory.mkdir()
    tokens = [
        (1000 * number + np.arange(sum(lengths)), np.cumsum(lengths).astype(np.int32))
        for number, lengths in enumerate(sentence_lengths)
    ]
    starts = range(0, len(tokens), shard_size)
    for number, start in enumerate(starts):
        part = slice(start, start + shard_size)
        save_shard(directory / shard_name(number), tokens[part], range(start, start + len(tokens[part])), {})
    with write_with_checksum(directory / "documents.npy") as path, open(path, "wb") as file:
        np.save(file, select_documents(directory, len(starts))[0])
    with write_with_checksum(directory / "store.json") as path:
        path.write_text(json.dumps({"corpora": ["made up"], "shards": len(starts)}))
    return Documents(directory)
