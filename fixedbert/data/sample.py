"""
The built-in sample: text and tasks to try everything without a network. The package contains no text of others.

    python -m fixedbert.data.sample FOLDER    # writes the stories and the two tasks as files

The text of `documents` is the documentation in every CPython: the topics of pydoc and the docstrings of the standard
library. The stories are made from templates, each about things of one subject, and do not resemble real language. The
two tasks are about the same subjects:
- sentence pairs, in GLUE's layout: can this be said of those two things?
- questions, in the layout of SQuAD 1.1: which of four things is the plant?

The rows to train on name 14 things of each subject, the rows to evaluate on 6 others. What these are can only be
learned from the stories, in which all of them occur without a label: that is what pretraining is for. No sentence
of a pair alone decides the label: a model has to compare the two.
"""

import ast
import csv
import json
import random
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from pydoc_data.topics import topics

# Packages of the standard library that are tests, tools or data.
LEFT_OUT = set("test tests idlelib lib2to3 turtledemo encodings pydoc_data site-packages dist-packages".split())

# Things of each subject, and what is said of them.
SUBJECTS = {
    "animals": (
        "dog cat horse cow sheep goat pig fox wolf bear lion tiger mouse rabbit deer duck goose hen eagle owl",
        ("breathes", "hunts at night", "has young", "sleeps in a den"),
    ),
    "plants": (
        "oak elm pine birch maple willow rose tulip daisy lily fern moss ivy poppy orchid cedar ash palm beech reed",
        ("blooms", "grows from a seed", "has roots", "needs light"),
    ),
    "tools": (
        "hammer saw drill axe knife chisel wrench rake shovel spade file brush needle ladder anvil lever hook plane "
        "clamp mallet",
        ("hangs in the workshop", "is made of steel", "has a handle", "rusts"),
    ),
    "dishes": (
        "bread cheese butter soup cake pie rice pasta jam honey stew salad omelette pudding toast porridge biscuit "
        "sausage pancake curry",
        ("tastes good", "comes from the oven", "is on a plate", "smells of spice"),
    ),
}
TEMPLATES = (
    "The {one} {said}.",
    "The {one} {said} and the {other} {too}.",
    "Here are the {one} and the {other}.",
    "Each of them {said}.",
    "Which of them {said}?",
)
TRAINED = 14  # things of each subject in the rows to train on


def documents() -> list[str]:
    """The documentation of this Python, a document for each topic of pydoc and each module of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = list(topics.values())
    for file in sorted(folder.rglob("*.py")):
        if not LEFT_OUT.isdisjoint(file.relative_to(folder).parts):
            continue
        with suppress(SyntaxError):  # a template, not a module
            nodes = (node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, documented))
            texts.append("\n\n".join(filter(None, map(ast.get_docstring, nodes))))
    return [text for text in texts if text]


def stories(count: int, seed: int, sentences: int = 12) -> list[str]:
    """Texts of so many sentences, each text about the things of one subject."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        things, sayings = rng.choice(list(SUBJECTS.values()))
        text = []
        for _ in range(sentences):
            (one, other), (said, too) = rng.sample(things.split(), 2), rng.sample(sayings, 2)
            text.append(rng.choice(TEMPLATES).format(one=one, other=other, said=said, too=too))
        texts.append(" ".join(text))
    return texts


def things_of(subject: str, split: str) -> list[str]:
    """The things of a subject that the rows of "train" or "dev" name."""
    things = SUBJECTS[subject][0].split()
    return things[:TRAINED] if split == "train" else things[TRAINED:]


def sentence_pairs(count: int, split: str) -> list[dict[str, str]]:
    """
    Rows with sentence1, sentence2 and label, half of them entailment and half not_entailment.

    "here are the oak and the rose." entails "each of them blooms.", but not "each of them tastes good."
    """
    rng = random.Random(split)
    rows = []
    for number in range(count):
        subject, other = rng.sample(list(SUBJECTS), 2)
        one, two = rng.sample(things_of(subject, split), 2)
        said = rng.choice(SUBJECTS[other if number % 2 else subject][1])
        label = "not_entailment" if number % 2 else "entailment"
        texts = {"sentence1": f"here are the {one} and the {two}.", "sentence2": f"each of them {said}."}
        rows.append(texts | {"label": label})
    rng.shuffle(rows)
    return rows


def questions(count: int, split: str) -> dict:
    """
    Questions in SQuAD 1.1's layout. The context names a thing of each subject, and the answer to "which of them
    blooms?" and all other questions is the plant.
    """
    rng = random.Random(split)
    paragraphs = []
    for number in range(count):
        subjects = rng.sample(list(SUBJECTS), len(SUBJECTS))
        things = [rng.choice(things_of(subject, split)) for subject in subjects]
        context = f"here are {' and '.join(f'the {thing}' for thing in things)}."
        plant = things[subjects.index("plants")]
        answer = {"text": plant, "answer_start": context.index(f"the {plant}") + 4}
        question = f"which of them {rng.choice(SUBJECTS['plants'][1])}?"
        asked = {"id": f"synthetic-{split}-{number}", "question": question, "answers": [answer]}
        paragraphs.append({"context": context, "qas": [asked]})
    return {"version": "synthetic", "data": [{"title": "synthetic", "paragraphs": paragraphs}]}


def write_tasks(folder: str | Path):
    """Write stories.txt, and train and dev of pairs/*.tsv and questions/*.json, always the same."""
    for task in ("pairs", "questions"):
        Path(folder, task).mkdir(parents=True, exist_ok=True)
    for split, pairs, asked in (("train", 6000, 8000), ("dev", 500, 500)):
        with open(Path(folder, "pairs", f"{split}.tsv"), "w", encoding="utf-8", newline="") as lines:
            rows = sentence_pairs(pairs, split)
            writer = csv.DictWriter(lines, rows[0], delimiter="\t", quoting=csv.QUOTE_NONE, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        content = json.dumps(questions(asked, split), indent=1) + "\n"
        Path(folder, "questions", f"{split}.json").write_text(content, encoding="utf-8")
    Path(folder, "stories.txt").write_text("\n".join(stories(3000, seed=1)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_tasks(sys.argv[1])
