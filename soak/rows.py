"""
Draws files with texts, pairs, words or questions, reads them, and compares the result with what was written.

The truth is known from the grammar: the rows that a file contains, or the line that must be refused. One case in fifty
runs a command with a small model and compares its predictions with those for each row alone.
"""

import csv
import io
import json
import math
import random
import re
import traceback
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer, BertTokenizer

import fixedbert
from fixedbert.data.file_formats import QUOTED
from fixedbert.option_values import make
from fixedbert.options import GlueDataOptions
from fixedbert.support.errors import InputError
from fixedbert.tasks.labels import MULTI, REGRESSION, SINGLE
from fixedbert.tasks.questions import load_squad
from fixedbert.tasks.texts import load_texts
from fixedbert.tasks.words import load_words

from .children import MAX_MESSAGE_LENGTH, command, in_child
from .row_files import FAULTS, TYPED, Draft, draft
from .runs import PIECES, WORDS
from .trials import Trial

END_TO_END = 50  # one case in this many runs a command
SPECIAL = (
    "é naïve Größe 日本 🙂 e\u0301 \u0627\u0644 \u2028 \x85 \x0b \x1c \u200b \u00a0 x\ufeffy \" ' , ; | \\ \\n # =1+2 5\" NA "
    "null -1 <br> &amp; \t \n \r\n \r 1,5"
).split(" ") + ["", "  ", '"quoted"', "\n\n", '""']
WHOLE = ("NA", "null", "None", "nan", "0", "1.5", "true", "-", ".", "N/A")
NAMES = (
    ("yes", "no"), ("positive", "negative", "neutral"), ("É", "è", "ü"), ("B-PER", "I-PER", "O"), ("a b", "a,b", 'a"b'),
    ("n/a", "null", "None"), ("日本", "中国"), ("x" * 70, "y" * 70), ("A1", "B2", "C3"), ("01", "02", "10"), ("1E1", "A1"),
    ("1:2", "3:4"), ("2024-01-01", "2024-01-02"), ("nan", "deu", "eng"), ("true", "false"), ("e\u0301", "a\u0301"),
    ("1e", "2e"), ("e1", "e2"), (".", ","), ("+", "-"), ("1%", "2%"), ("1/2", "3/4"), ("A", "a"), ("1.2.3", "1.2.4"),
)  # fmt: skip


@dataclass
class Expected:
    """
    What reading a case must give.

    Attributes:
        rows: The rows of each split.
        refusals: Texts that the message of a refusal must contain. Empty if the files must be read.
        may_refuse: Whether a refusal is right even though the rows are known.
    """

    rows: dict[str, list[dict]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    may_refuse: bool = False


@dataclass
class Case:
    """Files, the options to read them, and what reading them must give. `command` predicts for the test split."""

    files: dict[str, Path]
    options: dict
    expected: Expected
    read: Callable[[], dict[str, list[dict]]]
    command: list[str] = field(default_factory=list)
    check: Callable[[Path], str] | None = None  # takes the output directory of the command and returns a fault
    notes: list[str] = field(default_factory=list)

    @property
    def reproduction(self) -> str:
        shown = []
        for split, file in self.files.items():
            content = file.read_bytes() if file.exists() else b""
            shown.append(f"  {split}: {file} {content[:300]!r}{'...' if len(content) > 300 else ''}")
        options = {name: value for name, value in self.options.items() if value is not None}
        return "\n".join([f"  {options} {' '.join(self.notes)}", *shown, f"  {' '.join(self.command)}"])


# --- Texts and labels ---


def draw_text(rng: random.Random, plain: bool = False) -> str:
    """Returns a text that is not blank. `plain` texts consist of words of the tokenizer."""
    words = rng.choices(WORDS, k=rng.randint(1, 8))
    if plain:
        return " ".join(words)
    if rng.random() < 0.05:
        return rng.choice(WHOLE)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        words.insert(rng.randint(0, len(words)), rng.choice(SPECIAL))
    if rng.random() < 0.003:
        words *= 20_000
    text = rng.choice((" ", " ", "")).join(words).replace("\n\ufeff", "\n").lstrip("\ufeff")
    return text if text.strip() else "one"


def as_written(value: object, suffix: str) -> object:
    """Returns a value as the format can contain it: csv and tsv have only strings, and a line of a text file no ends."""
    if isinstance(value, str) and suffix == ".tsv":
        return re.sub(r"[\t\r\n]", " ", value)
    if isinstance(value, str) and suffix == ".txt":
        return re.sub(r"[\r\n]", " ", value).replace("\ufeff", "").strip() or "one"
    return value


def as_read(value: object, suffix: str) -> object:
    """Returns what reading gives for a value: in csv and tsv a string, in which the line ends CRLF become LF."""
    if suffix not in (".csv", ".tsv"):
        return value
    return None if value is None else str(value).replace("\r\n", "\n")


@dataclass
class LabelKind:
    """
    Kinds of labels in a column.

    Attributes:
        draw: Returns the values for a number of rows.
        problem_type: How they must be interpreted; None if they must be refused unless `do_regression` is set.
        typed: Whether only formats with numbers and lists can contain them.
    """

    draw: Callable[[random.Random, int], list]
    problem_type: str | None
    typed: bool = False


def several(values: list) -> Callable[[random.Random, int], list]:
    """Returns a function that draws from values so that each occurs."""

    def draw(rng: random.Random, count: int) -> list:
        drawn = [*values, *rng.choices(values, k=max(0, count - len(values)))][:count]
        rng.shuffle(drawn)
        return drawn

    return draw


def of(*choices: tuple) -> Callable[[random.Random, int], list]:
    """Returns a function that draws labels from one of several sets."""
    return lambda rng, count: several([*rng.choice(choices)])(rng, count)


def scores(rng: random.Random, count: int) -> list:
    drawn: list[float] = [round(rng.uniform(-3, 5), rng.choice((1, 2, 4))) for _ in range(count)]
    drawn[rng.randrange(count)] = rng.choice((0.5, 2.25, 1e-5))
    return [rng.choice((value, value, round(value))) for value in drawn] if rng.random() < 0.2 else drawn


def lists_of(rng: random.Random, count: int) -> list:
    names = [*rng.choice(NAMES)]
    drawn = [rng.sample(names, rng.randint(0, len(names))) for _ in range(count)]
    return [names[:1], names[1:2], *drawn][:count]


LABELS = {
    "names": LabelKind(of(*NAMES), SINGLE),
    "integers": LabelKind(of((0, 1), (0, 1, 2), (1, 2, 3, 4, 5), (9, 10, 200), (-2, 2)), SINGLE),
    "booleans": LabelKind(of((True, False)), SINGLE),
    "scores": LabelKind(scores, REGRESSION),
    "lists": LabelKind(lists_of, MULTI, typed=True),
    "lists of integers": LabelKind(lambda rng, count: [[0], [1], [0, 2], [1, 2, 0], []][:count] * 9, MULTI, typed=True),
    "whole floats": LabelKind(of((0.0, 1.0), (1.0, 2.0, 3.0), (0.0, 5.0), (1, 2.0)), None),
    "exponents": LabelKind(of(("1E1", "1E2", "2E1"), ("1e0", "2e0"), ("0E1", "1E1", "5E3")), None),
    "many exponents": LabelKind(lambda rng, count: [f"{n % 9 + 1}E{n // 9 + 1}" for n in range(count)] * 2, None),
    "decimal commas": LabelKind(of(("1,5", "2,0", "3,25"), ("0,5", "1"), ("1.000,5", "2,5"), ("1,234.5", "0.5")), None),
    "lists of scores": LabelKind(lambda rng, count: [[0.5, 1.5], [2.0]] * count, None, typed=True),
    "different": LabelKind(lambda rng, count: [f"a{n}" for n in range(count)], None),
    "numbers and text": LabelKind(of(("0.5", "nan", "1.25"), ("1", "inf", "2"), ("1.5", "-Infinity", "2")), None),
    "variants of booleans": LabelKind(of(("true", "True", "False"), ("TRUE", "true", "false")), None),
    "types": LabelKind(of((True, 1, 0), (1, False)), None, typed=True),
    "padded": LabelKind(of((" yes", "yes", "no "), ("a ", "a", "b")), SINGLE),
}
FLAGS = ((0, 1), (True, False), ("0", "1"), ("True", "False"), (0.0, 1.0), ("0.0", "1.0"), (0, 1.0))
ALWAYS_REFUSED = ("lists of scores", "different")


def parsed(value: object, problem_type: str) -> object:
    """Returns the label for a value in a file."""
    if problem_type == REGRESSION:
        return float(value)  # type: ignore[arg-type]
    if isinstance(value, list):
        return [parsed(item, SINGLE) for item in value]
    return unicodedata.normalize("NFC", str(value)).strip()


# --- Texts and pairs ---


def spoil(records: list[dict], columns: list[str], rng: random.Random, suffix: str, has_numbers: bool) -> int | None:
    """Makes one record invalid, and returns its index. `columns` are its texts, and its label if there is one."""
    index, typed = rng.randrange(len(records)), suffix in TYPED
    record, name = records[index], rng.choice(columns)
    bad: list = ["", " ", "\u00a0\t" if suffix != ".tsv" else "  "]
    if typed:
        bad += [None]
    if typed and suffix != ".parquet":
        bad += [{"a": 1}, "x\ud83d"]
        bad += [7, ["a"], True] if name in columns[:1] else []
        bad += [math.nan] if has_numbers else []
    if suffix == ".parquet":
        bad = [None] if has_numbers or not isinstance(record[name], str) else ["", " ", None]
    record[name] = rng.choice(bad)
    return index


def draw_texts(rng: random.Random, directory: Path, inputs: Path, end_to_end: bool) -> Case:
    is_pair = rng.random() < 0.4
    kinds = ("train",), ("test",), ("train", "validation"), ("train", "test"), ("train", "validation", "test")
    splits = ("test",) if end_to_end else rng.choice(kinds)
    known = ("sentence1", "sentence2") if is_pair else ("text",)
    texts = rng.choice((known, known, ("Premise", "my text") if is_pair else (rng.choice(("Text", "größe", "a b")),)))
    name = rng.choice([*LABELS, "flags", "names", "integers", "scores"])
    kind = LABELS.get(name)
    do_regression = rng.choice((None, None, None, True, False)) if name not in ALWAYS_REFUSED else None
    label_columns = ("l1", "l2", "l 3")[: rng.randint(2, 3)] if kind is None else (rng.choice(("label", "Label", "y")),)
    ids = tuple(rng.sample(("id", "key", "nr."), rng.randint(0, 2))) if "test" in splits else ()
    count = rng.choice((5, 7, 12, 25)) if rng.random() < 0.99 else 600
    typed = bool(kind and kind.typed)
    flags = rng.choice(FLAGS)
    files: dict[str, Path] = {}
    notes, places, expected = [name], list[str](), Expected()
    spoiled_split = rng.choice(splits) if rng.random() < 0.35 else ""
    skip = spoiled_split != "" and rng.random() < 0.3
    skipped: dict[str, int] = {}
    problem_type = MULTI if kind is None else kind.problem_type
    if kind is not None and do_regression is not None and not typed:
        problem_type = REGRESSION if do_regression else SINGLE
    if kind is not None and typed and do_regression:
        problem_type = None
    if kind is None and do_regression:
        problem_type = None
    refuse_label = False
    for split in splits:
        labelled = split != "test"
        formats = [".jsonl", ".json", ".parquet"] + ([] if typed and labelled else [".csv", ".tsv"])
        formats += [".txt"] if split == "test" and not is_pair and not ids and texts == ("text",) else []
        suffix = rng.choice(formats)
        if labelled and suffix == ".parquet" and name in ("types", "whole floats", "scores", "flags"):
            suffix = ".jsonl"  # pyarrow converts mixed columns
        extras = rng.sample(("other", "", "note", "Unnamed: 0"), rng.randint(0, 2)) if suffix != ".txt" else []
        columns = [*texts, *(label_columns if labelled else ()), *(ids if split == "test" else ()), *extras]
        if suffix != ".txt":
            rng.shuffle(columns)
        records: list[dict] = [
            {column: as_written(draw_text(rng, end_to_end), suffix) for column in columns} for _ in range(count)
        ]
        for record in records:
            for column in ids if split == "test" else ():
                values = ["007", "a,b", "x y", rng.randint(0, 10**12), None, 'q"', "é"]
                values += ["l1\nl2", "r\rs"] if suffix in (".csv", *TYPED) else []
                values += [True, 0.5, "x\ud83d"] if suffix in (".jsonl", ".json") else []
                if suffix == ".parquet":
                    values = ["007", "a,b", None, "x\ry", 'q"']
                record[column] = rng.choice(values)
        if labelled and kind is None:
            for record in records:
                record |= {column: rng.choice(flags) for column in label_columns}
        elif labelled and kind is not None:
            drawn = kind.draw(rng, count) if split == "train" else rng.choices(train_values, k=count)
            train_values = drawn
            for record, value in zip(records, drawn, strict=False):
                record[label_columns[0]] = value
        if suffix == ".tsv":  # a text in quotation marks can only be told from a quoted field by the other rows
            for record in records:
                record |= {
                    column: value.replace('"', "") or "one"
                    for column, value in record.items()
                    if isinstance(value, str) and QUOTED.fullmatch(value)
                }
        truth: list[dict] = []
        for number, record in enumerate(records):
            row = {f"sentence{n}": as_read(record[column], suffix) for n, column in enumerate(texts, 1)}
            row["row"] = number
            if labelled and problem_type is not None:
                values = [as_read(record[column], suffix) for column in label_columns]
                if kind is None:
                    set_flags = [str(value) in ("1", "1.0", "True") for value in values]
                    row["label"] = [c for c, flag in zip(label_columns, set_flags, strict=True) if flag]
                else:
                    try:
                        row["label"] = parsed(values[0], problem_type)
                    except ValueError:
                        refuse_label = True
            if split == "test" and ids:
                values = [as_read(record.get(column), suffix) for column in ids]
                row["ids"] = ["" if value is None else str(value) for value in values]
            truth.append(row)
        fault = None
        if split == spoiled_split:
            number: int | None
            if skip or rng.random() < 0.5 or suffix == ".parquet":
                if suffix == ".txt" or (len(columns) == 1 and suffix in (".csv", ".tsv")):
                    skip, index = False, None
                else:
                    spoilable = [*texts, *(label_columns if labelled else ())]
                    has_numbers = name in ("scores", "whole floats")
                    index = spoil(records, spoilable, rng, suffix, has_numbers)
                if index is not None:
                    notes.append(f"{split}: row {index} is {records[index]!r}"[:200])
                file = draft(suffix, records, columns, rng)
                if index is not None and skip:
                    skipped[split] = index
                elif index is not None:
                    places.append(f"{file.unit} {file.number(index)}")
            else:
                file = draft(suffix, records, columns, rng)
                fault = rng.choice(FAULTS)
                number = fault(file, rng)
                notes.append(f"{split}: {fault.__name__}")
                if number is not None:
                    places.append(f"line {number}" if number else "")
        else:
            file = draft(suffix, records, columns, rng)
        files[split] = file.write(directory / split, rng)
        if suffix == ".txt" and fault is None:
            for number, row in enumerate(truth):
                row["row"] = file.number(number) - 1
        expected.rows[split] = truth
    has_labels = any(split != "test" for split in splits)
    if places:
        expected.refusals = [str(files[spoiled_split]), places[0]]
    elif has_labels and (problem_type is None or refuse_label):
        expected.refusals = [str(files[splits[0]])]
    if has_labels and places and (problem_type is None or refuse_label):
        expected.refusals = ["/"]  # whichever is found first
    is_odd = name in ("types", "lists of integers", "padded") or (name in ("many exponents", "different") and count < 12)
    expected.may_refuse = is_odd or any("\ud83d" in str(row.get("ids")) for row in expected.rows.get("test", ()))
    if has_labels and kind is not None and problem_type == SINGLE and not places:
        classes = {row["label"] for row in expected.rows[splits[0]]}
        expected.may_refuse |= len(classes) == count or (count >= 20 and len(classes) > 0.9 * count)
        expected.may_refuse |= name == "numbers and text" or (name == "scores" and do_regression is False)
    expected.may_refuse |= (name == "names" and do_regression is True) or (typed and do_regression is not None)
    options = {f"{split}_file": str(file) for split, file in files.items()}
    options |= {"text_column_names": ",".join(texts) if texts != known or rng.random() < 0.3 else None}
    options |= {"label_column_name": ",".join(label_columns), "id_column_name": ",".join(ids) or None}
    options |= {"do_regression": do_regression, "skip_bad_rows": skip}
    if splits == ("test",):
        options |= {"do_regression": None}
        del options["label_column_name"]

    def read() -> dict[str, list[dict]]:
        (arguments,) = make({name: x for name, x in options.items() if x is not None}, GlueDataOptions)
        data = load_texts(None, arguments, splits)
        if (has_labels and data.labels and data.labels.problem_type) != (has_labels and problem_type):
            raise AssertionError(f"the problem type is {data.labels and data.labels.problem_type}")
        for split, index in skipped.items():
            lost = expected.rows[split].pop(index)
            if [row["row"] for row in data.skipped[split]] != [lost["row"]]:
                raise AssertionError(f"skipped {data.skipped[split]} instead of {lost}")
        return {split: rows.to_list() for split, rows in data.splits.items()}

    case = Case(files, options, expected, read, notes=notes)
    if end_to_end:
        model = inputs / rng.choice(("single", "several", "score"))
        flags_given = [f"--{name}={x}" for name, x in options.items() if x not in (None, False)]
        flags_given += ["--skip_bad_rows"] * skip
        case.command = ["glue", "--model_name_or_path", str(model), "--do_predict", "--max_seq_length", "64"]
        case.command += [*flags_given, "--use_cpu", "--bf16", "false", "--disable_tqdm", "true", "--output_dir", "out"]
        case.check = lambda out: wrong_predictions(out, model, ids, expected.rows["test"], skipped.get("test"))
    return case


def wrong_predictions(output: Path, directory: Path, ids: tuple, truth: list[dict], skipped: int | None) -> str:
    """Compares predictions.csv with the predictions of the model for each row alone."""
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    tokenizer, names = AutoTokenizer.from_pretrained(directory), list(model.config.id2label.values())
    with open(output / "predictions.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if len(lines) != len(truth):
        return f"predictions.csv has {len(lines)} rows instead of {len(truth)}"
    for number, (line, row) in enumerate(zip(lines, truth, strict=True)):
        if line["row"] != str(row["row"]) or [line[name] for name in ids] != row.get("ids", []):
            return f"row {number} of predictions.csv has the keys {list(line.values())[:4]} instead of {row}"
        if number == skipped:
            if line.get("prediction", line.get("prediction_yes")):
                return f"predictions.csv has a prediction for the skipped row {number}"
            continue
        texts = [row[name] for name in ("sentence1", "sentence2") if name in row]
        with torch.no_grad():
            encoded = tokenizer(*texts, truncation=True, max_length=64, return_tensors="pt")
            (logits,) = model(**encoded).logits
        if directory.name == "score":
            expected = {"prediction": logits[0].item()}
        else:
            probabilities = logits.softmax(0) if directory.name == "single" else logits.sigmoid()
            expected = {f"probability_{name}": p.item() for name, p in zip(names, probabilities, strict=True)}
        for name, value in expected.items():
            if abs(float(line[name]) - value) > 1e-5 * max(1, abs(value)):
                return f"row {number} of predictions.csv: {name} is {line[name]} instead of {value:.6f} ({row})"
    return ""


# --- Words ---


def draw_words(rng: random.Random, directory: Path, inputs: Path, end_to_end: bool) -> Case:
    suffix = rng.choice(TYPED)
    column, label = rng.choice(("tokens", "tokens", "words")), rng.choice(("ner_tags", "labels", "my tags", None))
    tags = rng.choice((["O", "B-PER", "I-PER"], [0, 1, 2], ["NOUN", "VERB"]))
    records, truth = [], []
    for row in range(rng.choice((4, 9, 20))):
        words = [as_written(draw_text(rng), ".txt") for _ in range(rng.randint(1, 7))]
        if rng.random() < 0.1:
            words[rng.randrange(len(words))] = ""
        missing = [None, -100] if not isinstance(tags[0], str) else [None] if suffix == ".parquet" else [None, -100, "-100"]
        labels = [rng.choice([*tags, *tags, rng.choice(missing)]) for _ in words]
        records.append({column: words, "other": rng.randint(0, 9)} | ({label: labels} if label else {}))
        names = ["" if name in (None, -100, "-100") else str(name) for name in labels]
        truth.append({"words": words, "row": row} | ({"labels": names} if label else {}))
    expected, notes = Expected({"words": truth}), ["words"]
    number = None
    if rng.random() < 0.3:
        number = rng.randrange(len(records))
        words = records[number][column]
        bad = [lambda: records[number].update({column: []}), lambda: words.__setitem__(0, None)]
        if label:
            bad += [lambda: records[number][label].pop()]
        if suffix != ".parquet":
            bad += [lambda: words.__setitem__(0, 7), lambda: words.__setitem__(-1, "x\ud83d")]
            bad += [lambda: records[number].update({column: "a text"}), lambda: words.__setitem__(0, ["a"])]
            bad += [lambda: records[number].update({column: {"a": 1}})]
            if label:
                bad += [lambda: records[number][label].__setitem__(0, ["a"]), lambda: records[number].update({label: "O"})]
                bad += [lambda: records[number][label].__setitem__(0, "x\ud83d")]
                bad += [lambda: records[number][label].__setitem__(0, {"a": 1})]
        rng.choice(bad)()
        notes.append(f"row {number} is {records[number]!r}")
    columns = [*records[0]]
    rng.shuffle(columns)
    file = draft(suffix, records, columns, rng)
    place = None if number is None else f"{file.unit} {file.number(number)}"
    if number is None and rng.random() < 0.3 and suffix != ".parquet":
        fault = rng.choice(FAULTS)
        notes.append(fault.__name__)
        if (line := fault(file, rng)) is not None:
            place = f"line {line}" if line else ""
    path = file.write(directory / "words", rng)
    if place is not None:
        expected.refusals = [str(path), place]
    own_label = label if label == "my tags" else None

    def read() -> dict[str, list[dict]]:
        return {"words": load_words(str(path), column, own_label).to_list()}

    return Case({"words": path}, {"column": column, "label": own_label}, expected, read, notes=notes)


# --- Questions ---


def draw_question(rng: random.Random, number: int, plain: bool) -> dict:
    context = " ".join(draw_text(rng, plain) for _ in range(rng.randint(1, 3)))
    answers = []
    for _ in range(rng.choice((0, 1, 1, 3))):
        begin = rng.randrange(len(context))
        end = min(len(context), begin + rng.randint(1, 9))
        if context[begin:end].strip():
            answers.append((context[begin:end], begin))
    return {"id": f"q{number}", "context": context, "question": draw_text(rng, plain), "answers": answers}


def draw_questions(rng: random.Random, directory: Path, inputs: Path, end_to_end: bool) -> Case:
    form = rng.choice(("squad", "squad", "data", "list", "articles", ".jsonl", ".json", ".parquet", ".csv"))
    answered = not end_to_end and form != ".csv" and rng.random() < 0.6
    questions = [draw_question(rng, number, end_to_end) for number in range(rng.choice((3, 7)))]
    ids = "none" if not answered and rng.random() < 0.15 else rng.choice(("strings", "strings", "integers", "hex"))
    for number, question in enumerate(questions):
        question["id"] = {"integers": number, "hex": f"{rng.getrandbits(96):024x}", "none": None}.get(ids, question["id"])
    truth = [
        {"id": str(number) if q["id"] is None else str(q["id"]), "context": q["context"], "question": q["question"],
         "answers": {"text": [t for t, _ in q["answers"]], "answer_start": [s for _, s in q["answers"]]}}
        for number, q in enumerate(questions)
    ]  # fmt: skip
    if not answered and form != "squad":
        for row in truth:
            row["answers"] = {"text": [], "answer_start": []}
    expected, notes, bad = Expected({"questions": truth}), [form, ids], None
    if rng.random() < 0.3:
        bad = rng.randrange(len(questions))
        spoiled = questions[bad]
        names = ["question", "context", "id"] + (["answers"] * 3 if answered else [])
        name = rng.choice(names)
        if name == "id" and ids != "none":
            bad = max(1, bad)
            questions[bad]["id"] = questions[0]["id"]
        elif name == "answers":
            shift = rng.choice((1, 1000, -1))
            spoiled["answers"] = [("zzz", 0), *spoiled["answers"]] if rng.random() < 0.5 else [("z", shift)]
        elif name in ("question", "context"):
            spoiled[name] = rng.choice(("", " ", *((None, "x\ud83d", 7) if form not in (".csv", ".parquet") else ())))
            spoiled["answers"] = []
        else:
            bad = None
        notes.append(f"question {bad}: {name}")

    def fields_of(question: dict, with_context: bool) -> dict:
        row = {} if question["id"] is None else {"id": question["id"]}
        row |= {"question": question["question"]} | ({"context": question["context"]} if with_context else {})
        if not answered and form != "squad":
            return row
        texts, starts = [text for text, _ in question["answers"]], [start for _, start in question["answers"]]
        official = form == "squad" or form == "articles"
        as_list = official or (form != ".parquet" and rng.random() < 0.3)
        pairs = [{"text": text, "answer_start": start} for text, start in question["answers"]]
        row["answers"] = pairs if as_list else {"text": texts, "answer_start": starts}
        if official and rng.random() < 0.5:
            row["is_impossible"] = not texts
        return row

    place = ""
    if form.startswith("."):
        records = [fields_of(question, True) for question in questions]
        columns = [*records[0]]
        rng.shuffle(columns)
        if form == ".csv":
            for question in truth:
                question |= {name: as_read(question[name], form) for name in ("context", "question", "id")}
        file = draft(form, records, columns, rng)
        if bad is not None:
            place = f"{file.unit} {file.number(bad)}"
        elif rng.random() < 0.3 and form != ".parquet":
            fault = rng.choice(FAULTS)
            if (line := fault(file, rng)) is not None:
                bad, place = 0, f"line {line}" if line else ""
                notes.append(fault.__name__)
    else:
        if form == "data" or form == "list":
            tree: object = [fields_of(question, True) for question in questions]
        else:
            groups = [questions[:2], questions[2:]]
            tree = [
                {"title": "t", "paragraphs": [{"context": q["context"], "qas": [fields_of(q, False)]} for q in group]}
                for group in groups
            ]
        if form in ("data", "squad"):
            tree = {"version": "1.1", "data": tree}
        options: dict = {"indent": rng.choice((None, None, 1))}
        options |= {"ensure_ascii": rng.random() < 0.5 or not is_encodable_tree(tree)}
        content = json.dumps(tree, **options)
        file = Draft(".json", [], [rng.choice(("", "", "\ufeff", "\n")) + content + rng.choice(("", "\n"))])
    path = file.write(directory / "questions", rng)
    if bad is not None:
        expected.refusals = [str(path), place]
    options = {"version_2_with_negative": True, "answered": answered}

    def read() -> dict[str, list[dict]]:
        return {"questions": load_squad(str(path), **options).to_list()}

    case = Case({"questions": path}, options, expected, read, notes=notes)
    if end_to_end:
        case.command = ["squad", "--model_name_or_path", str(inputs / "questions"), "--test_file", str(path)]
        case.command += "--do_predict --max_seq_length 64 --doc_stride 16 --n_best_size 100 --use_cpu".split()
        case.command += "--bf16 false --disable_tqdm true --output_dir out".split()
        case.command += ["--version_2_with_negative"] * (form == "squad")
        case.check = lambda out: wrong_answers(out, inputs / "questions", truth, form == "squad")
    return case


def is_encodable_tree(tree: object) -> bool:
    try:
        return bool(json.dumps(tree, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


def wrong_answers(output: Path, directory: Path, truth: list[dict], may_be_empty: bool) -> str:
    """Compares the predicted answers with the best span for each question alone, if its context fits into a window."""
    model = AutoModelForQuestionAnswering.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    predictions = json.loads((output / "predict_predictions.json").read_text())
    best = json.loads((output / "predict_nbest_predictions.json").read_text())
    if [*predictions] != [row["id"] for row in truth]:
        return f"the predictions have the ids {[*predictions]}"
    for row in truth:
        encoded = tokenizer(row["question"], row["context"], return_offsets_mapping=True, return_tensors="pt")
        if encoded["input_ids"].shape[1] > 64:
            continue
        (offsets,), parts = encoded.pop("offset_mapping").tolist(), encoded.sequence_ids()
        with torch.no_grad():
            outputs = model(**encoded)
        start, end = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
        inside = [token for token, part in enumerate(parts) if part == 1]
        spans = [(start[i] + end[j], i, j) for i in inside for j in inside if i <= j < i + 30]
        _, i, j = max(spans)
        answer = row["context"][offsets[i][0] : offsets[j][1]]
        found = next(one["text"] for one in best[row["id"]] if one["text"])
        if found != answer or (not may_be_empty and predictions[row["id"]] != answer):
            return f"question {row['id']}: the answer is {predictions[row['id']]!r} instead of {answer!r}"
    return ""


# --- Trials ---

KINDS = {"texts": draw_texts, "words": draw_words, "questions": draw_questions}


def prepare(inputs: Path):
    """Writes a small model for each kind of prediction."""
    if (inputs / "questions").exists():
        return
    names = {"single": 3, "several": 3, "score": 1, "questions": 2}
    for name, count in names.items():
        torch.manual_seed(count)
        config = fixedbert.FixedHeadBertConfig(
            vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=1, num_attention_heads=5, attention_head_size=6,
            intermediate_size=37, max_position_embeddings=64, initializer_range=0.3, num_labels=count,
        )  # fmt: skip
        if name in ("single", "several"):
            config.id2label, config.label2id = {0: "yes", 1: "no", 2: "é"}, {"yes": 0, "no": 1, "é": 2}
            config.problem_type = MULTI if name == "several" else SINGLE
        is_question = name == "questions"
        cls = fixedbert.FixedHeadBertForQuestionAnswering if is_question else fixedbert.FixedHeadBertForSequenceClassification
        cls(config).save_pretrained(inputs / name)
        tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
        tokenizer.save_pretrained(inputs / name)
    for module in ("fine_tuning.glue", "fine_tuning.squad"):
        __import__(f"fixedbert.{module}")  # once instead of in every child process


def trial(number: int, rng: random.Random, directory: Path) -> Trial:
    kind = rng.choice(("texts", "texts", "texts", "texts", "words", "questions", "questions"))
    end_to_end = number % END_TO_END == END_TO_END - 1
    if end_to_end:
        kind = rng.choice(("texts", "texts", "questions"))
    case = KINDS[kind](rng, directory, directory.parent / "inputs", end_to_end)
    outcome, fault = run_command(case, directory) if case.command else read_case(case)
    return Trial(case.reproduction, f"{kind} {outcome}", fault)


def read_case(case: Case) -> tuple[str, str]:
    """Reads the files in this process, and returns the outcome and the fault."""
    try:
        with redirect_stdout(io.StringIO()):
            found = case.read()
    except InputError as error:
        return "refused", wrong_refusal(case.expected, str(error))
    except Exception:
        return "traceback", " ".join(traceback.format_exc().split())[-500:]
    if case.expected.refusals:
        return "read", f"was read, but must be refused ({', '.join(case.expected.refusals)})"
    return "read", difference(case.expected.rows, found)


def run_command(case: Case, directory: Path) -> tuple[str, str]:
    ending = in_child(lambda: command(case.command), directory / "run")
    if ending.is_fault:
        return ending.outcome, str(ending.details)
    if ending.outcome == "refused":
        return "command refused", wrong_refusal(case.expected, str(ending.details))
    if case.expected.refusals:
        return "command run", f"was read, but must be refused ({', '.join(case.expected.refusals)})"
    assert case.check is not None
    return "command run", case.check(directory / "run/out")


def wrong_refusal(expected: Expected, message: str) -> str:
    """Returns what is wrong with a refusal: it was not necessary, or its message is not clear."""
    if not expected.refusals and not expected.may_refuse:
        return f"was refused, but is valid: {message}"
    absent = [text for text in expected.refusals if not re.search(re.escape(text) + r"(?!\d)", message)]
    if absent:
        return f"the message does not contain {absent[0]!r}: {message}"
    if len(message) > MAX_MESSAGE_LENGTH or not message.isprintable():
        return f"the message has {len(message)} characters or is not one line: {message!r}"
    return ""


def difference(expected: dict[str, list[dict]], found: dict[str, list[dict]]) -> str:
    """Returns the first difference between the rows that were written and read."""
    for split, rows in expected.items():
        if len(rows) != len(found[split]):
            return f"{split} has {len(found[split])} rows instead of {len(rows)}"
        for number, (row, other) in enumerate(zip(rows, found[split], strict=True)):
            if row != other:
                name = next((name for name in row if row[name] != other.get(name)), "columns")
                shown = repr(other.get(name))[:200]
                return f"{split}, row {number}: {name} is {shown} instead of {repr(row.get(name))[:200]}"
    return ""


