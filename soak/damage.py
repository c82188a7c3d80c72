"""Corrupts files and runs the commands that read them, which must succeed or end with one clear error message."""

import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import safetensors.torch
import torch
import yaml

import fixedbert_cli
from experiments.study.__main__ import main as study
from fixedbert.support.errors import exit_on_input_error

from .runs import GLUE, PRETRAIN, QUIET, results_of, write_inputs

TIMEOUT = 60  # seconds for a command, which usually takes two
MAX_MESSAGE_LENGTH = 1500  # characters
FORK = multiprocessing.get_context("fork")
TUNE = f"{GLUE} --max_steps 3 --save_steps 2 {QUIET} --model_name_or_path"
TRAIN = f"{PRETRAIN} 1 --train_file texts.jsonl --do_train --max_steps 2 {QUIET}"
CONVERT = "convert model --output_dir out --num_attention_heads 8"
# For each file, the command that reads it. Changes to WRITTEN_FILES, which fixedbert writes, must be detected.
USERS_FILES = {
    "model/config.json": f"{TUNE} model",
    "model/model.safetensors": f"{TUNE} model",
    "model/tokenizer.json": CONVERT,
    "pickled/pytorch_model.bin": "convert pickled --output_dir out --num_attention_heads 8",
    "texts.jsonl": TRAIN,
    "rows.csv": f"{TUNE} model",
    "recipe.yaml": "pretrain recipe.yaml --output_dir out",
    "study.yaml": "study study.yaml --dry_run",
    "done/runs.jsonl": "study report done/runs.jsonl --output_dir out",
}
CHECKPOINT = "out-2.partial/checkpoint-2"
RESUME = f"{TUNE} model".replace("--output_dir out", "--output_dir out-2")
WRITTEN_FILES = {
    "store/store-*/shard-000000.arrow": TRAIN,
    "store/store-*/documents.npy": TRAIN,
    "store/store-*/store.json": TRAIN,
    f"{CHECKPOINT}/trainer_state.json": RESUME,
    f"{CHECKPOINT}/optimizer.pt": RESUME,
    f"{CHECKPOINT}/rng_state.pth": RESUME,
}
FILES = USERS_FILES | WRITTEN_FILES
# Files without a checksum, in which changed numbers cannot be detected.
UNCHECKED = ("trainer_state.json", "optimizer.pt", "rng_state.pth")


def run(directory: Path, count: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Corrupts each of FILES `count` times, runs its command, and yields the name and faults of each trial."""
    for module in ("pretraining.pretrain", "fine_tuning.glue", "fine_tuning.trainer", "conversion.convert"):
        importlib.import_module(f"fixedbert.{module}")  # import once instead of in every child process
    valid = directory / "valid"
    if not valid.exists():
        in_child(lambda: write_valid(valid), directory)
    for name, command in FILES.items():
        trial = copy_of(valid, directory / "trial")
        outcome, expected = in_child(lambda command=command: execute(command), trial)
        if outcome != "done":
            raise RuntimeError(f"{name}: the command failed with the valid file: {expected}")
        for number in range(count):
            rng = random.Random(f"{seed} {name} {number}")
            trial = copy_of(valid, directory / "trial")
            (file,) = trial.glob(name)
            change = damage(file, number, rng)
            outcome, result = in_child(lambda command=command: execute(command), trial)
            yield f"{name} {number}, {change}", faults_of(name, outcome, result, expected)


def copy_of(valid: Path, directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    return shutil.copytree(valid, directory)


def faults_of(name: str, outcome: str, result: str, expected: str) -> list[str]:
    """Returns the faults in the outcome of a command that read a corrupted file."""
    if outcome == "done":
        is_checked = name in WRITTEN_FILES and not name.endswith(UNCHECKED)
        return ["changed content was loaded silently"] if is_checked and result != expected else []
    if outcome != "error":
        return [f"{outcome}: {result}"]
    file = Path(name).name.replace("*", "")
    expected_names = [file, *Path(name).parts[:-1], *(["--", "study"] if file.endswith(".yaml") else [])]
    is_clear = result.startswith("error: ") and "\n" not in result.strip() and len(result) <= MAX_MESSAGE_LENGTH
    return [] if is_clear and any(one in result for one in expected_names) else [f"unclear message: {result}"]


# Valid files, and commands in forked processes


def write_valid(directory: Path):
    write_inputs(directory)
    os.chdir(directory)
    shutil.copytree("model", "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(safetensors.torch.load_file("model/model.safetensors"), "pickled/pytorch_model.bin")
    lines = Path("texts.jsonl").read_text().splitlines(keepends=True)
    Path("texts.jsonl").write_text("".join(lines[:20]))
    Path("recipe.yaml").write_text(
        "model_name_or_path: model\ntrain_file: [texts.jsonl]\ndo_train: true\nmax_steps: 2\nlearning_rate: 1.0e-3\n"
        "objective: mlm\nmax_seq_length: 32\nuse_cpu: true\nstore_dir: store\nreport_to: none\n"
    )
    records = Path(__file__).parents[1] / "experiments/head_size/records/recall.jsonl"
    Path("done").mkdir()
    Path("done/runs.jsonl").write_text("".join(records.read_text().splitlines(keepends=True)[:12]))
    execute(TRAIN)
    shutil.rmtree("out")
    execute(RESUME)
    Path("out-2").rename("out-2.partial")
    for file in Path("out-2.partial").iterdir():
        if file.is_file() and file.name != "command.json":
            file.unlink()  # as if the run was killed after saving its checkpoint


def execute(command: str):
    program, *options = command.split()
    if program == "study":
        exit_on_input_error(lambda: study(options))
    else:
        sys.argv = ["fixedbert", program, *options]
        fixedbert_cli.entry_point()


def in_child(work: Callable[[], object], directory: Path) -> tuple[str, str]:
    """
    Calls `work` in a forked process in `directory`.

    Returns the outcome and its details: "done" and the results in the directory, "error" and the message, or
    "traceback", "hang" or "crash" and a description.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=report, args=(work, directory, theirs))
    child.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(TIMEOUT) else ("hang", f"more than {TIMEOUT} s")
    except EOFError:
        child.join()
        return "crash", f"exit code {child.exitcode}"
    finally:
        if child.is_alive():
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                child.kill()
        child.join()


def report(work: Callable[[], object], directory: Path, pipe):
    os.setsid()
    os.chdir(directory)
    output = os.open("../output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        work()
        outcome = "done", json.dumps(results_of(directory))
    except SystemExit:
        sys.stderr.flush()
        printed = Path("../output.log").read_text(errors="replace")
        outcome = "error", printed[printed.rfind("\nerror: ") + 1 :]
    except BaseException:
        outcome = "traceback", " ".join(traceback.format_exc().split())[-500:]
    pipe.send(outcome)
    sys.stdout.flush()


def damage(file: Path, number: int, rng: random.Random) -> str:
    """Corrupts a file and returns a description. The first trials replace the file, others change its content."""
    content = file.read_bytes()
    replacements: dict[str, Callable[[], object]] = {
        "missing": lambda: None,
        "empty": lambda: file.write_bytes(b""),
        "a directory": file.mkdir,
        "a FIFO": lambda: os.mkfifo(file),
        "a symbolic link to itself": lambda: file.symlink_to(file.name),
    }
    file.unlink()
    if number < len(replacements):
        name = list(replacements)[number]
        replacements[name]()
        return name
    change = change_bytes if number % 2 or file.suffix not in CONTENTS else CONTENTS[file.suffix]
    name, content = change(content, rng)
    file.write_bytes(content)
    return name


def change_bytes(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    at = rng.randrange(len(content))
    before, block, after = content[:at], content[at : at + 64], content[at + 64 :]
    flipped = bytes([block[0] ^ 1 << rng.randrange(8)])
    changes = {
        "a flipped bit": before + flipped + block[1:] + after,
        "truncated": before,
        "beginning removed": block + after,
        "a removed block": before + after,
        "a block of zeros": before + bytes(len(block)) + after,
        "a block of noise": before + rng.randbytes(len(block)) + after,
        "a repeated block": before + block + block + after,
        "not UTF-8": before + b"\xff\xfe" + block + after,
        "a byte order mark": b"\xef\xbb\xbf" + content,
        "CRLF": content.replace(b"\n", b"\r\n"),
    }
    name = rng.choice(list(changes))
    return name, changes[name]


def change_tree(tree: object, rng: random.Random) -> str:
    """Removes, renames or replaces an entry in nested dicts and lists in place, and returns a description."""
    entries = []

    def walk(node):
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(node, dict):
                entries.append((node, key))
            if isinstance(value, dict | list) and key != "auto_map":  # transformers does not check these class names
                walk(value)

    walk(tree)
    node, key = rng.choice(entries)
    change = rng.choice(("removed", "renamed", "replaced", "replaced"))
    if change == "removed":
        del node[key]
    elif change == "renamed" and isinstance(node, dict):
        node[f"{key}_"] = node.pop(key)
    else:
        node[key] = rng.choice((None, True, -1, 0.5, 10**30, "", "text", [], [[]], {"a": 1}))
        return f"{key} becomes {node[key]!r}"
    return f"{key} {change}"


def change_json(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    tree = json.loads(content)
    return change_tree(tree, rng), json.dumps(tree).encode()


def change_json_lines(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = content.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    name, line = change_json(lines[number], rng)
    lines[number] = line + b"\n"
    return name, b"".join(lines)


def change_yaml(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    tree = yaml.safe_load(content)
    return change_tree(tree, rng), yaml.dump(tree).encode()


CONTENTS = {
    ".json": change_json,
    ".jsonl": change_json_lines,
    ".yaml": change_yaml,
}
