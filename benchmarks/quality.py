"""
python -m benchmarks.quality --recipe RECIPE.yaml ... --output_dir DIR [--trials FILE] [--minutes 30] [--fine_tune]

Time to a quality: transformers' BERT under a plain Trainer with BERT's recipe, as people run it and with every setting
of a recipe that it can have, beside FixedHeadBert under run_pretraining.py with each of the recipes. All begin with
random weights on the same text, take turns on this machine for the same time, and are evaluated on the same masked
tokens. With --fine_tune MNLI and SQuAD follow, from each. Needs FIXEDBERT_DATA with wikipedia/, books/ and vocab/, and
glue/MNLI and squad/ to fine-tune. Writes results.jsonl, table.md, table.json, quality.png and the models; another call
with the same DIR adds to them. README.md in this folder says how to read the table.
"""

import argparse
import json
import math
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm
from transformers import AutoModelForPreTraining, PreTrainedTokenizerBase

from benchmarks.contenders import (
    LENGTH,
    Recipe,
    Settings,
    Stock,
    data_folder,
    device_options,
    held_out_batches,
    parameters,
    read_recipe,
    read_trials,
    side_of,
    title_of,
    vocabulary,
)
from benchmarks.curves import AXES, draw
from benchmarks.machine import description, gpus, in_a_process
from benchmarks.quality_table import BY_SEED, by_side, final_loss, markdown, references, rows_of
from benchmarks.sides import train_in_turns
from experiments.study.sources import FINE_TUNED
from fixedbert.data.tokenizers import load_tokenizer
from fixedbert.fine_tuning.sweep import sweep
from fixedbert.support.errors import InputError, exit_on_input_error, require_package
from fixedbert.support.files import directory_lock, read_json_object, write_atomically
from fixedbert.training.output import COMMAND_FILE

Contenders = dict[str, tuple[Stock | Recipe, dict]]  # by name, with what is recorded of each


def read_results(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def contenders_of(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> Contenders:
    """
    What each one is, what it changes, and how many parameters it has.

    Raises:
        InputError: a name is there twice, or a recipe's model is larger than stock BERT.
    """
    if arguments.trial and not arguments.trials:
        raise InputError("--trial names recipes of a file of trials: give --trials too.")
    if not (arguments.recipe or arguments.trials):
        raise InputError("nothing to compare stock BERT with: give --recipe or --trials.")
    recipes = [(Path(file).stem, title_of(file), *read_recipe(file, tokenizer)) for file in arguments.recipe]
    if arguments.trials:
        recipes += read_trials(arguments.trials, arguments.trial, tokenizer)
    found: Contenders = {}
    for equal in (Settings(), *(recipe.equal for _, _, recipe, _ in recipes)):
        for rate in arguments.stock_learning_rate:
            options = {"learning_rate": rate, "batch": arguments.stock_batch_size, "equal": equal}
            stock = Stock(*arguments.stock_shape, **options, **device_options())
            sizes = parameters(AutoModelForPreTraining, stock.config(tokenizer))
            change = " with ".join(filter(None, ["transformers' BERT", equal.text()]))
            found[stock.name] = stock, {"stock": True, "change": change, "settings": asdict(stock), **sizes}
    most = sizes["besides_embeddings"]
    for name, change, recipe, sizes in recipes:
        if name in found:
            raise InputError(f"{name}: another recipe is called so too; give it another name.")
        if sizes["besides_embeddings"] > most:
            raise InputError(
                f"{name}: {sizes['besides_embeddings']:,} parameters besides the embeddings are more than stock "
                f"BERT's {most:,}: make the model smaller, or give another --stock_shape."
            )
        found[name] = recipe, {"stock": False, "change": change, "settings": asdict(recipe), **sizes}
    return found


def earlier_results(file: Path, contenders: Contenders, minutes: float) -> list[dict]:
    """
    Results of other calls with the same folder. It must hold nothing else, so that leftovers can be removed.

    Raises:
        InputError: it has other files, or results that cannot be compared with those to come.
    """
    folder = file.parent
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: it has no {file.name} of this benchmark; give an --output_dir of its own.")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, "")
    results = read_results(file)
    stock = next(record["settings"] for _, record in contenders.values() if record["stock"])
    shared = {name: value for name, value in stock.items() if name not in ("learning_rate", "equal")}
    for result in results:
        if result["minutes"] != minutes:
            raise InputError(f"{folder}: its results are of {result['minutes']:g} minutes; give another --output_dir.")
        _, record = contenders.get(result["side"], (None, result))
        settings = json.loads(json.dumps(record["settings"] | (shared if result["stock"] else {})))  # lists for tuples
        names = settings.keys() | result["settings"].keys()
        other = sorted(name for name in names if result["settings"].get(name) != settings.get(name))
        if other:
            raise InputError(
                f"{folder}: {result['side']} had other settings ({', '.join(other)}); give another --output_dir."
            )
    return results


def train_missing(
    file: Path, results: list[dict], contenders: Contenders, seeds: list[int], minutes: float, most: float
):
    """Train what has no result yet, the sides of a seed in turns, and add each one's to the file when it is done."""
    done = {(result["side"], result["seed"]) for result in results}
    for seed in seeds:
        missing = {name: found for name, found in contenders.items() if (name, seed) not in done}
        if not missing:
            continue
        held_out, processes = held_out_batches(seed), {}
        for name, (contender, _) in missing.items():
            folder = model_folder(file.parent, name, seed)
            for left in (folder, folder.with_name(f"{folder.name}.partial")):  # by a call that was stopped
                shutil.rmtree(left, ignore_errors=True)
            processes[folder.name] = side_of(contender, folder, seed, minutes, held_out, most)
        names = dict(zip(processes, missing, strict=True))
        for process_name, process in train_in_turns(processes):
            name = names[process_name]
            machine = ", ".join([description(), *gpus()])
            run = {"side": name, "seed": seed, "minutes": minutes, "machine": machine}
            results.append(run | missing[name][1] | {"points": process.points})
            write_atomically(file, "".join(json.dumps(result) + "\n" for result in results))


def model_folder(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name}-{seed}"


def show(folder: Path, sides: dict[str, BY_SEED], drawn: list[str]):
    """Print and write the table of all sides, and draw some of them."""
    rows, results = rows_of(sides), [result for runs in sides.values() for result in runs.values()]
    reference = rows[0].side
    machines = "; ".join(dict.fromkeys(result["machine"] for result in results))
    title = f"{results[0]['minutes']:g} minutes each; {machines}"
    meaning = f"Ratios: how many times as much {reference} takes to its final loss as the other one with the same seed"
    meaning += ", and as much as stock BERT with the same settings as the recipe"
    text = f"{title}\n\n{meaning}; mean (range) over the seeds.{cut_short(results)}\n\n{markdown(rows)}"
    print(f"\n{text}")
    write_atomically(folder / "table.md", text)
    listed = [asdict(row) | {"ratios": {" ".join(of): ratios for of, ratios in row.ratios.items()}} for row in rows]
    record = {"minutes": results[0]["minutes"], "machines": machines, "rows": listed}
    write_atomically(folder / "table.json", json.dumps(record, indent=1) + "\n")
    curves = {
        name: [result["points"] for result in sides[name].values()]
        for name in (reference, *(name for name in drawn if name != reference))
    }
    labels = {axis: {row.side: f": {row.ratio_cell(('as_run', axis))}" for row in rows if row.ratios} for axis in AXES}
    draw(curves, labels, final_loss(sides[reference]), title, folder / "quality.png")


def cut_short(results: list[dict]) -> str:
    """A sentence on the sides that were stopped, whose last loss does not come after the whole time."""
    last = {result["side"]: result["points"][-1]["seconds"] / 60 for result in results}
    sides = ", ".join(f"{side} after {end:.0f}" for side, end in last.items() if end < 0.99 * results[0]["minutes"])
    return f" Stopped before the time was over, in minutes: {sides}." if sides else ""


COMMON = {"per_device_train_batch_size": 32, "warmup_steps": 0.1, "save_strategy": "no", "seeds": [1, 2, 3]}
COMMON |= {"do_train": True, "do_eval": True, "disable_tqdm": True}
COMMON |= {"config_overrides": {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}}  # not each its own
METRICS = {  # of each task: name in its results, heading, factor to per cent
    "mnli": (("eval_accuracy", "MNLI matched", 100), ("eval_accuracy_mm", "mismatched", 100)),
    "squad": (("eval_f1", "SQuAD F1", 1), ("eval_exact_match", "exact match", 1)),
}
SQUAD = {"train_file": "squad/train-v1.1.json", "validation_file": "squad/dev-v1.1.json"}
PATHS = ("output_dir", "model_name_or_path", "data_dir", *SQUAD)


def check_installed(fine_tuned: bool):
    """Raises InputError where matplotlib, or the data to fine-tune with, is missing: both are needed hours later."""
    require_package("matplotlib", "plots")
    for name in ("glue/MNLI", *SQUAD.values()) if fine_tuned else ():
        if not (data_folder() / name).exists():
            raise InputError(f"{data_folder() / name} is not there: add it, or leave out --fine_tune.")


def fine_tuning_fields(task: str, model: Path, output: Path) -> dict:
    """
    What fine-tunes a model, with the settings of "mini, fine-tuned" in model_cards/README.md.
    None has dropout: stock BERT would have its pretraining's, and recipes theirs.
    Windows are not longer than the rows of stock BERT's training: its later positions still have random vectors.
    """
    data, options = data_folder(), COMMON | {"model_name_or_path": str(model), "output_dir": str(output)}
    options |= device_options()
    if task == "mnli":
        task_options = {"task_name": ["mnli"], "data_dir": str(data / "glue"), "num_train_epochs": 3}
        return options | task_options | {"learning_rate": 2e-4}
    files = {name: str(data / file) for name, file in SQUAD.items()}
    windows = {"max_seq_length": LENGTH, "doc_stride": 32}
    task_options = {"max_train_samples": 8000, "num_train_epochs": 2, "learning_rate": 3e-4}
    return options | files | windows | task_options


def fine_tune(task: str, given: dict):
    sweep(FINE_TUNED[task], **given)


def check_settings(output: Path, given: dict):
    """Raises InputError where earlier results of fine-tuning had other settings, paths apart."""
    earlier = read_json_object(output / COMMAND_FILE, f"remove {output}")
    names = sorted({*earlier, *given} - {*PATHS})
    if other := ", ".join(name for name in names if earlier.get(name) != given.get(name)):
        raise InputError(f"{output}: fine-tuned with other settings ({other}); remove it, and it is fine-tuned again.")


def print_fine_tuned(names: list[str], folder: Path):
    """Fine-tune the models that are not yet, and print means and ranges over the seeds of fine-tuning."""
    outputs = {(name, task): folder / "fine_tuned" / f"{name}-{task}" for name in names for task in METRICS}
    given = {(name, task): fine_tuning_fields(task, folder / name, outputs[name, task]) for name, task in outputs}
    missing = [key for key, output in outputs.items() if not output.exists()]
    for key, output in outputs.items():
        if key not in missing:
            check_settings(output, given[key])
    for name, task in tqdm(missing, desc="fine-tuning", leave=False):
        in_a_process(fine_tune, task, given[name, task])
    row = f"{{:<{max(map(len, names))}}}" + " {:>22}" * sum(map(len, METRICS.values()))
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
    parser.add_argument("--recipe", nargs="+", default=[], help="recipes of run_pretraining.py, without a text")
    parser.add_argument("--trials", help="a file with several recipes by name, such as benchmarks/trials.yaml")
    parser.add_argument("--trial", nargs="+", default=[], help="their names (default: all of the file)")
    parser.add_argument("--output_dir", type=Path, required=True, help="a second call adds what is not there yet")
    parser.add_argument("--minutes", type=float, default=30, help="of training, for each (default: %(default)s)")
    parser.add_argument(
        "--recipe_minutes",
        type=float,
        default=math.inf,
        help="stop recipes after so many of them, where the ratio is all that is asked for (default: never)",
    )
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
    parser.add_argument("--seeds", type=int, nargs="+", default=[42], help="of all of them (default: %(default)s)")
    parser.add_argument(
        "--fine_tune",
        action="store_true",
        help="then MNLI and SQuAD from the best stock BERT and each recipe, of every seed, three times",
    )
    arguments = parser.parse_args(argv)
    if arguments.fine_tune and arguments.recipe_minutes < arguments.minutes:
        parser.error("--recipe_minutes leaves no models to --fine_tune: give one of the two.")
    return arguments


def main(argv: list[str] | None = None):
    arguments = parsed(argv)
    check_installed(arguments.fine_tune)
    contenders = contenders_of(arguments, load_tokenizer(vocabulary()))
    folder = arguments.output_dir
    with directory_lock(folder):
        file = folder / "results.jsonl"
        results = earlier_results(file, contenders, arguments.minutes)
        train_missing(file, results, contenders, arguments.seeds, arguments.minutes, arguments.recipe_minutes)
        sides = by_side(results)
        show(folder, sides, list(contenders))
        if arguments.fine_tune:
            recipes = [name for name, (contender, _) in contenders.items() if isinstance(contender, Recipe)]
            stocks = dict.fromkeys(stock for name in recipes for stock in references(sides, sides[name]).values())
            for stock in stocks:
                check_seeds(folder, stock, sides[stock], arguments.seeds)
            models = [model_folder(folder, name, seed) for name in (*stocks, *recipes) for seed in arguments.seeds]
            print_fine_tuned([model.name for model in models], folder)


def check_seeds(folder: Path, stock: str, trained: BY_SEED, seeds: list[int]):
    """Raises InputError where the best stock BERT of its settings has no model of one of the seeds."""
    lacking = [seed for seed in seeds if seed not in trained]
    if lacking:
        rate = next(iter(trained.values()))["settings"]["learning_rate"]
        others = [seed for seed in seeds if seed in trained] or trained
        raise InputError(
            f"{folder}: {stock}, the best stock BERT, has no model of seed {lacking[0]} to fine-tune: add "
            f"--stock_learning_rate {rate:g}, or give --seeds {' '.join(map(str, others))}."
        )


if __name__ == "__main__":
    exit_on_input_error(main)
