"""
python -m benchmarks.finetuning

run_glue.py and run_squad.py beside a plain Trainer loop as transformers' scripts have it, on the same model: features,
an epoch of training and evaluation, in turns on this machine. Needs FIXEDBERT_DATA; README.md in this folder says how
to read the table.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from tqdm import tqdm
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

import fixedbert
from benchmarks.machine import description, in_a_process
from benchmarks.turns import ratio
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning.examples import first_rows, longest_first
from fixedbert.fine_tuning.glue import main as run_glue
from fixedbert.fine_tuning.questions import load_squad, questions_that_fit, squad_windows
from fixedbert.fine_tuning.squad import main as run_squad
from fixedbert.fine_tuning.squad_metrics import SquadEvaluation
from fixedbert.fine_tuning.texts import load_task, text_features
from fixedbert.training.speed import has_bf16, keep_freed_memory, use_fast_dropout

BATCH = 32
EVAL_BATCH = 64


@dataclass(frozen=True)
class Work:
    """A task: its rows, and the length that transformers' script pads to."""

    name: str
    rows: int
    length: int
    metric: str
    target: float
    learning_rate: float


WORKS = {
    "mnli": Work("4,000 MNLI pairs", 4000, 128, "eval_accuracy", 3.0, 2e-4),
    "squad": Work("2,000 SQuAD questions", 2000, 384, "eval_f1", 2.0, 3e-4),
}


def data_folder() -> Path:
    if "FIXEDBERT_DATA" not in os.environ:
        raise SystemExit("error: FIXEDBERT_DATA does not say where glue/MNLI and squad/ are.")
    return Path(os.environ["FIXEDBERT_DATA"])


def rows_of(task: str):
    if task == "mnli":
        rows = load_task("mnli", str(data_folder() / "glue"), ("train",)).splits["train"]
    else:
        rows = load_squad(str(data_folder() / "squad" / "train-v1.1.json"))
    return first_rows(rows, WORKS[task].rows)


def save_rows(task: str, folder: str) -> str:
    """The rows as a file that our scripts read."""
    file = f"{folder}/{task}.jsonl"
    with open(file, "w", encoding="utf-8") as lines:
        for row in rows_of(task):
            lines.write(json.dumps(row) + "\n")
    return file


def plain_features(task: str, tokenizer, rows, padding: str | bool):
    """Features as transformers' scripts make them: by default padded to max_length, spans found by loops."""
    work = WORKS[task]

    def pairs(batch):
        texts = batch["sentence1"], batch["sentence2"]
        return tokenizer(*texts, padding=padding, max_length=work.length, truncation=True)

    def windows(batch):
        made = tokenizer(
            [question.lstrip() for question in batch["question"]],
            batch["context"],
            truncation="only_second",
            max_length=work.length,
            stride=128,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=padding,
        )
        rows, offset_mapping = made.pop("overflow_to_sample_mapping"), made.pop("offset_mapping")
        made["start_positions"], made["end_positions"] = [], []
        for number, offsets in enumerate(offset_mapping):
            parts, answers = made.sequence_ids(number), batch["answers"][rows[number]]
            begin, end = answers["answer_start"][0], answers["answer_start"][0] + len(answers["text"][0])
            first, last = 0, len(parts) - 1
            while parts[first] != 1:
                first += 1
            while parts[last] != 1:
                last -= 1
            if offsets[first][0] > begin or offsets[last][1] < end:
                first = last = 0
            else:
                while first < len(offsets) and offsets[first][0] <= begin:
                    first += 1
                while offsets[last][1] >= end:
                    last -= 1
                first, last = first - 1, last + 1
            made["start_positions"].append(first)
            made["end_positions"].append(last)
        return made

    removed = rows.column_names if task == "squad" else None
    return rows.map(
        pairs if task == "mnli" else windows, batched=True, remove_columns=removed, load_from_cache_file=False
    )


def features_seconds(side: str, task: str, model: str) -> float:
    tokenizer, rows = load_tokenizer(model), rows_of(task)
    began = time.perf_counter()
    if side == "plain":
        plain_features(task, tokenizer, rows, "max_length")
    elif task == "mnli":
        text_features(rows, tokenizer, 128, num_proc=1, overwrite_cache=True)
    else:
        rows = questions_that_fit(rows, "rows", tokenizer, 384, 128)
        squad_windows(rows, tokenizer, 384, 128, num_proc=1, overwrite_cache=True)
    return time.perf_counter() - began


def plain(task: str, model: str, seed: int, bf16: bool, folder: str, same_settings: bool) -> dict[str, float]:
    """
    An epoch and an evaluation by Trainer alone: the seconds of both, and the metric.

    Args:
        same_settings: with every setting of ours that a plain Trainer can have: kept memory, eager attention, our
            dropout, batches of like lengths padded to their longest row, and evaluation from long to short.
    """
    if same_settings:
        keep_freed_memory(torch.device("cpu"))
    work, tokenizer = WORKS[task], load_tokenizer(model)
    features = plain_features(task, tokenizer, rows_of(task), False if same_settings else "max_length")
    set_seed(seed)
    auto = AutoModelForSequenceClassification if task == "mnli" else AutoModelForQuestionAnswering
    labels = {"num_labels": 3} if task == "mnli" else {}
    trainer = Trainer(
        model=auto.from_pretrained(model, attn_implementation="eager" if same_settings else None, **labels),
        args=TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            bf16=bf16,
            seed=seed,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=EVAL_BATCH,
            learning_rate=work.learning_rate,
            warmup_steps=0.1,
            save_strategy="no",
            disable_tqdm=True,
            train_sampling_strategy="group_by_length" if same_settings else "random",
        ),
        train_dataset=features,
        data_collator=DataCollatorWithPadding(tokenizer) if same_settings else default_data_collator,
        processing_class=tokenizer,
    )
    if same_settings:
        use_fast_dropout(trainer.model)
    trained = trainer.train().metrics["train_runtime"]
    order = np.arange(len(features))
    if same_settings:
        trainer.args.train_sampling_strategy = "random"  # by length Trainer would shuffle predictions too
        lengths = list(map(len, features["input_ids"]))
        features, order = longest_first(features.add_column("length", lengths))
    began = time.perf_counter()
    output = trainer.predict(features)
    evaluated = time.perf_counter() - began
    if task == "mnli":
        metric = float((output.predictions.argmax(1) == output.label_ids).mean())
    else:  # post-processing is not timed on this side
        windows = squad_windows(rows_of(task), tokenizer, 384, 128, for_training=False)
        predictions = tuple(logits[order.argsort()] for logits in output.predictions)
        metric = SquadEvaluation(rows_of(task), windows)(EvalPrediction(predictions, None))["f1"]
    return {"training": trained, "evaluation": evaluated, "metric": metric}


def ours(task: str, model: str, seed: int, bf16: bool, folder: str) -> dict[str, float]:
    file, work = save_rows(task, folder), WORKS[task]
    main = run_glue if task == "mnli" else run_squad
    options = {
        "model_name_or_path": model,
        "train_file": file,
        "validation_file": file,
        "max_seq_length": work.length,
        "seed": seed,
        "bf16": bf16,
        "num_train_epochs": 1,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": EVAL_BATCH,
        "learning_rate": work.learning_rate,
        "warmup_steps": 0.1,
        "save_strategy": "no",
        "output_dir": f"{folder}/out",
    }
    flags = ["--do_train", "--do_eval", "--use_cpu", "--disable_tqdm", "true"]
    main([*flags, *(word for name, value in options.items() for word in (f"--{name}", str(value)))])
    results = json.loads(Path(folder, "out", "all_results.json").read_text())
    return {
        "training": results["train_runtime"],
        "evaluation": results["eval_runtime"],
        "metric": results[work.metric],
    }


def run_side(side: str, task: str, model: str, seed: int, bf16: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        if side == "fixedbert":
            found = ours(task, model, seed, bf16, folder)
        else:
            found = plain(task, model, seed, bf16, folder, same_settings=side == "same settings")
        if side != "same settings":
            found["features"] = features_seconds(side, task, model)
    return found


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetuning", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with a seed of its own")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS), help="tasks")
    parser.add_argument("--bf16", choices=["true", "false"], help="default: where the hardware has it")
    parser.add_argument("--model_name_or_path", help="default: the preset mini with random weights")
    arguments = parser.parse_args()
    supported = has_bf16(use_cpu=True)
    bf16 = supported if arguments.bf16 is None else arguments.bf16 == "true"
    if bf16 and not supported:
        parser.error("--bf16 true: this processor has no bf16 instructions and would emulate them; leave it out.")
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model_name_or_path or folder
        if arguments.model_name_or_path is None:
            tokenizer = load_tokenizer(str(data_folder() / "vocab" / "bert-base-uncased-vocab.txt"))
            tokenizer.save_pretrained(folder)
            torch.manual_seed(0)
            fixedbert.FixedHeadBertModel(fixedbert.preset_config("mini", vocab_size=len(tokenizer))).save_pretrained(
                folder
            )
        config = transformers.AutoConfig.from_pretrained(model)
        print(
            f"{description()}\n"
            f"{config.num_hidden_layers} layers, width {config.hidden_size}, {config.num_attention_heads} heads of "
            f"{config.head_dim}, feed-forward {config.intermediate_size}, dropout {config.hidden_dropout_prob}; "
            f"{'bf16' if bf16 else 'fp32'}, batches of {BATCH} and {EVAL_BATCH}; {arguments.rounds} rounds\n"
        )
        row = "{:<46} {:>9} {:>9} {:>18} {:>7}"
        print(row.format("work (seconds, medians)", "plain", "fixedbert", "ratio (range)", "target"))
        sides = ("plain", "fixedbert", "same settings")
        for task in arguments.only:
            work = WORKS[task]
            found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
            with tqdm(total=arguments.rounds * len(sides), desc=work.name, leave=False) as progress:
                for seed in range(1, arguments.rounds + 1):
                    for side in sides if seed % 2 else reversed(sides):
                        found[side].append(in_a_process(run_side, side, task, model, seed, bf16))
                        progress.update()
            for part, target in (("features", 1.0), ("training", work.target), ("evaluation", work.target)):
                for side in ("plain", "same settings"):
                    if part not in found[side][0]:
                        continue
                    theirs, mine = ([one[part] for one in found[name]] for name in (side, "fixedbert"))
                    title = f"{part}, {work.name}" if side == "plain" else "  against plain with every setting of ours"
                    seconds = (f"{statistics.median(times):.1f}" for times in (theirs, mine))
                    print(row.format(title, *seconds, ratio(theirs, mine), f">= {target}" if side == "plain" else ""))
            metrics = (" ".join([*(f"{one['metric']:.4g}" for one in found[side]), side]) for side in sides)
            print(f"  {work.metric.removeprefix('eval_')} by seed: {', '.join(metrics)}")


if __name__ == "__main__":
    main()
