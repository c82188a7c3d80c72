"""
python -m benchmarks.quality --recipe RECIPE.yaml ... --output_dir DIR [--minutes 30] [--fine_tune]

Time to a quality: transformers' BERT under a plain Trainer with BERT's recipe, beside FixedHeadBert under
run_pretraining.py with each of the recipes. All begin with random weights on the same text, take turns on this machine
for the same time, and are evaluated on the same masked tokens. With --fine_tune MNLI and SQuAD follow, from each.
Needs FIXEDBERT_DATA with wikipedia/, books/ and vocab/, and glue/MNLI and squad/ to fine-tune. Writes results.jsonl,
quality.png and the models; README.md in this folder says how to read the table.
"""

import argparse
import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm
from transformers import AutoModelForPreTraining, PreTrainedTokenizerBase

from benchmarks.contenders import (
    Stock,
    data_folder,
    held_out_batches,
    parameters,
    recipe_flags,
    recipe_shape,
    side_of,
    vocabulary,
)
from benchmarks.curves import AXES, draw, ratio_text
from benchmarks.machine import description, in_a_process
from benchmarks.sides import train_in_turns
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.errors import InputError, exit_on_input_error
from fixedbert.tasks.glue import main as run_glue
from fixedbert.tasks.squad import main as run_squad
from fixedbert.training.arguments import flags


def read_results(file: Path) -> dict[str, dict]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {result["side"]: result for result in map(json.loads, lines)}


def wanted_sides(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> dict[str, dict]:
    """
    What each side is, and how many parameters it has.

    Raises:
        InputError: a name is there twice, or a recipe's model is larger than stock BERT.
    """
    sides = {}
    stock = Stock(*arguments.stock_shape, learning_rate=0, batch=arguments.stock_batch_size)
    stock_sizes = parameters(AutoModelForPreTraining, stock.config(tokenizer))
    most = stock_sizes["besides_embeddings"]
    for rate in arguments.stock_learning_rate:
        settings = asdict(replace(stock, learning_rate=rate))
        sides[f"stock-{rate:g}"] = {"stock": True, "settings": settings, **stock_sizes}
    for recipe in arguments.recipe:
        name = Path(recipe).stem
        if name in sides:
            raise InputError(f"--recipe {recipe}: another one is called {name} too; give it another name.")
        steps, sizes = recipe_shape(recipe, tokenizer)
        if sizes["besides_embeddings"] > most:
            raise InputError(
                f"{recipe}: {sizes['besides_embeddings']:,} parameters besides the embeddings are more than stock "
                f"BERT's {most:,}: make the model smaller, or give another --stock_shape."
            )
        command = recipe_flags(recipe, arguments.output_dir / name, arguments.seed)
        sides[name] = {"stock": False, "settings": {"command": command, "steps": steps}, **sizes}
    return {name: side | {"minutes": arguments.minutes, "seed": arguments.seed} for name, side in sides.items()}


def check_results(done: dict[str, dict], sides: dict[str, dict], output_dir: Path):
    """Raises InputError where earlier results are of other settings, or a directory is there without one."""
    for name, side in sides.items():
        for key in side if name in done else ():
            if done[name][key] != side[key]:
                raise InputError(f"{output_dir}: {name} had another value of {key}; give another --output_dir.")
        if name not in done and (output_dir / name).exists():
            raise InputError(f"{output_dir / name}: it is there without a result; remove it.")


ROW = "{:<24} {:>9} {:>9} {:>9} {:>8} {:>21} {:>21}"


def print_table(results: list[dict], reference: dict):
    print(
        f"\n{results[0]['machine']}\n{results[0]['minutes']:g} minutes each; ratios: how much sooner than "
        f"{reference['side']} at its final loss (range over its last points)\n"
    )
    print(ROW.format("", "params, M", "steps", "TFLOP", "loss", "ratio of times", "ratio of FLOPs"))
    for result in results:
        last, size = result["points"][-1], f"{result['besides_embeddings'] / 1e6:.2f}"
        found = [ratio_text(reference["points"], result["points"], axis) for axis in AXES]
        cells = f"{last['steps']:,}", f"{last['flops'] / 1e12:,.1f}", f"{last['loss']:.3f}"
        print(ROW.format(result["side"], size, *cells, *(["", ""] if result is reference else found)))


COMMON = {"per_device_train_batch_size": 32, "warmup_steps": 0.1, "save_strategy": "no", "seeds": [1, 2, 3]}
COMMON |= {"do_train": True, "do_eval": True, "disable_tqdm": True}
METRICS = {  # of each task: name in its results, heading, factor to per cent
    "mnli": (("eval_accuracy", "MNLI matched", 100), ("eval_accuracy_mm", "mismatched", 100)),
    "squad": (("eval_f1", "SQuAD F1", 1), ("eval_exact_match", "exact match", 1)),
}


def fine_tune(task: str, model: Path, output: Path):
    """By the same script with the same settings for every model, as in model_cards/README.md for `mini`."""
    data, options = data_folder(), COMMON | {"model_name_or_path": str(model), "output_dir": str(output)}
    if task == "mnli":
        task_options = {"task_name": "mnli", "data_dir": str(data / "glue"), "num_train_epochs": 3}
        run_glue(flags(options | task_options | {"learning_rate": 2e-4}))
    else:
        files = {
            "train_file": str(data / "squad/train-v1.1.json"),
            "validation_file": str(data / "squad/dev-v1.1.json"),
        }
        task_options = {"max_train_samples": 20_000, "num_train_epochs": 1, "learning_rate": 3e-4}
        run_squad(flags(options | files | task_options))


def print_fine_tuned(names: list[str], folder: Path):
    """Fine-tune what is not yet, and print means and ranges over the seeds."""
    outputs = {(name, task): folder / "fine_tuned" / f"{name}-{task}" for name in names for task in METRICS}
    for (name, task), output in tqdm(outputs.items(), desc="fine-tuning", leave=False):
        if not output.exists():
            in_a_process(fine_tune, task, folder / name, output)
    row = "{:<24}" + " {:>22}" * sum(map(len, METRICS.values()))
    print("\nin per cent, the mean of three seeds (range)")
    print(row.format("", *(heading for metrics in METRICS.values() for _, heading, _ in metrics)))
    for name in names:
        cells = []
        for task, metrics in METRICS.items():
            runs = json.loads((outputs[name, task] / "results.json").read_text(encoding="utf-8"))["runs"]
            for metric, _, factor in metrics:
                values = [factor * run[metric] for run in runs]
                cells.append(f"{statistics.mean(values):.1f} ({min(values):.1f}-{max(values):.1f})")
        print(row.format(name, *cells))


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--recipe", nargs="+", required=True, help="recipes of run_pretraining.py, without a text")
    parser.add_argument("--output_dir", type=Path, required=True, help="a second call adds what is not there yet")
    parser.add_argument("--minutes", type=float, default=30, help="of training, for each (default: %(default)s)")
    parser.add_argument(
        "--stock_learning_rate", type=float, nargs="+", default=[5e-4], help="with several, the best one is compared"
    )
    parser.add_argument("--stock_batch_size", type=int, default=16)
    parser.add_argument(
        "--stock_shape",
        type=int,
        nargs=4,
        default=[6, 256, 4, 1024],
        metavar=("LAYERS", "WIDTH", "HEADS", "FEED_FORWARD"),
    )
    parser.add_argument("--seed", type=int, default=42, help="of all of them")
    parser.add_argument("--fine_tune", action="store_true", help="then MNLI and SQuAD, three seeds each")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None):
    arguments = parsed(argv)
    sides = wanted_sides(arguments, load_tokenizer(vocabulary()))
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    file = arguments.output_dir / "results.jsonl"
    done = read_results(file)
    check_results(done, sides, arguments.output_dir)
    batches = held_out_batches(arguments.seed)
    processes = {
        name: side_of(side, arguments.output_dir / name, batches) for name, side in sides.items() if name not in done
    }
    for name, process in train_in_turns(processes):
        result = {"side": name, "machine": description(), **sides[name], "points": process.points}
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(result) + "\n")
    done = read_results(file)
    results = [done[name] for name in sides]
    stock = [result for result in results if result["stock"]]
    reference = min(stock, key=lambda result: result["points"][-1]["loss"])
    print_table(results, reference)
    curves = {result["side"]: result["points"] for result in results}
    title = f"{arguments.minutes:g} minutes each; {reference['machine']}"
    draw(curves, reference["side"], title, arguments.output_dir / "quality.png")
    if arguments.fine_tune:
        recipes = [result["side"] for result in results if not result["stock"]]
        print_fine_tuned([reference["side"], *recipes], arguments.output_dir)


if __name__ == "__main__":
    exit_on_input_error(main)
