"""The metrics of a run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """
    A number in the results of a run.

    Args:
        label: Label in tables and figures. A metric without a label is recorded but not reported.
        task: "pretraining", one of its objectives, "mnli" or "squad". Synthetic tasks return their metrics themselves.
        names: Names in the results of the task, without the prefix "eval_".
        factor: Factor that converts the recorded value to the unit in the label.
        missing: Text in reports for a run without a value.
        unless: Name of a metric. Shapes that have the named metric are not compared by this one. A metric that names
            itself is never compared.
        logarithmic: True if figures use a logarithmic axis.
    """

    label: str
    task: str = ""
    names: tuple[str, ...] = ()
    factor: float = 1
    missing: str = "diverged"
    unless: str = ""
    logarithmic: bool = False


METRICS = {
    "loss": Metric("", "pretraining", ("mlm_loss", "clm_loss")),
    "perplexity": Metric("held-out perplexity", "clm", ("perplexity",)),
    "masked_perplexity": Metric("held-out perplexity of masked tokens", "mlm", ("perplexity",)),
    "masked_perplexity_of_pairs": Metric("held-out perplexity of masked tokens in pairs", "mlm+nsp", ("perplexity",)),
    "accuracy": Metric("", "pretraining", ("mlm_accuracy", "clm_accuracy")),
    "nsp_accuracy": Metric("", "pretraining", ("nsp_accuracy",)),
    "mnli_accuracy": Metric("MNLI accuracy, matched (%)", "mnli", ("accuracy",), 100),
    "mnli_accuracy_mm": Metric("MNLI accuracy, mismatched (%)", "mnli", ("accuracy_mm",), 100),
    "squad_f1": Metric("SQuAD 1.1 F1 (%)", "squad", ("f1",)),
    "squad_exact_match": Metric("SQuAD 1.1 exact match (%)", "squad", ("exact_match",)),
    "error": Metric("mean squared error", logarithmic=True),
    "floor": Metric("lowest error found by direct search", unless="floor"),
    "relative_error": Metric("squared error relative to the best constant", logarithmic=True),
    "recalled": Metric("recalled (%)", factor=100),
    "memorised": Metric("examples memorized", logarithmic=True),
    "steps_to_goal": Metric("steps to the goal", missing="never", unless="memorised", logarithmic=True),
}
