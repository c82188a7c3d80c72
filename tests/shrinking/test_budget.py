"""The cheapest cuts within a budget."""

import random
from itertools import product

import pytest

from fixedbert.conversion.growing import Heads
from fixedbert.shrinking.budget import Option, cheapest, head_choices, neuron_choices
from fixedbert.support.errors import InputError


@pytest.mark.parametrize("seed", range(5))
def test_cheapest_options_are_those_of_brute_force(seed):
    """Guards: of all combinations within the budget the one with the least cost is found."""
    draw = random.Random(seed)
    parts = [[Option(n, draw.random(), draw.randint(0, 20)) for n in range(4)] for _ in range(5)]
    for budget in (30, 47, 90):
        fitting = [one for one in product(*parts) if sum(option.price for option in one) <= budget]
        if not fitting:
            with pytest.raises(InputError, match="the least that the layers can take is"):
                cheapest(parts, budget)
            continue
        found = cheapest(parts, budget)
        assert sum(option.price for option in found) <= budget
        best = min(sum(option.cost for option in one) for one in fitting)
        assert sum(option.cost for option in found) == pytest.approx(best)


def test_a_budget_that_is_met_exactly():
    """Guards: what takes all of a budget is found, with prices that are no multiples of its units."""
    parts = [[Option("all", 0.0, 1234567.0), Option("half", 0.0, 617283.0), Option("none", 9.0, 0.0)]] * 3
    assert [option.choice for option in cheapest(parts, 617283.0 * 3)] == ["half"] * 3


def test_choices_have_what_there_is_and_its_parts():
    """Guards: any number of heads, quarters of a size and 48ths of the neurons can be left; no heads in one way."""
    choices = head_choices(Heads(5, 8, 6))
    assert {heads.number for heads in choices} == set(range(6)) and Heads(5, 8, 6) in choices
    assert {heads.size for heads in choices} == {2, 4, 6, 8} and {heads.value_size for heads in choices} == {
        2,
        3,
        5,
        6,
    }
    assert [heads for heads in choices if not heads.number] == [Heads(0, 8, 6)]
    assert neuron_choices(96) == list(range(0, 97, 2)) and neuron_choices(5) == [0, 1, 2, 3, 4, 5]
