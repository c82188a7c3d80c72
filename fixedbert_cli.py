"""
The `fixedbert` command.

This module is installed next to the package instead of inside it, and imports only the standard library until a
command runs. Importing fixedbert takes seconds, which would also slow down `fixedbert --help`.
"""

import os
import sys
from argparse import ArgumentParser
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
    Limits how long OpenMP threads spin while they wait for each other. Must be called before importing torch.

    By default, they spin for several milliseconds. On a busy machine, this can take CPU time away from the thread that
    they are waiting for. On an idle machine, the limit has almost no cost.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")


def hub_arguments(parser: ArgumentParser):
    parser.add_argument("--model_revision", dest="revision", default="main", help="branch, tag or commit on the Hub")
    parser.add_argument("--cache_dir", help="directory for downloads from the Hub")
    parser.add_argument("--token", help="Hub token; default: the one saved by hf auth login")


def size_arguments(parser: ArgumentParser):
    sizes = {
        "attention_head_size": "size of queries and keys",
        "value_head_size": "size of values, if different from queries and keys",
        "num_attention_heads": "number of attention heads",
        "intermediate_size": "number of feed-forward neurons",
    }
    for name, meaning in sizes.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", help=f"{meaning}: one number, or one per layer")


def cased_argument(parser: ArgumentParser):
    parser.add_argument(
        "--cased", dest="do_lower_case", action="store_const", const=False, help="do not lowercase text"
    )


def convert_arguments(parser: ArgumentParser):
    parser.add_argument(
        "model", help="directory or Hub id of a BERT, RoBERTa-like, DistilBERT, ELECTRA or FixedHeadBert model"
    )
    parser.add_argument("--output_dir", required=True, help="new directory for the result")
    size_arguments(parser)
    parser.add_argument("--num_hidden_layers", type=int, help="number of layers; layers are repeated or dropped")
    parser.add_argument(
        "--architecture",
        help="model class, such as BertForMaskedLM, if config.json does not specify one; drops all other weights",
    )
    parser.add_argument("--bert", action="store_true", help="convert a FixedHeadBert back to a transformers BERT")
    parser.add_argument("--seed", type=int, default=0, help="seed for initializing new weights; default: 0")
    cased_argument(parser)
    hub_arguments(parser)


def shrink_arguments(parser: ArgumentParser):
    parser.add_argument("model", help="directory or Hub id of any model that fixedbert convert supports")
    parser.add_argument("--output_dir", required=True, help="new directory for the result")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--speedup", type=float, help="target speedup on this machine, such as 2")
    target.add_argument("--milliseconds", type=float, help="target time per batch on this machine")
    target.add_argument("--params", type=float, help="target number of parameters, such as 15e6")
    target.add_argument("--flops", type=float, help="target FLOPs for a forward pass on a row of average length")
    size_arguments(parser)
    parser.add_argument("--task_name", help="GLUE task whose training rows serve as calibration data")
    parser.add_argument("--data_dir", help="directory with the task's files in GLUE format; default: the Hub")
    parser.add_argument(
        "--train_file",
        nargs="+",
        help="files with calibration data for the model's task, instead of --task_name: texts or text pairs "
        "(.csv, .tsv, .jsonl, .parquet, .txt), questions (.json), or plain text for a masked LM; labels are ignored",
    )
    parser.add_argument("--text_column_names", help="one text column, or two separated by a comma")
    parser.add_argument("--latency_table", help="file with measured latencies; created if it does not exist")
    parser.add_argument("--max_seq_length", type=int, help="maximum tokens per row; default: the model's, at most 512")
    parser.add_argument(
        "--max_samples", type=int, default=1500, help="maximum number of calibration rows; default: 1500"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="rows per batch, also when timing; default: 32")
    parser.add_argument(
        "--distil_steps",
        type=int,
        nargs="?",
        const=600,
        help="number of distillation steps with the original model as the teacher; 600 if the flag has no value",
    )
    parser.add_argument("--learning_rate", type=float, help="learning rate for the distillation; default: 5e-5")
    parser.add_argument("--seed", type=int, default=0, help="seed for the order of the rows; default: 0")
    cased_argument(parser)
    hub_arguments(parser)


def compare_arguments(parser: ArgumentParser):
    parser.add_argument("models", nargs="+", help="model or ONNX directories or Hub ids, starting with the original")
    parser.add_argument(
        "--validation_file", required=True, help="rows for the task, with or without labels: .csv, .tsv, .jsonl, .txt"
    )
    parser.add_argument("--text_column_names", help="one text column, or two separated by a comma")
    parser.add_argument("--label_column_name", help="label column; default: label, if it exists")
    parser.add_argument("--max_seq_length", type=int, help="maximum tokens per row; default: the model's, at most 512")
    parser.add_argument("--max_samples", type=int, default=1000, help="maximum number of rows; default: 1000")
    parser.add_argument("--batch_size", type=int, default=32, help="rows per batch; default: 32")
    parser.add_argument("--output_dir", help="new directory for the measurements and rows with different predictions")
    parser.add_argument("--cache_dir", help="directory for downloads from the Hub")
    parser.add_argument("--token", help="Hub token; default: the one saved by hf auth login")


def export_arguments(parser: ArgumentParser):
    parser.add_argument("model", help="directory or Hub id of a FixedHeadBert, BERT or RoBERTa-like model")
    parser.add_argument("--output_dir", required=True, help="new directory for the result")
    parser.add_argument("--int8", action="store_true", help="also write a graph with int8 weights")
    hub_arguments(parser)


def push_arguments(parser: ArgumentParser):
    parser.add_argument("folder", help="model directory")
    parser.add_argument("repo_id", help="user/name or organization/name; created if it does not exist")
    parser.add_argument("--license", help="license for the weights, such as apache-2.0, if the model card has none")
    parser.add_argument("--private", action="store_true", default=None, help="create a private repository")
    parser.add_argument("--commit_message", help="commit message")
    parser.add_argument("--token", help="Hub token; default: the one saved by hf auth login")


def inspect_arguments(parser: ArgumentParser):
    parser.add_argument("model", help="directory or Hub id of a BERT-like encoder")
    parser.add_argument("--output_dir", required=True, help="new directory for the result")
    parser.add_argument(
        "--validation_file", required=True, help="text file, directory or glob pattern: .txt, .jsonl, .csv, .parquet"
    )
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens per sequence; default: 128")
    parser.add_argument("--max_samples", type=int, default=1000, help="maximum number of sequences; default: 1000")
    parser.add_argument(
        "--importance_samples", type=int, default=8, help="number of sequences for measuring importance; default: 8"
    )
    parser.add_argument("--batch_size", type=int, default=16, help="sequences per batch; default: 16")
    parser.add_argument("--compare", help="directory or Hub id of a second encoder to show next to the first")
    hub_arguments(parser)


def plan_arguments(parser: ArgumentParser):
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens per training row; default: 128")
    parser.add_argument("--params", help="maximum number of parameters of the pretraining model, such as 110M")
    parser.add_argument("--flops", help="maximum training FLOPs per token, such as 700M")


def import_experiment(name: str) -> ModuleType | None:
    """Imports experiments.NAME from the checkout that contains this file. Returns None outside a checkout."""
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


def run_task(name: str, argv: list[str]):
    module, _ = TASKS[name]
    import_module(f"fixedbert.{module}").main(argv, prog=f"fixedbert {name}")


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
    "export": ("export a model to ONNX and compare the graph with the model", export_arguments),
    "push": ("upload a model to the Hub with its code and model card", push_arguments),
    "inspect": ("show what each head does and how much of its size it uses", inspect_arguments),
    "plan": ("list model shapes within a budget, with exact parameter and FLOP counts", plan_arguments),
}


def parse(argv: list[str]) -> Callable[[], None]:
    """Parses the command line and returns a function that runs the command."""
    if argv and argv[0] in TASKS:
        return partial(run_task, argv[0], argv[1:])
    parser = ArgumentParser(prog="fixedbert", description="BERT with a free attention head size.", allow_abbrev=False)
    packages = ("fixedbert", "torch", "transformers", "accelerate", "datasets")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    parser.add_argument("--version", action="version", version=f"{versions}; Python {sys.version.split()[0]}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in TASKS.items():
        subparsers.add_parser(name, help=text)
    commands: dict[str, tuple] = {
        name: (text, add_arguments, partial(run_command, name)) for name, (text, add_arguments) in COMMANDS.items()
    }
    if experiments := import_experiment("commands"):
        commands |= experiments.COMMANDS
    for name, (text, add_arguments, _) in commands.items():
        add_arguments(subparsers.add_parser(name, help=text, description=text, allow_abbrev=False))
    options = vars(parser.parse_args(argv or ["--help"]))
    return partial(commands[options.pop("command")][2], **options)


def main(argv: list[str] | None = None):
    """
    Runs the command specified by `argv`, which defaults to the arguments of the process.

    Raises:
        SystemExit: If the arguments cannot be parsed.
        InputError: If the input of the command is invalid.
    """
    parse(sys.argv[1:] if argv is None else argv)()


def entry_point():
    """Entry point for the installed command. Reports user errors in one line."""
    limit_openmp_spinning()
    run = parse(sys.argv[1:])
    from fixedbert.support.errors import exit_on_input_error

    exit_on_input_error(run)


if __name__ == "__main__":
    entry_point()
