"""Tests of `plan`."""

import pytest

from fixedbert.counts import Shape
from fixedbert.planning import parse_number, plan
from fixedbert.support.errors import InputError


@pytest.mark.parametrize("budgets", [{"params": "110M"}, {"params": 10e6}, {"flops": "700M", "params": "300M"}])
def test_shapes_fit_the_budget(budgets):
    """All shapes are within the budgets, use at least 85% of one budget, and differ in width or depth."""
    result = plan(**budgets)
    assert {one.shape.p for one in plan(**budgets, attention_head_size=100).shapes} == {100}
    used = []
    for planned in result.shapes:
        shape = planned.shape
        costs = {"params": shape.parameters, "flops": shape.training_flops(128, 0.15 * 128) / 128}
        assert (planned.parameters, planned.training_flops) == (costs["params"], costs["flops"])
        used.append(max(costs[name] / parse_number(name, str(limit)) for name, limit in budgets.items()))
    assert all(0.85 <= fraction <= 1 for fraction in used) and used == sorted(used, reverse=True)
    assert len({(planned.shape.d, planned.shape.L) for planned in result.shapes}) == len(result.shapes) >= 4
    assert all(planned.shape.h >= 4 and planned.shape.d >= 16 * planned.shape.L for planned in result.shapes)
    assert "tiny" not in str(plan(max_seq_length=512, **budgets))  # tiny has 128 positions


def test_known_models_fit_the_budget():
    """Known models are listed only if they fit the budget, with a tolerance for rounded parameter counts."""
    names = {budget: {planned.name for planned in plan(params=budget).known} for budget in ("5M", "20M", "110M")}
    assert names == {"5M": {"tiny"}, "20M": {"mini", "tiny"}, "110M": {"BERT-base", "mini", "tiny"}}


def test_bounds_of_the_papers(monkeypatch):
    """The bound on length holds from head size n - 1 on, and the bound on width from heads * head size = width on."""
    monkeypatch.setattr("fixedbert.planning.KNOWN", {"a": Shape(35, 2, 5, 7, 99), "b": Shape(36, 2, 5, 7, 99)})
    (a, _), (longer, b) = (plan(params="110M", max_seq_length=length).known for length in (8, 9))
    assert a.reaches_length and a.reaches_width
    assert not longer.reaches_length and longer.reaches_width
    assert not b.reaches_length and not b.reaches_width


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "there is no budget"),
        ({"params": "1k"}, "no shape uses"),
        ({"params": "many"}, "many: must be a positive number"),
    ],
)
def test_invalid_budgets(options, message):
    """Invalid budgets, and budgets that no shape fits, raise an error."""
    with pytest.raises(InputError, match=message):
        plan(**options)
