"""Files with texts that are split into words, with or without a label for each word."""

import csv
import json
import random
from itertools import zip_longest
from pathlib import Path

import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from fixedbert.tasks.words import load_words

from .row_cases import SURROGATE, Case, as_written, draw_text
from .row_files import FAULTS, TYPED, draft

TAGS = (["O", "B-PER", "I-PER"], [0, 1, 2], ["NOUN", "VERB"])


def draw_words(rng: random.Random, directory: Path, models: Path, end_to_end: bool) -> Case:
    suffix, tags = rng.choice(TYPED), TAGS[0] if end_to_end and rng.random() < 0.7 else rng.choice(TAGS)
    column, label = rng.choice(("tokens", "tokens", "words")), rng.choice(("ner_tags", "labels", "my tags", None))
    missing = [None, -100] if tags == [0, 1, 2] else [None] if suffix == ".parquet" else [None, -100, "-100"]
    records, truth = [], []
    for row in range(rng.choice((4, 9, 20))):
        words = [as_written(draw_text(rng), ".txt") for _ in range(rng.randint(1, 7))]
        if rng.random() < 0.1:
            words[rng.randrange(len(words))] = ""
        labels = [rng.choice([*tags, *tags, rng.choice(missing)]) for _ in words]
        records.append({column: words, "other": rng.randint(0, 9)} | ({label: labels} if label else {}))
        names = ["" if name in (None, -100, "-100") else str(name) for name in labels]
        truth.append({"words": [*words], "row": row} | ({"labels": names} if label else {}))
    number = spoil(rng.choice(records), column, label, suffix, rng) if rng.random() < 0.3 else None
    columns = rng.sample([*records[0]], len(records[0]))
    index = next((n for n, record in enumerate(records) if record is number), None)
    file = draft(suffix, records, columns, rng)
    notes, place = [], None if index is None else f"{file.unit} {file.number(index)}"
    if index is None and rng.random() < 0.3 and suffix != ".parquet":
        fault = rng.choice(FAULTS)
        notes.append(fault.__name__)
        line = fault(file, rng)
        place = None if line is None else f"line {line}" if line else ""
    path = file.write(directory / "words", rng)
    own_label = label if label == "my tags" else None
    case = Case(
        {"words": path},
        {"text_column_names": column, "label_column_name": own_label},
        {"words": truth},
        lambda: {"words": load_words(str(path), column, own_label).to_list()},
        [] if place is None else [str(path), place],
        notes=notes,
    )
    if end_to_end:
        taggers = [str(models / name) for name in ("tagger", "other")]
        case.command = ["compare", *taggers, f"--validation_file={path}", f"--text_column_names={column}"]
        case.command += [f"--label_column_name={own_label}"] if own_label else []
        case.command += "--runtime torch --batch_size 8 --max_seq_length 64 --output_dir out".split()
        case.check = lambda output: wrong_words(output, taggers, truth)
        if label and tags != TAGS[0] and not case.refusals:  # the numbers or names of other labels
            case.refusals = [str(path), "the labels are"]
    return case


@torch.no_grad()
def wrong_words(output: Path, directories: list[str], truth: list[dict]) -> str:
    """Compares changed.csv and the accuracy with the predictions of both models for each row alone."""
    tokenizer = AutoTokenizer.from_pretrained(directories[0])
    models = [AutoModelForTokenClassification.from_pretrained(directory).eval() for directory in directories]
    names, expected, correct = models[0].config.id2label, [], list[bool]()
    for row in truth:
        encoded = tokenizer(
            [row["words"]], is_split_into_words=True, truncation=True, max_length=64, return_tensors="pt"
        )
        ids = encoded.word_ids()
        predicted = [model(**encoded).logits[0].argmax(-1).tolist() for model in models]
        for number, word in enumerate(row["words"]):
            if number in ids:
                label = row.get("labels", {number: ""})[number]
                pair = [names[each[ids.index(number)]] for each in predicted]
                correct += [pair[0] == label] if label else []
                if pair[0] != pair[1]:
                    expected.append([str(row["row"]), str(number), word, *([label] if "labels" in row else []), *pair])
    with open(output / "changed.csv", newline="", encoding="utf-8") as file:
        found = [[value for name, value in line.items() if "probability" not in name] for line in csv.DictReader(file)]
    if found != expected:
        different = next((pair for pair in zip_longest(found, expected) if pair[0] != pair[1]), None)
        return f"changed.csv contains {different[0]} instead of {different[1]}"  # type: ignore[index]
    scores = json.loads((output / "comparison.json").read_text())["models"][0]["scores"]
    if correct and abs(scores["accuracy"] - sum(correct) / len(correct)) > 1e-9:
        return f"the accuracy is {scores['accuracy']} instead of {sum(correct)} of {len(correct)}"
    return ""


def spoil(record: dict, column: str, label: str | None, suffix: str, rng: random.Random) -> dict:
    """Makes a record invalid and returns it."""
    words = record[column]
    bad: list[tuple[str, object]] = [(column, []), (column, [None, *words[1:]])]
    bad += [(label, record[label][1:])] if label else []
    if suffix != ".parquet":
        bad += [(column, value) for value in ("a text", None, {"a": 1})]
        bad += [(column, [value, *words[1:]]) for value in (7, ["a"], SURROGATE)]
    if suffix != ".parquet" and label:
        bad += [(label, "O"), (label, None)]
        bad += [(label, [value, *record[label][1:]]) for value in (["a"], {"a": 1}, SURROGATE)]
    name, value = rng.choice(bad)
    record[name] = value
    return record
