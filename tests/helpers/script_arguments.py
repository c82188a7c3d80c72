"""Arguments that make the scripts train a tiny model for a few steps."""

from pathlib import Path
from typing import Any

import fixedbert_cli
from fixedbert.fine_tuning.glue import TextClassification
from fixedbert.fine_tuning.squad import QuestionAnswering
from fixedbert.option_values import make
from fixedbert.pretraining.arguments import ARGUMENTS
from fixedbert.training.arguments import with_recipe

TYPES = {"pretrain": ARGUMENTS, "glue": TextClassification.arguments, "squad": QuestionAnswering.arguments}

SHAPE = "hidden_size=32,num_attention_heads=5,attention_head_size=6,intermediate_size=37"
QUICK = "--max_steps 3 --logging_steps 1 --per_device_train_batch_size 4 --use_cpu --disable_tqdm true".split()


def pretraining(corpus: str, output: Path, *more: str) -> list[str]:
    return [
        *("--config_name", "tiny", "--config_overrides", SHAPE, "--vocab_size", "100", "--max_seq_length", "32"),
        *("--train_file", corpus, "--do_train", "--do_eval", "--output_dir", str(output), *QUICK, *more),
    ]


def glue_of(model: Path, tasks: Path, output: Path, *more: str) -> list[str]:
    files = ("--train_file", f"{tasks}/pairs/train.tsv", "--validation_file", f"{tasks}/pairs/dev.tsv")
    size = ("--max_seq_length", "32", "--max_eval_samples", "13", "--do_train", "--do_eval", *QUICK)
    return ["--model_name_or_path", str(model), *files, *size, "--output_dir", str(output), *more]


def squad_of(model: Path, tasks: Path, output: Path, *more: str) -> list[str]:
    files = ("--train_file", f"{tasks}/questions/train.json", "--validation_file", f"{tasks}/questions/dev.json")
    size = ("--max_seq_length", "64", "--doc_stride", "16", "--max_train_samples", "50", "--max_eval_samples", "13")
    run = ("--do_train", "--do_eval", *QUICK, "--output_dir", str(output))
    return ["--model_name_or_path", str(model), *files, *size, *run, *more]


def read(command: str, argv: list[str]) -> dict[str, Any]:
    """Parses command-line flags, merged into the entries of a recipe, into keyword arguments."""
    given = fixedbert_cli.read(command, argv)
    return with_recipe(given.pop("recipe", None), given, *TYPES[command])


def parse(command: str, argv: list[str]) -> tuple:
    """Parses command-line flags into dataclasses."""
    return make(read(command, argv), *TYPES[command])
