"""The report of a study: exact from fixed records, of one machine and of several, finished or not."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from fixedbert.errors import InputError
from fixedbert.study import make_report, read_records, report_markdown, report_runs
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
- wide, less standard, heads 8: -0.25 ± 1.9, within the spread

10 runs of 1,000 tokens (at most 0.25 epochs) in rows of 128, objective clm; seeds 1, 2, 3; learning rates 0.002, \
0.004, 0.008, of which each shape has its best with the first seed, whose run counts too; 100 seconds in all, on 2 \
CPU cores; fixedbert 0.1.0, torch 2.13.0; commit abc.
Texts: 98 documents, 1,000,000 tokens.
± is half the 95 % interval of Student's t over seeds, each for itself: among many, one in twenty errs. MFLOP/token: \
forward, layers alone.
"""


def report(files: list, output_dir: Path) -> str:
    return report_markdown(report_runs(files, output_dir))


def write(file: Path, records: list[dict]) -> str:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def test_report_of_fixed_records_is_exact(tmp_path, capsys):
    """Guards: table, intervals and findings are those calculated by hand, and there is a picture."""
    main(["study", "report", write(tmp_path / "runs.jsonl", RECORDS), "--output_dir", str(tmp_path / "out")])
    assert capsys.readouterr().out == TEXT + "\n"
    assert (tmp_path / "out" / "report.md").read_text() == TEXT
    with Image.open(tmp_path / "out" / "report.png") as picture:
        assert picture.width > 1000
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.md", "report.png"}


def test_report_is_data():
    """Guards: a notebook has the numbers of the report: results by seed, intervals, findings, and conditions."""
    found = make_report(RECORDS)
    assert (found.study, found.scale, found.axis) == ("heads", "tiny", "num_attention_heads")
    assert found.metrics == ["perplexity"] and list(found.series) == ["standard", "wide"]
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
    """Guards: files together give the report of all their runs, a run that stands in both once, in any order."""
    first, second = write(tmp_path / "a.jsonl", RECORDS[:5]), write(tmp_path / "b.jsonl", RECORDS[3:])
    assert report([first, second], tmp_path / "out") == TEXT
    other = report([write(tmp_path / "c.jsonl", RECORDS[::-1])], tmp_path / "other")
    rows = [line for line in TEXT.splitlines() if line.startswith(("| ", "- "))]
    assert sorted(line for line in other.splitlines() if line.startswith(("| ", "- "))) == sorted(rows)


def test_records_of_earlier_versions(tmp_path):
    """Guards: records without the fields that were added later are read; with them they stay as they are."""
    old = {name: value for name, value in RECORDS[0].items() if name != "value_head_size"}
    new = {**RECORDS[1], "value_head_size": 7, "of_grid": True, "curve": [[500, 3.0], [1000, 2]]}
    later = {"value_head_size": 32, "of_grid": False, "curve": None}
    assert read_records([write(tmp_path / "runs.jsonl", [old, new])]) == [{**old, **later}, new]


def test_unfinished_studies(tmp_path):
    """Guards: a report can be had at any time: with one seed, without the series compared with, with a torn line."""
    file = tmp_path / "runs.jsonl"
    write(file, [RECORDS[0], RECORDS[4], RECORDS[-1]])
    file.write_text(file.read_text() + json.dumps(RECORDS[1])[:70])
    text = report([file], tmp_path / "out")
    assert "| 0.004 | 1 | 10 |" in text and "| 0.002 | 1 | 9.1 |" in text
    assert "- standard, heads 2 to 4: -1 (one seed)" in text
    text = report([write(file, RECORDS[-1:])], tmp_path / "alone")
    assert "less standard" not in text
    lost = {**RECORDS[2], "results": {"loss": None, "perplexity": None}}
    assert "| 3 | 11 ± 13 (1 diverged) |" in report([write(file, [*RECORDS[:2], lost])], tmp_path / "lost")
    text = report([write(file, [{**RECORDS[3], "seconds": None}])], tmp_path / "diverged")
    assert "| 0.008 | 1 | diverged |" in text and "0 seconds in all besides 1 runs that were interrupted" in text


def test_beyond_the_spread(tmp_path):
    """Guards: a difference whose interval leaves out zero is called so."""
    records = [*lines("standard", 0, 2, [10.0, 10.1, 10.2]), *lines("standard", 1, 4, [9.0, 9.0, 9.3])]
    assert "-1 ± 0.25, beyond the spread" in report([write(tmp_path / "r", records)], tmp_path / "out")


def test_metrics_of_all_kinds(tmp_path):
    """Guards: fine-tuned scores are in per cent, as tables have them; each metric has its panels."""
    results = {"loss": 1.0, "perplexity": 9.0, "mnli_accuracy": 0.843, "squad_f1": 90.5}
    records = [line for heads in (2, 4) for line in lines("a", heads // 4, heads, [1.0], results=results)]
    text = report([write(tmp_path / "runs.jsonl", records)], tmp_path / "out")
    assert "| held-out perplexity | MNLI accuracy, matched (%) | SQuAD 1.1 F1 (%) |" in text
    assert "| 9 | 84.3 | 90.5 |" in text
    one = report([write(tmp_path / "one.jsonl", RECORDS)], tmp_path / "one")
    assert "MNLI" not in one
    with Image.open(tmp_path / "out" / "report.png") as three, Image.open(tmp_path / "one" / "report.png") as single:
        assert three.height > 2 * single.height


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
    # Sizes below the threshold alone, as in the beginning of a study.
    report([write(tmp_path / "begun.jsonl", records[:2])], tmp_path / "begun")


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
        ([RECORDS[0], {"key": "?"}], "runs.jsonl, line 2: not the record of a run"),
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
