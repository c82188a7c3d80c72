"""
The `fixedbert` command.

This module is installed next to the package instead of inside it, and imports only the standard library until a
command runs, because importing fixedbert takes seconds and would slow down even `fixedbert --help`.
"""

import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


def limit_openmp_spinning():
    """
    Limits how long an OpenMP thread spins while it waits for other threads. Must be called before importing torch.

    By default, threads spin for several milliseconds. On a busy machine, this takes CPU time away from the threads
    that they are waiting for. On an idle machine, the limit has almost no effect.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")


def add_hub_arguments(parser: ArgumentParser):
    parser.add_argument("--cache_dir", help="directory for files downloaded from the Hub")
    parser.add_argument("--token", help="Hub token; default: the one saved by hf auth login")


def add_source_arguments(parser: ArgumentParser):
    parser.add_argument("--model_revision", dest="revision", default="main", help="branch, tag or commit on the Hub")
    add_hub_arguments(parser)


def add_new_model_arguments(parser: ArgumentParser):
    parser.add_argument("--output_dir", required=True, help="new directory for the result")
    sizes = {
        "num_attention_heads": "number of attention heads",
        "attention_head_size": "size of queries and keys in each head",
        "value_head_size": "size of values in each head, by default the size of queries and keys",
        "intermediate_size": "number of feed-forward neurons",
    }
    for name, text in sizes.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", help=f"{text}; one number or one per layer")
    add_source_arguments(parser)


def add_row_arguments(parser: ArgumentParser, max_samples: int):
    add = parser.add_argument
    add("--text_column_names", help="text column, or two separated by a comma; default for lists of words: tokens")
    add("--skip_bad_rows", action="store_true", help="print and skip invalid rows")
    add("--max_seq_length", type=int, help="maximum number of tokens per row; default: as in fine-tuning, at most 512")
    add("--max_samples", type=int, default=max_samples, help="maximum number of rows; default: %(default)s")
    add("--batch_size", type=int, default=32, help="rows per batch, also for measuring speed; default: 32")


def convert_arguments(parser: ArgumentParser):
    add = parser.add_argument
    add("model", help="directory or Hub id of a BERT, RoBERTa, DistilBERT, ELECTRA or FixedHeadBert model")
    add("--architecture", help="class to load, such as BertForMaskedLM; drops weights that it does not have")
    add("--bert", action="store_true", help="convert a FixedHeadBert back to a transformers BERT")
    add("--unpad_inputs", action="store_true", help="skip padding tokens, which is faster")
    add("--dtype", help="dtype of the weights: float32, bfloat16 or float16; default: unchanged")
    add("--seed", type=int, default=0, help="seed for initializing new weights; default: 0")
    add_new_model_arguments(parser)


def shrink_arguments(parser: ArgumentParser):
    add = parser.add_argument
    add("model", help="directory or Hub id of any model that fixedbert convert supports")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--speedup", type=float, nargs="+", help="desired speedups on this machine, such as 1.5 2 3")
    target.add_argument("--params", type=float, help="desired number of parameters, such as 15e6")
    target.add_argument("--flops", type=float, help="desired FLOPs of a forward pass for a row of average length")
    add("--task_name", help="GLUE task whose training rows serve as calibration data")
    add("--data_dir", help="directory with the task's files in GLUE format; default: download from the Hub")
    add(
        "--train_file",
        nargs="+",
        help="calibration data instead of a GLUE task: texts or text pairs (.csv, .tsv, .jsonl, .parquet, .txt), "
        "lists of words (.jsonl), questions (.json), or any text for a masked LM; labels are ignored",
    )
    add_row_arguments(parser, max_samples=1500)
    add("--unpad_inputs", action=BooleanOptionalAction, help="skip padding tokens; default: yes, unless slower")
    add(
        "--dtype",
        help="dtype of weights, such as bfloat16; default: unchanged, or the fastest with --speedup",
    )
    add(
        "--distil_steps",
        type=int,
        nargs="?",
        const=600,
        help="number of distillation steps with the original model as the teacher; 600 if no number follows",
    )
    add("--learning_rate", type=float, help="learning rate for distillation; default: 5e-5")
    add("--seed", type=int, default=0, help="seed for shuffling the rows; default: 0")
    add_new_model_arguments(parser)


def compare_arguments(parser: ArgumentParser):
    add = parser.add_argument
    add(
        "models",
        nargs="+",
        help="directories or Hub ids; a single model runs in all runtimes, and each of several models in its fastest",
    )
    add(
        "--validation_file",
        required=True,
        help="texts, words or questions (.csv, .tsv, .jsonl, .json, .parquet, .txt)",
    )
    add("--label_column_name", help="label column, or columns separated by commas; default: label, if it exists")
    add("--id_column_name", help="columns that identify rows in the file that lists different predictions")
    add("--runtime", nargs="+", help="ways to run the models, such as torch-unpadded-bf16; default: all that work")
    add("--output_dir", help="new directory for the measurements and the rows with different predictions")
    add_row_arguments(parser, max_samples=1000)
    add_hub_arguments(parser)


def export_arguments(parser: ArgumentParser):
    parser.add_argument("model", help="directory or Hub id of a FixedHeadBert, BERT or RoBERTa-like model")
    parser.add_argument("--output_dir", required=True, help="new directory for the result")
    parser.add_argument("--runtime", default="onnx", help="onnx or openvino; default: onnx")
    parser.add_argument("--int8", action="store_true", help="also write an int8 graph")
    parser.add_argument("--calibration_file", help="calibration data of the model's task, for --int8 with openvino")
    parser.add_argument("--text_column_names", help="text columns in the calibration file, separated by a comma")
    add_source_arguments(parser)


def push_arguments(parser: ArgumentParser):
    add = parser.add_argument
    add("folder", help="model directory")
    add("repo_id", help="user/name or organization/name; created if it does not exist")
    add("--license", help="license for the weights, such as apache-2.0; written to the model card")
    add("--private", action="store_true", default=None, help="create a private repository")
    add("--commit_message", help="commit message")
    add("--token", help="Hub token; default: the one saved by hf auth login")
    add("--dry_run", action="store_true", help="check the model and list its files, without uploading them")


def inspect_arguments(parser: ArgumentParser):
    add = parser.add_argument
    add("model", help="directory or Hub id of a BERT-like encoder")
    add("--output_dir", required=True, help="new directory for the result")
    add("--validation_file", required=True, help="text file (.txt, .jsonl, .csv, .parquet), directory or glob pattern")
    add("--max_seq_length", type=int, default=128, help="tokens per sequence; default: 128")
    add("--max_samples", type=int, default=1000, help="maximum number of sequences; default: 1000")
    add("--importance_samples", type=int, default=8, help="number of sequences for measuring importance; default: 8")
    add("--batch_size", type=int, default=16, help="sequences per batch; default: 16")
    add("--compare", help="directory or Hub id of a second encoder to compare with the first")
    add_source_arguments(parser)


def plan_arguments(parser: ArgumentParser):
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens per training row; default: 128")
    parser.add_argument("--params", help="maximum number of parameters of the pretraining model, such as 110M")
    parser.add_argument("--flops", help="maximum training FLOPs per token, such as 700M")
    parser.add_argument("--attention_head_size", type=int, help="list only shapes with this head size")


def import_experiment(name: str) -> ModuleType | None:
    """Imports experiments.NAME from the repository that contains this file. Returns None in an installed package."""
    directory = Path(__file__).parent / "experiments"
    if not directory.is_dir():
        return None
    if "experiments" not in sys.modules:
        spec = spec_from_file_location(
            "experiments", directory / "__init__.py", submodule_search_locations=[str(directory)]
        )
        assert spec is not None
        sys.modules["experiments"] = module_from_spec(spec)
    return import_module(f"experiments.{name}")


def run_command(name: str, **options: Any):
    """Calls the function fixedbert.NAME with the options and prints its result."""
    import fixedbert

    result = getattr(fixedbert, name)(**options)
    if name != "convert":  # `convert` prints its own summary and returns a model
        print(result)


# Each task module has a `main` function that parses its own arguments. The run_*.py scripts call the same functions.
TASKS = {
    "pretrain": ("pretraining.pretrain", "pretrain on a corpus: masked LM with or without NSP, or causal LM"),
    "glue": ("fine_tuning.glue", "fine-tune on GLUE or on your own texts or text pairs"),
    "squad": ("fine_tuning.squad", "fine-tune on SQuAD or on your own questions and answers"),
}
COMMANDS = {
    "convert": ("give a BERT more or larger heads without changing its outputs", convert_arguments),
    "shrink": ("make a model faster or smaller with nearly the same predictions", shrink_arguments),
    "compare": ("compare the speed, accuracy and predictions of models on your own rows", compare_arguments),
    "export": ("export a model to ONNX and compare the outputs with the original's", export_arguments),
    "push": ("upload a model to the Hub with its code and model card", push_arguments),
    "inspect": ("show what each attention head does and how much of its size it uses", inspect_arguments),
    "plan": ("list model shapes within a budget, with exact parameter and FLOP counts", plan_arguments),
}


def parse(argv: list[str]) -> Callable[[], None]:
    """Parses the command line and returns a function that runs the command."""
    if argv and argv[0] in TASKS:
        name, *options = argv
        return lambda: import_module(f"fixedbert.{TASKS[name][0]}").main(options, prog=f"fixedbert {name}")
    parser = ArgumentParser(prog="fixedbert", description="BERT with a configurable head size.", allow_abbrev=False)
    packages = ("fixedbert", "torch", "transformers", "accelerate", "datasets")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    parser.add_argument("--version", action="version", version=f"{versions}; Python {sys.version.split()[0]}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in TASKS.items():
        subparsers.add_parser(name, help=text)
    commands: dict[str, tuple] = {name: (*command, partial(run_command, name)) for name, command in COMMANDS.items()}
    if experiments := import_experiment("commands"):
        commands |= experiments.COMMANDS
    elif argv[:1] in (["study"], ["theory"]):
        parser.error(f"{argv[0]} is not part of the installed package; run pip install -e . in a checkout.")
    for name, (text, add_arguments, _) in commands.items():
        add_arguments(subparsers.add_parser(name, help=text, description=text, allow_abbrev=False))
    parsed = vars(parser.parse_args(argv or ["--help"]))
    return partial(commands[parsed.pop("command")][2], **parsed)


def main(argv: list[str] | None = None):
    """
    Runs the command in `argv`, by default the arguments of this process.

    Raises:
        SystemExit: If the arguments cannot be parsed.
        InputError: If the input of the command is invalid.
    """
    parse(sys.argv[1:] if argv is None else argv)()


def entry_point():
    """Runs the installed command. Prints errors in the user's input as a single line."""
    limit_openmp_spinning()
    run = parse(sys.argv[1:])
    from fixedbert.support.errors import exit_on_input_error

    exit_on_input_error(run)


if __name__ == "__main__":
    entry_point()
