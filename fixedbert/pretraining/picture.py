"""pretraining.png: losses and accuracies against tokens."""

from pathlib import Path

from ..support.figures import new_figure, skip_without_matplotlib

PRETRAINING_PANELS = (
    ("loss", "cross-entropy (nats)"),
    ("accuracy", "predicted right (%)"),
    ("learning rate", "learning rate (1e-4)"),
)


@skip_without_matplotlib
def draw_pretraining(log_history: list[dict], task: str, title: str, file: str | Path):
    """
    Draw a run's log as a PNG with one panel for each of PRETRAINING_PANELS.

    Args:
        log_history: the log in Trainer's state.
        task: "mlm" or "clm".
    """
    with new_figure(13, 4, file) as figure:
        loss, accuracy, learning_rate = axes = figure.subplots(1, 3)

        def points(name, factor=1.0):
            entries = [entry for entry in log_history if name in entry and "num_input_tokens_seen" in entry]
            return [e["num_input_tokens_seen"] / 1e6 for e in entries], [factor * e[name] for e in entries]

        loss.plot(*points("loss"), label="training")
        loss.plot(*points("eval_loss"), "o-", label="held out")
        for name, label in (
            (f"eval_{task}_loss", "held out, tokens alone"),
            ("eval_nsp_loss", "held out, next sentence"),
        ):
            if points("eval_nsp_loss")[0]:
                loss.plot(*points(name), "s--", label=label)
        accuracy.plot(*points(f"{task}_accuracy", 100), label="training, tokens")
        accuracy.plot(*points(f"eval_{task}_accuracy", 100), "o-", label="held out, tokens")
        if points("eval_nsp_accuracy")[0]:
            accuracy.plot(*points("eval_nsp_accuracy", 100), "s--", label="held out, next sentence")
        learning_rate.plot(*points("learning_rate", 1e4))
        for panel, (name, label) in zip(axes, PRETRAINING_PANELS, strict=True):
            panel.set(title=name, xlabel="real tokens seen (millions)", ylabel=label, ylim=(0, None))
            if panel.get_legend_handles_labels()[0]:
                panel.legend()
        figure.suptitle(title)
