"""Small stores for the tests, with tokens that tell where they come from."""

import json
from pathlib import Path

import numpy as np

from fixedbert.data.documents import Documents
from fixedbert.data.store import save_shard, used_documents
from fixedbert.support.checksums import seal, write_sealed


def store_of(
    folder: Path, *sentence_lengths: list[int], shard: int = 100, corpora: list[int] | None = None
) -> Documents:
    """Documents with sentences of these lengths, in shards; token 1000 d + i is the i-th of document d."""
    tokens = [
        (1000 * number + np.arange(sum(lengths)), np.cumsum(lengths).astype(np.int32))
        for number, lengths in enumerate(sentence_lengths)
    ]
    corpora = corpora or [0] * len(tokens)
    starts = range(0, len(tokens), shard)
    for place, start in enumerate(starts):
        part = slice(start, start + shard)
        hashes = list(range(start, start + len(tokens[part])))
        save_shard(folder / f"shard-{place:06}.arrow", tokens[part], hashes, corpora[part], {}, {})
    np.save(folder / "documents.npy", used_documents(folder, len(starts)))
    seal(folder / "documents.npy", folder / "documents.npy")
    write_sealed(folder / "store.json", json.dumps({"shards": len(starts)}))
    return Documents(folder)
