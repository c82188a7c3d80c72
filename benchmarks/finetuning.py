"""
python -m benchmarks.finetuning

Compares run_glue.py with Trainer as transformers' example script uses it, on the same model and 4,000 MNLI pairs.
Times tokenization, an epoch of training and an evaluation in alternation. The environment variable FIXEDBERT_DATA
must be set to a directory with glue/ and vocab/. text_and_models.md in this directory explains the table.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import datasets
import numpy as np
import torch
from tqdm import tqdm
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

import fixedbert
from benchmarks.paired import data_directory, description, in_a_process, ratio
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.support.machine import has_bf16
from fixedbert.tasks.examples import longest_first
from fixedbert.tasks.texts import load_task, text_features
from fixedbert.training.speed import keep_freed_memory, use_fast_dropout
from run_glue import main as run_glue

ROWS, LENGTH = 4000, 128
SETTINGS = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "learning_rate": 2e-4,
    "warmup_steps": 0.1,
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
}
SIDES = ("plain", "fixedbert", "same settings")
PARTS = {"features": 1.0, "training": 3.0, "evaluation": 3.0}  # what is timed, and the target for its ratio
ROW = "{:<46} {:>9} {:>9} {:>18} {:>7}".format


def load_rows():
    return load_task("mnli", str(data_directory() / "glue"), ("train",)).splits["train"].select(range(ROWS))


def padded_features(tokenizer, rows, padding: str | bool):
    """Returns features as in transformers' example script."""

    def tokenize(batch):
        return tokenizer(batch["sentence1"], batch["sentence2"], padding=padding, max_length=LENGTH, truncation=True)

    return rows.map(tokenize, batched=True, load_from_cache_file=False)


def feature_seconds(side: str, model: str) -> float:
    """Returns the seconds to tokenize all rows."""
    tokenizer, rows = load_tokenizer(model), load_rows()
    began = time.perf_counter()
    if side == "fixedbert":
        datasets.disable_caching()
        text_features(rows, tokenizer, LENGTH)
    else:
        padded_features(tokenizer, rows, "max_length")
    return time.perf_counter() - began


def train_plain(model: str, seed: int, bf16: bool, directory: str, same_settings: bool) -> dict[str, float]:
    """
    Trains and evaluates with Trainer. Returns the seconds for an epoch and for the evaluation, and the accuracy.

    Args:
        same_settings: If True, use all of run_glue.py's settings that Trainer supports: memory reuse, eager attention,
            fast dropout, batches of similar lengths padded to the longest row, and evaluation in order of length.
    """
    if same_settings:
        keep_freed_memory(torch.device("cpu"))
    tokenizer = load_tokenizer(model)
    features = padded_features(tokenizer, load_rows(), False if same_settings else "max_length")
    set_seed(seed)
    backend = "eager" if same_settings else None
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=3, attn_implementation=backend),
        args=TrainingArguments(
            output_dir=directory,
            bf16=bf16,
            seed=seed,
            train_sampling_strategy="group_by_length" if same_settings else "random",
            **SETTINGS,
        ),
        train_dataset=features,
        data_collator=DataCollatorWithPadding(tokenizer) if same_settings else default_data_collator,
        processing_class=tokenizer,
    )
    if same_settings:
        use_fast_dropout(trainer.model)
    trained = trainer.train().metrics["train_runtime"]
    if same_settings:
        trainer.args.train_sampling_strategy = "random"  # otherwise Trainer shuffles predictions too
        features = longest_first(features.add_column("length", list(map(len, features["input_ids"]))))
    began = time.perf_counter()
    output = trainer.predict(features)
    accuracy = float(np.mean(output.predictions.argmax(1) == output.label_ids))
    return {"training": trained, "evaluation": time.perf_counter() - began, "accuracy": accuracy}


def train_ours(model: str, seed: int, bf16: bool, directory: str) -> dict[str, float]:
    file = Path(directory, "rows.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in load_rows()), encoding="utf-8")
    options = SETTINGS | {"model_name_or_path": model, "train_file": file, "validation_file": file, "seed": seed}
    options |= {"bf16": bf16, "max_seq_length": LENGTH, "output_dir": f"{directory}/out"}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    run_glue(["--do_train", "--do_eval", *flags])
    results = json.loads(Path(directory, "out", "all_results.json").read_text())
    names = {"training": "train_runtime", "evaluation": "eval_runtime", "accuracy": "eval_accuracy"}
    return {part: results[name] for part, name in names.items()}


def run_side(side: str, model: str, seed: int, bf16: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        if side == "fixedbert":
            results = train_ours(model, seed, bf16, directory)
        else:
            results = train_plain(model, seed, bf16, directory, same_settings=side == "same settings")
        return results | {"features": feature_seconds(side, model)}


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetuning", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of rounds, each with its own seed (default: %(default)s)"
    )
    arguments = parser.parse_args()
    bf16 = has_bf16(use_cpu=True)
    results: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as model:
        tokenizer = load_tokenizer(str(data_directory() / "vocab" / "bert-base-uncased-vocab.txt"))
        tokenizer.save_pretrained(model)
        torch.manual_seed(0)
        config = fixedbert.preset_config("mini", vocab_size=len(tokenizer))
        fixedbert.FixedHeadBertModel(config).save_pretrained(model)
        print(f"{description()}\npreset mini, {'bf16' if bf16 else 'fp32'}, {arguments.rounds} rounds\n")
        for seed in tqdm(range(1, arguments.rounds + 1), leave=False):
            for side in SIDES if seed % 2 else reversed(SIDES):
                results[side].append(in_a_process(run_side, side, model, seed, bf16))
    print(ROW(f"{ROWS:,} MNLI pairs (seconds, medians)", "plain", "fixedbert", "ratio (range)", "target"))
    for part, target in PARTS.items():
        for side in ("plain", "same settings"):
            theirs, ours = ([one[part] for one in results[name]] for name in (side, "fixedbert"))
            title = part if side == "plain" else "  compared with plain, same settings"
            seconds = (f"{statistics.median(times):.1f}" for times in (theirs, ours))
            print(ROW(title, *seconds, ratio(theirs, ours), f">= {target}" if side == "plain" else ""))
    for side in SIDES:
        print(f"  accuracy by seed, {side}:", *(f"{one['accuracy']:.4g}" for one in results[side]))


if __name__ == "__main__":
    main()
