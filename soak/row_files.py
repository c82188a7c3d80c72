"""Files with rows as many different programs write them, and faults in such files."""

import gzip
import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.parquet

from fixedbert.data.file_formats import QUOTED

TYPED = (".jsonl", ".json", ".parquet")  # formats in which a value can be a number or a list


@dataclass
class Draft:
    """A file that is not yet written. The parts of a text file are its header, records, brackets and blank lines."""

    suffix: str
    records: list[dict]
    parts: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # index of each record among the parts
    encoding: str = "utf-8"
    table: pyarrow.Table | None = None  # instead of parts, for parquet

    @property
    def unit(self) -> str:
        """What messages count: lines, or the rows of a file without lines."""
        is_array = self.suffix == ".json" and "".join(self.parts).lstrip("\ufeff \n").startswith("[")
        return "row" if self.suffix == ".parquet" or is_array else "line"

    def number(self, record: int) -> int:
        """Returns the line on which a record begins, or its index if the file has no lines."""
        if self.unit == "row":
            return record
        return 1 + "".join(self.parts[: self.places[record]]).count("\n")

    def write(self, path: Path, rng: random.Random) -> Path:
        """Writes the file, sometimes compressed, and returns its path."""
        path = path.with_name(f"{path.name}{self.suffix}")
        if self.table is not None:
            pyarrow.parquet.write_table(self.table, path, row_group_size=rng.choice((3, 1000)))
            return path
        content = "".join(self.parts).encode(self.encoding, "replace" if self.encoding == "latin-1" else "strict")
        if rng.random() < 0.1:
            path, content = path.with_name(path.name + ".gz"), gzip.compress(content)
        path.write_bytes(content)
        return path


def draft(suffix: str, records: list[dict], columns: list[str], rng: random.Random) -> Draft:
    """Draws one of the ways to write records to a file."""
    result = Draft(suffix, records)
    if suffix == ".parquet":
        result.table = table_of(records, columns, rng)
        return result
    writers = {".csv": write_separated, ".tsv": write_separated, ".txt": write_text}
    writers.get(suffix, write_json)(result, columns, rng)
    if rng.random() < 0.2:
        result.parts[0] = "\ufeff" + result.parts[0]
    if rng.random() < 0.2:
        result.parts[-1] = result.parts[-1].removesuffix("\n").removesuffix("\r")
    return result


def write_separated(file: Draft, columns: list[str], rng: random.Random):
    delimiter, ending = {".csv": ",", ".tsv": "\t"}[file.suffix], rng.choice(("\n", "\n", "\r\n"))
    endings = (ending, ending) if rng.random() < 0.8 else ("\n", "\r\n")
    style = rng.choice(("minimal", "all", "text", "bare") if file.suffix == ".csv" else ("minimal", "plain"))

    def cell(value: object) -> str:
        value = "" if value is None else str(value)
        special = '"' if file.suffix == ".tsv" else f'{delimiter}"\n\r'
        if style == "bare" and not value.startswith('"'):
            special = special.replace('"', "")
        is_quoted = style == "all" or (style == "text" and not re.fullmatch(r"-?[\d.]*", value))
        if style != "plain" and (is_quoted or {*special} & {*value} or (len(columns) == 1 and not value)):
            return '"' + value.replace('"', '""') + '"'
        return value

    pad = " " if rng.random() < 0.1 else ""
    file.parts = [delimiter.join(cell(name + pad) for name in columns) + ending]
    for record in file.records:
        if rng.random() < 0.05:
            file.parts.append(ending)
        file.places.append(len(file.parts))
        file.parts.append(delimiter.join(cell(record.get(name)) for name in columns) + rng.choice(endings))
    file.parts += [ending] * rng.choice((0, 0, 0, 2))


def write_text(file: Draft, columns: list[str], rng: random.Random):
    ending = rng.choice(("\n", "\r\n"))
    for record in file.records:
        file.parts += [rng.choice(("", " ")) + ending] * (rng.random() < 0.1)
        file.places.append(len(file.parts))
        file.parts.append(rng.choice(("", " ")) + record[columns[0]] + rng.choice(("", "  ")) + ending)


def write_json(file: Draft, columns: list[str], rng: random.Random):
    has_surrogates = any("\\ud" in json.dumps(record) and not is_encodable(record) for record in file.records)
    options = {"ensure_ascii": has_surrogates or rng.random() < 0.5}
    options["separators"] = rng.choice(((",", ":"), (", ", ": ")))
    is_array = file.suffix == ".json" and rng.random() < 0.6
    is_pretty, ending = is_array and rng.random() < 0.4, rng.choice(("\n", "\n", "\r\n"))
    if is_pretty:
        options["indent"] = 2
    if is_array:
        file.parts.append(rng.choice(("[", "[", "[\n", "\n[", " [")))
    for number, record in enumerate(file.records):
        names = rng.sample(columns, len(columns)) if rng.random() < 0.3 else columns
        absent = 0.5 if rng.random() < 0.2 else 0.0  # some programs leave out missing values
        kept = {name: record[name] for name in names if record.get(name) is not None or rng.random() >= absent}
        if not is_array and rng.random() < 0.05:
            file.parts.append(ending)
        file.places.append(len(file.parts))
        end = ("," if number < len(file.records) - 1 else "") + rng.choice(("", ending)) if is_array else ending
        file.parts.append(json.dumps(kept, **options).replace("\n", ending) + end)
    if is_array:
        file.parts.append("]" + rng.choice(("", ending)))


def is_encodable(record: dict) -> bool:
    try:
        return bool(json.dumps(record, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


def table_of(records: list[dict], columns: list[str], rng: random.Random) -> pyarrow.Table:
    arrays = []
    for name in columns:
        array = pyarrow.array([record.get(name) for record in records])
        if pyarrow.types.is_string(array.type):
            array = rng.choice((array, array.cast(pyarrow.large_string()), array.dictionary_encode()))
        elif pyarrow.types.is_int64(array.type) and all(abs(x or 0) < 100 for x in array.to_pylist()):
            array = array.cast(rng.choice((pyarrow.int8(), pyarrow.int32(), pyarrow.int64())))
        arrays.append(array)
    return pyarrow.table(arrays, names=columns)


# Faults of a text file. Each changes the draft and returns the number of the line, 0 for the whole file, or None if
# the file cannot have the fault.


def insert_nul(file: Draft, rng: random.Random) -> int | None:
    if file.suffix not in (".json", ".jsonl"):
        return None
    record = rng.randrange(len(file.records))
    part = file.parts[file.places[record]]
    at = rng.randrange(len(part.split("\n")[0]) or 1)
    number = 1 + "".join(file.parts[: file.places[record]]).count("\n")
    file.parts[file.places[record]] = part[:at] + "\0" + part[at:]
    return number


def use_latin(file: Draft, rng: random.Random) -> int | None:
    content = "".join(file.parts).lstrip("\ufeff")
    for number, line in enumerate(content.split("\n"), 1):
        try:
            line.encode("latin-1", "replace").decode()
        except UnicodeDecodeError:
            file.parts[0], file.encoding = file.parts[0].lstrip("\ufeff"), "latin-1"
            return number
    return None


def use_utf_16(file: Draft, rng: random.Random) -> int:
    file.encoding = rng.choice(("utf-16", "utf-16-le", "utf-16-be"))
    return 0


def use_carriage_returns(file: Draft, rng: random.Random) -> int | None:
    parts = [part.replace("\r\n", "\n") for part in file.parts]
    if "\n" not in "".join(parts).strip():
        return None
    file.parts = [part.replace("\n", "\r") for part in parts]
    return 0


def cut_quoted(file: Draft, rng: random.Random) -> int | None:
    number, last = file.number(len(file.records) - 1), file.places[-1]
    if file.suffix not in (".csv", ".jsonl") or '"' not in file.parts[last]:
        return None
    file.parts = [*file.parts[:last], file.parts[last][: file.parts[last].index('"') + 2].rstrip('"\n\r') + '"x']
    return number if not QUOTED.fullmatch(file.parts[-1]) else None


def repeat_column(file: Draft, rng: random.Random) -> int | None:
    if file.suffix in (".csv", ".tsv"):
        delimiter, header = {".csv": ",", ".tsv": "\t"}[file.suffix], file.parts[0]
        first = header.lstrip("\ufeff").rstrip("\r\n").split(delimiter)[0]
        if first.count('"') % 2 or header.count("\n") != 1:
            return None
        file.parts[0] = header.rstrip("\r\n") + delimiter + first + "\n"
        return 1
    part = file.parts[file.places[0]]
    if '"' not in part or "{" not in part:
        return None
    name = json.dumps([*file.records[0]][0])
    if name not in part:
        return None
    file.parts[file.places[0]] = part.replace("{", "{" + name + ": 1, ", 1)
    return 0 if file.unit == "row" else file.number(0)


def end_early(file: Draft, rng: random.Random) -> int | None:
    if file.suffix not in (".json", ".jsonl"):
        return None
    last, number = file.places[-1], file.number(len(file.records) - 1)
    part = file.parts[last].split("\n")[0].rstrip("\r,")
    if len(part) < 3 or file.unit == "row":
        number = 0
    file.parts = [*file.parts[:last], part[: rng.randrange(1, max(2, len(part)))]]
    return number


def keep_header(file: Draft, rng: random.Random) -> int:
    file.parts = file.parts[:1] if file.suffix in (".csv", ".tsv") else ["[]"] if file.suffix == ".json" else ["\n"]
    return 0


FAULTS = (insert_nul, use_latin, use_utf_16, use_carriage_returns, cut_quoted, repeat_column, end_early, keep_header)
