"""
Draws files with texts, pairs, words or questions, reads them, and compares the result with what was written.

The truth is known from the grammar: the rows that a file contains, or the line that must be refused. One case in fifty
runs a command with a small model and compares its predictions with those for each row alone.
"""

import importlib
import io
import random
import traceback
from contextlib import redirect_stdout
from pathlib import Path

import torch
from transformers import BertTokenizer

import fixedbert
from fixedbert.support.errors import InputError
from fixedbert.tasks.labels import MULTI, SINGLE

from .children import command, in_child
from .row_cases import Case
from .row_questions import draw_questions
from .row_texts import draw_texts
from .row_words import TAGS, draw_words
from .runs import PIECES
from .trials import Trial

END_TO_END = 50  # one case in this many runs a command
KINDS = {"texts": draw_texts, "words": draw_words, "questions": draw_questions}
NAMES = ("yes", "no", "é")
Classifier, QuestionAnswerer = (
    fixedbert.FixedHeadBertForSequenceClassification,
    fixedbert.FixedHeadBertForQuestionAnswering,
)
MODELS = {
    "single": (Classifier, {"id2label": dict(enumerate(NAMES)), "problem_type": SINGLE}),
    "several": (Classifier, {"id2label": dict(enumerate(NAMES)), "problem_type": MULTI}),
    "score": (Classifier, {"num_labels": 1}),
    "tagger": (fixedbert.FixedHeadBertForTokenClassification, {"id2label": dict(enumerate(TAGS[0]))}),
    "other": (fixedbert.FixedHeadBertForTokenClassification, {"id2label": dict(enumerate(TAGS[0]))}),
    "questions": (fixedbert.FixedHeadBertForQuestionAnswering, {}),
}


def prepare(inputs: Path):
    """Writes a small model for each kind of prediction."""
    tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
    for name, (model_class, options) in MODELS.items():
        torch.manual_seed(len(name))
        config = fixedbert.FixedHeadBertConfig(
            vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=1, num_attention_heads=5, attention_head_size=6,
            intermediate_size=37, max_position_embeddings=64, initializer_range=0.3, **options,
        )  # fmt: skip
        if "id2label" in options:
            config.label2id = {label: number for number, label in options["id2label"].items()}
        model_class(config).save_pretrained(inputs / name)
        tokenizer.save_pretrained(inputs / name)
    for module in ("fine_tuning.glue", "fine_tuning.squad", "comparison.compare"):
        importlib.import_module(f"fixedbert.{module}")  # once instead of in every child process


def trial(number: int, rng: random.Random, directory: Path) -> Trial:
    end_to_end = number % END_TO_END == END_TO_END - 1
    kind = rng.choice(tuple(KINDS) if end_to_end else ("texts", "texts", "texts", "words", "questions"))
    case = KINDS[kind](rng, directory, directory.parent / "inputs", end_to_end)
    outcome, fault = run_command(case, directory / "run") if case.command else read(case)
    return Trial(case.reproduction, f"{kind} {outcome}", fault)


def read(case: Case) -> tuple[str, str]:
    """Reads the files in this process, and returns the outcome and the fault."""
    try:
        with redirect_stdout(io.StringIO()):
            found = case.read()
    except InputError as error:
        return "refused", case.wrong_refusal(str(error))
    except AssertionError as error:
        return "wrong", str(error)
    except Exception:
        return "traceback", " ".join(traceback.format_exc().split())[-500:]
    return "read", case.wrong_rows(found)


def run_command(case: Case, directory: Path) -> tuple[str, str]:
    ending = in_child(lambda: command(case.command), directory)
    if ending.is_fault:
        return ending.outcome, str(ending.details)
    if ending.outcome == "refused":
        return "command refused", case.wrong_refusal(str(ending.details))
    if case.refusals:
        return "command run", f"was read, but must be refused ({', '.join(case.refusals)})"
    return "command run", case.check(directory / "out")
