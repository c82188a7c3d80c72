"""The benchmark of what shrinking costs: measurements that do not go together stay apart."""

import json
from argparse import Namespace

import pytest

from benchmarks.shrinking_quality import conditions, earlier_records


def test_a_folder_of_other_conditions_is_refused(tmp_path):
    """Guards: records of another model, text or distillation, or that do not say, are not continued in silence."""
    file = tmp_path / "results.jsonl"
    asked = {"model": str(tmp_path / "mini"), "max_seq_length": 32, "tokens": 999, "distil_steps": 7}
    assert earlier_records(file, Namespace(**asked)) == []
    records = [{**conditions(Namespace(**asked), method), "method": method} for method in ("text", "distilled")]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert earlier_records(file, Namespace(**asked)) == records
    assert earlier_records(file, Namespace(**asked | {"distil_steps": None})) == records
    for name, other in {"tokens": 1000, "max_seq_length": 64, "model": str(tmp_path / "tiny")}.items():
        with pytest.raises(SystemExit, match=rf"results.jsonl, line 1: {name} is {asked[name]} and not {other}"):
            earlier_records(file, Namespace(**asked | {name: other}))
    with pytest.raises(SystemExit, match="line 2: distil_steps is 7 and not 8; give another --output_dir"):
        earlier_records(file, Namespace(**asked | {"distil_steps": 8}))
    file.write_text(json.dumps(records[0]) + "\n" + json.dumps({"model": asked["model"], "method": "text"}) + "\n")
    with pytest.raises(SystemExit, match="line 2: max_seq_length is not there and not 32; give another --output_dir"):
        earlier_records(file, Namespace(**asked))
