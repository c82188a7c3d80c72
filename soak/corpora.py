"""
Corpora in every format, as files, directories or glob patterns, with a known list of documents.

The truth is the list of documents that were written: the store must contain the different ones, in the order of the
files, with the tokens of each sentence, and count the others. A damaged file must be refused by name.
"""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
from transformers import BertTokenizer

from fixedbert.data.corpora import Corpus, CorpusReader
from fixedbert.data.store import Documents, prepare_store
from fixedbert.support.errors import InputError

from .trials import Trial

WORDS = "the cat dog house park mat bird song old loud runs sits sings near in on while".split()
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}
TEXT_FORMATS, ROW_FORMATS = (".txt", ".TXT"), (".jsonl", ".json", ".csv", ".tsv", ".parquet")
FORMATS = {
    "row": TEXT_FORMATS + ROW_FORMATS,
    "line": TEXT_FORMATS,
    "blank_line": TEXT_FORMATS,
    "sentence_lines": TEXT_FORMATS,
}
DAMAGES = ("not UTF-8", "UTF-16", "truncated", "no text column", "a broken link")
TOKENIZER = BertTokenizer(
    vocab={token: n for n, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS])}
)

Sentences = list[str]


def prepare(inputs: Path):
    pass


def sentence(rng: random.Random) -> str:
    words = rng.choices(WORDS, k=rng.randint(1, 9))
    nul = "\0" if rng.random() < 0.02 else ""
    return f"{' '.join(words).capitalize()}{nul}."


def draw_documents(rng: random.Random, earlier: list[Sentences], may_be_empty: bool) -> list[Sentences]:
    """Returns the documents of a file. Some are copies of earlier ones, and some are empty."""
    documents: list[Sentences] = []
    for _ in range(rng.randint(1, 6)):
        kind, known = rng.random(), [*filter(None, earlier + documents)]
        if kind < 0.2 and known:
            documents.append(rng.choice(known))
        elif kind < 0.3 and may_be_empty:
            documents.append([])
        else:
            documents.append([sentence(rng) for _ in range(rng.randint(1, 8))])
    return documents


def text_of(documents: list[Sentences], boundary: str, rng: random.Random) -> str:
    """Returns the content of a text file."""
    between = " " if boundary == "line" else "\n" if boundary == "sentence_lines" else rng.choice([" ", "\n"])
    after = "\n" if boundary == "line" else f"\n{rng.choice(['', ' ', chr(10)])}\n"
    text = after.join(between.join(document) for document in documents) + rng.choice(["", "\n", "\n\n"][:2])
    bom = "\ufeff" if rng.random() < 0.2 else ""
    return bom + (text.replace("\n", "\r\n") if rng.random() < 0.2 else text)


def rows_of(documents: list[Sentences], rng: random.Random) -> list[dict]:
    empty = ["", "  ", None]
    return [{"id": n, "text": " ".join(d) or rng.choice(empty)} for n, d in enumerate(documents)]


def table_of(rows: list[dict], suffix: str) -> bytes:
    """Returns the content of a file with rows in the format `suffix`."""
    if suffix == ".parquet":
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
        return sink.getvalue().to_pybytes()
    if suffix == ".json":
        return json.dumps(rows, indent=1).encode()
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    lines = io.StringIO()
    writer = csv.DictWriter(lines, rows[0], delimiter="\t" if suffix == ".tsv" else ",")
    writer.writeheader()
    writer.writerows(rows)
    return lines.getvalue().encode()


def write_file(directory: Path, number: int, boundary: str, earlier: list[Sentences], rng: random.Random):
    """Writes a file and returns its path and its documents."""
    suffix = rng.choice(FORMATS[boundary])
    documents = draw_documents(rng, earlier, may_be_empty=suffix in ROW_FORMATS and boundary == "row")
    if suffix in TEXT_FORMATS and boundary == "row":
        documents = documents[:1]
    if suffix in TEXT_FORMATS:
        content = text_of(documents, boundary, rng).encode()
    else:
        content = table_of(rows_of(documents, rng), suffix)
    compression = "" if suffix == ".parquet" else rng.choice([*COMPRESS])
    name = rng.choice(["", "deep/", "a/b/", "linked/"]) + f"{rng.randrange(1000)}-{number}{suffix}{compression}"
    path = directory / name
    if name.startswith("linked/") and not path.parent.exists():
        target = directory.with_name("elsewhere")
        target.mkdir()
        path.parent.symlink_to(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = rng.choice([0, rng.randint(0, len(content))])  # compressed files can have several parts
    path.write_bytes(COMPRESS[compression](content[:cut]) + COMPRESS[compression](content[cut:]))
    return path, documents


def add_ignored(directory: Path, rng: random.Random) -> int:
    """Adds hidden files and files in other formats, and returns their number."""
    names = rng.sample(["README.md", ".hidden.txt", ".cache/a.txt", "old.zip", "no_suffix"], rng.randint(0, 3))
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("Not this.")
    return len(names)


def damage(path: Path, kind: str) -> Path:
    """Damages a file and returns the path that the message must contain."""
    if kind == "a broken link":
        broken = path.with_name("broken")
        broken.symlink_to("nowhere")
        return broken
    if kind == "truncated":
        path = path.with_name(f"{path.name}.zst" if not path.name.endswith(tuple(COMPRESS)[1:]) else path.name)
        content = COMPRESS[path.suffix](b"The cat sits.\n" * 500)
        path.write_bytes(content[: len(content) // 2])
    elif kind == "no text column":
        path = path.with_name("other.jsonl")
        path.write_text('{"body": "The cat sits."}\n')
    else:
        path = path.with_name("encoded.txt")
        path.write_bytes("The cat sits. Café.\n".encode("latin-1" if kind == "not UTF-8" else "utf-16-le"))
    return path


def trial(number: int, rng: random.Random, directory: Path) -> Trial:
    boundary = rng.choice([*FORMATS])
    corpus_directory = directory / "corpus"
    corpus_directory.mkdir()
    written: dict[Path, list[Sentences]] = {}
    for file in range(rng.randint(1, 4)):
        earlier = [document for documents in written.values() for document in documents]
        path, documents = write_file(corpus_directory, file, boundary, earlier, rng)
        written[path] = documents
    ignored = add_ignored(corpus_directory, rng)
    damaged = damage(rng.choice([*written]), rng.choice(DAMAGES)) if rng.random() < 0.2 else None
    corpus = Corpus(str(corpus_directory), document_boundary=boundary)
    reproduction = f"python -m soak corpora --case {number}  # {boundary}: {', '.join(map(str, sorted(written)))}"
    try:
        reader = CorpusReader(corpus)
        store = prepare_store([corpus], TOKENIZER, store_dir=directory / "store")
    except InputError as error:
        if damaged and str(damaged.relative_to(corpus_directory)) in str(error):
            return Trial(reproduction, "damaged and refused")
        if not damaged and not any(document for documents in written.values() for document in documents):
            return Trial(reproduction, "empty and refused")
        return Trial(reproduction, "refused", f"refused with {error}")
    except Exception as error:
        return Trial(reproduction, "traceback", repr(error))
    if damaged:
        return Trial(reproduction, "accepted", f"{damaged.name} was accepted")
    if len(reader.ignored) != ignored:
        return Trial(reproduction, "accepted", f"{len(reader.ignored)} instead of {ignored} ignored files")
    truth = [document for path in sorted(written) for document in written[path]]
    return Trial(reproduction, f"{boundary}", difference(store, truth))


def difference(store: Documents, truth: list[Sentences]) -> str:
    """Returns the difference between a store and the documents that were written, or an empty string."""
    expected = list(dict.fromkeys(map(tuple, filter(None, truth))))
    counts = store.description["counts"]
    numbers = (len(truth), sum(not document for document in truth), len([*filter(None, truth)]) - len(expected))
    found = (counts["documents"], counts["empty_documents"], counts["duplicate_documents"])
    if found != numbers:
        return f"documents, empty and duplicate ones: {found} instead of {numbers}"
    if counts["removed_characters"] != sum(text.count("\0") for document in truth for text in document):
        return f"{counts['removed_characters']} removed characters"
    for number, document in enumerate(expected):
        ids = [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in document]
        ends = np.cumsum([len(sentence) for sentence in ids]).tolist()
        if store.tokens(number).tolist() != sum(ids, []) or store.sentence_ends(number).tolist() != ends:
            return f"document {number} is {TOKENIZER.decode(store.tokens(number))!r} instead of {document}"
    return ""
