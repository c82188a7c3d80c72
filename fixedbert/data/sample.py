"""
The built-in sample: text and tasks for trying everything without a network and without texts by others.

    python -m fixedbert.data.sample DIRECTORY    # writes the stories and the two tasks as files

`documents` returns the documentation in every CPython: pydoc topics and docstrings of the standard library. The
stories come from templates, each about the nouns of one subject, and do not resemble natural language. The two tasks
are about the same subjects:
- sentence pairs in GLUE's layout: does the predicate apply to the two nouns?
- questions in SQuAD 1.1's layout: which of four nouns is the plant?

The training rows contain 14 nouns of each subject and the evaluation rows the 6 others. What these nouns mean can only
be learned from the stories, where all of them occur without a label. That is what pretraining is for. No sentence of a
pair decides the label alone: a model has to compare both.
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

# Packages of the standard library that contain tests, tools or data.
EXCLUDED = set("test tests idlelib lib2to3 turtledemo encodings pydoc_data site-packages dist-packages".split())

# The nouns and predicates of each subject.
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
    "The {noun} {predicate}.",
    "The {noun} {predicate} and the {noun2} {predicate2}.",
    "Here are the {noun} and the {noun2}.",
    "Each of them {predicate}.",
    "Which of them {predicate}?",
)
TRAINING_NOUNS = 14  # nouns of each subject in the training rows


def documents() -> list[str]:
    """Returns the documentation of this Python, one document per pydoc topic and per standard-library module."""
    directory = Path(sysconfig.get_path("stdlib"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = list(topics.values())
    for file in sorted(directory.rglob("*.py")):
        if not EXCLUDED.isdisjoint(file.relative_to(directory).parts):
            continue
        with suppress(SyntaxError):  # a template, not a module
            nodes = (node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, documented))
            texts.append("\n\n".join(filter(None, map(ast.get_docstring, nodes))))
    return [text for text in texts if text]


def stories(count: int, seed: int, sentences: int = 12) -> list[str]:
    """Returns `count` texts of `sentences` sentences, each about the nouns of one subject."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        nouns, predicates = rng.choice(list(SUBJECTS.values()))
        text = []
        for _ in range(sentences):
            (noun, noun2), (predicate, predicate2) = rng.sample(nouns.split(), 2), rng.sample(predicates, 2)
            words = {"noun": noun, "noun2": noun2, "predicate": predicate, "predicate2": predicate2}
            text.append(rng.choice(TEMPLATES).format(**words))
        texts.append(" ".join(text))
    return texts


def nouns_in(subject: str, split: str) -> list[str]:
    """Returns the nouns of a subject that occur in the rows of "train" or "dev"."""
    nouns = SUBJECTS[subject][0].split()
    return nouns[:TRAINING_NOUNS] if split == "train" else nouns[TRAINING_NOUNS:]


def sentence_pairs(count: int, split: str) -> list[dict[str, str]]:
    """
    Returns rows with sentence1, sentence2 and label, half of them entailment and half not_entailment.

    "here are the oak and the rose." entails "each of them blooms.", but not "each of them tastes good."
    """
    rng = random.Random(split)
    rows = []
    for number in range(count):
        subject, other = rng.sample(list(SUBJECTS), 2)
        one, two = rng.sample(nouns_in(subject, split), 2)
        predicate = rng.choice(SUBJECTS[other if number % 2 else subject][1])
        label = "not_entailment" if number % 2 else "entailment"
        texts = {"sentence1": f"here are the {one} and the {two}.", "sentence2": f"each of them {predicate}."}
        rows.append(texts | {"label": label})
    rng.shuffle(rows)
    return rows


def questions(count: int, split: str) -> dict:
    """
    Returns questions in SQuAD 1.1's layout. A context contains one noun of each subject, and the answer to every
    question, such as "which of them blooms?", is the plant.
    """
    rng = random.Random(split)
    paragraphs = []
    for number in range(count):
        subjects = rng.sample(list(SUBJECTS), len(SUBJECTS))
        nouns = [rng.choice(nouns_in(subject, split)) for subject in subjects]
        context = f"here are {' and '.join(f'the {noun}' for noun in nouns)}."
        plant = nouns[subjects.index("plants")]
        answer = {"text": plant, "answer_start": context.index(f"the {plant}") + 4}
        question = f"which of them {rng.choice(SUBJECTS['plants'][1])}?"
        entry = {"id": f"synthetic-{split}-{number}", "question": question, "answers": [answer]}
        paragraphs.append({"context": context, "qas": [entry]})
    return {"version": "synthetic", "data": [{"title": "synthetic", "paragraphs": paragraphs}]}


def write_tasks(directory: str | Path):
    """Writes stories.txt, and train and dev of pairs/*.tsv and questions/*.json. They are identical every time."""
    for task in ("pairs", "questions"):
        Path(directory, task).mkdir(parents=True, exist_ok=True)
    for split, pair_count, question_count in (("train", 6000, 8000), ("dev", 500, 500)):
        with open(Path(directory, "pairs", f"{split}.tsv"), "w", encoding="utf-8", newline="") as lines:
            rows = sentence_pairs(pair_count, split)
            writer = csv.DictWriter(lines, rows[0], delimiter="\t", quoting=csv.QUOTE_NONE, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        content = json.dumps(questions(question_count, split), indent=1) + "\n"
        Path(directory, "questions", f"{split}.json").write_text(content, encoding="utf-8")
    Path(directory, "stories.txt").write_text("\n".join(stories(3000, seed=1)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_tasks(sys.argv[1])
