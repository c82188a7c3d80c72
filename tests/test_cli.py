"""The `fixedbert` command: its grammar, with the spellings of before, and help without imports that take seconds."""

import configparser
import dataclasses
import re
import subprocess
import sys
from importlib import import_module

import pytest
from helpers import ROOT, fork_server

import fixedbert_cli
from fixedbert.fine_tuning.glue import TextClassification
from fixedbert.fine_tuning.squad import QuestionAnswering
from fixedbert.pretraining.pretrain import ARGUMENTS
from fixedbert_cli import COMMANDS, TASKS, ArgumentError, check_places, check_task_words, main, task_flags


def python(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)


IMPORTED = """
import sys
import fixedbert_cli
try:
    fixedbert_cli.entry_point()
except SystemExit as end:
    print(end.code, {"torch", "transformers", "fixedbert", "numpy"} & set(sys.modules))
"""


@pytest.mark.parametrize("words", [[], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_comes_at_once(words):
    """Guards: the help of a command imports neither torch nor transformers, which take seconds, nor fixedbert."""
    done = python("-c", IMPORTED, *words)
    assert done.stdout.startswith("usage: fixedbert"), done.stderr
    assert done.stdout.endswith("\n0 set()\n")


def test_mistakes_and_the_version_come_at_once():
    """Guards: an argument that a command or a task does not have is refused, and the version said, without imports."""
    wrong = (["shrnk"], ["glue", "--taskname"], ["plan", "--hour"], ["glue", "--max_steps", "ten"])
    two = ["shrink", "model", "--output_dir", "out", "--speedup", "2", "--params", "5e6"]
    for words, code in ((["--version"], 0), *((words, 1) for words in (*wrong, two))):
        done = python("-c", IMPORTED.replace("print(end.code,", "print(int(bool(end.code)),"), *words)
        assert done.stdout.endswith(f"{code} set()\n"), done.stderr


def test_flags_of_the_tasks_are_those_of_their_parsers():
    """Guards: the names that are read in the source are all fields of the arguments, and no other words."""
    kinds = {*ARGUMENTS, *TextClassification.arguments, *QuestionAnswering.arguments}
    fields = {member.name for kind in kinds for member in dataclasses.fields(kind) if member.init}
    assert task_flags().keys() == fields | {"help"}


def test_nothing_valid_is_refused_early(tmp_path, monkeypatch):
    """Guards: places and flags in all their forms reach the command."""
    monkeypatch.chdir(tmp_path)
    for place in ("a.txt", "model.ckpt.index", "rows.json"):
        (tmp_path / place).write_text("")
    (tmp_path / "empty").mkdir()
    for words in (
        "recipes/mini.yaml --train_file *.none a.txt --learning-rate=-1 --no_eval_do_concat_batches",
        "./recipes/mini.yaml --output_dir empty",
        "--train_file=rows.json --model_name_or_path me/model --logging-steps 5",
        "rows.json --seed 1 --save_steps 0.5 --max_grad_norm 1e-3 --warmup_steps=100",
    ):
        check_task_words(words.split())
    for place in ("./model.ckpt", "me/model", "empty/"):
        check_places({"model": place, "output_dir": "new"})
    with pytest.raises(ArgumentError, match=r"^./emty: no such directory; did you mean empty\?"):
        check_places({"model": "./emty"})
    with pytest.raises(ArgumentError, match="^--overwrite_output_dir: no such argument; --help lists"):
        check_task_words(["--overwrite_output_dir"])  # not the flag that takes a directory over


def test_tasks_in_the_help_are_those_of_the_package():
    """Guards: the help, which imports nothing, names the tasks that there are."""
    for module, _ in TASKS.values():
        assert callable(import_module(f"fixedbert.{module}").main)


def test_progress_in_a_file_is_a_line_now_and_then():
    """Guards: a log file has no carriage returns; a bar's states are lines, and what clears one leaves nothing."""
    bars = "for leave in (True, False):\n    list(tqdm(range(2), leave=leave, mininterval=0, miniters=1, delay=0))\n"
    begin = "import fixedbert_cli, sys\nfixedbert_cli.prepare_process()\nfrom tqdm import tqdm\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}{bars}print('end', file=sys.stderr)"],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
    )
    states = [line.split("%")[0].strip() for line in done.stderr.decode().split("\n")]
    assert b"\r" not in done.stderr and states == ["0", "50", "100", "100", "0", "50", "100", "end", ""]
    message = "bar = tqdm(total=2, delay=0)\nsys.stderr.writelines(['a ', 'warning\\n'])\nbar.update()\nbar.close()\n"
    lines = python("-c", f"{begin}{message}").stderr.split("\n")
    assert ["0%" in lines[0], lines[1], "50%" in lines[2], lines[3:]] == [True, "a warning", True, [""]]
    quiet = python("-c", f"{begin}[_ for _ in tqdm(range(9999), delay=0)]")
    assert len(quiet.stderr.splitlines()) == 2  # the first state and the last
    assert python("-c", f"{begin}[_ for _ in tqdm(range(9999))]").stderr == ""  # what takes a moment has no bar
    codes = python("-c", f"{begin}print('\\x1b[31mred\\x1b[0m\\x1b[A', file=sys.stderr)")
    assert codes.stderr == "red\n"


@pytest.fixture
def given(monkeypatch) -> list[dict]:
    """The arguments that each command gets from now on, instead of being run."""
    found = []
    for name, command in COMMANDS.items():
        recorded = dataclasses.replace(command, function=lambda **options: lambda: found.append(options))
        monkeypatch.setitem(fixedbert_cli.COMMANDS, name, recorded)
    return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("convert bert", "required: --output_dir; fixedbert convert --help"),
        ("inspect bert --output_dir out", "required: --validation_file; fixedbert inspect --help"),
        ("convert bert wide --output_dir out", "unrecognized arguments: wide;"),
        ("shrink bert --speedup 2", "required: --output_dir; fixedbert shrink --help"),
        ("plan out", "unrecognized arguments: out;"),
        ("plan --seq 64", "unrecognized arguments: --seq 64;"),
        ("study heads --scale", "argument --scale: expected one argument; fixedbert study --help"),
        ("shrnk bert", "^shrnk: no such command; did you mean shrink?"),
        ("plan --parms 110M", "unrecognized arguments: --parms 110M; did you mean --params?"),
        (
            "inspect bert --output_dir out --validation_file no/such.txt",
            "^--validation_file: no/such.txt: no such file",
        ),
        ("export ./no/such --output_dir out", "^./no/such: no such directory"),
        ("convert bert --output_dir tests", "^tests: the output directory is not empty"),
        ("glue --taskname mnli", "^--taskname: no such argument; did you mean --task_name?"),
        ("squad --train_file no/such.json", "^--train_file: no/such.json: no such file"),
        ("pretrain recipes/min.yaml", "^recipes/min.yaml: no such recipe; give a file, or one of recipes/"),
    ],
)
def test_mistakes_are_said_at_once(given, words, message, monkeypatch):
    """Guards: what is missing, misspelt or not there is said in a sentence, before anything is imported."""
    monkeypatch.chdir(ROOT)
    with pytest.raises(ArgumentError) as raised:
        main(words.split())
    assert re.search(message.replace("?", r"\?"), str(raised.value)) and given == []


def test_flows_are_commands(tmp_path, tmp_path_factory):
    """Guards: `python -m fixedbert glue` has the arguments of run_glue.py and its own name."""

    def run(*words: str) -> subprocess.CompletedProcess:
        return fork_server.run(ROOT / "fixedbert/__main__.py", [*words], tmp_path, tmp_path_factory.mktemp("printed"))

    done = run("glue", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: fixedbert glue [-h]")
    assert "--task_name" in done.stdout
    refused = run("squad", "--output_dir", "out")
    assert (refused.returncode, refused.stderr) == (
        1,
        "error: nothing to do: give --do_train, --do_eval or --do_predict.\n",
    )


def test_only_the_command_is_installed_beside_the_package():
    """Guards: no module called run_glue, run_squad or run_pretraining comes into site-packages."""
    installed = configparser.ConfigParser()
    installed.read(ROOT / "setup.cfg")
    assert installed["options"]["py_modules"] == "fixedbert_cli"
