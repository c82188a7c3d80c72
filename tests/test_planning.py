"""Planning: shapes fit their budget and show the papers' bounds."""

import re
from pathlib import Path

import pytest

from fixedbert.counts import Shape
from fixedbert.planning import parse_number, plan
from fixedbert.support.errors import InputError
from fixedbert_cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "planning.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("budgets", [{"params": "110M"}, {"params": 10e6}, {"flops": "700M", "params": "300M"}])
def test_shapes_fit_the_budget(budgets):
    """Guards: every shape is within all budgets, uses at least 85 % of one, and has a width and depth of its own."""
    planned = plan(**budgets)
    shares = []
    for one in planned.shapes:
        shape = one.shape
        costs = {"params": shape.parameters, "flops": shape.training_flops(128, 0.15 * 128) / 128}
        assert (one.parameters, one.training_flops) == (costs["params"], costs["flops"])
        shares.append(max(costs[name] / parse_number(name, str(limit)) for name, limit in budgets.items()))
    assert all(0.85 <= share <= 1 for share in shares) and shares == sorted(shares, reverse=True)
    assert len({(one.shape.d, one.shape.L) for one in planned.shapes}) == 10
    assert {"BERT-base", "mini"} <= {one.name for one in planned.known}
    assert "tiny" not in str(plan(max_seq_length=512, **budgets))  # it has 128 positions


def test_bounds_of_the_papers(monkeypatch):
    """Guards: a head size of exactly n - 1 reaches the length, heads x size of exactly the width reaches that."""
    monkeypatch.setattr("fixedbert.planning.KNOWN", {"a": Shape(35, 2, 5, 7, 99), "b": Shape(36, 2, 5, 7, 99)})
    (a, _), (longer, b) = (plan(params="110M", max_seq_length=length).known for length in (8, 9))
    assert a.reaches_length and a.reaches_width
    assert not longer.reaches_length and longer.reaches_width
    assert not b.reaches_length and not b.reaches_width


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "no budget: set `params` or `flops`"),
        (["--params", "1k"], "no shape fits; the nearest is 2 layers of width 64"),
        (["--params", "many"], "many: must be a positive number such as 110M"),
        (["--params", "110M", "--max_seq_length", "513"], "between 8 and 512"),
    ],
)
def test_bad_input(arguments, message):
    """Guards: an impossible budget is answered with the nearest shape."""
    with pytest.raises(InputError, match=message):
        main(["plan", *arguments])


def test_page(capsys):
    """Guards: the commands and the Python of docs/planning.md run."""
    commands = [line.split() for line in re.findall(r"^    fixedbert (.*)$", PAGE, re.MULTILINE)]
    assert len(commands) == 2
    for command in commands:
        main(command)
        assert "BERT-base" in capsys.readouterr().out
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert names["config"].hidden_size == names["found"].shapes[0].shape.d
