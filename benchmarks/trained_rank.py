"""
python -m benchmarks.trained_rank measure MODEL (--task_name TASK | --train_file FILE) --output FILE
python -m benchmarks.trained_rank draw FILE [FILE ...] --output PICTURE

How large a trained head has to be: what is left of a model's answers when the scores of all heads have a lower rank,
when their values have, when there are fewer heads, and when there are fewer neurons, one at a time, the same in all
layers. Each cut is the best by `fixedbert shrink` (cut.py), refitted, without training; the answers are compared on
rows that it was not cut by. Needs FIXEDBERT_DATA with glue/ for a task.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import transformers
from tqdm import tqdm

from benchmarks.machine import description
from fixedbert.conversion.growing import Heads
from fixedbert.counts import forward_flops
from fixedbert.shrinking.answers import compare
from fixedbert.shrinking.budget import Shape
from fixedbert.shrinking.layers import refit, shapes_of
from fixedbert.shrinking.rows import Rows
from fixedbert.shrinking.shrink import Work, with_shapes
from fixedbert.support.errors import InputError
from fixedbert.support.figures import PAGE, drawing

EIGHTHS = (6, 4, 3, 2, 1)
PARTS = {
    "rank of scores": lambda heads, neurons, left: (heads._replace(size=left(heads.size)), neurons),
    "size of values": lambda heads, neurons, left: (heads._replace(value_size=left(heads.value_size)), neurons),
    "number of heads": lambda heads, neurons, left: (heads._replace(number=left(heads.number)), neurons),
    "neurons": lambda heads, neurons, left: (heads, left(neurons)),
}


def measure(model: str, rows: Rows) -> dict:
    work = Work.load(model, rows)
    costs, old = work.costs(), shapes_of(work.model)[0]
    whole, found = forward_flops(work.model.config, work.length), []
    with tqdm(total=len(PARTS) * len(EIGHTHS), unit="cut") as progress:
        for part, change in PARTS.items():
            for eighths in EIGHTHS:
                heads, neurons = change(old.heads, old.neurons, lambda size, e=eighths: max(1, size * e // 8))
                shapes = [Shape(Heads(*heads), neurons)] * len(costs)
                cut = with_shapes(work.model, costs, shapes)
                refit(work.model, cut, work.rows)
                compared = compare(work.model, cut, work.held_out, work.ask)
                removed = 1 - forward_flops(cut.config, work.length) / whole
                found.append(
                    {"part": part, "heads": heads, "neurons": neurons, "removed": removed}
                    | {"divergence": compared.divergence, "agreement": compared.agreement}
                )
                progress.update()
    config, task = work.model.config, rows.task_name or ", ".join(Path(file).stem for file in rows.files or ())
    return {
        "model": Path(model).name, "task": task, "machine": description(),
        "layers": config.num_hidden_layers, "width": config.hidden_size, "heads": old.heads, "neurons": old.neurons,
        "tokens": work.length, "rows": sum(len(batch["input_ids"]) for batch in work.rows),
        "held_out": sum(len(batch["input_ids"]) for batch in work.held_out), "cuts": found,
    }  # fmt: skip


def draw(files: list[Path], picture: Path):
    """The divergence of the answers against what is left of a part, and against the operations removed."""
    found = [json.loads(file.read_text()) for file in files]
    with drawing(PAGE, 6, picture) as figure:
        panels = figure.subplots(2, len(found), squeeze=False)
        for (above, below), of_model in zip(panels.T, found, strict=True):
            for part in PARTS:
                cuts = [cut for cut in of_model["cuts"] if cut["part"] == part]
                lost = [cut["divergence"] for cut in cuts]
                above.plot([eighths / 8 for eighths in EIGHTHS], lost, "o-", label=part)
                below.plot([100 * cut["removed"] for cut in cuts], lost, "o-", label=part)
            number, size, _ = of_model["heads"]
            above.set(
                title=f"{of_model['model']}\n{number} heads of {size}, width {of_model['width']}", yscale="log",
                xlabel="share that is left",
            )  # fmt: skip
            below.set(xlabel="operations removed, per cent", yscale="log")
        for panel in panels[:, 0]:
            panel.set_ylabel("KL from the original, nats")
        panels[1, 0].legend(loc="lower right")


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trained_rank", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("model")
    measuring.add_argument("--task_name")
    measuring.add_argument("--train_file", nargs="+")
    measuring.add_argument("--max_seq_length", type=int, default=128)
    measuring.add_argument("--max_samples", type=int, default=1500)
    measuring.add_argument("--output", type=Path, required=True, help="a file of JSON")
    drawn = commands.add_parser("draw")
    drawn.add_argument("files", nargs="+", type=Path)
    drawn.add_argument("--output", type=Path, required=True, help="a picture")
    arguments = parser.parse_args(argv)
    if arguments.command == "draw":
        draw(arguments.files, arguments.output)
        return
    transformers.utils.logging.disable_progress_bar()
    task, files, length, most = (
        getattr(arguments, name) for name in ("task_name", "train_file", "max_seq_length", "max_samples")
    )
    if task and "FIXEDBERT_DATA" not in os.environ:
        sys.exit("error: FIXEDBERT_DATA does not say where glue/ is.")
    folder = f"{os.environ['FIXEDBERT_DATA']}/glue" if task else None
    try:
        found = measure(arguments.model, Rows(task, folder, files, length, most))
    except InputError as error:
        sys.exit(f"error: {error}")
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
