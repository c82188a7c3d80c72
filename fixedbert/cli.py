"""The `fixedbert` command."""

import argparse
from collections.abc import Callable

from .analysis.inspection import inspect
from .analysis.planning import plan
from .analysis.theory import theory
from .checkpoints import convert_checkpoint
from .errors import InputError, exit_on_input_error
from .publishing import push
from .study.studies import named_studies


class ArgumentParser(argparse.ArgumentParser):
    """Errors are one sentence, and arguments cannot be abbreviated."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        raise InputError(f"{message}; {self.prog} --help lists the arguments.")


def hub_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--model_revision", dest="revision", default="main", help="branch, tag or commit on the Hub")
    parser.add_argument("--cache_dir", help="where downloads from the Hub are kept")
    parser.add_argument("--token", help="token for the Hub; without it, the one logged in with")


def add_convert(parser: argparse.ArgumentParser) -> Callable:
    parser.add_argument(
        "source",
        help="directory or Hub id of a BERT, a RoBERTa-like model or a FixedHeadBert, "
        "or a directory of Google's TensorFlow checkpoints",
    )
    parser.add_argument("output", help="the directory to write")
    parser.add_argument(
        "--attention_head_size",
        type=int,
        nargs="+",
        help="size of the new heads, or one for each layer; at least the old, which is the default",
    )
    parser.add_argument("--num_attention_heads", type=int, help="number of heads, at least the old; default: that")
    parser.add_argument("--num_hidden_layers", type=int, help="number of layers, the old ones repeated or left out")
    parser.add_argument("--bert", action="store_true", help="from a FixedHeadBert back to transformers' BERT")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers in what is new")
    parser.add_argument(
        "--cased", dest="do_lower_case", action="store_false", help="of a TensorFlow checkpoint: keep upper case"
    )
    hub_arguments(parser)
    return convert_checkpoint


def add_push(parser: argparse.ArgumentParser) -> Callable:
    parser.add_argument("folder", help="a directory that a script, `fixedbert convert` or save_pretrained wrote")
    parser.add_argument("repo_id", help="user/name or organization/name; it is made if it is not there")
    parser.add_argument("--license", help="licence of the weights, such as apache-2.0, where the card does not say")
    parser.add_argument("--private", action="store_true", default=None, help="make a repository that nobody else sees")
    parser.add_argument("--commit_message", help="message of the commit")
    parser.add_argument("--token", help="token for the Hub; without it, the one logged in with")
    return push


def add_theory(parser: argparse.ArgumentParser) -> Callable:
    parser.add_argument("output", help="the directory to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 16, 32], help="of sequences, in tokens")
    parser.add_argument("--patterns", type=int, default=5, help="random attention patterns for each head size")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    return theory


def add_inspect(parser: argparse.ArgumentParser) -> Callable:
    parser.add_argument("model", help="directory or Hub id of a BERT-like encoder, stock or fixed")
    parser.add_argument("output", help="the directory to write")
    parser.add_argument("--text", required=True, help="file, folder or glob: .txt, .jsonl, .csv, .parquet")
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--max_samples", type=int, default=1000, help="sequences to look at")
    parser.add_argument("--importance_samples", type=int, default=8, help="sequences to silence each head on")
    parser.add_argument("--batch_size", type=int, default=16, help="sequences at once")
    hub_arguments(parser)
    return inspect


def add_plan(parser: argparse.ArgumentParser) -> Callable:
    parser.add_argument("--seq_length", type=int, default=128, help="tokens of a row in training")
    parser.add_argument("--params", help="budget: parameters of the pretraining model, such as 110M")
    parser.add_argument("--flops", help="budget: FLOPs of training for each token, such as 700M")
    parser.add_argument("--memory", help="budget: bytes for training 32 rows, such as 8G")
    parser.add_argument("--hours", help="budget: hours of the paper's recipe on --device")
    parser.add_argument("--device", default="h100", help="hardware to calculate for")
    parser.add_argument("--measure", action="store_true", help="time a training step of each shape on this machine")
    parser.add_argument("--output", help="a directory to write: a picture of how cost grows, calculated and measured")
    return plan


def add_study(parser: argparse.ArgumentParser) -> Callable:
    parser.add_argument(
        "name", help=f"{', '.join(named_studies())}, a YAML file, or report with the runs.jsonl that follow"
    )
    parser.add_argument("files", nargs="*", help="runs.jsonl of one study, of one or more machines")
    parser.add_argument("--output_dir", help="where the records of runs and the report go")
    parser.add_argument("--scale", help="tiny: two CPU cores; small: one GPU; paper: the real thing")
    parser.add_argument("--dry_run", action="store_true", help="only list the shapes, and what all runs cost")
    parser.add_argument("--processes", type=int, help="runs at once; default: one for each GPU, or each CPU core")
    parser.add_argument("--share", default="1/1", help="1/2 does every second shape, 2/2 the others")
    parser.add_argument(
        "--take_over_output_dir", action="store_true", help="take it from a study on another machine that is dead"
    )
    parser.add_argument("--train_file", nargs="+", help="as in run_pretraining.py, like those that follow")
    parser.add_argument("--validation_file", nargs="+", help="the same, held out")
    parser.add_argument("--dataset_name", nargs="+", help="corpora of the Hub")
    parser.add_argument("--dataset_config_name", nargs="+", help="their configurations")
    parser.add_argument("--document_boundary", nargs="+", help="what ends a document")
    parser.add_argument("--tokenizer_name", help="directory, Hub id or vocab.txt; default: one trained on the corpus")
    parser.add_argument("--store_dir", help="where prepared corpora are kept")
    parser.add_argument("--glue_dir", help="folder with GLUE's tasks, for MNLI; default: the Hub")
    parser.add_argument("--squad_dir", help="folder with train-v1.1.json and dev-v1.1.json; default: the Hub")
    return study_or_report


def study_or_report(
    name: str,
    files: list[str],
    output_dir: str | None,
    scale: str | None,
    dry_run: bool,
    share: str,
    processes: int | None,
    take_over_output_dir: bool,
    **sources,
) -> str:
    import torch
    from accelerate import PartialState

    from .printing import study_cost_text
    from .study import DataSources, load_study, report_markdown, report_runs, run_study, study_cost

    if name != "report" and files:
        raise InputError(f"{files[0]}: one study at a time; only report takes files.")
    study = None if name == "report" else load_study(name, scale)
    if study and dry_run:
        return study_cost_text(study_cost(study, share))
    if output_dir is None:
        raise InputError("no --output_dir: say where the records of runs and the report are to go.")
    if study is None:
        return report_markdown(report_runs(files, output_dir))
    state = PartialState(cpu=not torch.accelerator.is_available())
    state.print(study_cost_text(study_cost(study, share)), flush=True)
    report = run_study(study, output_dir, DataSources(**sources), processes, share, take_over_output_dir)
    return report_markdown(report) if state.is_main_process else ""


COMMANDS = {
    "convert": (add_convert, "start from a BERT checkpoint, with more or larger heads, and the same function"),
    "push": (add_push, "put a model on the Hub, with its code and its card, in one commit"),
    "inspect": (add_inspect, "see what each head of a checkpoint does with text, and how much of its size it uses"),
    "plan": (add_plan, "shapes that fit a budget, with exact counts, ranked by stated rules"),
    "study": (add_study, "train many shapes on equal terms: the papers' tables and figures, or a table of your own"),
    "theory": (add_theory, "check the theorems in numbers, and draw how attention patterns need head size"),
}


def main(argv: list[str] | None = None):
    parser = ArgumentParser(prog="fixedbert", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=ArgumentParser)
    for name, (add_arguments, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=add_arguments(command))
    parsed, unknown = parser.parse_known_args(argv)
    if unknown:
        commands.choices[parsed.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    arguments = vars(parsed)
    del arguments["command"]
    print(arguments.pop("run")(**arguments))


def entry_point():
    exit_on_input_error(main)


if __name__ == "__main__":
    entry_point()
