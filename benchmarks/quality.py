"""
python -m benchmarks.quality --recipe RECIPE.yaml ... --output_dir DIR [--trials FILE] [--minutes 30]

Measures how long pretraining takes to reach a given loss. FixedHeadBert is trained with run_pretraining.py, once per
recipe. The baseline is transformers' BERT trained with Trainer: once with common settings, and once per recipe with
those of its settings that Trainer supports. All models start from random weights, train on the same text for the same
amount of time, and are evaluated on the same masked tokens. The environment variable FIXEDBERT_DATA must be set to a
directory with wikipedia/, books/ and vocab/. Writes results.jsonl, table.md, quality.png and the models to DIR. If DIR
already has results, adds missing ones. time_to_quality.md in this directory explains the table.
"""

import argparse
import json
import math
import shutil
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from transformers import AutoModelForPreTraining, PreTrainedTokenizerBase

from benchmarks.contenders import (
    Recipe,
    Settings,
    Stock,
    device_options,
    held_out_batches,
    make_side,
    parameters,
    read_recipe,
    read_trials,
    vocabulary,
)
from benchmarks.curves import AXES, draw, ratio
from benchmarks.paired import description, gpus
from benchmarks.sides import train_in_turns
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.support.errors import InputError, exit_on_input_error, require_package
from fixedbert.support.files import directory_lock, write_atomically

Contenders = dict[str, tuple[Stock | Recipe, dict]]  # for each name, what to train, and fields to add to its results
BySeed = dict[int, dict]  # for each seed, the result of one side
COLUMNS = ("", "parameters, M", "steps", "TFLOP", "loss", "time ratio", "FLOP ratio")
COLUMNS += ("time ratio, same settings", "FLOP ratio, same settings", "seeds", "change")


def contenders_of(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> Contenders:
    """Returns the recipes, and stock BERT at each learning rate with common settings and each recipe's settings."""
    recipes = [(Path(file).stem, Path(file).stem, *read_recipe(file, tokenizer)) for file in arguments.recipe]
    if arguments.trials:
        recipes += read_trials(arguments.trials, arguments.trial, tokenizer)
    contenders: Contenders = {}
    for equal in (Settings(), *(recipe.equal for _, _, recipe, _ in recipes)):
        for rate in arguments.stock_learning_rate:
            options = {"learning_rate": rate, "batch": arguments.stock_batch_size, "equal": equal}
            stock = Stock(*arguments.stock_shape, **options, **device_options())
            sizes = parameters(AutoModelForPreTraining, stock.config(tokenizer))
            change = " with ".join(filter(None, ["transformers' BERT", equal.text()]))
            contenders[stock.name] = stock, {"stock": True, "change": change, "settings": asdict(stock), **sizes}
    largest = sizes["besides_embeddings"]
    for name, change, recipe, sizes in recipes:
        if sizes["besides_embeddings"] > largest:
            raise InputError(
                f"{name}: the model has {sizes['besides_embeddings']:,} parameters besides the embeddings, more than "
                f"stock BERT's {largest:,}; make the model smaller or change --stock_shape."
            )
        contenders[name] = recipe, {"stock": False, "change": change, "settings": asdict(recipe), **sizes}
    return contenders


def earlier_results(file: Path, contenders: Contenders, minutes: float) -> list[dict]:
    """Returns the results of earlier calls, or raises InputError if their settings were different."""
    directory = file.parent
    if not file.exists():
        if directory.exists() and any(directory.iterdir()):
            raise InputError(f"{directory}: contains files but no results; choose a new --output_dir.")
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(file, "")
    results = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for result in results:
        _, fields = contenders.get(result["side"], (None, result))
        settings = json.loads(json.dumps(fields["settings"]))  # tuples become lists
        if result["minutes"] != minutes or result["settings"] != settings:
            raise InputError(f"{directory}: the settings of {result['side']} changed; choose a new --output_dir.")
    return results


def train_missing(file: Path, results: list[dict], contenders: Contenders, arguments: argparse.Namespace):
    """For each seed, trains in turns the sides that have no result yet, and appends each result to the file."""
    done = {(result["side"], result["seed"]) for result in results}
    for seed in arguments.seeds:
        missing = {name: contender for name, contender in contenders.items() if (name, seed) not in done}
        held_out, processes = held_out_batches(seed) if missing else [], {}
        for name, (contender, _) in missing.items():
            directory = file.parent / f"{name}-{seed}"
            for left in (directory, directory.with_name(f"{directory.name}.partial")):  # from an interrupted call
                shutil.rmtree(left, ignore_errors=True)
            options = {"minutes": arguments.minutes, "max_minutes": arguments.recipe_minutes}
            processes[directory.name] = make_side(contender, directory, seed, held_out, **options)
        names = dict(zip(processes, missing, strict=True))
        for process_name, process in train_in_turns(processes):
            name = names[process_name]
            machine = ", ".join([description(), *gpus()])
            run = {"side": name, "seed": seed, "minutes": arguments.minutes, "machine": machine}
            results.append(run | missing[name][1] | {"points": process.points})
            write_atomically(file, "".join(json.dumps(result) + "\n" for result in results))


# The table


def by_side(results: Iterable[dict]) -> dict[str, BySeed]:
    sides: dict[str, BySeed] = {}
    for result in results:
        sides.setdefault(result["side"], {})[result["seed"]] = result
    return sides


def final_loss(results: Iterable[dict]) -> float:
    """Returns the final loss, averaged over the seeds. NaN counts as infinity."""
    loss = statistics.mean(result["points"][-1]["loss"] for result in results)
    return math.inf if math.isnan(loss) else loss


def best_stock(sides: dict[str, BySeed], settings: dict | None = None) -> str:
    """
    Returns the name of the stock BERT with the best learning rate, by the average loss over the seeds of all rates.

    Args:
        settings: Consider only stock BERTs with these settings (default: common settings).
    """
    wanted = asdict(Settings()) if settings is None else settings
    stock = {name: runs for name, runs in sides.items() if is_stock(runs) and settings_of(runs) == wanted}
    common = set.intersection(*map(set, stock.values()))
    if not common:
        raise InputError(
            f"results.jsonl: {', '.join(stock)} have no common seed; train all of them with the same --seeds."
        )
    return min(stock, key=lambda name: final_loss(stock[name][seed] for seed in common))


def is_stock(runs: BySeed) -> bool:
    return next(iter(runs.values()))["stock"]


def settings_of(runs: BySeed) -> dict:
    """Returns the settings of a stock BERT, or a recipe's settings that stock BERT supports."""
    return next(iter(runs.values()))["settings"]["equal"]


def ratio_cells(runs: BySeed, stock: BySeed) -> list[str]:
    """Formats the ratios of training times and FLOPs at stock BERT's final loss, for seeds that both sides have."""
    cells = []
    for axis in AXES:
        ratios = [ratio(stock[seed]["points"], runs[seed]["points"], axis) for seed in runs if seed in stock]
        reached = [value for value in ratios if value is not None]
        cells.append(mean_and_range(reached, 2) if reached else "")
        if len(reached) < len(ratios):
            cells[-1] += f", not reached by {len(ratios) - len(reached)} of {len(ratios)}"
    return cells


def mean_and_range(values: Iterable[float], digits: int) -> str:
    """Formats the mean and range, such as 3.412 (3.401-3.420), or only the mean if there is a single number."""
    numbers = list(values)
    mean, *ends = (f"{value:.{digits}f}" for value in (statistics.mean(numbers), min(numbers), max(numbers)))
    return f"{mean} ({'-'.join(ends)})" if len(numbers) > 1 else mean


def row_of(name: str, sides: dict[str, BySeed]) -> list[str]:
    runs, reference = sides[name], best_stock(sides)
    last = [result["points"][-1] for result in runs.values()]
    latest = list(runs.values())[-1]
    equal = ["", ""] if latest["stock"] else ratio_cells(runs, sides[best_stock(sides, settings_of(runs))])
    return [
        name,
        f"{latest['besides_embeddings'] / 1e6:.2f}",
        f"{statistics.mean(point['steps'] for point in last):,.0f}",
        f"{statistics.mean(point['flops'] for point in last) / 1e12:,.1f}",
        mean_and_range([point["loss"] for point in last], 3),
        *(["", ""] if name == reference else ratio_cells(runs, sides[reference])),
        *equal,
        ", ".join(map(str, runs)),
        latest["change"].replace("|", r"\|"),
    ]


def show(directory: Path, sides: dict[str, BySeed], plotted: Iterable[str]):
    """Prints and writes the table of all sides, and plots the curves of the sides `plotted`."""
    reference = best_stock(sides)
    rows = [row_of(name, sides) for name in (reference, *(name for name in sides if name != reference))]
    results = [result for runs in sides.values() for result in runs.values()]
    machines = "; ".join(dict.fromkeys(result["machine"] for result in results))
    title = f"{results[0]['minutes']:g} minutes each; {machines}"
    lines = [f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    text = (
        f"{title}\n\nRatios: cost for {reference}, or stock BERT with the recipe's settings, to reach its final loss, "
        "divided by the recipe's cost to reach that loss; mean (range) over the seeds.\n\n" + "\n".join(lines) + "\n"
    )
    print(f"\n{text}")
    write_atomically(directory / "table.md", text)
    names = [reference, *(name for name in plotted if name != reference)]
    curves = {name: [result["points"] for result in sides[name].values()] for name in names}
    labels: dict[str, dict[str, str]] = {axis: {} for axis in AXES}
    for name in names[1:]:
        for axis, cell in zip(AXES, ratio_cells(sides[name], sides[reference]), strict=True):
            labels[axis][name] = f": {cell}"
    draw(curves, labels, final_loss(sides[reference].values()), title, directory / "quality.png")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--recipe", nargs="+", default=[], help="recipes for run_pretraining.py that set no corpus")
    parser.add_argument("--trials", help="file with several named recipes, such as benchmarks/trials.yaml")
    parser.add_argument("--trial", nargs="+", default=[], help="names of recipes from --trials (default: all)")
    parser.add_argument("--output_dir", type=Path, required=True, help="for results; another call adds missing ones")
    parser.add_argument("--minutes", type=float, default=30, help="training time for each side (default: %(default)s)")
    parser.add_argument("--recipe_minutes", type=float, default=math.inf, help="when to stop recipes (default: never)")
    parser.add_argument("--stock_learning_rate", type=float, nargs="+", default=[5e-4], help="the best one is used")
    parser.add_argument("--stock_batch_size", type=int, default=16, help="examples per step (default: %(default)s)")
    parser.add_argument(
        "--stock_shape", type=int, nargs=4, default=[6, 256, 4, 1024],
        metavar=("LAYERS", "WIDTH", "HEADS", "FEED_FORWARD"),
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[42], help="random seeds (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if not (arguments.recipe or arguments.trials):
        parser.error("set --recipe or --trials.")
    return arguments


def main(argv: list[str] | None = None):
    arguments = parse(argv)
    require_package("matplotlib", "plots")
    contenders = contenders_of(arguments, load_tokenizer(vocabulary()))
    with directory_lock(arguments.output_dir):
        file = arguments.output_dir / "results.jsonl"
        results = earlier_results(file, contenders, arguments.minutes)
        train_missing(file, results, contenders, arguments)
        show(arguments.output_dir, by_side(results), contenders)


if __name__ == "__main__":
    exit_on_input_error(main)
