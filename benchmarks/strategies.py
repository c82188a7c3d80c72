"""
python -m benchmarks.strategies

Does training come out the same, however it is spread? Pretraining and GLUE with one process, DDP and FSDP of two CPU
processes, with accumulation, and killed and continued: the largest difference of weights and of logged losses from one
process with the same examples a step. It took 16 minutes on two cores that other work shared.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from safetensors.torch import load_file

from benchmarks.machine import description

ROOT = Path(__file__).parents[1]
WORDS = "the a good dull long film story actor was is never and tells plays ends begins".split()
EXAMPLES, STEPS, SAVED, RATE = 8, 48, 16, "1e-3"
SHAPE = "hidden_size=32,num_attention_heads=5,attention_head_size=6,intermediate_size=37"
COMMON = (
    *("--do_train", "--use_cpu", "--bf16", "false", "--max_seq_length", "32", "--max_steps", str(STEPS)),
    *("--save_steps", str(SAVED), "--logging_steps", "1", "--learning_rate", RATE, "--disable_tqdm", "true"),
    *("--report_to", "none"),
)
TWO = ("--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0")
STRATEGIES: dict[str, tuple[str, ...]] = {  # arguments of accelerate launch; none for one process
    "one process": (),
    "DDP, 2 processes": ("--config_file", str(ROOT / "fixedbert/recipes/accelerate/ddp.yaml"), *TWO),
    "FSDP, 2 processes": ("--config_file", str(ROOT / "fixedbert/recipes/accelerate/fsdp.yaml"), *TWO),
}


def sentences(generator: random.Random, count: int) -> list[str]:
    return [" ".join(generator.choices(WORDS, k=generator.randrange(3, 12))) + "." for _ in range(count)]


def write_texts(folder: Path):
    """Write documents to pretrain on, and rows with a label that one of their words decides."""
    generator = random.Random(0)
    with open(folder / "corpus.jsonl", "w") as file:
        for _ in range(150):
            file.write(json.dumps({"text": "\n".join(sentences(generator, generator.randrange(4, 9)))}) + "\n")
    with open(folder / "train.tsv", "w") as file:
        file.write("sentence\tlabel\n")
        for row in sentences(generator, 26 * EXAMPLES):  # whole steps: several processes fill up the last one
            file.write(f"{row}\t{int('good' in row)}\n")


class Trainings:
    """Runs of both kinds in `folder`; GLUE begins with the weights of the first pretraining."""

    def __init__(self, folder: Path):
        self.folder = folder
        write_texts(folder)
        dropout = "hidden_dropout_prob=0,attention_probs_dropout_prob=0"  # its numbers differ from process to process
        self.commands = {
            "pretraining": (
                *("run_pretraining.py", "--config_name", "tiny", "--config_overrides", f"{SHAPE},{dropout}"),
                *("--vocab_size", "99", "--train_file", str(folder / "corpus.jsonl"), *COMMON),
            ),
            "GLUE": (
                *("run_glue.py", "--model_name_or_path", str(self.output("pretraining", "one process", 1, False))),
                *("--train_file", str(folder / "train.tsv"), *COMMON),
            ),
        }

    def output(self, kind: str, strategy: str, accumulated: int, killed: bool) -> Path:
        name = f"{kind} {strategy} {accumulated} {killed}"
        return self.folder / name.replace(" ", "-").replace(",", "")

    def run(self, kind: str, strategy: str, accumulated: int, killed: bool) -> Path:
        """Train, and if `killed` twice: until the first checkpoint, and to the end."""
        output = self.output(kind, strategy, accumulated, killed)
        script, *arguments = self.commands[kind]
        launched = ("-m", "accelerate.commands.launch", *STRATEGIES[strategy]) if STRATEGIES[strategy] else ()
        at_once = EXAMPLES // accumulated // (2 if launched else 1)
        batch = ("--per_device_train_batch_size", at_once, "--gradient_accumulation_steps", accumulated)
        command = [sys.executable, *launched, ROOT / script, *arguments, *batch, "--output_dir", output]
        if killed:
            process = start(command)
            checkpoint = output.with_name(output.name + ".partial") / f"checkpoint-{SAVED}" / "checksums.json"
            while not checkpoint.exists() and process.poll() is None:
                time.sleep(0.002)
            for one in psutil.Process(process.pid).children(recursive=True) if launched else [process]:
                one.kill()
            printed, _ = process.communicate()
            if process.returncode == 0:
                raise RuntimeError(f"{output} has ended before it was killed")
        process = start(command)
        printed, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(printed[-3000:])
        return output


def start(command: list) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [str(word) for word in command], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def losses(folder: Path) -> list[float]:
    log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    found = [entry["loss"] for entry in log if "loss" in entry]
    assert len(found) == STEPS, f"{folder}: {len(found)} losses of {STEPS} steps"
    return found


def differences(one: Path, other: Path) -> tuple[float, float]:
    """The largest difference of a weight and of a logged loss."""
    weights, others = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert weights.keys() == others.keys(), f"{one} and {other} have other weights"
    of_weights = max((others[name] - weight).abs().max().item() for name, weight in weights.items())
    return of_weights, max(abs(a - b) for a, b in zip(losses(one), losses(other), strict=True))


def sides() -> Iterator[tuple[str, str, int, bool]]:
    """Title, strategy, accumulation and whether it is killed, of each line but the first."""
    for strategy in STRATEGIES:
        for what, accumulated, killed in (("", 1, False), (", accumulated", 2, False), (", killed", 1, True)):
            if (strategy, what) != ("one process", ""):
                yield strategy + what, strategy, accumulated, killed


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strategies", description=__doc__)
    parser.add_argument("--output_dir", type=Path, help="keep the runs there (default: nowhere)")
    arguments = parser.parse_args()
    print(
        f"{description()}\n{STEPS} steps of {EXAMPLES} examples at a learning rate of {RATE}, fp32, no dropout; "
        f"killed after step {SAVED}\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.output_dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        trainings = Trainings(folder)
        whole = {kind: trainings.run(kind, "one process", 1, False) for kind in trainings.commands}
        print(
            "| against one process | pretraining: weights | losses | GLUE: weights | losses |\n|---|---|---|---|---|"
        )
        for title, *side in sides():
            cells = [title]
            for kind in trainings.commands:
                cells += [f"{found:.0e}" for found in differences(whole[kind], trainings.run(kind, *side))]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
