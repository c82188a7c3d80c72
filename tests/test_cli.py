"""Tests of the `fixedbert` command and its options."""

import os
import subprocess
import sys
from dataclasses import fields
from inspect import signature

import pytest
from helpers import ROOT, fork_server
from transformers import TrainingArguments

import fixedbert
from fixedbert.commands import COMMANDS, groups, trainer_names
from fixedbert.option_values import make
from fixedbert.options import FineTuningDataOptions
from fixedbert_cli import main, parse

IMPORTED = """
import sys
import fixedbert_cli
try:
    fixedbert_cli.entry_point()
except SystemExit as end:
    print(end.code, {"torch", "transformers", "fixedbert", "numpy"} & set(sys.modules))
"""


@pytest.mark.parametrize(
    "argv, code",
    [([], 0), (["--version"], 0), (["shrnk"], 2), (["glue", "--seeds", "-1"], 2)]
    + [([name, "--help"], 0) for name in COMMANDS],
    ids=lambda x: " ".join(x) if isinstance(x, list) else str(x),
)
def test_help_needs_no_imports(argv, code):
    """Help, version and errors about options appear without importing torch, transformers or fixedbert."""
    done = subprocess.run([sys.executable, "-c", IMPORTED, *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith(f"{code} set()\n"), done.stderr


@pytest.mark.parametrize(
    "argv, message",
    [
        ("shrink ./bert --train_file a.csv new.csv b.csv --speedup 2 --output_dir full",
         "a.csv does not exist; b.csv does not exist; ./bert does not exist; full is not empty"),
        ("shrink bert --train_file a.csv --params x --output_dir full",
         "--params is 'x', but must be a number; a.csv does not exist; full is not empty"),
        ("glue --train_file a.csv --do_train", "a.csv does not exist"),
        ("glue r.yaml --validation_file new.c*v --data_dir full --output_dir complete", "r.yaml does not exist"),
        ("push bert me/bert", "bert does not exist"),
        ("convert bert", "the following arguments are required: --output_dir"),
    ],
)  # fmt: skip
def test_paths_are_checked_before_imports(argv, message, tmp_path):
    """All files that do not exist, and a full output directory, are named in one line before torch is imported."""
    for name in ("full/file", "complete/command.json", "new.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", IMPORTED, *argv.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.stderr == f"error: {message}; see fixedbert {argv.split()[0]} --help.\n"
    assert done.stdout.endswith("2 set()\n")


@pytest.mark.parametrize(
    "argv, message",
    [
        ("convert bert wide --output_dir out", "unrecognized arguments: wide"),
        ("convert bert --output_dir out --attention_head 3", "unrecognized arguments: --attention_head"),
        ("shrink model --output_dir out --speedup 2 --params 5e6 --task_name rte", "specify one target"),
        ("squad --n_best_size 2.5", "--n_best_size is '2.5', but must be an integer"),
    ],
)
def test_invalid_options(argv, message, capsys):
    """Missing, unknown, abbreviated, contradictory and impossible options are reported in one line, before the run."""
    with pytest.raises(SystemExit, match="2"):
        main(argv.split())
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and message in printed and printed.count("\n") == 1


def test_help_shows_required_options_and_kinds_of_values(capsys):
    """The usage lists the options that must be set, and the help says whether an option is a number or a choice."""
    with pytest.raises(SystemExit, match="0"):
        main(["export", "--help"])
    printed = capsys.readouterr().out
    assert "usage: fixedbert export model --output_dir VALUE [--option VALUE ...]" in printed
    assert "--runtime onnx|openvino" in printed


def test_flags_become_keyword_arguments():
    """Options reach the function as keyword arguments; switches need no value, and --train-file is --train_file."""
    command = "shrink bert --output_dir out --speedup 2 3 --train-file a.txt b.txt --unpad_inputs=false"
    given = {"model": "bert", "output_dir": "out", "speedup": ["2", "3"], "train_file": ["a.txt", "b.txt"]}
    assert parse(command.split()).args == ("shrink", given | {"unpad_inputs": "false"})
    command = "glue recipe.yaml --do_train --bf16 --seeds 1 2 --report_to a b --learning_rate 1e-4"
    given = {"recipe": "recipe.yaml", "do_train": True, "bf16": True, "seeds": [1, 2], "report_to": ["a", "b"]}
    assert parse(command.split()).args == ("glue", given | {"learning_rate": "1e-4"})


def test_names_of_trainer_arguments():
    """The command line knows the arguments of TrainingArguments without importing it."""
    assert {*trainer_names()} >= {member.name for member in fields(TrainingArguments) if member.init}


@pytest.mark.parametrize("name", COMMANDS)
def test_one_description_of_each_option(name):
    """Each option of a command has one group and is an argument of its function."""
    command = COMMANDS[name]
    names = [each.name for _, members in groups(command) for each in members]
    assert len(names) == len({*names})
    parameters = signature(getattr(fixedbert, command.function)).parameters
    assert {*names} <= parameters.keys()


def test_training_commands_are_scripts(tmp_path, tmp_path_factory):
    """`python -m fixedbert squad` works like run_squad.py, and reports mistakes in one line."""
    output = tmp_path_factory.mktemp("output")
    done = fork_server.run(ROOT / "fixedbert/__main__.py", ["squad", "--output_dir", "out"], tmp_path, output)
    assert done.returncode == 2 and done.stderr.startswith("error: nothing to do; set --do_train")
    assert len(done.stderr.splitlines()) == 1


def test_none_is_no_value():
    """`none` leaves an option that can be unset at its default, also if it has a range."""
    (made,) = make({"train_file": "a.csv", "max_train_samples": "none"}, FineTuningDataOptions)
    assert made.max_train_samples is None


def test_arguments_can_follow_switches():
    """A switch of a command without recipes takes no value."""
    given = {"folder": "folder", "repo_id": "user/name", "dry_run": True}
    assert parse("push --dry_run folder user/name".split()).args == ("push", given)
