"""What a study does not show, by the facts of its runs."""

from .records import COUNTED
from .report import Report
from .tasks import TASKS

FEW_SEEDS = 5  # with fewer, Student's t is above 2.7


def limits_of(report: Report) -> list[str]:
    """A sentence for each limit that is true of the records."""
    return [limit for limits in KINDS for limit in limits(report)]


def limits_of_runs(report: Report) -> list[str]:
    shapes = report.shapes
    seeds = [len(shape.records) for shape in shapes]
    fewer, ends = sum(count < max(seeds) for count in seeds), sum(shape.end_of_grid is not None for shape in shapes)
    untuned = sum(len(shape.learning_rates) == 1 for shape in shapes)
    not_converged, diverged = sum(shape.not_converged for shape in shapes), sum(shape.diverged for shape in shapes)
    changed = any((commit or "").endswith("with changes") for commit in report.conditions.commits)
    few = "One seed: no difference has an interval."
    if max(seeds) > 1:
        few = f"At most {max(seeds)} seeds: intervals are wide, and a narrow one can be luck."
    limits = {
        few: max(seeds) < FEW_SEEDS,
        f"Shapes with fewer seeds than others: {fewer} of {len(shapes)}.": fewer,
        f"Shapes trained with a single learning rate: {untuned} of {len(shapes)}.": untuned,
        "Learning rates were chosen in shorter runs: the best in full may be another.": report.conditions.of_grid,
        "Shapes whose best learning rate is at an end of the grid, beyond which a better one may lie: "
        f"{ends} of {len(shapes)}.": ends,
        f"Runs that ended at their cap, neither at the goal nor with a flat loss: {not_converged}.": not_converged,
        f"Runs that diverged, and are in no mean: {diverged}.": diverged,
        "Some of the code was in no commit.": changed,
        "The learning rate falls between evaluations: none but the last is the end of a run, and what the fall gains "
        "is part of every change.": any(curve.decay_from is None for curve in report.curves),
        "Changes along a run are those before the learning rate falls: what the fall adds to a difference is in its "
        "end alone.": any(curve.rate_falls for curve in report.curves),
    }
    return [limit for limit, holds in limits.items() if holds]


def missing_controls(report: Report) -> list[str]:
    """Missing controls: what varies with the axis and no series holds constant."""

    def differ(field: str) -> bool:
        return len({shape[field] for shape in report.shapes} - {None}) > 1

    sizes_differ, equal = differ("attention_head_size"), {shape["equal"] for shape in report.shapes}
    all_alike = all(shape["value_head_size"] == shape["attention_head_size"] for shape in report.shapes)
    limits = {
        "No series is made equal in parameters.": differ(COUNTED) and "parameters" not in equal,
        "No series is made equal in FLOPs.": differ("forward_flops") and "flops" not in equal,
        "No control for the temperature of scores: no series has qk_norm.": sizes_differ
        and not any(shape["qk_norm"] for shape in report.shapes),
        "Values are as large as queries and keys: what their sizes do is not separated.": sizes_differ and all_alike,
    }
    return [limit for limit, holds in limits.items() if holds]


def limits_of_subject(report: Report) -> list[str]:
    conditions = report.conditions
    trained = [objective for objective in conditions.objectives if objective not in TASKS]
    if not trained:
        return ["The tasks are synthetic: what language needs of heads they do not say."]
    limits = [f"{trained[0]} alone: other objectives can differ."]
    if len(trained) > 1:
        limits = [f"Losses and perplexities of {' and '.join(trained)} cannot be compared with each other."]
    parameters = max((shape[COUNTED] for shape in report.shapes if shape[COUNTED] is not None), default=None)
    if parameters is not None and conditions.tokens is not None:
        limits.append(
            f"Models have at most {parameters:,} parameters besides embeddings and have seen at most "
            f"{conditions.tokens[1]:,} tokens: larger ones, or more training, can differ."
        )
    return [*limits, *([f"One text ({conditions.texts}): on others figures differ."] if conditions.texts else [])]


KINDS = [limits_of_runs, missing_controls, limits_of_subject]  # a checkout adds one
