"""What a study costs before it runs: its shapes with their counts, its tokens and FLOPs."""

import time

import torch

from fixedbert import FixedHeadBertConfig, FixedHeadBertForPreTraining
from fixedbert.counts import PREDICTED, forward_flops, parameters
from fixedbert.training.dropout import use_fast_dropout

from .registry import TASKS, has_feed_forward
from .studies import Run, Study, parse_share

ROW = "{:<44} {:>5} {:>6} {:>5} {:>9} {:>6} {:>10} {:>12} {:>11}".format
H100 = 989e12  # FLOP/s in half precision, as in the data sheet
UTILISATION = 0.4  # of the peak, an assumption
MOST_TIMED = 50_000_000  # parameters of a model whose step is timed on a CPU


def study_cost_text(study: Study, share: str = "1/1", timed: bool = False) -> str:
    """
    The shapes of a study with their counts, and what all runs cost, or the `share` of them that one machine does.

    Tokens, FLOPs in the layers, and hours are of pretraining alone.

    Args:
        share: 1/2 for what the first of two machines does.
        timed: also calculate hours of this machine from a step that is timed.

    Raises:
        InputError: `share` is not of the form 1/2.
    """
    part = parse_share(share)
    rate, *others = study.learning_rates
    firsts = [study.run(series, point, rate, study.seeds[0]) for series, point in study.places(part)]
    planned = study.planned_runs([], part)
    flops = sum(run.training_flops for run in planned)
    more = ", and more where grids are extended" if study.extend_learning_rates else ""
    grid, seeds = ("in shorter runs ", len(study.seeds)) if study.grid else ("", len(study.seeds) - 1)
    best = f", and the best one for {seeds}{'' if study.grid else ' more'}" if seeds else ""
    hours, on_gpu, of_hours = h100_hours(flops), "", ""
    if hours >= 1:  # small shapes do not reach that share
        on_gpu = f", {hours:,.0f} hours of an H100"
        of_hours = f"; H100 hours: for one run, at {UTILISATION:.0%} of the peak, an assumption"
    here = hours_here(planned) if timed else ""
    lengths = ", ".join(str(length) for length in sorted({run.length for run in planned}))
    alone = f"; fine-tuning on {' and '.join(study.fine_tuning)} is not counted" if study.fine_tuning else ""
    return "\n".join([
        study.question,
        "",
        ROW(
            *("series", "width", "layers", "heads", "head size", "ffn", "params", "MFLOP/token"),
            "H100 hours" if on_gpu else "",
        ).rstrip(),
        *(shape_row(run, timed=bool(on_gpu)).rstrip() for run in firsts),
        "",
        f"MFLOP/token: forward, layers alone, in rows of {lengths} tokens{of_hours}.",
        f"{len(planned)} runs{more}: {len({run.key for run in firsts})} different shapes, each with {1 + len(others)} "
        f"learning rate{'s' if others else ''} {grid}for the first seed{best}; "
        f"{sum(run.tokens for run in planned):,} tokens, {flops:.2g} FLOPs in layers{on_gpu}{here}{alone}",
    ])  # fmt: skip


def h100_hours(flops: float) -> float:
    return flops / (H100 * UTILISATION) / 3600


def tokens_per_second(config: FixedHeadBertConfig, length: int, rows: int = 4) -> float:
    """Times a training step in float32: the faster of two after a warm-up."""
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator() or device
    model = FixedHeadBertForPreTraining(config).train().to(device)
    model.sparse_prediction = True
    use_fast_dropout(model)  # as the trainers do
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(config.vocab_size, (rows, length), device=device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) > PREDICTED, -100)
    pairs, seconds = torch.zeros(rows, dtype=torch.long, device=device), []
    for _ in range(3):
        start = time.perf_counter()
        model(input_ids=ids, labels=labels, next_sentence_label=pairs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    return ids.numel() / min(seconds[1:])


def hours_here(runs: list[Run]) -> str:
    """Hours for the pretraining of these runs on this machine, by a timed step of the largest shape."""
    on_texts = [run for run in runs if run.objective not in TASKS]
    largest = max(on_texts, key=lambda run: forward_flops(run.config, run.length), default=None)
    if largest is None or (parameters(largest.config)[0] > MOST_TIMED and not torch.accelerator.is_available()):
        return ""
    speed = tokens_per_second(largest.config, largest.length) * 3 * forward_flops(largest.config, largest.length)
    hours = sum(run.training_flops for run in on_texts) / speed / 3600
    device = "this GPU" if torch.accelerator.is_available() else f"{torch.get_num_threads()} threads of this CPU"
    return f", {hours:,.1f} hours of {device}, one run after the other, by a timed step of the largest shape"


def shape_row(run: Run, timed: bool) -> str:
    """A task without a text has no embeddings, so that its parameters are not counted."""
    config = run.config
    counted = "-" if run.objective in TASKS else f"{parameters(config)[0] / 1e6:,.2f} M"
    return ROW(
        run.series[:44], config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.head_dim,
        config.neuron_counts[0] if has_feed_forward(run.objective) else "-", counted,
        f"{forward_flops(config, run.length) / 1e6:.3f}",
        f"{h100_hours(run.training_flops):,.3g}" if timed else "",
    )  # fmt: skip
