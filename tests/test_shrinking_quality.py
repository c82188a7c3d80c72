"""The benchmark of what shrinking costs: measurements that do not go together stay apart."""

import json

import pytest

from benchmarks.shrinking_quality import earlier_records


def test_a_folder_of_other_text_is_refused(tmp_path):
    """Guards: records of another model, text or distillation, or that do not say, are not continued in silence."""
    file, cut_by = tmp_path / "results.jsonl", {"model": "mini", "max_seq_length": 32, "tokens": 999}
    assert earlier_records(file, cut_by, None) == []
    records = [{**cut_by, "method": "text"}, {**cut_by, "method": "distilled", "distil_steps": 7}]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert earlier_records(file, cut_by, None) == earlier_records(file, cut_by, 7) == records
    for changes in ({"tokens": 1000}, {"max_seq_length": 64}, {"model": "tiny"}):
        (name,) = changes
        with pytest.raises(SystemExit, match=rf"results.jsonl, line 1: {name} is {cut_by[name]} and not"):
            earlier_records(file, cut_by | changes, None)
    with pytest.raises(SystemExit, match="line 2: distil_steps is 7 and not 8; give another --output_dir"):
        earlier_records(file, cut_by, 8)
    file.write_text(json.dumps(records[0]) + '\n{"model": "mini", "method": "text"}\n')
    with pytest.raises(SystemExit, match="line 2: max_seq_length is not there and not 32; give another --output_dir"):
        earlier_records(file, cut_by, None)
