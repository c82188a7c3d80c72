"""Estimates the cost of a study before it runs: parameters, tokens and FLOPs."""

from fixedbert.counts import forward_flops, parameters
from fixedbert.loading.heads import int_or_list

from .studies import TASKS, Run, Study, has_feed_forward, parse_share

ROW = "{:<44} {:>5} {:>6} {:>5} {:>9} {:>6} {:>10} {:>12}".format


def study_cost_text(study: Study, share: str = "1/1") -> str:
    """
    Returns a table of the shapes, and the total number of pretraining tokens and FLOPs for all runs.

    A `share` such as "1/2" restricts both to the shapes that one machine trains.
    """
    part = parse_share(share)
    firsts = [
        study.run(series, point, study.learning_rates[0], study.seeds[0]) for series, point in study.places(part)
    ]
    planned = study.planned_runs([], part)
    flops = sum(run.training_flops for run in planned)
    extended = ", and more if grids are extended" if study.extend_learning_rates else ""
    lengths = ", ".join(str(length) for length in sorted({run.length for run in planned}))
    names = ("series", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP/token")
    return "\n".join([
        study.question,
        "",
        ROW(*names),
        *map(shape_row, firsts),
        "",
        f"MFLOP/token counts the forward pass of the layers at sequence length {lengths}.",
        f"{len(planned)} runs{extended}: {len({run.key for run in firsts})} different shapes, "
        f"{len(study.learning_rates)} learning rates and {len(study.seeds)} seeds; "
        f"{sum(run.tokens for run in planned):,} pretraining tokens, {flops:.2g} FLOPs in layers",
    ])  # fmt: skip


def shape_row(run: Run) -> str:
    config, is_task = run.config, run.objective in TASKS
    return ROW(
        run.series[:44],
        config.hidden_size,
        config.num_hidden_layers,
        str(int_or_list(config.head_counts)),
        str(int_or_list(config.head_sizes)),
        str(int_or_list(config.neuron_counts)) if has_feed_forward(run.objective) else "-",
        "-" if is_task else f"{parameters(config)[0] / 1e6:,.2f} M",  # tasks have no embeddings
        f"{forward_flops(config, run.length) / 1e6:.3f}",
    )
