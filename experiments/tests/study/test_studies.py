"""Studies: shapes, the order of runs, cost and validation."""

import re
from dataclasses import replace

import pytest
from helpers import ROOT

from experiments.study.__main__ import main
from experiments.study.cost import study_cost_text
from experiments.study.shape_results import shapes_by_series
from experiments.study.studies import MOST_EXTENSIONS, load_study, named_studies, parse_share
from experiments.tests.tiny_studies import SMALL, line_of, table, write
from fixedbert.counts import forward_flops, parameters
from fixedbert.presets import PRESETS, preset_config
from fixedbert.support.errors import InputError

NAMES = tuple(named_studies())


@pytest.mark.parametrize("name, scale", [(name, scale) for name in NAMES for scale in named_studies()[name]["scales"]])
def test_equal_shapes(name, scale):
    """Every named study loads at every scale, and equal shapes differ by at most half a unit of width per layer."""
    made = load_study(name, scale)
    for series, shapes in made.shapes.items():
        for point, shape in enumerate(shapes):
            equal = made.series[series].get("equal")
            if equal is None:
                continue
            goal = made.reference_point(series, point)
            length = made.stages(series)[-1]["max_seq_length"]
            config = preset_config("tiny", **shape)
            other = preset_config("tiny", **made.shapes[made.series[series]["to"]][goal])
            if equal == "parameters":
                counts, unit = (parameters(config)[1], parameters(other)[1]), 2 * config.hidden_size + 1
            else:
                counts, unit = (forward_flops(config, length), forward_flops(other, length)), 4 * config.hidden_size
            assert abs(counts[0] - counts[1]) <= config.num_hidden_layers * unit / 2


def test_shapes_with_different_layers():
    """A list of lists gives a shape one number per layer, except on the axis, which needs single numbers."""
    layers = {"num_hidden_layers": 2, "num_attention_heads": 8, "layer_attention_heads": [[2, 8]]}
    study = table(
        axis="num_hidden_layers", series={"wide, then narrow": {**layers, "attention_head_size": [[64, 16]]}}
    )
    config = study.run("wide, then narrow", 0, 1e-3, 1).config
    assert (config.head_counts, config.head_sizes, config.value_head_sizes) == ([2, 8], [64, 16], [64, 16])
    assert {"[2, 8]", "[64, 16]"} <= {*re.findall(r"\[.*?\]", study_cost_text(study))}
    for axis in ("attention_head_size", "num_attention_heads"):
        with pytest.raises(InputError, match=f"{axis} is the axis, so it must be one number"):
            replace(study, axis=axis)


def test_paper_scale():
    """At paper scale, heads and head-size have the parameter counts printed in the paper's Tables 1, 2A and 2B."""
    printed = {
        (p.hidden_size, p.num_attention_heads, preset_config(n).head_dim): p.parameters
        for n, p in PRESETS.items()
        if p.parameters
    }
    found = set()
    for name in ("heads", "head-size"):
        made = load_study(name, "paper")
        for series, shapes in made.shapes.items():
            for shape in shapes:
                config = preset_config("tiny", **shape)
                key = (config.hidden_size, config.num_attention_heads, config.head_dim)
                if key in printed and "to" not in made.series[series]:
                    assert round(parameters(config)[0] / 1e6) == printed[key]
                    found.add(key)
    assert len(found) == 3 + 4 + 3
    stages = load_study("heads", "paper").pretraining
    assert [stage["max_seq_length"] for stage in stages] == [128, 512]
    assert [stage["max_steps"] for stage in stages] == [450_000, 50_000]


def test_every_shape_is_tuned_alike():
    """
    All shapes are tuned alike: the grid with the first seed, then the best rate with the remaining seeds. A shape is
    complete before the next one continues.
    """
    made = table(learning_rates=[0.1, 0.2, 0.3], seeds=[7, 8, 9])
    grid = made.runs([])
    assert [(run.point, run.learning_rate, run.seed) for run in grid] == [
        (point, rate, 7) for point in (0, 1) for rate in (0.1, 0.2, 0.3)
    ]
    lines = [line_of(made, run, loss) for run, loss in zip(grid[:3], [3.0, 2.0, None], strict=True)]
    ready = made.runs(lines)
    assert [(run.point, run.learning_rate, run.seed) for run in ready] == [
        (0, 0.2, 8), (0, 0.2, 9), *((1, rate, 7) for rate in (0.1, 0.2, 0.3))
    ]  # fmt: skip
    lines += [line_of(made, run, 1.0) for run in ready]
    assert [(run.point, run.seed) for run in made.runs(lines)] == [(1, 8), (1, 9)]
    lines += [line_of(made, run, 1.0) for run in made.runs(lines)]
    assert made.runs(lines) == [] and len(lines) == 2 * (3 + 2)


def test_grids_are_extended_until_the_best_rate_is_inside():
    """A grid of learning rates is extended by its ratio until the best rate is not at an end."""
    made = table(learning_rates=[0.1, 0.3], seeds=[7, 8], extend_learning_rates=True)
    lines = []

    def train(losses):
        ready = [run for run in made.runs(lines) if run.point == 0]
        assert [run.seed for run in ready] == [7] * len(ready)
        assert [run.learning_rate for run in ready] == list(losses)
        lines.extend(line_of(made, run, losses[run.learning_rate]) for run in ready)

    train({0.1: 3.0, 0.3: 2.0})
    train({0.9: 1.0})
    train({2.7: None})
    assert [(run.learning_rate, run.seed) for run in made.runs(lines) if run.point == 0] == [(0.9, 8)]
    # It is extended downwards if all rates diverged, not if rates are equally good, and at most MOST_EXTENSIONS times.
    assert made.rate_beyond([(None, 0.1), (None, 0.3)]) == 0.0333
    assert made.rate_beyond([(1.0, 0.1), (1.0, 0.3)]) is None
    assert made.rate_beyond([(1.0 + place, 0.1 * 3**place) for place in range(2 + MOST_EXTENSIONS)]) is None
    assert table(learning_rates=[0.1, 0.3]).rate_beyond([(1.0, 0.1), (2.0, 0.3)]) is None


def test_a_shorter_grid_chooses_the_rate_alone():
    """With `grid`, the runs of the grid are short, and the best rate is then trained in full with every seed."""
    own = {"num_attention_heads": 5, "attention_head_size": 6}
    made = table(learning_rates=[0.1, 0.3], seeds=[7, 8], extend_learning_rates=True, grid={"max_steps": 11},
                 series={"a": own, "b": {**own, "pretraining": {"save_steps": 3}}})  # fmt: skip
    lines = []

    def train(losses: dict[float, float], of_grid: bool):
        ready = [run for run in made.runs(lines) if run.series == "b"]
        assert {run.learning_rate for run in ready} == losses.keys()
        assert all(run.pretraining[0]["max_steps"] == (11 if of_grid else 30) for run in ready)
        assert all(run.pretraining[0]["save_steps"] == 3 and run.of_grid == of_grid for run in ready)
        assert [run.seed for run in ready] == ([7] * len(ready) if of_grid else [7, 8])
        lines.extend(line_of(made, run, losses[run.learning_rate]) for run in ready)

    train({0.1: 2.0, 0.3: 1.0}, of_grid=True)
    train({0.9: 3.0}, of_grid=True)
    assert shapes_by_series(lines) == {}  # runs of the grid are not results
    train({0.3: 4.0}, of_grid=False)
    assert [run for run in made.runs(lines) if run.series == "b"] == []
    assert [made.run_of(line).key for line in lines] == [line.key for line in lines]
    ((shape,),) = shapes_by_series(lines).values()
    assert [record.seed for record in shape.records] == [7, 8] and shape["results"] == {"loss": 4.0}
    assert sorted(shape.learning_rates) == [0.1, 0.3, 0.9] and shape.end_of_grid is None
    printed = "8 runs, and more if grids are extended: 2 different shapes, 2 learning rates and 2 seeds; "
    printed += f"{2 * (2 * 11 + 2 * 30) * 4 * 16:,} pretraining tokens, "
    assert printed in study_cost_text(made)


def test_shares():
    """Together, the shares of several machines contain every shape once."""
    made = load_study("heads", "tiny")
    parts = [made.places((number, 3)) for number in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(made.places()) and len(made.places()) == 12
    assert parse_share("2/3") == (2, 3)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"colour": "red"}, "unexpected keyword argument 'colour'"),
        ({"axis": "colour"}, "axis: colour is not one of num_attention_heads"),
        ({"pretraining": {"max_steps": 5}}, "pretraining: max_seq_length is missing"),
        ({"pretraining": {**SMALL["pretraining"], "seed": 3}}, "pretraining: seed is set by the study"),
        ({"series": {"a": {"num_attention_heads": [1, 2], "attention_head_size": [1, 2, 3]}}}, "one value for each"),
        ({"series": {"a": {"num_attention_heads": 5, "attention_head_size": None}}}, "hidden_size"),
        ({"series": {"a": {"num_attention_heads": 5, "qk_nrom": True}}}, "series a: models have no field qk_nrom"),
        ({"objective": "mlm", "fine_tuning": {"cola": {}}}, "fine_tuning: cola is not one of mnli, squad"),
        ({"grid": {"max_steps": 10, "seeds": 3}}, "study small, series fixed: pretraining: `seeds`: no such option"),
        ({"objective": "mlm", "fine_tuning": {"mnli": {"epochs": 3}}}, "fine_tuning: mnli: `epochs`: no such"),
        ({"objective": "recall"}, "pretraining: (symbols is missing|logging_steps is not one of)"),
        (
            {
                "series": {
                    "a": {"num_attention_heads": 4, "attention_head_size": 6, "equal": "flops", "to": "b"},
                    "b": {"num_attention_heads": [2, 3], "attention_head_size": 6},
                }
            },
            "series a: b must have exactly one shape with num_attention_heads 4; add it there",
        ),
        (
            {
                "series": {
                    "a": {"num_attention_heads": 4, "attention_head_size": 6},
                    "b": {"num_attention_heads": 4, "attention_head_size": 6, "equal": "flops", "to": "a"},
                }
            },
            "series b: a has the same shape",
        ),
    ],
)
def test_invalid_studies(tmp_path, changes, message):
    """An invalid study is refused before anything runs, with a message that names the key."""
    with pytest.raises(InputError, match=message):
        main([write(tmp_path, **changes), "--output_dir", str(tmp_path / "out"), "--train_file", "texts.txt"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("heads", "study heads has these scales: tiny, day, small, paper"),
        ("heads --scale tiny", "no corpus: set `train_file`"),
        ("heads --scale tiny --share 3/2 --dry_run", "`share` 3/2"),
    ],
)
def test_invalid_arguments(tmp_path, arguments, message):
    """A missing scale or corpus, or an invalid share, is refused before anything is written."""
    with pytest.raises(InputError, match=message):
        main([*arguments.split(), "--output_dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_documentation(tmp_path):
    """docs/study_and_theory.md lists every named study, and the example study in it is valid."""
    page = (ROOT / "docs" / "study_and_theory.md").read_text(encoding="utf-8")
    assert all(f"\n| `{name}` |" in page for name in NAMES)
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "own.yaml").write_text(text)
    made = load_study(str(tmp_path / "own.yaml"))
    assert len(made.places()) == 6 and made.axis == "num_attention_heads"
