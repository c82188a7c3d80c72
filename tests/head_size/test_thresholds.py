"""Thresholds in the records of synthetic tasks: knees, agreement with predictions, and the text of reports."""

import pytest
from helpers.study_records import lines, report, report_of, write

from experiments.head_size.thresholds import (
    KNEE,
    SUFFICES,
    TRANSITION,
    Growth,
    Threshold,
    fit_growth,
    thresholds_of,
)
from experiments.study.report import Report
from experiments.study.report_files import metrics_figure, write_report
from experiments.study.report_text import report_markdown
from experiments.study.studies import load_study


def test_knee():
    """Fits recover the knee or exponent of exact data, and a knee must fit clearly better than a power law."""
    sizes = [1, 2, 4, 8, 16, 32]

    def growth(amounts):
        return fit_growth(sizes, amounts)

    knee = growth([90 * min(size, 7) for size in sizes])
    assert knee.has_knee and knee.knee == pytest.approx(7, rel=0.02) and knee.power_residual > 0.2
    for power in (0, 0.5, 1):
        law = growth([90 * size**power for size in sizes])
        assert not law.has_knee and (law.exponent, law.power_residual) == pytest.approx((power, 0), abs=1e-12)
    assert Growth(8, 0.06, 0.5, 0.1).has_knee and not Growth(8, 0.08, 0.5, 0.1).has_knee  # ratios 0.36, 0.64


@pytest.mark.parametrize(
    "claim, measured, largest_miss, agrees",
    [
        (SUFFICES, 8, 4, True),
        (SUFFICES, 2, None, True),
        (SUFFICES, 16, 8, False),
        (SUFFICES, None, 16, False),
        (SUFFICES, 16, 4, None),  # 8 was not tried
        (SUFFICES, None, 4, None),
        (TRANSITION, 8, 6, True),
        (TRANSITION, 12, 6, True),  # 8 was not tried
        (TRANSITION, 6, 4, False),
        (TRANSITION, 12, 8, False),
        (TRANSITION, None, 8, False),
        (TRANSITION, 8, None, None),
        (TRANSITION, None, 6, None),
        (KNEE, 5.4, None, True),
        (KNEE, 5.3, None, False),
        (KNEE, None, None, False),
    ],
)
def test_agreement(claim, measured, largest_miss, agrees):
    """Upper bounds, transitions and knees are each compared with their own rule."""
    growth = Growth(5.4, 0.06, 0.5, 0.1) if claim == KNEE else None
    assert Threshold("a", claim, 8, None, measured, largest_miss, growth=growth).agrees is agrees
    assert Threshold("a", claim, None, 8, measured, largest_miss, growth=growth).agrees is None
    assert Threshold("a", KNEE, 8, None, None).agrees is None  # too few shapes


def thresholds(report: Report) -> list[Threshold]:
    return thresholds_of(report.series, report.axis)


def records_of(name: str, measure: str, values: dict, extra) -> list[dict]:
    """Returns a record for each shape and seed of a study. `values` returns the measure for a run."""
    study, records = load_study(name, "tiny"), []
    common = {"parameters": None, "non_embedding_parameters": None, "forward_flops": 1000, "training_flops": 1}
    common |= {"tokens": 5, "epochs": None, "texts": None, "seconds": 1.0, "hardware": "2 CPU cores", "threads": 1}
    common |= {"versions": {"torch": "2"}, "commit": None, "curve": None, "decay_from": None}
    for series, point in study.places():
        for seed in study.seeds:
            run = study.run(series, point, 0.01, seed)
            shape = {field: getattr(run.config, field) for field in ("hidden_size", "num_hidden_layers")}
            shape |= {field: getattr(run.config, field) for field in ("num_attention_heads", "intermediate_size")}
            shape |= {"attention_head_size": run.config.head_dim, "value_head_size": run.config.value_head_sizes[0]}
            shape |= {"head_embedding": None, "qk_norm": False, "max_seq_length": run.length}
            value = values(run) * (1 + 0.1 * seed)
            results = {"loss": value, measure: value, "converged": float(seed > 1), **extra(run)}
            entries = {"key": run.key, "objective": name, "learning_rate": 0.01, "seed": seed, "results": results}
            records.append({**common, **shape, **entries, **study.labels(run)})
    return records


def test_report_of_a_threshold(tmp_path):
    """The report states predicted and measured thresholds, and shapes that missed the goal or did not converge."""

    def error(run):
        return 1e-4 if run.config.head_dim == 16 else 0.3 / run.config.head_dim

    def extra(run):
        at_goal = run.config.head_dim == 16
        threshold = 16.0 if run.config.num_hidden_layers == 1 else None
        steps = {"steps_to_goal": 100 * run.seed if at_goal else None}
        return {**steps, "null": 1.0, "goal": 0.01, "threshold": threshold, "order": None}

    report = report_of(records_of("nearest", "relative_error", error, extra))
    text = report_markdown(report)
    assert "- 1 layer, 16 / r heads: predicted 16, measured 16, agrees; 4 of these runs did not converge" in text
    assert "- 2 layers, 64 / r heads: none predicted, measured 16" in text
    assert "| head size | MFLOP/token |" in text  # no feed-forward network, no parameters
    assert "| 0.36 ± 0.075 (1 not converged) | never |" in text
    assert "| 0.00012 ± 2.5e-05 | 200 ± 250 |" in text  # runs at the goal count as converged
    assert [threshold.measured for threshold in thresholds(report)] == [16] * 4
    write_report(report, tmp_path)
    assert (tmp_path / "report.png").stat().st_size > 10_000


def of_task(objective: str, axis: str, values: dict[int, list], **results) -> list[dict]:
    """Returns the records of one series of a task. `values` maps axis values to the measures of all seeds."""
    records = []
    for point, (value, by_seed) in enumerate(values.items()):
        changes = {"objective": objective, "axis": axis, "texts": None, "epochs": None}
        changes |= {"parameters": None, "non_embedding_parameters": None, axis: value}
        for record, measure in zip(lines("a", point, 2, by_seed, **changes), by_seed, strict=True):
            record["results"] = {"loss": None}
            if measure is not None:
                name = "memorised" if objective == "memorise" else "relative_error"
                record["results"] = {"loss": -measure, name: measure, "null": 1.0, "steps_to_goal": 10, **results}
            records.append(record)
    return records


def test_predictions_apply_to_one_axis():
    """A predicted number of heads is not compared with head sizes, and a predicted size not with numbers of heads."""
    errors = {2: [0.5, 0.4], 4: [0.001, 0.002]}
    for objective, axis, other in (
        ("extremes", "num_attention_heads", "attention_head_size"),
        ("nearest", "attention_head_size", "num_attention_heads"),
    ):
        results = {"threshold": 4.0, "order": None, "goal": 0.01}
        (threshold,) = thresholds(report_of(of_task(objective, axis, errors, **results)))
        assert (threshold.predicted, threshold.measured, threshold.agrees) == (4.0, 4, True)
        made = report_of(of_task(objective, other, errors, **results))
        (threshold,) = thresholds(made)
        assert (threshold.predicted, threshold.measured, threshold.agrees) == (None, 4, None)
        assert ": predicted" not in str([line.get_label() for line in metrics_figure(made).axes[0].lines])


def test_knees_beyond_the_sizes_tried(tmp_path):
    """Growth without a knee only contradicts theory beyond the prediction, and diverged runs do not break a report."""
    amounts = {1: [None, 100.0], 2: [200.0, 200.0], 4: [400.0, None], 8: [None, None]}
    records = of_task("memorise", "attention_head_size", amounts, threshold=8.0, predicted=3, at_limit=0.0)
    (threshold,) = thresholds(report_of(records))
    assert (threshold.predicted, threshold.measured, threshold.largest, threshold.agrees) == (8.0, None, 4, None)
    assert "predicted 8, none measured, not decided by these shapes" in report_markdown(report_of(records))
    report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    further = of_task("memorise", "attention_head_size", {**amounts, 16: [1600.0, 1600.0]}, threshold=8.0, predicted=3)
    assert thresholds(report_of(further))[0].agrees is False
