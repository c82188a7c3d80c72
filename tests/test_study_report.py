"""The report of a study: exact from fixed records, of one machine and of several, finished or not."""

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browsers import chromium
from PIL import Image

from fixedbert.errors import InputError
from fixedbert.study import make_report, read_records, report_markdown, report_runs
from fixedbert.study.curves import CurveDifference
from fixedbert.study.difference_figures import bounds, curves_figure, differences_figure
from fixedbert.study.figure import metrics_figure, sideways
from fixedbert.study.limits import limits_of
from fixedbert.study.report_text import commands, joined, number, table
from fixedbert.study.shape_results import Estimate
from fixedbert_cli import main

RECORD = {
    "objective": "clm",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "head_embedding": None,
    "qk_norm": False,
    "parameters": 123456,
    "non_embedding_parameters": 104000,
    "forward_flops": 262144,
    "training_flops": 786432000,
    "max_seq_length": 128,
    "tokens": 1000,
    "epochs": 0.25,
    "texts": "98 documents, 1,000,000 tokens",
    "seconds": 10.0,
    "hardware": "2 CPU cores",
    "threads": 1,
    "versions": {"fixedbert": "0.1.0", "torch": "2.13.0"},
    "commit": "abc",
    "study": "heads",
    "scale": "tiny",
    "axis": "num_attention_heads",
    "equal": None,
    "to": None,
    "to_point": None,
    "decay_from": None,
}


def lines(series, point, heads, values, rate=0.004, **changes):
    """A record for each seed, from 1 on; a value of None has diverged."""
    return [
        {
            **RECORD,
            "key": f"{series}-{point}-{rate}-{seed}",
            "series": series,
            "point": point,
            "num_attention_heads": heads,
            "attention_head_size": 64 // heads,
            "value_head_size": 64 // heads,
            "intermediate_size": 256,
            "learning_rate": rate,
            "seed": seed,
            "results": {"loss": value and value / 10, "perplexity": value, "accuracy": 0.5},
            **changes,
        }
        for seed, value in enumerate(values, start=1)
    ]


RECORDS = [
    *lines("standard", 0, 2, [10.0, 12.0, 14.0]),
    *lines("standard", 0, 2, [None], rate=0.008),
    *lines("standard", 1, 4, [9.0, 9.5, 10.0]),
    *lines("standard", 1, 4, [11.0], rate=0.008),
    *lines("wide", 0, 8, [8.9, 9.1], rate=0.002, equal="parameters", to="standard", to_point=1),
]
# By hand, with t(0.975, 2 degrees of freedom) = 4.302653 and t(0.975, 1) = 12.706205: half intervals 4.302653 times
# 2 / sqrt(3) and 0.5 / sqrt(3), 12.706205 times 0.1; differences -1, -2.5, -4 with 4.302653 times 1.5 / sqrt(3), and
# -0.1, -0.4 with 12.706205 times 0.15.
TEXT = """# Study heads, scale tiny

| series | width | layers | heads | head size | feed-forward | parameters | besides embeddings | MFLOP/token | \
learning rate | seeds | held-out perplexity |
|---|---|---|---|---|---|---|---|---|---|---|---|
| standard | 64 | 2 | 2 | 32 | 256 | 123,456 | 104,000 | 0.262 | 0.004 (the lowest) | 3 | 12 ± 5 |
| standard | 64 | 2 | 4 | 16 | 256 | 123,456 | 104,000 | 0.262 | 0.004 (the lowest) | 3 | 9.5 ± 1.2 |
| wide | 64 | 2 | 8 | 8 | 256 | 123,456 | 104,000 | 0.262 | 0.002 | 2 | 9 ± 1.3 |

held-out perplexity, differences seed by seed:
- standard, heads 2 to 4: -2.5 ± 3.7, within the spread
- wide, heads 8, less standard, heads 4: -0.25 ± 1.9, within the spread (2 of 3 seeds)

10 runs of 1,000 tokens (at most 0.25 epochs) in rows of 128, objective clm; seeds 1, 2, 3; learning rates 0.002, \
0.004, 0.008, of which each shape has its best with the first seed, whose run counts too; 100 seconds in all, on 2 \
CPU cores; fixedbert 0.1.0, torch 2.13.0; commit abc.
Texts: 98 documents, 1,000,000 tokens.
± is half the 95 % interval of Student's t over seeds; about one in twenty such intervals misses by chance. \
MFLOP/token: forward, layers alone.

What this does not show:
- At most 3 seeds: intervals are wide, and a narrow one can be luck.
- Shapes with fewer seeds than others: 1 of 3.
- Shapes trained with a single learning rate: 1 of 3.
- Shapes whose best learning rate is at an end of the grid, beyond which a better one may lie: 2 of 3.
- No control for the temperature of scores: no series has qk_norm.
- Values are as large as queries and keys: what their sizes do is not separated.
- clm alone: other objectives can differ.
- Models have at most 104,000 parameters besides embeddings and have seen at most 1,000 tokens: larger ones, or more \
training, can differ.
- One text (98 documents, 1,000,000 tokens): on others figures differ.
"""


def report(files: list, output_dir: Path) -> str:
    return report_markdown(report_runs(files, output_dir))


def text_of(*files: str) -> str:
    """The same without files and pictures."""
    return report_markdown(make_report(read_records(files)))


def write(file: Path, records: list[dict]) -> str:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def test_report_of_fixed_records_is_exact(tmp_path, capsys):
    """Guards: table, intervals, findings and limits are those calculated by hand, and there are pictures."""
    main(["study", "report", write(tmp_path / "runs.jsonl", RECORDS), "--output_dir", str(tmp_path / "out")])
    assert capsys.readouterr().out == TEXT + "\n"
    assert (tmp_path / "out" / "report.md").read_text() == TEXT
    with Image.open(tmp_path / "out" / "report.png") as picture:
        assert picture.width > 1000
    files = {"report.md", "report.html", "report.png", "differences.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files


def test_report_is_data():
    """Guards: a notebook has the numbers of the report: results by seed, intervals, findings, and conditions."""
    found = make_report(RECORDS)
    assert (found.study, found.scale, found.axis) == ("heads", "tiny", "num_attention_heads")
    assert found.metrics == ["perplexity"] and list(found.series) == ["standard", "wide"] and found.question is None
    two_heads = found.series["standard"][0]
    assert two_heads["attention_head_size"] == 32 and two_heads.end_of_grid == "lowest"
    perplexity = two_heads.estimate("perplexity")
    assert perplexity.by_seed == {1: 10.0, 2: 12.0, 3: 14.0}
    assert (perplexity.mean, perplexity.half_interval) == (12.0, pytest.approx(4.302653 * 2 / 3**0.5))
    along, between = found.findings
    assert (along.from_series, along.from_value, along.to_series, along.to_value) == ("standard", 2, "standard", 4)
    assert along.difference.by_seed == {1: -1.0, 2: -2.5, 3: -4.0} and not along.difference.is_beyond_spread
    assert (between.from_series, between.to_series, between.to_value) == ("standard", "wide", 8)
    assert between.difference.mean == pytest.approx(-0.25)
    assert (found.conditions.runs, found.conditions.seconds, found.conditions.tokens) == (10, 100.0, (1000, 1000))
    assert found.conditions.seeds == [1, 2, 3] and found.conditions.commits == ["abc"]


def test_python_of_the_page(tmp_path, monkeypatch, capsys):
    """Guards: the Python of docs/study.md that reads a finished study prints its findings."""
    page = (Path(__file__).parents[1] / "docs" / "study.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from fixedbert.study import make_report.*?)```", page, re.DOTALL)
    (tmp_path / "heads").mkdir()
    write(tmp_path / "heads" / "runs.jsonl", RECORDS)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == [
        "standard 2 heads: perplexity 12.00 ± 4.97",
        "standard 4 heads: perplexity 9.50 ± 1.24",
        "wide 8 heads: perplexity 9.00 ± 1.27",
        "standard 2 to standard 4: perplexity -2.50",
        "within the spread {1: -1.0, 2: -2.5, 3: -4.0}",
        "standard 4 to wide 8: perplexity -0.25",
        f"within the spread {{1: {8.9 - 9.0}, 2: {9.1 - 9.5}}}",
    ]


def test_files_of_several_machines(tmp_path):
    """Guards: files together give the report of all their runs, a run that is in both once, in any order."""
    first, second = write(tmp_path / "a.jsonl", RECORDS[:5]), write(tmp_path / "b.jsonl", RECORDS[3:])
    assert text_of(first, second) == TEXT
    other = text_of(write(tmp_path / "c.jsonl", RECORDS[::-1]))
    rows = [line for line in TEXT.splitlines() if line.startswith(("| ", "- "))]
    assert sorted(line for line in other.splitlines() if line.startswith(("| ", "- "))) == sorted(rows)


def test_records_of_earlier_versions(tmp_path):
    """Guards: records without the fields that were added later are read; with them they stay as they are."""
    old = {name: value for name, value in RECORDS[0].items() if name not in ("value_head_size", "decay_from")}
    new = {**RECORDS[1], "value_head_size": 7, "of_grid": True, "curve": [[500, 3.0], [1000, 2]], "question": "?"}
    new["attention"] = "my.Own@12345678"
    later = {"value_head_size": 32, "attention": None, "of_grid": False, "curve": None, "question": None}
    later |= {"decay_from": None}
    assert read_records([write(tmp_path / "runs.jsonl", [old, new])]) == [{**old, **later}, new]


def test_unfinished_studies(tmp_path):
    """Guards: a report can be had at any time: with one seed, without the series compared with, with a torn line."""
    file = tmp_path / "runs.jsonl"
    write(file, [RECORDS[0], RECORDS[4], RECORDS[-1]])
    file.write_text(file.read_text() + json.dumps(RECORDS[1])[:70])
    text = text_of(file)
    assert "| 0.004 | 1 | 10 |" in text and "| 0.002 | 1 | 9.1 |" in text
    assert "- standard, heads 2 to 4: -1 (one seed)" in text
    assert "less standard" not in text_of(write(file, RECORDS[-1:]))
    lost = {**RECORDS[2], "results": {"loss": None, "perplexity": None}}
    assert "| 3 | 11 ± 13 (1 diverged) |" in text_of(write(file, [*RECORDS[:2], lost]))
    text = report([write(file, [{**RECORDS[3], "seconds": None}])], tmp_path / "diverged")
    assert "| 0.008 | 1 | diverged |" in text and "0 seconds in all besides 1 runs that were interrupted" in text
    assert "- Runs that diverged, and are in no mean: 1.\n" in text and "- One seed: no difference" in text
    # A run that diverged before its parameters were counted, of a study that has them on its axis.
    unknown = dict.fromkeys(("non_embedding_parameters", "parameters", "tokens", "training_flops"))
    unknown["results"] = {"loss": None}
    records = [{**record, "axis": "non_embedding_parameters"} for record in RECORDS[:5]]
    text = report([write(file, [{**records[0], **unknown}, *records[1:]])], tmp_path / "one lost")
    assert "| 104,000 | 0.262 | 0.004 (the lowest) | 3 | 13 ± 13 (1 diverged) |" in text
    text = report([write(file, [{**records[0], **unknown}, *records[4:]])], tmp_path / "all lost")
    assert "|  |  | 0.262 | 0.004 | 1 | diverged |" in text
    text = report([write(file, [{**records[0], **unknown}])], tmp_path / "nothing else")
    assert "| 0.262 | 0.004 | 1 |\n" in text and "parameters" not in text.splitlines()[4]
    assert "1 runs of unknown numbers of tokens" in text and not list((tmp_path / "nothing else").glob("*.png"))


def test_beyond_the_spread(tmp_path):
    """Guards: a difference whose interval leaves out zero is called so."""
    records = [*lines("standard", 0, 2, [10.0, 10.1, 10.2]), *lines("standard", 1, 4, [9.0, 9.0, 9.3])]
    assert "-1 ± 0.25, beyond the spread" in text_of(write(tmp_path / "r", records))


def test_metrics_of_all_kinds(tmp_path):
    """Guards: fine-tuned scores are in per cent, as tables have them; each metric has its panels."""
    results = {"loss": 1.0, "perplexity": 9.0, "mnli_accuracy": 0.843, "squad_f1": 90.5}
    records = [line for heads in (2, 4) for line in lines("a", heads // 4, heads, [1.0], results=results)]
    text = text_of(write(tmp_path / "runs.jsonl", records))
    assert "| held-out perplexity | MNLI accuracy, matched (%) | SQuAD 1.1 F1 (%) |" in text
    assert "| 9 | 84.3 | 90.5 |" in text
    assert "MNLI" not in text_of(write(tmp_path / "one.jsonl", RECORDS))
    labels = [panel.get_ylabel() for panel in metrics_figure(make_report(records)).axes]
    assert labels == 2 * ["held-out perplexity"] + 2 * ["MNLI accuracy, matched (%)"] + 2 * ["SQuAD 1.1 F1 (%)"]


def test_synthetic_tasks(tmp_path):
    """Guards: the synthetic tasks are drawn on one panel with their floors, and reported by their error."""
    records = []
    for objective in ("dense", "sparse"):
        for size in (1, 2, 3):
            results = {"loss": 0.1**size, "error": 0.1**size} | (
                {"floor": 0.05 * (3 - size)} if objective == "dense" else {}
            )
            changes = {"objective": objective, "attention_head_size": size, "max_seq_length": 4, "parameters": None}
            changes |= {"value_head_size": size}
            changes |= {"texts": None, "epochs": None}
            changes |= {"non_embedding_parameters": None, "results": results, "axis": "attention_head_size"}
            records += lines(objective, size - 1, 1, [1.0], **changes)
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert "- dense, size of a head 1 to 3: -0.099 (one seed)" in text and "mean squared error" in text
    assert "perplexity" not in text and "| mean squared error | least error found |" in text
    assert "- The tasks are synthetic" in text and "larger ones" not in text
    # Sizes below the threshold alone, as in the beginning of a study.
    report([write(tmp_path / "begun.jsonl", records[:2])], tmp_path / "begun")


def test_runs_of_the_grid_only_choose():
    """Guards: shorter runs are in no mean and no number of tokens, but in the grid and in the number of runs."""
    grid = [
        run
        for rate, value in ((0.002, 5.0), (0.004, 4.0), (0.008, 6.0))
        for run in lines("standard", 0, 2, [value], rate=rate, of_grid=True, tokens=200, key=f"grid-{rate}")
    ]
    begun = lines("standard", 1, 4, [3.0], of_grid=True, tokens=200, key="begun")
    made = make_report([*grid, *lines("standard", 0, 2, [10.0, 12.0, 14.0]), *begun])
    (shape,) = made.shapes
    assert shape.estimate("perplexity").by_seed == {1: 10.0, 2: 12.0, 3: 14.0} and shape.end_of_grid is None
    conditions = made.conditions
    assert (conditions.runs, conditions.of_grid, conditions.tokens, conditions.seconds) == (7, 4, (1000, 1000), 70)
    limits = limits_of(made)
    assert "Learning rates were chosen in shorter runs: the best in full may be another." in limits
    assert not any("single learning rate" in limit or "end of the grid" in limit for limit in limits)


def test_objectives_are_not_compared():
    """Guards: series of two objectives are in one report, in columns and panels of their own; no difference is taken
    between them."""
    equal = {"equal": "parameters", "to": "clm", "to_point": 0}
    masked = {"objective": "mlm", "results": {"loss": 2.0, "masked_perplexity": 7.5}}
    series = {"clm": {}, "wide": equal, "mlm": {**equal, **masked}}
    records = [
        {**record, "curve": curve(5, 4, 3, 2, 1)}
        for name, changes in series.items()
        for record in lines(name, 0, 2, [9.0, 9.5], **changes)
    ]
    made = make_report(records)
    assert [(one.from_series, one.to_series) for one in made.findings] == [("clm", "wide")]
    assert [(one.from_series, one.to_series) for one in made.curves] == [("clm", "wide")]
    assert "Losses and perplexities of clm and mlm cannot be compared with each other." in limits_of(made)
    header, *rows = table(made)
    assert header[-2:] == ["held-out perplexity", "held-out perplexity of masked tokens"]
    assert [row[-2:] for row in rows] == [["9.25 ± 3.2", ""], ["9.25 ± 3.2", ""], ["", "7.5 ± 0"]]
    assert len(metrics_figure(made).axes) == 4  # each against heads and parameters


def test_commands_and_lists():
    """Guards: the command of a study with an attention class has its flag; lists of numbers are in their order."""
    records = [{**record, "scale": None, "attention": "my.Own@12345678"} for record in RECORDS[:3]]
    first, _ = commands(make_report(records))
    assert first == "fixedbert study heads.yaml --trust_remote_code --train_file TEXTS --output_dir heads"
    assert [number(value, ".2g") for value in (248.4, 1000, 2.5e-5, -1234)] == ["250", "1,000", "2.5e-05", "-1,200"]
    assert number(1000, "+.4g") == "+1,000" and number(999.5, ".4g") == "999.5"
    assert joined([10, 2, 0.5]) == "0.5, 2, 10" and joined({"b", "a"}) == "a, b"


def of_task(objective: str, axis: str, values: dict[int, list], **results) -> list[dict]:
    """Records of one series of a synthetic task: by the value on the axis, the measure of each seed."""
    records = []
    for point, (value, by_seed) in enumerate(values.items()):
        changes = {"objective": objective, "axis": axis, "texts": None, "epochs": None, "attention": None}
        changes |= {"parameters": None, "non_embedding_parameters": None, axis: value}
        for record, measure in zip(lines("a", point, 2, by_seed, **changes), by_seed, strict=True):
            record["results"] = {"loss": None}
            if measure is not None:
                name = "memorised" if objective == "memorise" else "relative_error"
                record["results"] = {"loss": -measure, name: measure, "null": 1.0, "steps_to_goal": 10, **results}
            records.append(record)
    return records


def test_steps_of_memorise_are_not_compared():
    """Guards: the steps to the goal of other numbers of examples are in the table, and in no difference."""
    made = make_report(of_task("memorise", "attention_head_size", {2: [20, 30], 4: [40, 50]}))
    assert "steps_to_goal" in made.metrics and {one.metric for one in made.findings} == {"memorised"}


def test_predictions_are_of_an_axis():
    """Guards: a number of heads is not compared with sizes of a head, nor a size with numbers of heads."""
    errors = {2: [0.5, 0.4], 4: [0.001, 0.002]}
    for objective, axis, other in (
        ("extremes", "num_attention_heads", "attention_head_size"),
        ("nearest", "attention_head_size", "num_attention_heads"),
    ):
        results = {"threshold": 4.0, "order": None, "goal": 0.01}
        (threshold,) = make_report(of_task(objective, axis, errors, **results)).thresholds
        assert (threshold.predicted, threshold.found, threshold.agrees) == (4.0, 4, True)
        made = make_report(of_task(objective, other, errors, **results))
        (threshold,) = made.thresholds
        assert (threshold.predicted, threshold.found, threshold.agrees) == (None, 4, None)
        assert ": predicted" not in str([line.get_label() for line in metrics_figure(made).axes[0].lines])


def test_knees_beyond_the_sizes_tried(tmp_path):
    """Guards: growth without a knee decides only if sizes go far enough; runs that diverged do not end the report."""
    amounts = {1: [None, 100.0], 2: [200.0, 200.0], 4: [400.0, None], 8: [None, None]}
    records = of_task("memorise", "attention_head_size", amounts, threshold=8.0, predicted=3, at_limit=0.0)
    made = make_report(records)
    (threshold,) = made.thresholds
    assert (threshold.predicted, threshold.found, threshold.largest, threshold.agrees) == (8.0, None, 4, None)
    assert "predicted 8, found none, not decided by the shapes tried" in report_markdown(made)
    report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    further = of_task("memorise", "attention_head_size", {**amounts, 16: [1600.0, 1600.0]}, threshold=8.0, predicted=3)
    assert make_report(further).thresholds[0].agrees is False


def with_curves(curves: dict[int, list]) -> list[dict]:
    """Records of one series, a shape for each number of heads with the curves of its seeds, from 1 on."""
    return [
        {**record, "curve": curve}
        for point, (heads, by_seed) in enumerate(curves.items())
        for record, curve in zip(lines("standard", point, heads, [9.0] * len(by_seed)), by_seed, strict=True)
    ]


def curve(*losses: float) -> list[list]:
    return [[tokens, loss] for tokens, loss in zip((100, 200, 480, 700, 1000), losses, strict=True)]


def test_curves_are_exact(tmp_path):
    """Guards: differences against tokens, their change from half of the training and what it is called, by hand."""
    records = with_curves(
        {
            2: [curve(5, 4, 3.5, 3.2, 3), curve(5.5, 4, 3.725, 3.2, 3.125)],
            4: [curve(4, 3.75, 3, 3.1, 2.875), [[101, 4.5], *curve(0, 3, 3.125, 3, 3)[1:]]],
        }
    )
    (along,) = make_report(records).curves
    assert (along.from_value, along.to_value) == (4, 2)  # less the largest
    assert list(along.differences) == [100, 200, 480, 700, 1000]
    assert along.differences[100].by_seed == {1: 1.0, 2: 1.0}  # 101 tokens are the same evaluation
    assert along.decay_from is None and (along.middle, along.judged) == (480, [100, 200, 480, 700, 1000])
    assert along.change.by_seed == {1: pytest.approx(0.125 - 0.5), 2: pytest.approx(0.125 - 0.6)}
    assert along.trend == "within the spread"  # -0.425 with 12.706205 * 0.05
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert "differences seed by seed; changes are from half of the training to its end, or" in text
    values = "+1 ± 0 at 100 tokens, +0.55 ± 0.64 at 480 tokens, +0.125 ± 0 at 1,000 tokens"
    assert (
        f"- standard, heads 4 to 2: {values}; change from 480 to 1,000 tokens -0.425 ± 0.64, within the spread\n"
        in text
    )
    assert "- The learning rate falls between evaluations: none but the last is the end of a run" in text
    assert (tmp_path / "out" / "curves.png").exists()


def test_curves_that_not_all_runs_have(tmp_path):
    """Guards: evaluations, seeds and shapes without a counterpart, diverged runs, and old records are left out."""
    whole, short = curve(5, 4, 3, 2, 1), curve(5, 4, 3, 2, 1)[1:3]
    records = with_curves({2: [whole, whole, whole], 4: [whole, short, None], 8: [None, None, None]})
    (along,) = make_report(records).curves
    assert {tokens: list(one.by_seed) for tokens, one in along.differences.items()} == {200: [1, 2], 480: [1, 2]}
    assert (along.middle, along.judged) == (200, [200, 480])
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert "heads 4 to 2: +0 ± 0 at 200 tokens, +0 ± 0 at 480 tokens; change" in text
    records[1]["results"] = {"loss": None}
    assert list(make_report(records).curves[0].differences) == [100, 200, 480, 700, 1000]
    assert make_report(with_curves({2: [whole], 4: [short[:1]]})).curves == []
    assert make_report(RECORDS).curves == []
    wide = [{**one, "curve": whole} for one in RECORDS if one["series"] == "wide" or one["point"] == 1]
    (between,) = make_report(wide).curves
    assert (between.from_series, between.from_value, between.to_series, between.to_value) == ("standard", 4, "wide", 8)


def test_curves_are_judged_before_the_learning_rate_falls(tmp_path):
    """Guards: where the rate is constant and then falls, the change is one of the constant part, by hand; and what the
    fall adds to one shape more than to the other is in the end alone."""
    records = with_curves({2: [curve(5, 4, 3.5, 3, 2), curve(5, 4, 3.5, 3, 2.5)], 4: [curve(4, 3, 3, 2.5, 2)] * 2})
    records = [{**record, "decay_from": 700 + record["seed"]} for record in records]
    (along,) = make_report(records).curves
    assert (along.decay_from, along.middle, along.judged) == (700, 480, [100, 200, 480, 700])
    assert along.change.by_seed == {1: 0.0, 2: 0.0} and along.trend == "within the spread"
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    values = "+1 ± 0 at 100 tokens, +0.5 ± 0 at 480 tokens, +0.5 ± 0 at 700 tokens, +0.25 ± 3.2 at 1,000 tokens"
    assert f"{values}; change from 480 to 700 tokens +0 ± 0, within the spread\n" in text
    assert "- Changes along a run are those before the learning rate falls" in text
    assert "The learning rate falls between" not in text
    lines_drawn = curves_figure(make_report(records)).axes[0].lines
    assert [list(line.get_xdata()) for line in lines_drawn if line.get_linestyle() == ":"] == [[700, 700]]
    constant = make_report([{**record, "decay_from": 1000} for record in records])  # to the end
    assert constant.curves[0].judged == [100, 200, 480, 700, 1000]
    assert not any("learning rate falls" in limit for limit in limits_of(constant))
    alone = [{**record, "decay_from": 100} for record in records]  # a single evaluation before
    assert make_report(alone).curves[0].judged == [100, 200, 480, 700, 1000]


def test_curves_of_different_schedules():
    """Guards: no difference is taken where the rate of one run falls and that of the other does not, or where both
    fall in runs of different lengths."""
    whole = curve(5, 4, 3, 2, 1)
    longer = [*whole, [2000, 0.5]]
    for early, late, other, expected in (
        (200, 700, whole, [100, 200, 1000]),
        (200, 700, longer, [100, 200]),
        (None, 700, whole, None),  # the end alone
        (None, None, longer, None),
        (None, None, [*whole[:-1], [1005, 1]], [100, 200, 480, 700, 1005]),
    ):
        records = with_curves({2: [whole, whole], 4: [other, other]})
        found = make_report([{**one, "decay_from": late if one["point"] else early} for one in records]).curves
        assert [list(one.differences) for one in found] == ([expected] if expected else [])


@pytest.mark.parametrize(
    "middle, last, trend",
    [
        ([0.4, 0.5], [0.2, 0.3], "closing"),
        ([-0.4, -0.5], [-0.2, -0.3], "closing"),
        ([0.4, 0.5], [0.6, 0.7], "growing"),
        ([-0.4, -0.5], [-0.6, -0.7], "growing"),
        ([0.4, 0.5], [-0.6, -0.5], "reversing"),
        ([0.4, 0.5], [-0.2, -0.1], "closing"),
        ([0.4, 0.5], [0.2, 0.5], "within the spread"),
        ([0.4], [0.2], None),
    ],
)
def test_trend(middle, last, trend):
    """Guards: the one rule for closing, growing, reversing and neither, for both signs."""
    both = {500: Estimate(dict(enumerate(middle))), 1000: Estimate(dict(enumerate(last)))}
    assert CurveDifference("a", 2, "a", 4, both).trend == trend


class Page(HTMLParser):
    """The tags of a page with their attributes, its text, and whether every tag that is opened is closed."""

    EMPTY = ("meta", "img", "input")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_needs_no_other_file(tmp_path):
    """Guards: report.html is well-formed, has all of the report and its pictures, and refers to nothing outside."""
    name = "<script>alert('x')</script> & \"4\" $a$ $b_$"
    changes = {"series": name, "question": "Is a < b & c?", "curve": curve(5, 4, 3, 2, 1)}
    records = [{**record, **changes} for record in RECORDS[:3] + RECORDS[4:7]]
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert {tag for tag, _ in page.tags}.isdisjoint(("link", "iframe", "object", "a"))
    assert [tag for tag, _ in page.tags].count("script") == 1  # the page's own
    assert {key for _, attributes in page.tags for key in attributes}.isdisjoint(("href", "srcset", "style"))
    assert "http:" not in html and "https:" not in html and "url(" not in html and "@import" not in html
    start = "data:image/png;base64,"
    assert all(one["src"].startswith(start) and one["alt"] for one in pictures) and name in pictures[0]["alt"]
    files = [(tmp_path / "out" / file).read_bytes() for file in ("report.png", "differences.png", "curves.png")]
    assert [b64decode(one["src"].removeprefix(start)) for one in pictures] == files
    assert "Is a < b & c?" in page.text and f"{name}, heads 2 to 4: -2.5 ± 3.7, within the spread" in page.text
    assert "fixedbert study heads --scale tiny --train_file TEXTS --output_dir heads" in page.text
    for line in text.splitlines():  # all that report.md has
        cells = line.strip("| ").split(" | ") if line.startswith("| ") else [line.lstrip("#- ").rstrip(":")]
        assert line.startswith("|---") or all(cell in page.text for cell in cells), line


def test_page_in_a_browser(tmp_path):
    """Guards: the table has the rows of those series alone whose boxes are checked; on a telephone all fits."""
    report([write(tmp_path / "runs.jsonl", RECORDS)], tmp_path / "out")
    with chromium() as browser:
        browser.get((tmp_path / "out" / "report.html").as_uri())

        def series() -> list[str]:
            cells = browser.find_elements("css selector", "#results td:first-child")
            return [cell.text for cell in cells if cell.is_displayed()]

        assert series() == ["standard", "standard", "wide"]
        standard, wide = browser.find_elements("css selector", "#series input")
        standard.click()
        assert series() == ["wide"]
        standard.click()
        wide.click()
        assert series() == ["standard", "standard"]
        assert browser.get_log("browser") == []
        narrow = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
        root = "document.documentElement"
        inside, outside = browser.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
        assert inside <= outside + 1  # of rounding: a commit is one long word


def test_picture_of_differences():
    """Guards: of every pair a dot at the mean, its interval and its seeds; one seed is hollow, without an interval."""
    report = make_report([*RECORDS, *lines("lone", 0, 2, [9.0]), *lines("lone", 1, 4, [8.5])])
    (panel,) = differences_figure(report).axes
    dots = {line.get_ydata()[0]: line for line in panel.lines if line.get_marker() == "o"}
    assert {row: pytest.approx(line.get_xdata()[0]) for row, line in dots.items()} == {0: -2.5, 1: -0.5, 2: -0.25}
    assert [line.get_markerfacecolor() for line in dots.values()] == ["C0", "none", "C1"]
    intervals = {line.get_ydata()[0]: list(line.get_xdata()) for line in panel.lines if line.get_linewidth() == 2}
    assert intervals.keys() == {0, 2}
    half = 4.302653 * 1.5 / 3**0.5
    assert intervals[0] == [pytest.approx(-2.5 - half), pytest.approx(-2.5 + half)]
    seeds = [sorted(line.get_xdata()) for line in panel.lines if line.get_marker() == "|"]
    assert seeds == [[-4, -2.5, -1], [-0.5], [pytest.approx(-0.4), pytest.approx(-0.1)]]
    assert [text.get_text() for text in panel.texts][1:] == ["-0.5  (1 seed)", "-0.25 ± 1.9  (2 seeds)"]
    assert panel.get_xlabel() == "difference in held-out perplexity; left of zero is better"
    low, high = panel.get_xlim()
    assert low <= -2.5 - half and high >= -2.5 + half


def test_axis_of_differences():
    """Guards: zero, seeds and intervals are on the axis, and the interval of two seeds that disagree is cut."""
    low, high = bounds([Estimate({1: 1.0, 2: 1.1, 3: 0.9})])
    assert low == pytest.approx(-0.05 * 1.248414) and high == pytest.approx(1.05 * 1.248414)
    assert bounds([Estimate({1: 0.0, 2: 1.0})]) == (pytest.approx(-1.15), pytest.approx(2.15))  # not to 6.85
    assert bounds([Estimate({1: 0.0})])[0] < bounds([Estimate({1: 0.0})])[1]


def test_picture_of_curves():
    """Guards: a panel for each series, a line with its band for each pair, and none of a single seed."""
    whole, low = curve(5, 4, 3, 2, 1), curve(4, 3, 2, 1, 0.5)
    panels = curves_figure(make_report(with_curves({2: [whole, whole], 4: [whole, whole], 8: [low, low]}))).axes
    assert len(panels) == 1 and panels[0].get_xscale() == "log" and len(panels[0].collections) == 2
    drawn = [line for line in panels[0].lines if line.get_marker() == "o"]
    assert [line.get_label() for line in drawn] == ["heads 2 (2 seeds)", "heads 4 (2 seeds)"]
    assert list(drawn[0].get_xdata()) == [100, 200, 480, 700, 1000] and list(drawn[0].get_ydata()) == [1, 1, 1, 1, 0.5]
    (panel,) = curves_figure(make_report(with_curves({2: [whole], 4: [low]}))).axes
    assert len(panel.collections) == 0 and panel.lines[0].get_markerfacecolor() == "none"


def test_series_do_not_cover_each_other():
    """Guards: series at one place are drawn beside each other, in their order, and not as far as the next place."""
    names = [f"series {number}" for number in range(14)]
    places = sideways([*((name, 2) for name in names), ("series 3", 3), ("series 3", 32), ("series 5", 32)])
    at_two = [places[name, 2] for name in names]
    assert len(set(at_two)) == 14 and at_two == sorted(at_two) and at_two[0] * at_two[-1] == pytest.approx(4)
    assert at_two[-1] < places["series 3", 3] == 3 and places["series 3", 32] < 32 < places["series 5", 32]
    assert sideways([("a", 1000), ("b", 1001), ("a", 1000)])["b", 1001] > 1001  # parameters made equal: one place
    assert sideways([("a", 4)]) == {("a", 4): 4}


def test_equal_parameters_are_one_place():
    """Guards: shapes with as many parameters are moved sideways by little beside what the axis shows."""
    low, high = metrics_figure(make_report(RECORDS)).axes[1].get_xlim()
    assert low < 104_000 / 1.5 and high > 104_000 * 1.5


def test_limits_are_those_of_the_records():
    """Guards: a report names the controls and the seeds that are missing, and not those that are there."""
    complete = [
        {**record, "commit": "abc with changes"}
        for to, heads, qk_norm in ((None, 2, False), ("parameters", 4, True), ("flops", 8, False))
        for record in lines(f"{to}", 0, heads, [9.0] * 5, rate=0.004, qk_norm=qk_norm, value_head_size=8, equal=to)
    ]
    for record in complete:
        record["non_embedding_parameters"] *= record["num_attention_heads"]
        record["forward_flops"] *= record["num_attention_heads"]
        record["objective"] = "mlm" if record["series"] == "flops" else "clm"
    limits = limits_of(make_report(complete))
    assert [limit.split(" ")[0] for limit in limits] == ["Shapes", "Some", "Losses", "Models", "One"]
    without = [{**record, "equal": None, "qk_norm": False, "objective": "clm"} for record in complete]
    limits = limits_of(make_report(without))
    assert "No series is made equal in parameters." in limits and "No series is made equal in FLOPs." in limits
    assert "No control for the temperature of scores: no series has qk_norm." in limits
    assert "clm alone: other objectives can differ." in limits
    assert not any("Values are as large" in limit or "seeds" in limit for limit in limits)


@pytest.mark.parametrize(
    "records, message",
    [
        (
            [{**RECORDS[0], "study": "width"}, RECORDS[1]],
            "different studies: heads at scale tiny, width at scale tiny",
        ),
        ([RECORDS[0], {**RECORDS[1], "intermediate_size": 999}], "standard, shape 1: runs of different shapes"),
        (
            [RECORDS[0], {**RECORDS[1], "texts": "98 documents, 2 tokens"}],
            "runs on different texts, or with different tokenizers",
        ),
        ([RECORDS[0], {**RECORDS[0], "key": "other"}], "standard, shape 1: a seed has several runs, of different"),
        ([RECORDS[0], {"key": "?"}], "runs.jsonl, line 2: not the record of a run"),
        ([{**RECORDS[0], "question": 5}], "line 1: not the record of a run .question: 5"),
        (
            [{**RECORDS[0], "curve": [[500, 3.0], [500, 2.0]]}],
            r"line 1: not the record.*curve: \[500, 2.0",
        ),
        ([{**RECORDS[0], "curve": [[500, "3"]]}], "line 1: not the record of a run"),
        ([{**RECORDS[0], "of_grid": True}], "no runs of full length: nothing to report"),
        ([], "no runs"),
    ],
)
def test_bad_records(tmp_path, records, message):
    """Guards: files that do not go together, or hold something else, end with a sentence that names the place."""
    with pytest.raises(InputError, match=message):
        report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert not (tmp_path / "out").exists()
