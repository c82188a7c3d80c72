"""The benchmark of what shrinking costs: measurements that do not go together stay apart."""

import json

import pytest

from benchmarks.shrinking_quality import earlier_records


def test_a_folder_of_other_text_is_refused(tmp_path):
    """Guards: records of another length or amount of text, or that do not say, are not continued in silence."""
    file, cut_by = tmp_path / "results.jsonl", {"max_seq_length": 32, "tokens": 999}
    assert earlier_records(file, cut_by) == []
    records = [{**cut_by, "size": 2}, {**cut_by, "size": 3}]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert earlier_records(file, cut_by) == records
    for changes in ({"tokens": 1000}, {"max_seq_length": 64}):
        with pytest.raises(SystemExit, match=r"results.jsonl, line 1: (tokens is 999|max_seq_length is 32) and not"):
            earlier_records(file, cut_by | changes)
    file.write_text(json.dumps(records[0]) + '\n{"size": 3}\n')
    with pytest.raises(SystemExit, match="line 2: max_seq_length is not there and not 32; give another --output_dir"):
        earlier_records(file, cut_by)
