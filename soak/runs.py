"""The commands that are killed, the small files that they read, and the results that they write."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from transformers import BertTokenizer

import fixedbert

ROOT = Path(__file__).parents[1]
TIMEOUT = 600  # seconds for a command
WORDS = "the a function takes returns one two three list string file read write lines words".split()
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
QUIET = "--use_cpu --disable_tqdm true --report_to none --save_total_limit 2 --output_dir out"
PRETRAIN = "pretrain --model_name_or_path model --store_dir store --max_seq_length 32 --max_eval_samples 40 --preprocessing_num_workers"  # noqa: E501
GLUE = "glue --train_file rows.csv --max_seq_length 32 --bf16 false --do_train"
KILLED = {  # each command takes about half a minute
    "pretraining": f"{PRETRAIN} 1 --train_file texts.jsonl --do_train --do_eval --per_device_train_batch_size 4 --max_steps 240 --save_steps 30 --logging_steps 7 {QUIET}",  # noqa: E501
    "glue with seeds": f"{GLUE} --model_name_or_path model --validation_file rows.csv --do_eval --num_train_epochs 5 --save_steps 30 --logging_steps 7 --seeds 1 2 {QUIET}",  # noqa: E501
    "preparation": f"{PRETRAIN} 2 --train_file large.jsonl --do_eval {QUIET}",
    "study": "study study.yaml --output_dir out --processes 2 --train_file texts.jsonl --tokenizer_name model --store_dir store",  # noqa: E501
    "shrinking": "shrink model --output_dir out --train_file texts.jsonl --attention_head_size 4 --max_seq_length 32 --batch_size 4 --distil_steps 240 --max_train_samples 60",  # noqa: E501
    "two processes": f"{PRETRAIN} 1 --train_file texts.jsonl --do_train --do_eval --per_device_train_batch_size 2 --max_steps 240 --save_steps 30 --logging_steps 7 {QUIET}",  # noqa: E501
}
LAUNCH = ["-m", "accelerate.commands.launch", "--config_file", str(ROOT / "fixedbert/recipes/accelerate/cpu.yaml"),
          "--main_process_port", "0"]  # fmt: skip


def write_inputs(directory: Path):
    """Writes a small model and the files that all commands read."""
    directory.mkdir(parents=True)
    torch.manual_seed(0)
    config = fixedbert.FixedHeadBertConfig(
        vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2, num_attention_heads=5, attention_head_size=6,
        intermediate_size=37, max_position_embeddings=64,
    )  # fmt: skip
    fixedbert.FixedHeadBertForPreTraining(config).save_pretrained(directory / "model")
    BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)}).save_pretrained(directory / "model")
    rng = random.Random(0)

    def text(sentences: int) -> str:
        return " ".join(" ".join(rng.choices(WORDS, k=8)).capitalize() + "." for _ in range(sentences))

    for name, documents, sentences in (("texts", 300, 12), ("large", 6000, 40)):
        lines = (json.dumps({"text": text(sentences)}) + "\n" for _ in range(documents))
        (directory / f"{name}.jsonl").write_text("".join(lines))
    rows = [f"{text(1)},{text(1)},{rng.choice(('yes', 'no'))}" for _ in range(200)]
    (directory / "rows.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n")
    (directory / "study.yaml").write_text(
        "question: Does size matter?\naxis: attention_head_size\nlearning_rates: [1.0e-3]\nseeds: [1, 2]\n"
        "objective: mlm\nmodel: {hidden_size: 32, num_hidden_layers: 1, intermediate_size: 64}\n"
        "series: {fixed: {num_attention_heads: 4, attention_head_size: [8, 16]}}\n"
        "pretraining: {max_steps: 60, max_seq_length: 32, total_train_batch_size: 4, save_steps: 10,\n"
        "  logging_steps: 7, max_eval_samples: 40}\n"
    )


def start(name: str, inputs: Path, directory: Path) -> subprocess.Popen:
    """Starts a command from KILLED in `directory` as a new process group, and logs its output to `directory`.log."""
    if not directory.exists():
        shutil.copytree(inputs, directory)
    program, *options = KILLED[name].split()
    command = ["-m", "experiments.study", *options] if program == "study" else ["-m", "fixedbert", program, *options]
    launcher = LAUNCH if name == "two processes" else []
    environment = {**os.environ, "HF_HOME": str(directory / "home"), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    with open(log_of(directory), "ab") as log:
        return subprocess.Popen(
            [sys.executable, *launcher, *command], cwd=directory, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def log_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.log")


def wait(run: subprocess.Popen, seconds: float) -> int | None:
    """Returns the exit status, or None if the command is still running."""
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def end(run: subprocess.Popen):
    """Kills the process group."""
    try:
        os.killpg(run.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    run.wait()


def reference(name: str, inputs: Path) -> dict:
    """Returns the results and the duration of an uninterrupted run, in the fields "results" and "seconds"."""
    directory = inputs.parent / "references" / name.replace(" ", "-")
    file = directory.with_suffix(".json")
    if not file.exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.parent.mkdir(exist_ok=True)
        began = time.monotonic()
        run = start(name, inputs, directory)
        if wait(run, TIMEOUT) != 0:
            raise RuntimeError(f"{name}: the uninterrupted run failed: {log_of(directory)}")
        file.write_text(json.dumps({"results": results_of(directory), "seconds": time.monotonic() - began}))
    return json.loads(file.read_text())


def results_of(directory: Path) -> dict:
    """Returns, for each file, the hash of weights and stores, or the content of logs and results without times."""
    results: dict[str, object] = {}
    for pattern in ("out*/**/model.safetensors", "store/store-*/*.arrow", "store/store-*/*.npy"):
        for file in directory.glob(pattern):
            results[str(file.relative_to(directory))] = hashlib.sha256(file.read_bytes()).hexdigest()
    for name in ("all_results.json", "trainer_state.json", "results.json", "runs.jsonl"):
        for file in (file for file in directory.glob(f"out*/**/{name}") if "checkpoint-" not in str(file)):
            lines = file.read_text().splitlines() if name == "runs.jsonl" else [file.read_text()]
            entries = [without_times(json.loads(line)) for line in lines]
            results[str(file.relative_to(directory))] = sorted(entries, key=json.dumps)
    return {name: value for name, value in sorted(results.items()) if "checkpoint-" not in name}


def without_times(tree: object) -> object:
    """Removes times and training losses. Losses are averages since the last log, which resuming resets."""
    times = ("runtime", "per_second", "preparation_time", "seconds", "commit", "checkpoint")
    if isinstance(tree, dict):
        kept = {name: value for name, value in tree.items() if name not in ("loss", "train_loss")}
        return {name: without_times(value) for name, value in kept.items() if not any(one in name for one in times)}
    return [without_times(value) for value in tree] if isinstance(tree, list) else tree
