"""
The `fixedbert` command: its grammar, without importing what it runs, and what a script sets before its imports.

It is a module of its own because importing the package takes seconds, and it imports the standard library alone until
a command runs.
"""

import argparse
import ast
import difflib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO

Run = Callable[[], None]
PROGRESS_SECONDS = "30"  # between two lines of a progress bar in a file
PROGRESS_DELAY = "2"  # seconds of work before a bar is shown: none for what takes a moment
TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NOT_SUGGESTED = {"take_over_output_dir"}  # takes a directory from a run that may be alive
READ_FILES = ("train_file", "validation_file", "test_file", "data_dir")  # arguments that name what has to be there
# Or an id on the Hub.
MODELS = ("model", "models", "source", "folder", "model_name_or_path", "teacher_model", "compare")


class LogFile:
    """
    Standard error that is no terminal: where a progress bar writes over itself, a new line begins; codes that move the
    cursor of a terminal, or color what it shows, are left out.
    """

    def __init__(self, stream: TextIO):
        self.stream, self.returned, self.in_bar, self.at_start = stream, False, False, True

    def write(self, text: str) -> int:
        for number, part in enumerate(TERMINAL_CODE.sub("", text).split("\r")):
            self.returned |= number > 0
            if part.strip(" ") or (part and not self.returned):  # spaces clear a bar
                begins = (self.returned or self.in_bar) and not self.at_start and not part.startswith("\n")
                self.stream.write("\n" + part if begins else part)
                self.in_bar, self.at_start = self.returned, part.endswith("\n")
                self.returned = False
        return len(text)

    def writelines(self, lines: Iterable[str]):
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def prepare_process():
    """What a command does before its imports, which take seconds."""
    exit_on_interrupt()
    bound_spinning()
    os.environ.setdefault("TQDM_DELAY", PROGRESS_DELAY)
    shorten_progress_in_files()


def prepare_script():
    """What a script of a task does before its imports: as `prepare_process`, and a look at its arguments."""
    prepare_process()
    try:
        check_task_words(sys.argv[1:])
    except ArgumentError as error:
        sys.exit(f"error: {error}")


def bound_spinning():
    """
    Let threads of OpenMP spin for less time where they wait for each other. By default it is several milliseconds: on
    a busy machine a time slice, which the thread that they wait for would need. A third of that costs little alone.
    """
    if "OMP_WAIT_POLICY" not in os.environ:  # read by libgomp when torch is imported
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")


def shorten_progress_in_files():
    """Let progress bars be a line now and then where standard error is no terminal."""
    if not sys.stderr.isatty():
        for name in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
            os.environ.setdefault(name, PROGRESS_SECONDS)
        sys.stderr = LogFile(sys.stderr)


def exit_on_interrupt():
    """Let Ctrl-C end the process with one line, until `exit_on_input_error` knows more."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as behind nohup
        signal.signal(signal.SIGINT, leave)


def leave(*_):
    os.write(2, b"\ninterrupted: nothing had begun\n")
    os._exit(128 + signal.SIGINT)  # an exception would pass through half-imported modules, and some swallow it


class ArgumentError(ValueError):
    """Arguments that no command takes, or that name what is not there, found before anything is imported."""


class ArgumentParser(argparse.ArgumentParser):
    """Errors are one sentence, and arguments cannot be abbreviated."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"argument COMMAND: invalid choice: '(.*?)'", message):
            commands = [*TASKS, *COMMANDS]
            near = did_you_mean(unknown[1], commands)
            raise ArgumentError(f"{unknown[1]}: no such command{near or '; there are ' + ', '.join(commands) + '.'}")
        near = ""
        if message.startswith("unrecognized arguments: "):
            near = did_you_mean(message.split()[2].partition("=")[0], self._option_string_actions)
        raise ArgumentError(f"{message}{near or ';'} {self.prog} --help lists the arguments.")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The nearest of what is known: what the word begins, or else what it is most like."""
    known = sorted(known)
    longer = [name for name in known if name.startswith(word) and len(word) > 2]
    near = longer[:1] or difflib.get_close_matches(word, known, 1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def check_places(options: dict[str, Any]):
    """
    Raises:
        ArgumentError: a file to read or a directory of a model is not there, or the output directory is not empty. The
            commands find that too, but seconds later.
    """
    for name in READ_FILES:
        given = options.get(name) or ()
        for place in [given] if isinstance(given, str) else given:
            if not (os.path.lexists(place) or any(letter in place for letter in "*?[")):
                raise ArgumentError(f"--{name}: {place}: no such file or folder.")
    given = [options.get(name) or "" for name in MODELS]
    for place in [one for part in given for one in (part if isinstance(part, list) else [part])]:
        is_path = place.startswith((".", "/", "~")) or place.endswith("/") or place.count("/") > 1
        if is_path and not os.path.lexists(place):
            siblings = Path(place).parent.glob("*/") if os.path.isdir(Path(place).parent) else ()
            near = did_you_mean(Path(place).name, [sibling.name for sibling in siblings])
            raise ArgumentError(
                f"{place}: no such directory{near or '; give that of a model, or its name on the Hub.'}"
            )
    final = options.get("output_dir")
    if final and os.path.lexists(final) and not is_empty_directory(final):
        raise ArgumentError(f"{final}: the output directory is not empty; give another one, or remove it.")


def is_empty_directory(place: str) -> bool:
    try:
        return os.path.isdir(place) and not os.listdir(place)
    except OSError:  # which the command itself says better
        return True


def check_task_words(words: list[str]):
    """
    Check the words for a task's parser, which takes seconds to import: names of flags, and places.

    Raises:
        ArgumentError: a flag that is no field of the arguments, or as `check_places`.
    """
    known = task_flags()
    first = words[0] if words else ""
    if first.endswith((".yaml", ".yml", ".json")) and not first.startswith("-") and not os.path.exists(first):
        packaged = source_of("fixedbert") / "recipes"
        if not (Path(first).parent == Path("recipes") and (packaged / Path(first).name).exists()):
            recipes = ", ".join(f"recipes/{file.name}" for file in sorted(packaged.glob("*.yaml")))
            raise ArgumentError(f"{first}: no such recipe; give a file, or one of {recipes}.")
    options: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            if known and not {name, name.removeprefix("no_")} & known.keys():
                near = did_you_mean(name, known.keys() - NOT_SUGGESTED).replace("mean ", "mean --")
                raise ArgumentError(f"--{flag}: no such argument{near or '; --help lists those there are.'}")
            options[name] = [value] if equals else []
        elif name is not None:
            options[name].append(word)
    for name, values in options.items():
        wrong = next((value for value in values if not is_number(value)), None)
        if wrong is not None and known.get(name) in ("int", "float", "int | None", "float | None"):
            raise ArgumentError(f"--{name}: {wrong!r} is no number.")
    one = ("output_dir", "model_name_or_path", "teacher_model")
    check_places({name: values[0] if name in one and values else values for name, values in options.items()})


def is_number(word: str) -> bool:
    try:
        return float(word) is not None
    except ValueError:
        return False


def task_flags() -> dict[str, str]:
    """Types of the tasks' flags: of fields of classes called ...Arguments, read in our source and in transformers'."""
    files = [source_of("transformers") / "training_args.py"]
    for part in ("training", "pretraining", "fine_tuning"):
        files += (source_of("fixedbert") / part).glob("*.py")
    classes = [
        node
        for file in files
        if file.is_file()
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Arguments")
    ]
    fields = [part for one in classes for part in one.body if isinstance(part, ast.AnnAssign)]
    types = {part.target.id: ast.unparse(part.annotation) for part in fields if isinstance(part.target, ast.Name)}
    types = {name: kind for name, kind in types.items() if "ClassVar" not in kind}
    return {"help": "", **types} if {"output_dir", "task_name"} <= types.keys() else {}


def source_of(package: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = find_spec(package)
    return Path(*(spec and spec.submodule_search_locations or ["not-installed"]))


def convert_arguments(parser: ArgumentParser):
    parser.add_argument(
        "source",
        help="directory or Hub id of a BERT, a RoBERTa-like model, a DistilBERT, an ELECTRA or a FixedHeadBert",
    )
    parser.add_argument("--output_dir", required=True, help="the directory to write")
    parser.add_argument(
        "--attention_head_size",
        type=int,
        nargs="+",
        help="size of the heads, or one for each layer; default, and at least, the source's",
    )
    parser.add_argument(
        "--value_head_size", type=int, nargs="+", help="size of values, or one for each layer, where it differs"
    )
    parser.add_argument("--num_attention_heads", type=int, help="number of heads; default, and at least, the source's")
    parser.add_argument(
        "--intermediate_size",
        type=int,
        nargs="+",
        help="feed-forward neurons, or a number for each layer; default, and at least, the source's",
    )
    parser.add_argument("--num_hidden_layers", type=int, help="number of layers, the old ones repeated or left out")
    parser.add_argument(
        "--architecture",
        help="class of the source where its config.json names none of transformers, such as BertForMaskedLM; tensors "
        "that it has no place for are dropped",
    )
    parser.add_argument("--bert", action="store_true", help="from a FixedHeadBert to a BERT of transformers")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers in what is new")
    parser.add_argument(
        "--cased",
        dest="do_lower_case",
        action="store_const",
        const=False,
        help="keep upper case, whatever the tokenizer says",
    )
    hub_arguments(parser)


def load_convert(source: str, **options) -> Run:
    from fixedbert.conversion.convert import convert

    def run():
        convert(source, **options)  # which prints what it does

    return run


def shrink_arguments(parser: ArgumentParser):
    parser.add_argument("model", help="directory or Hub id of a model as in fixedbert convert, or of a FixedHeadBert")
    parser.add_argument("--output_dir", required=True, help="the directory to write")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--speedup", type=float, help="times as fast as the original on this machine, such as 2")
    target.add_argument("--milliseconds", type=float, help="for a batch of the rows on this machine")
    target.add_argument("--params", type=float, help="parameters of the whole model, such as 15e6")
    target.add_argument("--flops", type=float, help="operations of a forward pass, for a row of the mean length")
    parser.add_argument(
        "--attention_head_size", type=int, nargs="+", help="size of queries and keys, or one for each layer"
    )
    parser.add_argument(
        "--value_head_size", type=int, nargs="+", help="size of values; default: the same, as long as it was the same"
    )
    parser.add_argument("--num_attention_heads", type=int, nargs="+", help="number of heads, or one for each layer")
    parser.add_argument("--intermediate_size", type=int, nargs="+", help="neurons, or a number for each layer")
    parser.add_argument("--task_name", help="the GLUE task of the model, whose training rows it is cut by")
    parser.add_argument("--data_dir", help="folder of the task in the layout of the GLUE download; default: the Hub")
    parser.add_argument(
        "--train_file",
        nargs="+",
        help="or files with rows of its task: texts or pairs (.csv, .tsv, .jsonl, .parquet, .txt), questions (.json), "
        "running text for a masked LM; labels are not needed",
    )
    parser.add_argument(
        "--text_column_names", help="columns of a table with the texts: one, or two with a comma between"
    )
    parser.add_argument("--latency_table", help="file with measured times, which is written if it is not there")
    parser.add_argument(
        "--max_seq_length", type=int, help="tokens of a row, at most; default: as many as the model takes, at most 512"
    )
    parser.add_argument("--max_samples", type=int, default=1500, help="rows to cut by")
    parser.add_argument("--batch_size", type=int, default=32, help="rows at once, for the times too")
    parser.add_argument(
        "--distil_steps",
        type=int,
        nargs="?",
        const=600,
        help="steps of training towards the original's answers, after it; without a number 600",
    )
    parser.add_argument("--learning_rate", type=float, help="for this training; default: 5e-5")
    parser.add_argument("--seed", type=int, default=0, help="for the order of the rows")
    parser.add_argument(
        "--cased",
        dest="do_lower_case",
        action="store_const",
        const=False,
        help="keep upper case, whatever the tokenizer says",
    )
    hub_arguments(parser)


def push_arguments(parser: ArgumentParser):
    parser.add_argument("folder", help="a directory that a script, `fixedbert convert` or save_pretrained wrote")
    parser.add_argument("repo_id", help="user/name or organization/name; it is made if it is not there")
    parser.add_argument("--license", help="licence of the weights, such as apache-2.0, where the card does not say")
    parser.add_argument("--private", action="store_true", default=None, help="make a repository that nobody else sees")
    parser.add_argument("--commit_message", help="message of the commit")
    parser.add_argument("--token", help="token for the Hub; without it, the one logged in with")


def export_arguments(parser: ArgumentParser):
    parser.add_argument("model", help="directory or Hub id of a FixedHeadBert, a BERT or a RoBERTa-like model")
    parser.add_argument("--output_dir", required=True, help="the directory to write")
    parser.add_argument("--format", choices=["onnx"], default="onnx", help="of the graph")
    parser.add_argument("--int8", action="store_true", help="also write a graph with matrices in int8")
    hub_arguments(parser)


def compare_arguments(parser: ArgumentParser):
    parser.add_argument(
        "models", nargs="+", help="directories or Hub ids: first the original, then others, ONNX directories too"
    )
    parser.add_argument(
        "--validation_file", required=True, help="rows of their task, with labels or without: .csv, .tsv, .jsonl, .txt"
    )
    parser.add_argument("--text_column_names", help="columns with the texts: one, or two with a comma between")
    parser.add_argument("--label_column_name", help="column with the labels; default: label, if there is one")
    parser.add_argument(
        "--max_seq_length", type=int, help="tokens of a row; default: what the model takes, at most 512"
    )
    parser.add_argument("--max_samples", type=int, default=1000, help="rows to compare on; default: 1000")
    parser.add_argument("--batch_size", type=int, default=32, help="rows at once; default: 32")
    parser.add_argument("--output_dir", help="where all numbers and the rows with other answers go; default: nowhere")
    parser.add_argument("--cache_dir", help="where downloads from the Hub are kept")
    parser.add_argument("--token", help="token for the Hub; without it, the one logged in with")


def theory_arguments(parser: ArgumentParser):
    parser.add_argument("--output_dir", required=True, help="the directory to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 16, 32], help="of sequences, in tokens")
    parser.add_argument("--patterns", type=int, default=5, help="random attention patterns for each head size")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")


def load_theory(**options) -> Run:
    theory = import_experiment("head_size.theory")
    return lambda: print(theory.theory_text(theory.theory(**options)))


def import_experiment(name: str) -> ModuleType:
    """
    Import experiments.NAME from the checkout that contains this file.

    Raises:
        ArgumentError: this file is not in a checkout.
    """
    directory = Path(__file__).parent / "experiments"
    if not directory.is_dir():
        raise ArgumentError("the commands study and theory need a checkout of fixedbert; run them there.")
    if "experiments" not in sys.modules:
        spec = spec_from_file_location(
            "experiments", directory / "__init__.py", submodule_search_locations=[str(directory)]
        )
        assert spec is not None
        sys.modules["experiments"] = module_from_spec(spec)
    return import_module(f"experiments.{name}")


def inspect_arguments(parser: ArgumentParser):
    parser.add_argument("model", help="directory or Hub id of a BERT-like encoder, stock or fixed")
    parser.add_argument("--output_dir", required=True, help="the directory to write")
    parser.add_argument("--validation_file", required=True, help="file, folder or glob: .txt, .jsonl, .csv, .parquet")
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--max_samples", type=int, default=1000, help="sequences to look at")
    parser.add_argument("--importance_samples", type=int, default=8, help="sequences to silence each head on")
    parser.add_argument("--batch_size", type=int, default=16, help="sequences at once")
    parser.add_argument("--compare", help="directory or Hub id of a second encoder, to see beside it")
    hub_arguments(parser)


def plan_arguments(parser: ArgumentParser):
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens of a row in training")
    parser.add_argument("--params", help="budget: parameters of the pretraining model, such as 110M")
    parser.add_argument("--flops", help="budget: FLOPs of training for each token, such as 700M")
    parser.add_argument("--memory", help="budget: bytes for training 32 rows, such as 8G")
    parser.add_argument("--hours", help="budget: hours of the paper's recipe on --device")
    parser.add_argument("--device", default="h100", help="hardware to calculate for")
    parser.add_argument("--measure", action="store_true", help="time a training step of each shape on this machine")


def study_arguments(parser: ArgumentParser):
    parser.add_argument(
        "name", help="a study that docs/study.md lists, a YAML file, or report with the runs.jsonl that follow"
    )
    parser.add_argument("files", nargs="*", help="runs.jsonl of one study, of one or more machines")
    parser.add_argument("--output_dir", help="where the records of runs and the report go")
    parser.add_argument("--scale", help="tiny, day: two CPU cores; small: one GPU; paper: the real thing")
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


def load_study(
    name: str,
    files: list[str],
    output_dir: str | None,
    scale: str | None,
    dry_run: bool,
    share: str,
    processes: int | None,
    take_over_output_dir: bool,
    **sources,
) -> Run:
    import torch
    from accelerate import PartialState

    from fixedbert.support.errors import InputError

    studies = import_experiment("study")
    studies.register(import_experiment("head_size").EXTENSION)

    def run():
        if name != "report" and files:
            raise InputError(f"{files[0]}: one study at a time; only report takes files.")
        study = None if name == "report" else studies.load_study(name, scale)
        if study and dry_run:
            return print(studies.study_cost_text(study, share, timed=True))
        if output_dir is None:
            raise InputError("is missing: say where the records of runs and the report are to go.", "output_dir")
        if study is None:
            return print(studies.report_markdown(studies.report_runs(files, output_dir)))
        state = PartialState(cpu=not torch.accelerator.is_available())
        state.print(studies.study_cost_text(study, share), flush=True)
        arguments = study, output_dir, studies.DataSources(**sources), processes, share, take_over_output_dir
        report = studies.run_study(*arguments)
        if state.is_main_process:
            print(studies.report_markdown(report))

    return run


def hub_arguments(parser: ArgumentParser):
    parser.add_argument("--model_revision", dest="revision", default="main", help="branch, tag or commit on the Hub")
    parser.add_argument("--cache_dir", help="where downloads from the Hub are kept")
    parser.add_argument("--token", help="token for the Hub; without it, the one logged in with")


@dataclass(frozen=True)
class Command:
    """
    A command with a grammar of its own.

    Args:
        function: a module of fixedbert, and the function in it that takes all options and returns what is printed; or
            what imports such a function where it is more than that, and returns the command ready to run.
        continues: whether it goes on in an output directory that is there.
    """

    help: str
    add_arguments: Callable[[ArgumentParser], None]
    function: str | Callable[..., Run]
    continues: bool = False

    def load(self, **options) -> Run:
        """The command ready to run, after the imports that take seconds. Its last line says where the result is."""
        folder = options.get("output_dir")
        check_places({**options, "output_dir": None} if self.continues else options)
        command = self.command(**options)

        def run():
            command()
            if folder is not None and not self.continues:  # a study prints its report, which can go to a file
                print(f"The result is in {folder}.")

        return run

    def command(self, **options) -> Run:
        if not isinstance(self.function, str):
            return self.function(**options)
        module, _, name = self.function.rpartition(".")
        function = getattr(import_module(f"fixedbert.{module}"), name)
        return lambda: print(function(**options))


# Modules of fixedbert, whose `main` has the flags of the script, and what they do.
TASKS = {
    "pretrain": (
        "pretraining.pretrain",
        "pretrain on a corpus: masked-LM with next-sentence prediction, masked-LM or causal LM alone",
    ),
    "glue": (
        "fine_tuning.glue",
        "fine-tune, evaluate and predict on GLUE, or on texts of one's own, alone or in pairs",
    ),
    "squad": ("fine_tuning.squad", "fine-tune, evaluate and predict on questions whose answer is a span of a text"),
}
COMMANDS = {
    "convert": Command(
        "start from a BERT checkpoint, with more or larger heads, more neurons, and the same function",
        convert_arguments, load_convert,
    ),
    "shrink": Command(
        "make a model faster or smaller with nearly the same predictions",
        shrink_arguments, "shrinking.shrink.shrink",
    ),
    "compare": Command(
        "models side by side on rows of one's own: speed, right answers, other answers",
        compare_arguments, "comparison.compare.compare",
    ),
    "export": Command(
        "write a graph in ONNX for servers, compared with the model on text",
        export_arguments, "publishing.export.export",
    ),
    "push": Command(
        "put a model on the Hub, with its code and its card, in one commit",
        push_arguments, "publishing.push.push",
    ),
    "inspect": Command(
        "see what each head of a checkpoint does with text, and how much of its size it uses",
        inspect_arguments, "inspection.inspect.inspect",
    ),
    "plan": Command("shapes that fit a budget, with exact counts", plan_arguments, "planning.plan"),
    "study": Command(
        "train many shapes on equal terms: the papers' tables and figures, or a table of your own",
        study_arguments, load_study, continues=True,
    ),
    "theory": Command(
        "check the theorems in numbers, and draw how attention patterns need head size",
        theory_arguments, load_theory,
    ),
}  # fmt: skip


def main(argv: list[str] | None = None):
    """
    Run a command.

    Raises:
        ArgumentError: of the grammar, or a place that is not there.
        InputError: of the command.
    """
    load = parse(sys.argv[1:] if argv is None else argv)
    run = load()
    run()


def parse(words: list[str]) -> Callable[[], Run]:
    """The command that is asked for, to be loaded."""
    if words and words[0] in TASKS:  # all that follows is for the parser of the task
        check_task_words(words[1:])
        return partial(load_task, *words)
    parser = ArgumentParser(prog="fixedbert", description="BERT with a free attention head size.")
    parser.add_argument("--version", action="version", version=versions())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=ArgumentParser)
    for name, (_, text) in TASKS.items():
        commands.add_parser(name, help=text)
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.help, description=command.help))
    parsed, rest = parser.parse_known_args(words or ["--help"])
    options = vars(parsed)
    name = options.pop("command")
    if rest:
        commands.choices[name].error(f"unrecognized arguments: {' '.join(rest)}")
    return partial(COMMANDS[name].load, **options)


def versions() -> str:
    """What a report of an error needs, without importing any of it."""
    names = ["fixedbert", "torch", "transformers", "accelerate", "datasets"]
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} (not installed)")
    return f"{', '.join(found)}; Python {sys.version.split()[0]}"


def load_task(name: str, *words: str) -> Run:
    module, _ = TASKS[name]
    return partial(import_module(f"fixedbert.{module}").main, list(words), prog=f"fixedbert {name}")


def entry_point():
    """What the installed command calls. Its help comes at once; Ctrl-C ends the seconds of imports with one line."""
    prepare_process()
    try:
        load = parse(sys.argv[1:])
        run = load()
    except ArgumentError as error:
        sys.exit(f"error: {error}")
    except ValueError as error:
        from fixedbert.support.errors import InputError

        if not isinstance(error, InputError):  # of an import
            raise
        sys.exit(f"error: {error}")
    from fixedbert.support.errors import exit_on_input_error

    exit_on_input_error(run)


if __name__ == "__main__":
    entry_point()
