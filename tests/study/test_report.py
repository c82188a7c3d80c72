"""The report of a study: exact from fixed records, of one machine and of several, finished or not."""

import json
import re
from pathlib import Path

import pytest
from helpers.study_records import RECORDS, curve, lines, report, text_of, write
from PIL import Image

from experiments.study.records import read_records
from experiments.study.report import make_report
from experiments.study.report_files import metrics_figure
from experiments.study.report_text import commands, joined, limits_of, number, table
from fixedbert.support.errors import InputError
from fixedbert_cli import main

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

    fixedbert study heads --scale tiny --train_file TEXTS --output_dir heads
    fixedbert study report heads/runs.jsonl --output_dir heads-report

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


def test_report_of_fixed_records_is_exact(tmp_path, capsys):
    """Guards: table, intervals, findings and limits are those calculated by hand, and there are pictures."""
    main(["study", "report", write(tmp_path / "runs.jsonl", RECORDS), "--output_dir", str(tmp_path / "out")])
    assert capsys.readouterr().out == TEXT + "\n"
    assert (tmp_path / "out" / "report.md").read_text() == TEXT
    with Image.open(tmp_path / "out" / "report.png") as picture:
        assert picture.width > 1000
    files = {"report.md", "report.png"}
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
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from experiments.study import make_report.*?)```", page, re.DOTALL)
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


def test_last_record_without_an_end_of_line(tmp_path):
    """Guards: editors take the last end of a line away, or put a mark first; only half a record is left out."""
    file = tmp_path / "runs.jsonl"
    write(file, RECORDS[:2])
    whole = file.read_text()
    expected = read_records([file])
    for content, count in ((whole.removesuffix("\n"), 2), ("\ufeff" + whole, 2), (whole.removesuffix("}\n"), 1)):
        file.write_text(content)
        assert read_records([file]) == expected[:count]


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
    """Guards: the command of a study that is not ours names its file; lists of numbers are in their order."""
    records = [{**record, "scale": None} for record in RECORDS[:3]]
    first, _ = commands(make_report(records))
    assert first == "fixedbert study heads.yaml --train_file TEXTS --output_dir heads"
    assert [number(value, ".2g") for value in (248.4, 1000, 2.5e-5, -1234)] == ["250", "1,000", "2.5e-05", "-1,200"]
    assert number(1000, "+.4g") == "+1,000" and number(999.5, ".4g") == "999.5"
    assert joined([10, 2, 0.5]) == "0.5, 2, 10" and joined({"b", "a"}) == "a, b"


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
    assert (
        "No trained series is made equal in parameters." in limits
        and "No trained series is made equal in FLOPs." in limits
    )
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
        ([{**RECORDS[0], "tokens": None}], "line 1: not the record.*without tokens, and yet with a loss"),
        ([{**RECORDS[0], "of_grid": True}], "no runs of full length: nothing to report"),
        ([], "no runs"),
    ],
)
def test_bad_records(tmp_path, records, message):
    """Guards: files that do not go together, or hold something else, end with a sentence that names the place."""
    with pytest.raises(InputError, match=message):
        report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert not (tmp_path / "out").exists()
