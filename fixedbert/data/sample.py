"""
The built-in sample: text and tasks to try everything without a network. The package contains no text of others.

    python -m fixedbert.data.sample FOLDER    # writes the two tasks as files

The text is the documentation in every CPython: the topics of pydoc and the docstrings of the standard library. The two
tasks are synthetic, made from templates about invented functions, and do not resemble real language:
- sentence pairs, in GLUE's layout: does a statement about a function follow from its description?
- questions, in the layout of SQuAD 1.1: which of two things is the text about?
No sentence alone decides the label, and no context alone the answer: a model has to compare the two segments.
"""

import ast
import csv
import json
import random
import sys
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

# Packages of the standard library that are tests, tools or data.
LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "encodings",
    "pydoc_data",
    "site-packages",
    "dist-packages",
}

NAMES = ("open", "read", "write", "send", "load", "parse", "copy", "close", "call", "match", "format", "split", "join",
         "sort", "search", "compile")  # fmt: skip
THINGS = ("list", "string", "dictionary", "file", "number", "tuple", "module", "class", "path", "message", "object",
          "pattern", "socket", "thread", "stream", "table")  # fmt: skip


def documents() -> list[str]:
    """The documentation of this Python, a document for each topic of pydoc and each module of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = list(topics.values())
    for file in sorted(folder.rglob("*.py")):
        if LEFT_OUT.isdisjoint(file.relative_to(folder).parts):
            texts.append("\n\n".join(docstrings(file)))
    return [text for text in texts if text]


def docstrings(file: Path) -> list[str]:
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except SyntaxError:  # a template, not a module
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]


def sentence_pairs(count: int, seed: int) -> list[dict[str, str]]:
    """
    Rows with sentence1, sentence2 and label, half of them entailment and half not_entailment.

    "read takes a list and returns a file." entails "read returns a file.", but not "read returns a path."
    """
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        name = rng.choice(NAMES)
        taken, returned, absent = rng.sample(THINGS, 3)
        rows.append(
            {
                "sentence1": f"the function {name} takes a {taken} and returns a {returned}.",
                "sentence2": f"the function {name} returns a {absent if number % 2 else returned}.",
                "label": "not_entailment" if number % 2 else "entailment",
            }
        )
    rng.shuffle(rows)
    return rows


def questions(count: int, seed: int, functions: int = 2) -> dict:
    """
    Questions in SQuAD 1.1's layout. The context describes `functions` functions, and the answer to "is the text about
    a list or a path?" is the one of the two that it mentions.
    """
    rng = random.Random(seed)
    paragraphs = []
    for number in range(count):
        names = rng.sample(NAMES, functions)
        *things, absent = rng.sample(THINGS, 2 * functions + 1)
        facts = zip(names, things[:functions], things[functions:], strict=True)
        context = " ".join(f"the function {name} takes a {taken} and returns a {back}." for name, taken, back in facts)
        answer = rng.choice(things)
        one, other = rng.sample((answer, absent), 2)
        paragraphs.append(
            {
                "context": context,
                "qas": [
                    {
                        "id": f"synthetic-{seed}-{number}",
                        "question": f"is the text about a {one} or a {other}?",
                        "answers": [{"text": answer, "answer_start": context.index(f"a {answer}") + 2}],
                    }
                ],
            }
        )
    return {"version": "synthetic", "data": [{"title": "synthetic", "paragraphs": paragraphs}]}


def write_tasks(folder: str | Path):
    """Write pairs/train.tsv, pairs/dev.tsv, questions/train.json and questions/dev.json, always the same."""
    for split, seed, pairs, asked in (("train", 1, 6000, 8000), ("dev", 2, 500, 500)):
        file = Path(folder, "pairs", f"{split}.tsv")
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "w", encoding="utf-8", newline="") as lines:
            rows = sentence_pairs(pairs, seed)
            writer = csv.DictWriter(lines, rows[0], delimiter="\t", quoting=csv.QUOTE_NONE, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        file = Path(folder, "questions", f"{split}.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(questions(asked, seed), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_tasks(sys.argv[1])
