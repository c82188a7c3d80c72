"""Reports of studies: exact for fixed records, of one or several machines, finished or not."""

import json

import pytest
from helpers import ROOT
from PIL import Image

from experiments.study.__main__ import main
from experiments.study.report_text import limits_of, report_markdown, table
from experiments.tests.study_records import RECORDS, curve, lines, report, report_of, text_of, with_curves, write
from fixedbert.support.errors import InputError

# Calculated by hand with t(0.975, 2 degrees of freedom) = 4.302653 and t(0.975, 1) = 12.706205. Half intervals are
# 4.302653 times 2 / sqrt(3) and 0.5 / sqrt(3), and 12.706205 times 0.1. The differences are -1, -2.5, -4 with
# 4.302653 times 1.5 / sqrt(3), and -0.1, -0.4 with 12.706205 times 0.15.
ROWS = [
    "| standard | 64 | 2 | 2 | 32 | 256 | 123,456 | 104,000 | 0.262 | 0.004 (the lowest) | 3 | 12 ± 5 |",
    "| standard | 64 | 2 | 4 | 16 | 256 | 123,456 | 104,000 | 0.262 | 0.004 (the lowest) | 3 | 9.5 ± 1.2 |",
    "| wide | 64 | 2 | 8 | 8 | 256 | 123,456 | 104,000 | 0.262 | 0.002 | 2 | 9 ± 1.3 |",
    "- standard, heads 2 to 4: -2.5 ± 3.7, 95% interval includes 0",
    "- wide, heads 8, minus standard, heads 4: -0.25 ± 1.9, 95% interval includes 0 (2 of 3 seeds)",
    "- With at most 3 seeds, confidence intervals are wide, and a narrow one can be due to luck.",
    "- Shapes with fewer seeds than others: 1 of 3.",
    "- Shapes trained with a single learning rate: 1 of 3.",
    "- Shapes whose best learning rate is at an end of the grid, so that a better one may lie beyond it: 2 of 3.",
]


def rows_of(text: str) -> list[str]:
    """Returns the table rows without the header, the differences, and the first four limits."""
    return [line for line in text.splitlines() if line.startswith(("| ", "- "))][1:10]


def test_report_of_fixed_records_is_exact(tmp_path, capsys):
    """The table, intervals, differences and limits equal those calculated by hand, and a figure is drawn."""
    main(["report", write(tmp_path / "runs.jsonl", RECORDS), "--output_dir", str(tmp_path / "out")])
    text = (tmp_path / "out" / "report.md").read_text()
    assert capsys.readouterr().out == text + "\n" and rows_of(text) == ROWS
    assert "10 runs with 1,000 tokens each (at most 0.25 epochs)" in text
    with Image.open(tmp_path / "out" / "report.png") as picture:
        assert picture.width > 1000
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.md", "report.png"}


@pytest.mark.parametrize(
    "file", [*ROOT.glob("docs/records/[dhmw]*.jsonl"), *ROOT.glob("experiments/head_size/records/*.jsonl")]
)
def test_records_of_the_documentation_can_be_reported(file):
    """Reports can be made from published records."""
    assert text_of(file).count("\n| ") > 3


def test_differences_within_and_between_series():
    """Reports compare neighbors in a series, the ends of a series, and shapes of different series."""
    lines = text_of(ROOT / "docs/records/depth.jsonl").splitlines()
    deeper = "- fewer layers, wider feed-forward, equal parameters, layers "
    compared = [line.removeprefix(deeper).partition(":")[0] for line in lines if line.startswith(deeper)]
    assert compared[:3] == ["1 to 2", "2 to 3", "1 to 3"]
    series = "fewer layers, more standard heads", "fewer layers, more heads of 32"
    between = "- {}, equal parameters, minus {}, equal parameters".format(*series)
    assert f"{between}, layers 1: +2.35 ± 1.1, 95% interval excludes 0" in lines


def test_files_of_several_machines(tmp_path):
    """Several files, in any order, give one report of all their runs, without duplicates."""
    first, second = write(tmp_path / "a.jsonl", RECORDS[:5]), write(tmp_path / "b.jsonl", RECORDS[3:])
    assert text_of(first, second) == text_of(write(tmp_path / "all.jsonl", RECORDS))
    assert sorted(rows_of(text_of(write(tmp_path / "c.jsonl", RECORDS[::-1])))) == sorted(ROWS)


def test_unfinished_studies(tmp_path):
    """Reports can be made at any time: with one seed, without the reference series, or with an incomplete line."""
    file = tmp_path / "runs.jsonl"
    write(file, [RECORDS[0], RECORDS[4], RECORDS[-1]])
    file.write_text(file.read_text() + json.dumps(RECORDS[1])[:70])
    text = text_of(file)
    assert "| 0.004 | 1 | 10 |" in text and "| 0.002 | 1 | 9.1 |" in text
    assert "- standard, heads 2 to 4: -1 (one seed)" in text
    assert "minus standard" not in text_of(write(file, RECORDS[-1:]))
    lost = {**RECORDS[2], "results": {"loss": None, "perplexity": None}}
    assert "| 3 | 11 ± 13 (1 diverged) |" in text_of(write(file, [*RECORDS[:2], lost]))
    text = report([write(file, [{**RECORDS[3], "seconds": None}])], tmp_path / "diverged")
    assert "| 0.008 | 1 | diverged |" in text
    assert "- Diverged runs, which are excluded from averages: 1.\n" in text and "- With one seed, differences" in text
    # A run that diverged before its parameters were counted, in a study whose axis is the number of parameters.
    unknown = dict.fromkeys(("non_embedding_parameters", "parameters", "tokens", "training_flops"))
    records = [{**record, "axis": "non_embedding_parameters"} for record in RECORDS[:2]]
    records[0] |= {**unknown, "results": {"loss": None}}
    text = report([write(file, records)], tmp_path / "one lost")
    assert "| 104,000 | 0.262 | 0.004 | 2 | 12 (1 diverged) |" in text
    text = report([write(file, records[:1])], tmp_path / "nothing else")
    assert "1 runs with an unknown number of tokens" in text and not list((tmp_path / "nothing else").glob("*.png"))


def test_grid_runs():
    """Shorter runs select the learning rate and count as runs, but are left out of means and token counts."""
    grid = [
        run
        for rate, value in ((0.002, 5.0), (0.004, 4.0), (0.008, 6.0))
        for run in lines("standard", 0, 2, [value], rate=rate, of_grid=True, tokens=200, key=f"grid-{rate}")
    ]
    begun = lines("standard", 1, 4, [3.0], of_grid=True, tokens=200, key="begun")
    full = report_of([*grid, *lines("standard", 0, 2, [10.0, 12.0, 14.0]), *begun])
    (shape,) = full.shapes
    assert shape.estimate("perplexity").by_seed == {1: 10.0, 2: 12.0, 3: 14.0} and shape.end_of_grid is None
    text = report_markdown(full)
    assert "7 runs with 1,000 tokens each" in text and "; 70 seconds" in text
    assert "\n- Learning rates were chosen in shorter runs." in text


def test_objectives_and_metrics():
    """Each objective has its own columns, and objectives are not compared with each other. Scores are in percent."""
    equal = {"equal": "parameters", "to": "clm", "to_point": 0}
    masked = {"objective": "mlm", "results": {"loss": 2.0, "masked_perplexity": 7.5, "mnli_accuracy": 0.843}}
    series = {"clm": {}, "wide": equal, "mlm": {**equal, **masked}}
    records = [
        {**record, "curve": curve(5, 4, 3, 2, 1)}
        for name, changes in series.items()
        for record in lines(name, 0, 2, [9.0, 9.5], **changes)
    ]
    found = report_of(records)
    for compared in (found.findings, found.curves):
        assert [(one.first["series"], one.second["series"]) for one in compared] == [("clm", "wide")]
    assert "The losses and perplexities of clm and mlm cannot be compared." in limits_of(found)
    header, *rows = table(found)
    labels = ["held-out perplexity", "held-out perplexity of masked tokens", "MNLI accuracy, matched (%)"]
    assert header[-3:] == labels
    assert [row[-3:] for row in rows] == [["9.25 ± 3.2", "", ""], ["9.25 ± 3.2", "", ""], ["", "7.5 ± 0", "84.3 ± 0"]]


@pytest.mark.parametrize(
    "records, message",
    [
        ([{**RECORDS[0], "study": "width"}, RECORDS[1]], "from different studies: heads at scale tiny, width at"),
        ([RECORDS[0], {**RECORDS[1], "intermediate_size": 999}], "standard, shape 1: runs have different"),
        ([RECORDS[0], {**RECORDS[1], "texts": "98 documents, 2 tokens"}], "runs with different texts"),
        ([RECORDS[0], {"key": "?"}], "runs.jsonl, line 2: not the record of a run"),
        ([{**RECORDS[0], "of_grid": True}], "no complete runs"),
    ],
)
def test_invalid_records(tmp_path, records, message):
    """Runs that cannot be compared, and invalid lines, are refused, and nothing is written."""
    with pytest.raises(InputError, match=message):
        report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_curves_are_exact(tmp_path):
    """Paired differences along the curves equal those calculated by hand, and a figure is drawn."""
    first, second = curve(5, 4, 3.5, 3.2, 3), curve(5.5, 4, 3.725, 3.2, 3.125)
    records = with_curves({2: [first, second], 4: [curve(4, 3.75, 3, 3.1, 2.875), curve(4.5, 3, 3.125, 3, 3)]})
    records = [{**record, "decay_from": 700} for record in records]
    (along,) = report_of(records).curves
    assert (along.first["num_attention_heads"], along.second["num_attention_heads"]) == (4, 2)  # minus the largest
    assert list(along.differences) == [100, 200, 480, 700, 1000] and along.decay_from == 700
    assert along.differences[100].by_seed == {1: 1.0, 2: 1.0}
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    values = "+1 ± 0 at 100 tokens, +0.55 ± 0.64 at 480 tokens, +0.15 ± 0.64 at 700 tokens, +0.125 ± 0 at 1,000 tokens"
    assert f"- standard, heads 4 to 2: {values}\n" in text and (tmp_path / "out" / "curves.png").exists()


def test_curves_that_are_not_compared():
    """Diverged runs, single evaluations, and seeds with different evaluations or schedules are left out of curves."""
    whole = curve(5, 4, 3, 2, 1)
    records = with_curves({2: [whole, whole, whole], 4: [whole, whole[1:], None], 8: [None, None, None]})
    (along,) = report_of(records).curves
    assert [list(one.by_seed) for one in along.differences.values()] == [[1]] * 5
    assert report_of([{**records[0], "decay_from": 480}, *records[1:]]).curves == []
    assert report_of([{**records[0], "results": {"loss": None}}, *records[1:]]).curves == []
    assert report_of(with_curves({2: [whole[:1]], 4: [whole[:1]]})).curves == report_of(RECORDS).curves == []
