"""The benchmark of the rank that trained heads need: which cuts it makes, what they take, and the picture."""

import json
import random

import pytest
from helpers.tiny_checkpoints import SHAPE, save
from helpers.tiny_models import model_of

from benchmarks import trained_rank


def test_cuts_of_one_part_at_a_time(tmp_path, monkeypatch):
    """Guards: each part is cut alone, in all layers; what is taken from it is counted; a picture is drawn."""
    monkeypatch.setattr(trained_rank, "EIGHTHS", (4, 1))
    save(model_of("ForSequenceClassification", **SHAPE, initializer_range=0.3), tmp_path / "model")
    draw, words = random.Random(0), "the cat sat on mat dog ran where who of and".split()
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 15))) for _ in range(99)]
    (tmp_path / "rows.txt").write_text("\n".join(lines) + "\n")
    file, flags = tmp_path / "found.json", ["--train_file", str(tmp_path / "rows.txt"), "--max_seq_length", "17"]
    trained_rank.main(["measure", str(tmp_path / "model"), *flags, "--output", str(file)])
    found = json.loads(file.read_text())
    assert (found["task"], found["heads"], found["neurons"]) == ("rows", [5, 6, 6], 37)
    cuts = [(cut["part"], cut["heads"], cut["neurons"]) for cut in found["cuts"]]
    assert cuts == [
        ("rank of scores", [5, 3, 6], 37),
        ("rank of scores", [5, 1, 6], 37),
        ("size of values", [5, 6, 3], 37),
        ("size of values", [5, 6, 1], 37),
        ("number of heads", [2, 6, 6], 37),
        ("number of heads", [1, 6, 6], 37),
        ("neurons", [5, 6, 6], 18),
        ("neurons", [5, 6, 6], 4),
    ]
    for less, more in zip(found["cuts"][::2], found["cuts"][1::2], strict=True):
        assert 0 < less["removed"] < more["removed"] < 1 and 0 <= more["agreement"] <= 1
    trained_rank.main(["draw", str(file), "--output", str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").stat().st_size > 5000
    with pytest.raises(SystemExit, match="error: `max_seq_length` 128: the model takes 3 to 23 tokens"):
        trained_rank.main(["measure", str(tmp_path / "model"), *flags[:2], "--output", str(file)])
