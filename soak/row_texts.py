"""Files with texts or text pairs, their labels, and the predictions for them."""

import csv
import math
import random
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from fixedbert.option_values import make
from fixedbert.options import GlueDataOptions
from fixedbert.tasks.texts import load_texts

from .row_cases import SURROGATE, Case, as_read, as_written, draw_text
from .row_files import FAULTS, TYPED, Draft, draft
from .row_labels import DrawnLabels

SPLITS = ("train",), ("test",), ("train", "validation"), ("train", "test"), ("train", "validation", "test")
QUIET = "--use_cpu --bf16 false --disable_tqdm true --output_dir out".split()


class TextFiles:
    """What the files of a case have in common, and their rows."""

    def __init__(self, rng: random.Random, directory: Path, plain: bool):
        self.rng, self.directory, self.plain = rng, directory, plain
        self.is_pair = rng.random() < 0.4
        known = ("sentence1", "sentence2") if self.is_pair else ("text",)
        other = ("Premise", "my text") if self.is_pair else (rng.choice(("Text", "größe", "a b")),)
        self.texts = rng.choice((known, known, other))
        self.names_texts = self.texts != known or rng.random() < 0.3
        self.splits = ("test",) if plain else rng.choice(SPLITS)
        self.labels = DrawnLabels(rng)
        self.count = rng.choice((7, 12, 25)) if rng.random() < 0.99 else 600
        self.bad_split = rng.choice(self.splits) if rng.random() < 0.35 else ""
        self.skip = bool(self.bad_split) and rng.random() < 0.3
        can_limit = "test" in self.splits and self.bad_split != "test"  # rows that are not drawn are not checked
        self.limit = rng.randint(1, self.count) if can_limit and rng.random() < 0.1 else None
        self.files: dict[str, Path] = {}
        self.truth: dict[str, list[dict]] = {}
        self.skipped: dict[str, dict] = {}
        self.refusals: list[str] = []
        self.notes = [self.labels.name]
        self.is_refused = False  # because of the values in the label columns
        for split in self.splits:
            self.write(split)

    def write(self, split: str):
        """Draws and writes the file of a split."""
        rng, labelled = self.rng, split != "test"
        suffix = self.format_of(labelled)
        columns = [*self.texts, *(self.labels.columns if labelled else ())]
        if suffix != ".txt":
            columns += rng.sample(("other", "", "note", "Unnamed: 0"), rng.randint(0, 2))
            rng.shuffle(columns)
        records = [{name: self.draw_cell(suffix) for name in columns} for _ in range(self.count)]
        if labelled:
            for record, values in zip(records, self.labels.draw(rng, self.count), strict=True):
                written = [as_written(value, suffix) for value in values]
                record |= dict(zip(self.labels.columns, written, strict=True))
        rows = [self.row(number, record, suffix, labelled) for number, record in enumerate(records)]
        is_bad = split == self.bad_split
        file = self.spoil(split, records, columns, suffix, rows) if is_bad else draft(suffix, records, columns, rng)
        self.files[split] = file.write(self.directory / split, rng)
        if is_bad and self.refusals:
            self.refusals = [str(self.files[split]), *self.refusals]
        elif suffix == ".txt":
            for number, row in enumerate(rows):
                row["row"] = file.number(number) - 1  # blank lines are no rows, but count
        self.truth[split] = rows

    def format_of(self, labelled: bool) -> str:
        formats = [".csv", ".tsv", ".jsonl", ".json", ".parquet"]
        if labelled and self.labels.name == "scores":  # pyarrow converts the integers among them to floats
            formats.remove(".parquet")
        if labelled and self.labels.typed:
            formats = [".jsonl", ".json"] + ([".parquet"] if self.labels.name != "types" else [])
        if not labelled and self.texts == ("text",):
            formats.append(".txt")
        return self.rng.choice(formats)

    def draw_cell(self, suffix: str) -> object:
        """Returns a text that a format can contain. In tsv, a quotation mark at the beginning can be ambiguous."""
        text = str(as_written(draw_text(self.rng, self.plain), suffix))
        return text.replace('"', "") or "one" if suffix == ".tsv" and text.startswith('"') else text

    def row(self, number: int, record: dict, suffix: str, labelled: bool) -> dict:
        """Returns the row that reading must give for a record."""
        row: dict = {f"sentence{n}": as_read(record[name], suffix) for n, name in enumerate(self.texts, 1)}
        row["row"] = number
        if labelled and self.labels.problem_type is not None:
            try:
                row["label"] = self.labels.label(tuple(as_read(record[name], suffix) for name in self.labels.columns))
            except ValueError:
                self.is_refused = True
        return row

    def spoil(self, split: str, records: list[dict], columns: list[str], suffix: str, rows: list[dict]) -> Draft:
        """Makes a record or the file invalid."""
        rng, can_spoil = self.rng, suffix != ".txt" and (len(columns) > 1 or suffix in TYPED)
        if suffix == ".parquet" or (can_spoil and (self.skip or rng.random() < 0.5)):
            read = [*self.texts, *(self.labels.columns if split != "test" else ())]
            index = self.spoil_record(records, read, suffix)
            self.notes.append(f"{split}: row {index} is {records[index]!r}"[:200])
            file = draft(suffix, records, columns, rng)
            if self.skip:
                self.skipped[split] = rows.pop(index)
            else:
                self.refusals = [f"{file.unit} {file.number(index)}"]
            return file
        self.skip = False
        file, fault = draft(suffix, records, columns, rng), rng.choice(FAULTS)
        line = fault(file, rng)
        self.notes.append(f"{split}: {fault.__name__}")
        if line is not None:
            self.refusals = [f"line {line}"] if line else [""]
        return file

    def spoil_record(self, records: list[dict], columns: list[str], suffix: str) -> int:
        """Makes a text or label invalid. Chooses a record whose label others have, so that all labels remain."""
        rng, last = self.rng, [str(record[columns[-1]]) for record in records]
        repeated = [number for number, label in enumerate(last) if last.count(label) > 1]
        index, name = rng.choice(repeated or range(len(records))), rng.choice(columns)
        value = records[index][name]
        if suffix == ".parquet":
            bad: list = [None, "", " "] if isinstance(value, str) else [None]
        else:
            bad = ["", " ", "  " if suffix == ".tsv" else "\u00a0\t"]
            bad += ["\0"] if name in self.labels.columns and name not in self.texts else []
        if suffix in (".jsonl", ".json"):
            bad += [None, {"a": 1}, SURROGATE, *((7, ["a"], True) if name in self.texts else ())]
            bad += [math.nan] if isinstance(value, float) else []
        records[index][name] = rng.choice(bad)
        return index

    @property
    def options(self) -> dict:
        options: dict = {f"{split}_file": str(file) for split, file in self.files.items()}
        options |= {"text_column_names": ",".join(self.texts) if self.names_texts else None}
        options |= {"max_predict_samples": self.limit}
        if self.splits != ("test",):
            options |= {"label_column_name": ",".join(self.labels.columns), "do_regression": self.labels.do_regression}
        return options | {"skip_bad_rows": self.skip or None}

    def read(self) -> dict[str, list[dict]]:
        (arguments,) = make({name: x for name, x in self.options.items() if x is not None}, GlueDataOptions)
        data = load_texts(None, arguments, self.splits)
        if data.labels and data.labels.problem_type != self.labels.problem_type:
            raise AssertionError(f"the problem type is {data.labels.problem_type}")
        for split, lost in self.skipped.items():
            found = data.skipped[split]
            if not self.is_refused and found != [lost["row"]]:
                raise AssertionError(f"{found} were skipped instead of {lost}")
        found = {split: rows.to_list() for split, rows in data.splits.items()}
        if self.limit is not None and "test" in found:
            self.keep_sample(found["test"])
        return found

    def keep_sample(self, found: list[dict]):
        """Removes the rows that were not drawn from the truth."""
        drawn = {row["row"] for row in found}
        self.truth["test"][:] = [row for row in self.truth["test"] if row["row"] in drawn]
        if len(found) != self.limit:
            raise AssertionError(f"{len(found)} rows were drawn instead of {self.limit}")

    def case(self) -> Case:
        case = Case(self.files, self.options, self.truth, self.read, self.refusals, notes=self.notes)
        if self.splits == ("test",):
            return case
        if self.is_refused and self.skip:
            for split in self.splits[: -1 if "test" in self.splits else None]:
                self.truth[split][:] = [row for row in self.truth[split] if "label" in row]
        has_bad_labels = self.labels.problem_type is None or (self.is_refused and not self.skip)
        case.may_refuse = self.labels.may_be_refused() or self.is_refused
        if has_bad_labels and not self.refusals:
            case.refusals = ["/" if self.is_refused else str(self.files[self.splits[0]])]
        elif self.refusals and (has_bad_labels or case.may_refuse):
            case.refusals = ["/"]  # whichever fault is found first
        return case


def draw_texts(rng: random.Random, directory: Path, models: Path, end_to_end: bool) -> Case:
    drawn = TextFiles(rng, directory, end_to_end)
    case = drawn.case()
    if end_to_end:
        model = models / rng.choice(("single", "several", "score"))
        flags = [f"--{name}={value}" for name, value in drawn.options.items() if value and value is not True]
        flags += ["--skip_bad_rows"] * drawn.skip
        case.command = ["glue", f"--model_name_or_path={model}", "--do_predict", "--max_seq_length=64", *flags, *QUIET]
        case.check = lambda output: wrong_predictions(output / "predictions.csv", model, drawn)
    return case


def wrong_predictions(file: Path, directory: Path, drawn: TextFiles) -> str:
    """Compares predictions.csv with the predictions of the model for each row alone."""
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    skipped = drawn.skipped.get("test")
    truth = sorted([*drawn.truth["test"], *([skipped] if skipped else [])], key=lambda row: row["row"])
    with open(file, newline="", encoding="utf-8") as opened:
        lines = list(csv.DictReader(opened))
    if len(lines) != (drawn.limit or len(truth)):
        return f"predictions.csv has {len(lines)} rows instead of {drawn.limit or len(truth)}"
    rows = {str(row["row"]): row for row in truth}
    for line in lines:
        row = rows.get(line["row"], {})
        empty = {name: "" for name in line if name.startswith("p")}
        for name, value in (empty if row is skipped else outputs(model, tokenizer, row)).items():
            if line[name] != value and abs(float(line[name]) - float(value)) > 1e-5 * max(1, abs(float(value))):
                return f"predictions.csv: {name} of row {row} is {line[name]} instead of {value}"
    return ""


@torch.no_grad()
def outputs(model, tokenizer, row: dict) -> dict[str, str]:
    """Returns the columns of predictions.csv for a row, from the model's outputs for this row alone."""
    texts = [row[name] for name in ("sentence1", "sentence2") if name in row]
    (logits,) = model(**tokenizer(*texts, truncation=True, max_length=64, return_tensors="pt")).logits
    if len(logits) == 1:
        return {"prediction": str(logits.item())}
    is_single = model.config.problem_type == "single_label_classification"
    probabilities = logits.softmax(0) if is_single else logits.sigmoid()
    names = model.config.id2label.values()
    return {f"probability_{name}": str(p.item()) for name, p in zip(names, probabilities, strict=True)}
