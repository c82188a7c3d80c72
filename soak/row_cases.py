"""A case of files with rows: how they are read, and what the result must be."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .children import MAX_MESSAGE_LENGTH
from .runs import WORDS

SPECIAL = [
    *"é naïve Größe 日本 🙂 e\u0301 \u0627\u0644 \u2028 \x85 \x0b \x1c \u200b \u00a0 x\ufeffy ' , ; |".split(" "),
    *'\\ \\n # =1+2 5" NA null -1 <br> &amp; \t \n \r\n \r 1,5 "'.split(" "), "", "  ", "\0", '"quoted"', "\n\n", '""',
]  # fmt: skip
WHOLE = ("NA", "null", "None", "nan", "0", "1.5", "true", "-", ".", "N/A")
SURROGATE = "x\ud83d"


@dataclass
class Case:
    """
    Files, the options to read them, and what reading them must give.

    Attributes:
        files: By split.
        truth: The rows of each split.
        read: Reads the files and returns the rows of each split.
        refusals: Texts that the message of a refusal must contain. Empty if the files must be read.
        may_refuse: Whether a refusal is right even though the truth is known.
        command: Predicts for the test split.
        check: Takes the output directory of the command, and returns what is wrong with the predictions.
    """

    files: dict[str, Path]
    options: dict
    truth: dict[str, list[dict]]
    read: Callable[[], dict[str, list[dict]]]
    refusals: list[str] = field(default_factory=list)
    may_refuse: bool = False
    command: list[str] = field(default_factory=list)
    check: Callable[[Path], str] = lambda _: ""
    notes: list[str] = field(default_factory=list)

    @property
    def reproduction(self) -> str:
        options = {name: value for name, value in self.options.items() if value is not None}
        shown = [f"  {options} ({', '.join(self.notes)})"]
        for file in self.files.values():
            content = file.read_bytes() if file.exists() else b""
            shown.append(f"  {file}: {content[:300]!r}{'...' if len(content) > 300 else ''}")
        return "\n".join([*shown, f"  fixedbert {' '.join(self.command)}"] if self.command else shown)

    def wrong_refusal(self, message: str) -> str:
        """Returns what is wrong with a refusal: it was not necessary, or its message is not clear."""
        if not self.refusals and not self.may_refuse:
            return f"was refused, but is valid: {message}"
        absent = [text for text in self.refusals if not re.search(re.escape(text) + r"(?!\d)", message)]
        if absent:
            return f"the message does not contain {absent[0]!r}: {message}"
        if len(message) > MAX_MESSAGE_LENGTH or not message.isprintable():
            return f"the message has {len(message)} characters, or not only printable ones: {message!r}"
        return ""

    def wrong_rows(self, found: dict[str, list[dict]]) -> str:
        """Returns the first difference between the rows that were written and read."""
        if self.refusals:
            return f"was read, but must be refused ({', '.join(self.refusals)})"
        for split, rows in self.truth.items():
            if len(rows) != len(found[split]):
                return f"{split} has {len(found[split])} rows instead of {len(rows)}"
            for number, (row, other) in enumerate(zip(rows, found[split], strict=True)):
                if row != other:
                    name = next((name for name in row if row[name] != other.get(name)), "")
                    shown = repr(other.get(name, other))[:200]
                    return f"{split}, row {number}: {name} is {shown} instead of {repr(row.get(name, row))[:200]}"
        return ""


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
    """Returns a value as the format can contain it: lines of .tsv and .txt files contain no line ends."""
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
