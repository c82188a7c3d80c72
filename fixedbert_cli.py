"""
The `fixedbert` command.

This module is installed next to the package instead of inside it. Until a command runs, it imports only the standard
library and the modules of the options, because importing fixedbert takes seconds. `fixedbert --help` takes 0.1 s.
"""

import os
import re
import signal
import sys
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import fill
from typing import Any, get_args, get_origin


def load(name: str) -> Any:
    """Imports a module of fixedbert without its package, which would import torch and transformers."""
    name, package = f"fixedbert.{name}", find_spec("fixedbert")
    if name not in sys.modules:
        assert package is not None and package.origin is not None
        spec = spec_from_file_location(name, Path(package.origin).with_name(f"{name.rpartition('.')[2]}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


_, values, commands = map(load, ("options", "option_values", "commands"))  # each imports those before it

TRAINER = (
    "Also accepted: transformers.TrainingArguments (https://huggingface.co/docs/transformers/main_classes/trainer);\n"
    "numbers of steps below 1, such as --warmup_steps 0.1, are fractions of all steps"
)
RUN = ["--output_dir VALUE", "--do_train|--do_eval|--do_predict"]  # which a training command needs
RECIPE = "YAML or JSON file with options, such as the packaged recipes/mini.yaml; flags take precedence"

PLACEHOLDERS = {int: "N", float: "N", bool: "true|false"}  # for values in the help; VALUE for all other types


def limit_openmp_spinning():
    """
    Limits how long an OpenMP thread spins while it waits for other threads. Must be called before importing torch.

    By default, threads spin for several milliseconds. On a busy machine, this takes CPU time away from the threads
    that they are waiting for. On an idle machine, the limit has almost no effect.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")


class Parser(ArgumentParser):
    """ArgumentParser that reports an error in one line."""

    def error(self, message: str):
        self.exit(2, f"error: {message}; see {self.prog} --help.\n")

    def fail(self, problems: list[str]):
        """Exits with problems in which options are written as `name`."""
        self.error(re.sub(r"`(\w+)`", r"--\1", "; ".join(problems)))


def command_parser(name: str) -> Parser:
    """Returns the parser of a command. It returns only the options that are given, as text or lists of text."""
    command = commands.COMMANDS[name]
    groups = [*commands.groups(command)]
    own = {each.name: each for _, members in groups for each in members}
    required = [each.name if each.positional else f"--{each.name} VALUE" for each in own.values() if each.required]
    usage = ["%(prog)s", *(["[recipe.yaml]", *RUN] if command.trains else required), "[--option VALUE ...]"]
    parser = Parser(
        prog=f"fixedbert {name}",
        usage=" ".join(usage),
        description=command.help,
        formatter_class=partial(RawDescriptionHelpFormatter, width=110),
        allow_abbrev=False,
        argument_default=SUPPRESS,
    )
    if command.trains:
        parser.add_argument("recipe", nargs="?", help=RECIPE)
    for heading, members in groups:
        group = parser.add_argument_group(heading.replace("`", ""))
        for each in members:
            add_option(group, each, each.hint is bool and not command.trains)
    if command.trains:
        names = [f"--{name}" for name in commands.trainer_names() if name not in own]
        listed = fill(" ".join(names), 108, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        parser.epilog = f"{TRAINER}:\n{listed}"
        for name in names:
            parser.add_argument(name, nargs="*", help=SUPPRESS)
    return parser


def add_option(group: Any, described: Any, is_switch: bool):
    """Adds an option to a group of an ArgumentParser. A switch takes no value, so that an argument can follow."""
    kinds = values.kinds_of(described.hint)
    items = [item for kind in kinds for item in get_args(kind) or [kind]]  # choices, and the types of list items
    names = [item if isinstance(item, str) else PLACEHOLDERS.get(item, "") for item in items]
    value = described.name if described.positional else "|".join(filter(None, names)) or "VALUE"
    arguments: dict[str, Any] = {"help": described.text.replace("%", "%%").replace("`", ""), "metavar": value}
    if is_switch:
        arguments = {"help": arguments["help"], "action": "store_true"}
    elif any(get_origin(kind) is list for kind in kinds):
        arguments["nargs"] = "+"
    elif bool in kinds:
        arguments |= {"nargs": "?", "const": True}
    if described.required and not described.positional:
        arguments["required"] = True
    group.add_argument(described.name if described.positional else f"--{described.name}", **arguments)


def read(name: str, argv: list[str]) -> dict[str, Any]:
    """Returns the options of a command as keyword arguments for its function. Exits if one is unknown or invalid."""
    command, parser = commands.COMMANDS[name], command_parser(name)
    given = vars(parser.parse_args([with_underscores(argument) for argument in argv]))
    try:
        if not command.trains:  # a recipe can set the other options of training commands
            values.build(given, *command.options)
            return given
        own = {each.name for _, members in commands.groups(command) for each in members}
        converted = values.convert_all({key: value for key, value in given.items() if key in own}, command.options)
    except ValueError as error:
        parser.fail([str(error).rstrip("."), *commands.problems(given)])
    return {key: converted.get(key, value) if key in own else switch_or_value(value) for key, value in given.items()}


def with_underscores(argument: str) -> str:
    """Returns --train-file as --train_file."""
    flag, separator, value = argument.partition("=")
    return f"--{flag[2:].replace('-', '_')}{separator}{value}" if flag.startswith("--") else argument


def switch_or_value(values: str | list[str]) -> Any:
    """Returns the value of a flag of TrainingArguments: True for a flag without a value."""
    if isinstance(values, str):
        return values
    return values if len(values) > 1 else values[0] if values else True


def run(name: str, given: dict[str, Any]):
    """Calls the function of a command and prints its result."""
    import fixedbert

    result = getattr(fixedbert, commands.COMMANDS[name].function)(**given)
    if name != "convert":  # prints its own summary and returns a model
        from accelerate import PartialState

        PartialState().print(result)


def parse(argv: list[str]) -> partial[None]:
    """Parses the command line and returns a function that runs the command."""
    if argv and argv[0] in commands.COMMANDS:
        return partial(run, argv[0], read(argv[0], argv[1:]))
    parser = Parser(prog="fixedbert", description="BERT with a configurable head size.", allow_abbrev=False)
    packages = ("fixedbert", "torch", "transformers", "accelerate", "datasets")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    parser.add_argument("--version", action="version", version=f"{versions}; Python {sys.version.split()[0]}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in commands.COMMANDS.items():
        subparsers.add_parser(name, help=command.help)
    parser.parse_args(argv or ["--help"])
    raise AssertionError("the parser exits, because the first argument is not a command")


def main(argv: list[str]):
    """
    Runs the command in `argv`.

    Raises:
        SystemExit: If the arguments cannot be parsed.
        InputError: If the input of the command is invalid.
    """
    parse(argv)()


def entry_point(*command: str):
    """Runs the command line, which follows `command` in a script. Prints errors in the input as a single line."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports without a traceback
    limit_openmp_spinning()
    run_command = parse([*command, *sys.argv[1:]])
    name, given = run_command.args
    if found := commands.problems(given):
        Parser(prog=f"fixedbert {name}").fail(found)
    from fixedbert.support.errors import exit_on_input_error

    exit_on_input_error(run_command)


if __name__ == "__main__":
    entry_point()
