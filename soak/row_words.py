"""Files with texts that are split into words, with or without a label for each word."""

import random
from pathlib import Path

from fixedbert.tasks.words import load_words

from .row_cases import SURROGATE, Case, as_written, draw_text
from .row_files import FAULTS, TYPED, draft

TAGS = (["O", "B-PER", "I-PER"], [0, 1, 2], ["NOUN", "VERB"])


def draw_words(rng: random.Random, directory: Path, models: Path, end_to_end: bool) -> Case:
    suffix, tags = rng.choice(TYPED), rng.choice(TAGS)
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
    return Case(
        {"words": path},
        {"text_column_names": column, "label_column_name": own_label},
        {"words": truth},
        lambda: {"words": load_words(str(path), column, own_label).to_list()},
        [] if place is None else [str(path), place],
        notes=notes,
    )


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
