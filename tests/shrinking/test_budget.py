"""Heads and neurons are chosen at the lowest cost within a budget."""

import random
from itertools import product

import pytest

from fixedbert.loading.heads import Heads
from fixedbert.shrinking.budget import SublayerSize, head_choices, neuron_choices, solve_knapsack


@pytest.mark.parametrize("seed", range(3))
def test_knapsack_matches_brute_force(seed):
    """The knapsack chooses the combination with the lowest cost within the budget."""
    draw = random.Random(seed)
    sublayers = [[SublayerSize(n, draw.random(), draw.randint(0, 20)) for n in range(4)] for _ in range(5)]
    for budget in (3, 30, 47, 90):
        affordable = [options for options in product(*sublayers) if sum(x.price for x in options) <= budget]
        if not affordable:
            continue
        chosen = solve_knapsack(sublayers, budget)
        assert sum(option.price for option in chosen) <= budget
        best = min(sum(option.cost for option in options) for options in affordable)
        assert sum(option.cost for option in chosen) == pytest.approx(best)


def test_budget_can_be_met_exactly():
    """The chosen options can use the entire budget, even if their prices are not multiples of the budget's unit."""
    sublayers = [
        [SublayerSize("all", 0.0, 1234567.0), SublayerSize("half", 0.0, 617283.0), SublayerSize("none", 9.0, 0.0)]
    ] * 3
    assert [option.choice for option in solve_knapsack(sublayers, 617283.0 * 3)] == ["half"] * 3


def test_choices_include_the_original():
    """Choices have any number of heads, head sizes in steps of a quarter, and neurons in steps of 1/48."""
    choices = head_choices(Heads(5, 8, 6))
    assert {heads.num_heads for heads in choices} == set(range(6)) and Heads(5, 8, 6) in choices
    assert {heads.size for heads in choices} == {2, 4, 6, 8}
    assert {heads.value_size for heads in choices} == {2, 3, 5, 6}
    assert [heads for heads in choices if not heads.num_heads] == [Heads(0, 8, 6)]
    assert neuron_choices(96) == list(range(0, 97, 2)) and neuron_choices(5) == [0, 1, 2, 3, 4, 5]
