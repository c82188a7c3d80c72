"""What a pretraining run leaves beside the model: a picture and a summary."""

import json
from pathlib import Path

from matplotlib.figure import Figure

from ..model_card import hardware_name, versions
from .output import SECRET, run_arguments
from .pretraining import PretrainingTrainer

PANELS = (
    ("loss", "cross-entropy (nats)"),
    ("accuracy", "predicted right (%)"),
    ("learning rate", "learning rate (1e-4)"),
)


def draw_curves(log_history: list[dict], task: str, title: str, file: str | Path):
    """
    Draw a run's log as a PNG with one panel for each of PANELS.

    Args:
        log_history: that of Trainer's state.
        task: "mlm" or "clm".
    """
    figure = Figure(figsize=(13, 4), layout="constrained")
    loss, accuracy, learning_rate = axes = figure.subplots(1, 3)

    def points(name, factor=1.0):
        entries = [entry for entry in log_history if name in entry and "num_input_tokens_seen" in entry]
        return [e["num_input_tokens_seen"] / 1e6 for e in entries], [factor * e[name] for e in entries]

    loss.plot(*points("loss"), label="training")
    loss.plot(*points("eval_loss"), "o-", label="held out")
    for name, label in ((f"eval_{task}_loss", "held out, tokens alone"), ("eval_nsp_loss", "held out, next sentence")):
        if points("eval_nsp_loss")[0]:
            loss.plot(*points(name), "s--", label=label)
    accuracy.plot(*points(f"{task}_accuracy", 100), label="training, tokens")
    accuracy.plot(*points(f"eval_{task}_accuracy", 100), "o-", label="held out, tokens")
    if points("eval_nsp_accuracy")[0]:
        accuracy.plot(*points("eval_nsp_accuracy", 100), "s--", label="held out, next sentence")
    learning_rate.plot(*points("learning_rate", 1e4))
    for panel, (name, label) in zip(axes, PANELS, strict=True):
        panel.set(title=name, xlabel="real tokens seen (millions)", ylabel=label, ylim=(0, None))
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
    figure.suptitle(title)
    figure.savefig(file, dpi=110)


def write_summary(trainer: PretrainingTrainer, corpus: dict, parameters: dict, command: list[str]):
    """summary.json, and pretraining.png if there was training, beside the model."""
    output, args = Path(trainer.args.output_dir), trainer.args
    batch = args.per_device_train_batch_size * max(args.n_gpu, 1) * args.gradient_accumulation_steps * args.world_size
    summary = {
        "objective": trainer.objective,
        "config": trainer.model.config.to_diff_dict(),
        "parameters": parameters,
        "corpus": corpus,
        "steps": trainer.state.global_step,
        "examples in a step": batch,
        "real tokens seen": trainer.state.num_input_tokens_seen,
        "results": json.loads((output / "all_results.json").read_text()),
        "command": ["run_pretraining.py", *run_arguments(command, left_out=SECRET)],
        "hardware": hardware_name(),
        "processes": args.world_size,
        "versions": versions(),
    }
    (output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    if args.do_train:
        title = f"{trainer.objective}, {parameters['all'] / 1e6:.1f} M parameters, {batch} examples a step"
        draw_curves(trainer.state.log_history, trainer.objective[:3], title, output / "pretraining.png")
