"""Planning: budgets are kept, what theory says stands beside each shape, and time can be measured."""

import re
from pathlib import Path

import pytest

from fixedbert.counts import PAPER_TOKENS, Shape
from fixedbert.planning import KNOWN, fitted_depth, plan, plan_text, read_limit, tokens_per_second
from fixedbert.support.errors import InputError
from fixedbert_cli import main


def test_known_models_are_the_published_ones():
    """Guards: BERT-base 110 M and BERT-large 336 M with both heads; the paper's 85.2 billion tokens."""
    assert KNOWN["BERT-base"].parameters == 110_106_428
    assert KNOWN["BERT-large"].parameters == 336_226_108
    assert sum(PAPER_TOKENS.values()) == 58_982_400_000 + 26_214_400_000


@pytest.mark.parametrize(
    "budget, value", [("params", "110M"), ("params", "10M"), ("flops", "700M"), ("memory", "8G"), ("hours", "20")]
)
def test_shapes_fit_the_budget(budget, value):
    """Guards: every shape shown is within the budget and uses at least 85 % of it; none has the size of another."""
    found = plan(**{budget: value})
    assert len(found.shapes) == 10
    used = []
    for planned in found.shapes:
        shape = planned.shape
        cost = {
            "params": shape.parameters,
            "flops": shape.training_flops(128, 0.15 * 128) / 128,
            "memory": shape.memory(128)[0],
            "hours": shape.paper_hours(989e12 * 0.4),
        }[budget]
        used.append(cost / read_limit(budget, value))
    assert all(0.85 <= share <= 1 for share in used) and used == sorted(used, reverse=True)
    assert len({(planned.shape.d, planned.shape.L) for planned in found.shapes}) == 10
    assert {"BERT-base", "mini"} <= {planned.name for planned in found.known}


def test_law_of_depth():
    """Guards: the fitted law gives 24.3 layers for width 595, and none below the widths that it holds for."""
    assert fitted_depth(594.8) == pytest.approx(24.3, abs=0.1)
    assert fitted_depth(154.4) == pytest.approx(0.01, abs=0.01) and fitted_depth(154.3) is None


def test_what_is_beside_a_shape(monkeypatch):
    """Guards: heads of exactly n - 1 reach the length, heads * size of exactly the width that; one less does not."""
    shapes = {"both": Shape(35, 2, 5, 7, 99), "neither": Shape(36, 2, 5, 7, 99)}
    monkeypatch.setattr("fixedbert.planning.KNOWN", shapes)
    (both, _), (longer, neither) = (plan(params="110M", max_seq_length=length).known for length in (8, 9))
    assert both.reaches_length and both.reaches_width
    assert not longer.reaches_length and longer.reaches_width
    assert not neither.reaches_length and not neither.reaches_width
    assert both.log_3_width == pytest.approx(3.236, abs=1e-3) and both.fitted_depth is None


def test_results_are_data():
    """Guards: each shape comes with its own costs, in the units that are documented."""
    found = plan(params="110M", flops="700M", device="A100", max_seq_length=512)
    assert found.max_seq_length == 512
    assert found.budgets == {"params": "110M", "flops": "700M"}
    assert (found.device, found.measured) == ("a100", False)
    base = next(planned for planned in found.known if planned.name == "BERT-base")
    assert base.shape == KNOWN["BERT-base"]
    assert base.parameters == 110_106_428
    assert base.training_flops == 3 * base.forward_flops == base.shape.training_flops(512, 0.15 * 512) / 512
    assert (base.training_memory, base.inference_memory) == base.shape.memory(512)
    assert base.tokens_per_second == 312e12 * 0.4 / base.training_flops
    assert base.hours == base.shape.paper_hours(312e12 * 0.4)
    assert (base.reaches_length, base.reaches_width) == (False, True)
    assert base.log_3_width == pytest.approx(6.047, abs=1e-3)
    assert base.fitted_depth == fitted_depth(768) == pytest.approx(28.9, abs=0.1)
    assert all(planned.name == "" for planned in found.shapes)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "no budget: give params, flops, memory or hours"),
        (["--params", "1k"], "no shape fits; the nearest is 2 layers of width 64"),
        (["--params", "110M", "--flops", "1"], "no shape fits; the nearest is .* with params .*, flops"),
        (["--params", "many"], "many: not a number such as 110M"),
        (["--params", "-1"], "a budget is above zero"),
        (["--params", "inf"], "a budget is above zero, and finite"),
        (["--hours", "1e-90"], "no shape fits; the nearest is"),
        (["--hours", "1", "--device", "abacus"], "`device` abacus: there are h100"),
        (["--params", "110M", "--max_seq_length", "4"], "8 to 512 tokens"),
    ],
)
def test_bad_input(arguments, message):
    """Guards: a budget that no shape fits is answered with the nearest, and nonsense in a sentence."""
    with pytest.raises(InputError, match=message):
        main(["plan", *arguments])


def test_presets_with_room_are_printed():
    """Guards: a preset is listed only where it has positions for the length."""
    assert "tiny" in plan_text(plan(params="110M"))
    assert "tiny" not in plan_text(plan(params="110M", max_seq_length=512))  # it has 128 positions


def test_commands_of_the_page_run(capsys):
    """Guards: the commands of docs/planning.md find shapes."""
    page = (Path(__file__).parents[1] / "docs" / "planning.md").read_text(encoding="utf-8")
    commands = [line.split() for line in re.findall(r"^    fixedbert (.*)$", page, re.MULTILINE)]
    assert len(commands) == 5
    for command in commands:
        main([word for word in command if word != "--measure"])
        assert "BERT-base" in capsys.readouterr().out


def test_python_of_the_page_runs(capsys):
    """Guards: the Python of docs/planning.md shows the shapes that the command does."""
    page = (Path(__file__).parents[1] / "docs" / "planning.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert names["config"].hidden_size == names["found"].shapes[0].shape.d


def test_measured_steps(monkeypatch, capsys):
    """Guards: --measure times real steps of the shapes shown."""
    monkeypatch.setattr("fixedbert.planning.KNOWN", {"small": Shape(32, 1, 2, 16, 64, 99, 128)})
    monkeypatch.setattr("fixedbert.planning.SHOWN", 1)
    assert tokens_per_second(Shape(32, 1, 2, 16, 64, 99, 128).config(), 16) > 0
    monkeypatch.setattr("fixedbert.planning.tokens_per_second", lambda shape, length: 12345.0)
    main(["plan", "--params", "2500k", "--measure"])
    printed = capsys.readouterr().out
    assert "tokens/s *" in printed and printed.count(" 12,345 ") == 2
