"""Small inputs, the commands that read them, and the results that the commands write."""

import hashlib
import json
import random
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import datasets
import safetensors.torch
import torch
from matplotlib.figure import Figure
from transformers import BertTokenizer

import fixedbert

from .children import Child, command, free_port

WORDS = "the a function takes returns one two three list string file read write lines words".split()
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
AVERAGES = ("loss", "train_loss", "mlm_accuracy", "fill_ratio")
TRAINER = "--use_cpu --disable_tqdm true --report_to none --save_total_limit 2 --save_steps 3 --logging_steps 2"
TRAINER += " --learning_rate 1e-3 --per_device_train_batch_size 4 --do_train --do_eval --output_dir out"
PRETRAIN = f"pretrain recipe.yaml {TRAINER} --max_steps 11 --preprocessing_num_workers"
GLUE = "glue --model_name_or_path model --train_file rows.csv --validation_file rows.csv --max_seq_length 32 "
GLUE += f"--bf16 false {TRAINER}"
SHRINK = "shrink model --output_dir out --train_file texts.jsonl --attention_head_size 4 --max_seq_length 32 --batch_size 4 --max_train_samples 40"  # noqa: E501
COMMANDS = {
    "pretraining": f"{PRETRAIN} 1",
    "preparation": f"{PRETRAIN} 2 --max_steps 1",
    "two processes": f"{PRETRAIN} 1",
    "glue": f"{GLUE} --max_steps 11",
    "seeds": f"{GLUE} --max_steps 7 --seeds 1 2",
    "shrinking": SHRINK,
    "distillation": f"{SHRINK} --distil_steps 12",
    "converting": "convert pickled --output_dir out --num_attention_heads 8",
    "exporting": "export model --output_dir out",
}


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
    shutil.copytree(directory / "model", directory / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(
        safetensors.torch.load_file(directory / "model/model.safetensors"), directory / "pickled/pytorch_model.bin"
    )
    rng = random.Random(0)

    def text(sentences: int) -> str:
        return " ".join(" ".join(rng.choices(WORDS, k=8)).capitalize() + "." for _ in range(sentences))

    lines = (json.dumps({"text": text(12)}) + "\n" for _ in range(60))
    (directory / "texts.jsonl").write_text("".join(lines))
    rows = [f"{text(1)},{text(1)},{rng.choice(('yes', 'no'))}" for _ in range(60)]
    (directory / "rows.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n")
    (directory / "recipe.yaml").write_text(
        "model_name_or_path: model\ntrain_file: [texts.jsonl]\nmax_seq_length: 32\nmax_eval_samples: 40\n"
        "store_dir: store\n"
    )


def command_line(name: str, output_dir: str = "out") -> list[str]:
    return [output_dir if word == "out" else word for word in COMMANDS[name].split()]


def start(
    name: str,
    directory: Path,
    before: Callable[[], object] = lambda: None,
    output_dir: str = "out",
    suffix: str = "",
) -> list[Child]:
    """
    Starts a command of COMMANDS in `directory`, and calls `before` in its process, or in each of its processes.

    Args:
        suffix: The end of the names of the files for everything that is printed.
    """

    def work():
        datasets.config.HF_DATASETS_CACHE = directory / "home"
        Figure.savefig = lambda self, file, **options: Path(file).write_bytes(b"drawing takes half of the time")
        before()
        command(command_line(name, output_dir))

    if name != "two processes":
        return [Child(work, directory, directory.with_name(f"{directory.name}{suffix}.log"))]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    logs = [directory.with_name(f"{directory.name}{suffix}-{rank}.log") for rank in "01"]
    return [
        Child(work, directory, log, **address, RANK=rank, LOCAL_RANK=rank)
        for rank, log in zip("01", logs, strict=True)
    ]


class Reference(NamedTuple):
    """The results of an undisturbed run, its duration in seconds, and the bytes that it writes."""

    results: dict[str, object]
    seconds: float
    size: int


@cache
def reference(name: str, inputs: Path) -> Reference:
    directory = shutil.copytree(inputs, inputs.with_name("reference") / name.replace(" ", "-"))
    before, began = size_of(directory), time.monotonic()
    endings = [child.ending() for child in start(name, directory)]
    if any(ending.outcome != "success" for ending in endings):
        raise RuntimeError(f"{name}: the undisturbed run failed: {endings}")
    return Reference(results_of(directory), time.monotonic() - began, size_of(directory) - before)


def size_of(directory: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*"))


def results_of(directory: Path, output_dir: str = "out") -> dict[str, object]:
    """
    Returns, for each file in the output directory and the store, the hash of weights, graphs and stores, the content
    of results without times, or "present".
    """
    results: dict[str, object] = {}
    for name, folder in (("out", directory / output_dir), ("store", directory / "store")):
        for file in folder.rglob("*"):
            if file.is_file() and "checkpoint-" not in str(file.relative_to(folder)):
                results[f"{name}/{file.relative_to(folder)}"] = result_of(file)
    return {name: value for name, value in results.items() if name.startswith("out/") or value != "present"}


def result_of(file: Path) -> object:
    if file.suffix == ".safetensors" and file.with_name("shrinking.json").exists():
        weights = safetensors.torch.load_file(file)  # least squares depend on the alignment of memory
        return {name: weight.double().round(decimals=6).sum().item() for name, weight in weights.items()}
    if file.suffix in (".safetensors", ".onnx", ".arrow", ".npy"):
        return hashlib.sha256(file.read_bytes()).hexdigest()
    if file.name in ("all_results.json", "trainer_state.json", "results.json"):
        return without_times(json.loads(file.read_text()))
    return "present"


def without_times(tree: object) -> object:
    """Removes times, and averages since the last entry of the training log, which resuming resets."""
    times = ("runtime", "per_second", "preparation_time", "seconds", "milliseconds", "speedup")
    if isinstance(tree, dict):
        kept = {name: value for name, value in tree.items() if name not in AVERAGES}
        return {name: without_times(value) for name, value in kept.items() if not any(one in name for one in times)}
    return [without_times(value) for value in tree] if isinstance(tree, list) else tree
