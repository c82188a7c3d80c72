"""Planning: counts equal the model's and the profiler's exactly, budgets are kept, the rules are stated."""

import random
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from fixedbert import FixedHeadBertForPreTraining, preset_config
from fixedbert.analysis.laws import equivalent_width
from fixedbert.analysis.planning import KNOWN, PAPER_TOKENS, RULES, Shape, draw_cost, number, plan, tokens_per_second
from fixedbert.errors import InputError
from fixedbert_cli import main


def random_shapes(count: int, largest: int) -> list[Shape]:
    rng = random.Random(0)
    return [
        Shape(
            d=rng.randint(3, largest),
            L=rng.randint(1, 5),
            h=rng.randint(1, 9),
            p=rng.randint(1, largest),
            F=rng.randint(1, 3 * largest),
            vocabulary=rng.randint(10, 99),
            positions=rng.randint(16, 40),
        )
        for _ in range(count)
    ]


def parameters(shape: Shape) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in FixedHeadBertForPreTraining(shape.config()).parameters())


@pytest.mark.parametrize("shape", [*KNOWN.values(), *random_shapes(50, 300)], ids=str)
def test_parameters_are_exact(shape):
    """Guards: the formula is sum(p.numel()) for every preset, BERT-base and -large, and 50 random shapes."""
    assert shape.parameters == parameters(shape)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", random_shapes(50, 40), ids=str)
def test_operations_are_exact(shape, sparse):
    """Guards: forward and training FLOPs are those that torch counts, with a dense and a sparse prediction head."""
    model = FixedHeadBertForPreTraining(shape.config())
    model.set_attn_implementation("eager")
    model.sparse_prediction = sparse
    n, rows, generator = 11, 3, torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocabulary, (rows, n), generator=generator)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) > 0.3, -100)
    labels[0, 0] = ids[0, 0]
    predicted = int((labels != -100).sum()) / rows if sparse else n
    with FlopCounterMode(display=False) as counter:
        outputs = model(input_ids=ids, labels=labels, next_sentence_label=torch.zeros(rows, dtype=torch.long))
    assert counter.get_total_flops() == pytest.approx(rows * shape.forward_flops(n, predicted), rel=1e-12)
    with FlopCounterMode(display=False) as counter:
        outputs.loss.backward()
    backward = rows * (shape.training_flops(n, predicted) - shape.forward_flops(n, predicted))
    assert counter.get_total_flops() == pytest.approx(backward, rel=1e-12)


def test_known_models_are_the_published_ones():
    """Guards: BERT-base 110 M and BERT-large 336 M with both heads; the paper's 85.2 billion tokens."""
    assert KNOWN["BERT-base"].parameters == 110_106_428
    assert KNOWN["BERT-large"].parameters == 336_226_108
    assert sum(PAPER_TOKENS.values()) == 58_982_400_000 + 26_214_400_000
    for name in ("fixed-512-32x128", "standard-1024-16x64"):
        assert KNOWN[name].equivalent_width == pytest.approx(equivalent_width(preset_config(name)))


def test_cost_of_the_paper_s_recipe():
    """Guards: hours are tokens times training FLOPs over the speed, at both lengths, by hand for BERT-large."""
    d, L, F, V = 1024, 24, 4096, 30522
    flops = 0.0
    for n, tokens in ((128, 58_982_400_000), (512, 26_214_400_000)):
        layers = 2 * L * (4 * d * d + 2 * n * d + 2 * d * F) * n
        heads = 2 * (0.15 * n * (d * d + d * V) + d * d + 2 * d)
        flops += tokens / n * 3 * (layers + heads)
    assert KNOWN["BERT-large"].paper_hours(1e15) == pytest.approx(flops / 1e15 / 3600)


@pytest.mark.parametrize(
    "budget, value", [("params", "110M"), ("params", "10M"), ("flops", "700M"), ("memory", "8G"), ("hours", "20")]
)
def test_shapes_fit_the_budget(budget, value):
    """Guards: every shape shown is within the budget and uses at least 85 % of it; the best keep the most rules."""
    lines = plan(**{budget: value}).splitlines()
    rows = [line.split() for line in lines[2:12]]
    assert len(rows) == 10
    kept = []
    for width, layers, heads, size, ffn, *_ in rows:
        shape = Shape(int(width), int(layers), int(heads), int(size), int(ffn))
        cost = {
            "params": shape.parameters,
            "flops": shape.training_flops(128, 0.15 * 128) / 128,
            "memory": shape.memory(128)[0],
            "hours": shape.paper_hours(989e12 * 0.4),
        }[budget]
        assert 0.85 <= cost / number(value) <= 1
        kept.append(sum(rule.holds(shape, 128) for rule in RULES))
    assert kept == sorted(kept, reverse=True)
    assert any(line.startswith("BERT-base") for line in lines) and any(line.startswith("mini") for line in lines)


def test_rules_and_their_evidence_are_printed():
    """Guards: each rule says what is proved or measured, by whom, and what contradicts it."""
    printed = plan(params="110M")
    for rule in RULES:
        assert rule.name in printed and rule.evidence in printed
    assert "tiny" not in plan(params="110M", max_seq_length=512)  # it has 128 positions
    for name in ("Likhosherstov", "Kaplan", "Michel", "Levine", "Bhojanapalli"):
        assert name in printed


def test_rules_of_known_shapes():
    """Guards: BERT-base breaks the first and the last rule; 8 heads of 128 in 24 layers of width 1024 break none."""
    assert [rule.holds(KNOWN["BERT-base"], 128) for rule in RULES] == [False, True, True, True, False]
    assert all(rule.holds(KNOWN["standard-1024-8x128"], 128) for rule in RULES)
    assert not RULES[1].holds(Shape(1024, 24, 8, 64, 4096), 128)
    assert RULES[0].holds(Shape(1024, 24, 8, 32, 4096), 33) and not RULES[0].holds(Shape(1024, 24, 8, 32, 4096), 34)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "no budget: give --params, --flops, --memory or --hours"),
        (["--params", "1k"], "no shape fits; the nearest is 2 layers of width 64"),
        (["--params", "110M", "--flops", "1"], "no shape fits; the nearest is .* with params .*, flops"),
        (["--params", "many"], "many: not a number such as 110M"),
        (["--params", "-1"], "a budget is above zero"),
        (["--params", "inf"], "a budget is above zero, and finite"),
        (["--hours", "1e-90"], "no shape fits; the nearest is"),
        (["--hours", "1", "--device", "abacus"], "--device abacus: there are h100"),
        (["--params", "110M", "--seq_length", "4"], "8 to 512 tokens"),
    ],
)
def test_bad_input(arguments, message):
    """Guards: a budget that no shape fits is answered with the nearest, and nonsense in a sentence."""
    with pytest.raises(InputError, match=message):
        main(["plan", *arguments])


def test_commands_of_the_page_run(capsys):
    """Guards: the commands of docs/planning.md find shapes."""
    page = (Path(__file__).parents[1] / "docs" / "planning.md").read_text(encoding="utf-8")
    commands = [line.split() for line in re.findall(r"^    fixedbert (.*)$", page, re.MULTILINE)]
    assert len(commands) == 5
    for command in commands:
        main([word for word in command if word != "--measure"])
        assert "BERT-base" in capsys.readouterr().out


def test_measured_steps(monkeypatch, capsys):
    """Guards: --measure times real steps of the shapes shown."""
    monkeypatch.setattr("fixedbert.analysis.planning.KNOWN", {"small": Shape(32, 1, 2, 16, 64, 99, 128)})
    monkeypatch.setattr("fixedbert.analysis.planning.SHOWN", 1)
    assert tokens_per_second(Shape(32, 1, 2, 16, 64, 99, 128), 16) > 0
    monkeypatch.setattr("fixedbert.analysis.planning.tokens_per_second", lambda shape, length: 12345.0)
    main(["plan", "--params", "2500k", "--measure"])
    printed = capsys.readouterr().out
    assert "tokens/s *" in printed and printed.count(" 12,345 ") == 2


def test_picture_of_cost(monkeypatch, tmp_path):
    """Guards: calculated and measured cost are drawn on the same axes."""
    growing = {"heads": ("h", (1, 2)), "tokens in a row": ("length", (8, 16))}
    monkeypatch.setattr("fixedbert.analysis.planning.GROWING", growing)
    draw_cost(tmp_path / "cost.png")
    with Image.open(tmp_path / "cost.png") as picture:
        assert picture.width > 1000
