"""
Pretrains a tiny model, fine-tunes it on two tasks, compares the results with those of training from scratch, and
compares the ways to run a fine-tuned model on this machine.

    make demo        # or: python run_demo.py

Takes two minutes on two CPU cores and needs no network. Finished steps are kept in demo/ and skipped in later runs.
Flags are passed to all training scripts:

    python run_demo.py --seed 1 --bf16 false
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import fixedbert_cli

if __name__ == "__main__":
    fixedbert_cli.limit_openmp_spinning()

import run_glue
import run_pretraining
import run_squad
from experiments.sample_tasks import write_tasks
from fixedbert.support.errors import InputError, exit_on_input_error
from fixedbert.support.figures import new_figure
from fixedbert.tasks.questions import load_squad
from fixedbert.tasks.squad_metrics import squad_scores
from fixedbert.tasks.texts import load_files

DEMO = Path("demo")
PRETRAINED, START = "pretrained", ("pretrained", "from scratch")
COMPARED = DEMO / "compared"
LEARNED, NOT_LEARNED = 95, 75  # minimum score (%) with pretraining, and maximum without


def run_once(main: Callable[[list[str]], object], output: Path, *arguments: str):
    """Calls the `main` of a script or of the command line, unless its output directory exists from a finished call."""
    if output.exists():
        print(f"{output}: already done")
        return
    command = [*arguments, "--output_dir", str(output)]
    program = "fixedbert" if main is fixedbert_cli.main else f"{main.__module__}.py"
    print(program, *command, flush=True)
    with open(f"{output}.log", "a", encoding="utf-8") as log, redirect_stdout(log):
        main(command)


def main():
    """Runs all steps with the flags from the command line."""
    flags = sys.argv[1:]
    start_time = time.monotonic()
    silence_libraries()
    write_tasks(DEMO / "data")
    run_once(run_pretraining.main, DEMO / PRETRAINED, "recipes/sample_stories.yaml", *flags)
    model = str(DEMO / PRETRAINED)
    starts = {
        "pretrained": ("--model_name_or_path", model),
        "from scratch": ("--config_name", model),  # only configuration and tokenizer; weights are random
    }
    for task, script in (("pairs", run_glue), ("questions", run_squad)):
        for start, source in starts.items():
            run_once(script.main, directory(task, start), f"recipes/sample_{task}.yaml", *source, *flags)
    rows = ("--validation_file", str(DEMO / "data/pairs/dev.tsv"))
    run_once(fixedbert_cli.main, COMPARED, "compare", str(directory("pairs", "pretrained")), *rows)
    show(time.monotonic() - start_time)
    check_scores()


def silence_libraries():
    """Hides warnings about unused weights, and all progress bars except those for training."""
    import datasets
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()


def directory(task: str, start: str) -> Path:
    """Returns the output directory for a task and an entry of START."""
    return DEMO / f"{task}-{start.replace(' ', '-')}"


def results(output: Path) -> dict:
    """Reads the metrics of a run."""
    return json.loads((output / "all_results.json").read_text())


def majority_baselines() -> dict[str, float]:
    """Returns the scores (%) of a baseline that always predicts the most frequent training label or answer."""
    files = {
        split: str(DEMO / f"data/pairs/{name}.tsv") for split, name in (("train", "train"), ("validation", "dev"))
    }
    train, dev = (rows["label"][:] for rows in load_files(files).splits.values())
    label = Counter(train).most_common(1)[0][0]
    train, dev_questions = (load_squad(str(DEMO / "data/questions" / f"{s}.json")) for s in ("train", "dev"))
    answer = Counter(row["answers"]["text"][0] for row in train).most_common(1)[0][0]
    answers = {row["id"]: row["answers"]["text"] for row in dev_questions}
    scores = squad_scores(dict.fromkeys(answers, answer), answers)
    return {
        "eval_accuracy": 100 * dev.count(label) / len(dev),
        "eval_exact_match": scores["exact_match"],
        "eval_f1": scores["f1"],
    }


ROWS = (
    ("pairs", "accuracy", "eval_accuracy", 100),
    ("questions", "exact match", "eval_exact_match", 1),
    ("questions", "F1", "eval_f1", 1),
)


def scores() -> dict[str, tuple[float, float]]:
    """Returns a pair for each task and metric: the scores (%) with and without pretraining."""
    return {
        f"{task}, {name}": (
            scale * results(directory(task, "pretrained"))[key],
            scale * results(directory(task, "from scratch"))[key],
        )
        for task, name, key, scale in ROWS
    }


def check_scores():
    """Raises InputError if the scores do not show that pretraining helps."""
    for name, (pretrained, scratch) in scores().items():
        if not (pretrained > LEARNED and scratch < NOT_LEARNED):
            raise InputError(
                f"the demo failed: {name} is {pretrained:.1f}% with pretraining (expected above {LEARNED}%) and "
                f"{scratch:.1f}% without (expected below {NOT_LEARNED}%); remove {DEMO} and try a different --seed."
            )


def show(seconds: float):
    """Prints the scores and the next steps, then draws the figure."""
    majority = majority_baselines()
    print(f"\n{'synthetic task':<16}{'metric':<14}" + "".join(f"{column:>14}" for column in (*START, "majority")))
    for task, name, key, scale in ROWS:
        values = [scale * results(directory(task, start))[key] for start in START] + [majority[key]]
        print(f"{task:<16}{name:<14}" + "".join(f"{value:>13.1f}%" for value in values))
    show_runtimes()
    held_out = results(DEMO / PRETRAINED)
    print(
        f"\nPretraining on held-out documents: masked-LM loss {held_out['eval_mlm_loss']:.2f} and accuracy "
        f"{held_out['eval_mlm_accuracy']:.1%}, next-sentence accuracy {held_out['eval_nsp_accuracy']:.1%}"
    )
    print(
        f"Figure: {draw(majority)}. Model directories: {DEMO / PRETRAINED}, "
        + ", ".join(str(directory(t, START[0])) for t in ("pairs", "questions"))
    )
    print(
        f"This took {seconds:.0f} s. Logs are in {DEMO}/*.log.\n\n"
        "Next steps in Python:\n"
        "    import fixedbert\n"
        "    from transformers import AutoModel\n"
        f'    model = AutoModel.from_pretrained("{DEMO / PRETRAINED}")\n'
        "and in a shell, after `. .venv/bin/activate`:\n"
        f"    python -m experiments.head_size --output_dir {DEMO}/theory  # what a head can express\n"
        "    fixedbert pretrain recipes/mini.yaml --train_file TEXTS/  # a model 10 times as large, on your own text"
    )


def show_runtimes():
    """Prints the speedup of each way to run the fine-tuned model, and the percentage of unchanged predictions."""
    title = str(directory("pairs", "pretrained"))
    print(f"\n{title:<26}{'speedup: batches':>16}{'single texts':>14}{'same predictions':>18}")
    for model in json.loads((COMPARED / "comparison.json").read_text())["models"]:
        speedup, same = model["speedup"], model["fidelity"]["agreement"] if model["fidelity"] else 1
        print(f"{model['runtime']:<26}{speedup['random']:>16.2f}{speedup['single']:>14.2f}{same:>18.1%}")


def history(output: Path, key: str) -> tuple[list[int], list[float]]:
    """Returns the steps at which a metric was logged, and its values."""
    log = json.loads((output / "trainer_state.json").read_text())["log_history"]
    points = [(entry["step"], entry[key]) for entry in log if key in entry]
    return [step for step, _ in points], [value for _, value in points]


def draw(majority: dict[str, float]) -> Path:
    """Draws demo.png: the pretraining losses, and the metrics of both tasks with and without pretraining."""
    with new_figure(13, 4, DEMO / "demo.png") as figure:
        left, middle, right = figure.subplots(1, 3)
        left.plot(*history(DEMO / PRETRAINED, "loss"), label="training, both losses")
        left.plot(*history(DEMO / PRETRAINED, "eval_mlm_loss"), "o-", label="held out, masked LM")
        left.plot(*history(DEMO / PRETRAINED, "eval_nsp_loss"), "s-", label="held out, next sentence")
        left.set(title="Pretraining", xlabel="step", ylabel="cross-entropy (nats)", ylim=(0, None))
        left.legend()
        for axes, task, key, scale, label in (
            (middle, "pairs", "eval_accuracy", 100, "accuracy (%)"),
            (right, "questions", "eval_f1", 1, "F1 (%)"),
        ):
            for start in START:
                steps, values = history(directory(task, start), key)
                axes.plot(steps, [scale * value for value in values], "o-", markersize=3, label=start)
            axes.axhline(majority[key], color="gray", linestyle="--", label="majority")
            axes.set(title=f"Synthetic {task}", xlabel="step", ylabel=f"held-out {label}", ylim=(0, 102))
            axes.legend()
    return DEMO / "demo.png"


if __name__ == "__main__":
    exit_on_input_error(main)
