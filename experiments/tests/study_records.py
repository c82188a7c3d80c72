"""Records of a study with known results, and functions that create records and reports."""

import json
from pathlib import Path

from experiments.study.records import Record, read_records
from experiments.study.report import Report, make_report
from experiments.study.report_files import report_runs
from experiments.study.report_text import report_markdown

RECORD = {
    **{"study": "heads", "scale": "tiny", "axis": "num_attention_heads", "objective": "clm", "of_grid": False},
    **{"hidden_size": 64, "num_hidden_layers": 2, "head_embedding": None, "qk_norm": False, "max_seq_length": 128},
    **{"parameters": 123456, "non_embedding_parameters": 104000, "forward_flops": 262144, "training_flops": 786432000},
    **{"tokens": 1000, "epochs": 0.25, "texts": "98 documents, 1,000,000 tokens", "seconds": 10.0, "commit": "abc"},
    **{"hardware": "2 CPU cores", "threads": 1, "versions": {"fixedbert": "0.1.0", "torch": "2.13.0"}},
    **dict.fromkeys(("equal", "to", "to_point", "decay_from", "curve", "question")),
}


def lines(series, point, heads, values, rate=0.004, **changes):
    """Returns one record per perplexity in `values`, with seeds from 1. None stands for a diverged run."""
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


def report(files: list, output_dir: Path) -> str:
    return report_markdown(report_runs(files, output_dir))


def report_of(records: list[dict]) -> Report:
    return make_report([Record(**record) for record in records])


def text_of(*files: str | Path) -> str:
    """Returns the text of the report on files of records, without writing it to a file."""
    return report_markdown(make_report(read_records(files)))


def write(file: Path, records: list[dict]) -> str:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def with_curves(curves: dict[int, list]) -> list[dict]:
    """Returns the records of one series. `curves` contains one curve per seed, for each number of heads."""
    return [
        {**record, "curve": curve}
        for point, (heads, by_seed) in enumerate(curves.items())
        for record, curve in zip(lines("standard", point, heads, [9.0] * len(by_seed)), by_seed, strict=True)
    ]


def curve(*losses: float) -> list[list]:
    """Returns a validation curve: five pairs of tokens and loss."""
    return [[tokens, loss] for tokens, loss in zip((100, 200, 480, 700, 1000), losses, strict=True)]
