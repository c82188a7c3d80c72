"""Tasks with predicted thresholds: data, solutions with weights set by hand, the end of training, and records."""

import itertools
import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from experiments.head_size.tasks import CLASSES, TASKS, memorise
from experiments.head_size.tasks.average import Average
from experiments.head_size.tasks.extremes import Extremes
from experiments.head_size.tasks.memorise import grid_value, train_memorise
from experiments.head_size.tasks.nearest import GAP, Nearest
from experiments.head_size.tasks.recall import Recall
from experiments.head_size.tasks.training import SyntheticTask, TaskDivergence, is_flat, train
from experiments.study.run import execute
from experiments.study.sources import DataSources
from experiments.study.studies import load_study
from fixedbert.presets import preset_config

STUDIES = ("nearest", "memorise", "average", "extremes", "recall")


def config(heads: int, size: int, **fields):
    shape = {"num_hidden_layers": 1, "intermediate_size": 7}
    shape |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    return preset_config("tiny", **{**shape, "num_attention_heads": heads, "attention_head_size": size, **fields})


def drawn(task, rows: int, seed: int = 0):
    return task.examples(rows, torch.Generator().manual_seed(seed))


def zeroed(task):
    """Returns the task in float64 with all weights set to zero, so that a test can set them by hand."""
    task = task.double().requires_grad_(False)
    for weight in task.parameters():
        weight.zero_()
    return task


def test_nearest_by_hand():
    """One head of full size solves the task up to the tail of the softmax."""
    dimension, points, scale = 5, 6, 200.0
    task = zeroed(Nearest(config(1, dimension, hidden_size=dimension + 2), 2 * points, dimension))
    (attention,), (output,) = task.attention, task.output
    for matrix, value in ((attention.query, scale * dimension**0.5), (attention.key, 1), (attention.value, 1)):
        matrix.weight[:, :dimension] = value * torch.eye(dimension)
    output.weight[:dimension] = torch.eye(dimension)
    inputs, target = drawn(task, 50)
    for vectors in (*inputs, target):
        assert torch.allclose(vectors.norm(dim=-1), torch.ones(50, points))
    errors = (task(*(x.double() for x in inputs)) - target).norm(dim=-1)
    assert errors.max() <= 2 * (points - 1) * math.exp(-scale * GAP) + 1e-6  # the examples are in float32
    assert task.threshold == dimension


def test_guessing_the_average():
    """Guessing the average of all vectors, without the sets, has the null error."""
    task = Average(config(1, 3, hidden_size=18, value_head_size=3), 7, subset=3)
    assert task.threshold is None and task.order == 7  # less than 3 log2 7, because 7 suffices with one-hot keys
    (sets, vectors), target = drawn(task, 20_000)
    assert (sets.sum(dim=-1) == 3).all() and len(sets[0].unique(dim=0)) > 1
    guess = vectors.mean(dim=1, keepdim=True).expand_as(target)
    assert task.loss(guess, target).item() == pytest.approx(task.null, rel=0.02) and task.null == 1 - 3 / 7
    assert task.loss(torch.zeros_like(target), target).item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("length, q", [(32, 2), (11, 3)])
def test_average_by_hand(length, q):
    """Size 2 q suffices with keys on the trigonometric moment curve and one hidden unit of the MLP for each set."""
    angles = 2 * math.pi * torch.arange(length, dtype=torch.float64) / length
    sets = list(itertools.combinations(range(length), q))
    smallest_product = min(
        math.prod(1 - math.cos(angles[i] - angles[s]) for s in chosen)
        for chosen in sets if 0 in chosen
        for i in range(length) if i not in chosen
    )  # fmt: skip
    scale = 30 / smallest_product
    width = 2 * length + 3 + 2 * q
    task = zeroed(Average(config(1, 2 * q, hidden_size=width, value_head_size=3), length, subset=q, mlp=len(sets)))
    frequencies = torch.arange(1, q + 1)
    curve = torch.cat([(angles[:, None] * frequencies).cos(), (angles[:, None] * frequencies).sin()], dim=1)
    features = torch.cat([torch.ones(length, 1), curve], dim=1)
    first, _, second = task.mlp
    for unit, chosen in enumerate(sets):  # a unit is 1 for its own set, and 0 for all others
        first.weight[unit, [length + s for s in chosen]] = 1
        first.bias[unit] = 1 - q
        scores = -scale * (1 - (angles[:, None] - angles[list(chosen)]).cos()).prod(dim=1)
        coefficients = torch.linalg.lstsq(features, scores[:, None]).solution[1:, 0]  # softmax ignores constants
        second.weight[-2 * q :, unit] = coefficients
    attention = task.attention
    attention.query.weight[:, -2 * q :] = (2 * q) ** 0.5 * torch.eye(2 * q)
    attention.key.weight[:, :length] = curve.T
    attention.value.weight[:, 2 * length : 2 * length + 3] = torch.eye(3)
    task.output.weight[:] = torch.eye(3)
    (chosen, vectors), target = drawn(task, 20)
    output = task(chosen.double(), vectors.double())
    tail = 2 * (length - q) * math.exp(-30) * vectors.abs().max().item()
    assert (output - target).abs().max() <= tail + 1e-6  # the vectors are in float32
    assert task.threshold == 2 * q and task.order is None


def test_data_of_extremes():
    """The features are maxima along orthonormal directions, and the target is a sum of products of features."""
    torch.manual_seed(3)
    task = Extremes(config(2, 3, hidden_size=9), 5)
    assert torch.allclose(task.directions.T @ task.directions, torch.eye(4), atol=1e-6)
    (tokens,), target = drawn(task, 7)
    for row in range(7):
        z = [max(float(token @ task.directions[:, i]) for token in tokens[row]) for i in range(4)]
        z = [1 + (z[i] - float(task.mean[i])) / float(task.deviation[i]) for i in range(4)]
        assert target[row].item() == pytest.approx(z[0] * z[2] + z[1] * z[3] - float(task.centre), abs=1e-4)
    _, target = drawn(task, 20_000)
    assert task.loss(torch.zeros_like(target), target).item() == pytest.approx(task.null, rel=0.05)


def test_extremes_by_hand():
    """A head of size 1 for each feature computes the feature's maximum, with an error of at most ln T / scale."""
    torch.manual_seed(3)
    length, scale, width = 9, 500.0, 9
    task = zeroed(Extremes(config(4, 1, hidden_size=width), length))
    first, _, second = task.encoder
    first.weight[:4], first.weight[4:8] = torch.eye(4), -torch.eye(4)  # relu(x) - relu(-x) = x
    second.weight[:4, :4], second.weight[:4, 4:8] = task.directions.T, -task.directions.T
    task.class_token[-1] = 1
    task.attention.query.weight[:, -1] = scale
    task.attention.key.weight[:, :4] = task.attention.value.weight[:, :4] = torch.eye(4)
    tokens = torch.rand(100, length, 4, dtype=torch.float64)
    standardised = task.maxima((tokens - task.middle) / task.scale)
    assert standardised.mean().abs() < 0.2 and standardised.std(dim=0).mean() == pytest.approx(1, abs=0.2)
    missing = standardised - task.heads(tokens)
    assert missing.min() >= -1e-12 and missing.max() <= math.log(length) / scale
    assert task.threshold == 4


CIRCLE = [[math.cos(2 * math.pi * key / 7), math.sin(2 * math.pi * key / 7)] for key in range(7)]
SIGNS = list(itertools.product([-1, 1], repeat=3))[:7]


@pytest.mark.parametrize("keys, scale", [(CIRCLE, 300.0), (SIGNS, 60.0)], ids=["circle", "signs"])
def test_recall_by_hand(keys, scale):
    """Size 2 recalls all values if keys are on a circle, and size log2(symbols) if they are signs. Both are causal."""
    symbols, size = len(keys), len(keys[0])
    width = 5 * symbols + 1  # token, previous token, retrieved value
    shape = {"hidden_size": width, "num_hidden_layers": 2, "value_head_size": symbols}
    task = zeroed(Recall(config(1, size, **shape), 15, symbols))
    task.token.weight[:, : 2 * symbols] = torch.eye(2 * symbols)
    task.previous.weight[:, 2 * symbols : 4 * symbols + 1] = torch.eye(2 * symbols + 1)
    for layer in task.layers:
        layer.attention.output.LayerNorm.weight[:] = layer.output.LayerNorm.weight[:] = 1
    codes = torch.tensor(keys, dtype=torch.float64).T
    attention = task.layers[1].attention.self
    attention.query.weight[:, :symbols] = scale * codes  # the key itself
    attention.key.weight[:, 2 * symbols : 3 * symbols] = codes  # the key before a value
    attention.value.weight[:, symbols : 2 * symbols] = torch.eye(symbols)
    task.layers[1].attention.output.dense.weight[4 * symbols + 1 :] = torch.eye(width)[4 * symbols + 1 :][
        :, 4 * symbols + 1 :
    ]
    task.classifier.weight[:, 4 * symbols + 1 :] = torch.eye(symbols)
    (tokens,), target = drawn(task, 30)
    assert all(len({*values}) == 5 for values in target.tolist())
    assert not torch.equal(tokens[:, 10:], tokens[:, :10:2])  # the keys have a different order
    logits = task(tokens)
    assert (logits.argmax(dim=-1) == target).all() and task.score(logits, target) == 1
    changed = tokens.clone()
    changed[:, -1] = tokens[:, -2]
    assert torch.equal(task(changed)[:, :-1], logits[:, :-1])


def test_memorise_searches_the_largest_number():
    """The number of memorized examples is on the grid and within the limit, and grows with head size."""
    memorised = {}
    for size in (1, 5):
        results = train_memorise(config(1, size, hidden_size=6, value_head_size=2), 8, 100, 300, 0.1, 1)
        assert results["memorised"] in map(grid_value, range(40)) and results["loss"] == -results["memorised"]
        assert results["examples"] >= results["memorised"] * results["steps"]
        assert results["predicted"] == size and results["threshold"] == 8 and results["steps_to_goal"] <= 300
        memorised[size] = results["memorised"]
        assert results["at_limit"] == 0
    assert 6 <= memorised[1] < memorised[5] < 100
    capped = train_memorise(config(1, 5, hidden_size=6, value_head_size=2), 8, 12, 300, 0.1, 1)
    assert capped["memorised"] == grid_value(2) == 11 and (capped["at_limit"], capped["converged"]) == (1, 0)


def flat_after(losses: list[float]) -> int | None:
    """Returns the number of windows after which training ends, or None if it never ends."""
    return next((count for count in range(1, len(losses) + 1) if is_flat(losses[:count])), None)


def test_a_loss_is_flat_after_as_long_as_it_fell():
    """A plateau ends training only if it is as long as everything before it."""
    falling = [1 - 0.025 * window for window in range(1, 21)]  # 20 windows, the last at 0.5
    second = [0.5 * 0.9**window for window in range(1, 100)]
    assert flat_after([1.0] * 50) == 16 and flat_after([0.5] + [1.0] * 50) == 16
    assert flat_after(falling + [0.5] * 19 + second) is None
    assert flat_after(falling + [0.5] * 20 + second) == 40
    for power, after in ((0.5, None), (0.05, None), (0.02, 16)):
        assert flat_after([window**-power for window in range(1, 300)]) == after
    assert flat_after([1.0] * 15 + [0.979] + [1.0] * 15) is None
    assert flat_after([1.0] * 15 + [0.981] + [1.0] * 15) == 16


class Scripted(SyntheticTask):
    """A task whose loss and measure follow a script. The null value is 1 and the goal is 0.05."""

    def __init__(self, script: list[float]):
        super().__init__(config(1, 1))
        self.script, self.weight = iter(script), torch.nn.Parameter(torch.ones(1))
        self.last = 0.0

    def examples(self, rows, generator):
        return (torch.zeros(rows),), torch.zeros(rows)

    def forward(self, inputs):
        return self.weight * inputs

    def loss(self, output, target):
        self.last = next(self.script)
        return output.sum() + self.last

    def score(self, output, target):
        return torch.tensor(self.last)


def trained(script: list[float], max_steps: int):
    return train(partial(Scripted, script), 2, max_steps, 0.01, 1)


def test_end_of_training():
    """Training ends with a flat loss, at the goal or at the maximum, and its loss ranks learning rates."""
    flat = trained([0.525] * 4000, 2400)
    assert (flat["steps"], flat["converged"], flat["steps_to_goal"]) == (1920, 1, None)
    solved = trained([0.5] * 100 + [0.04] * 200, 2400)
    assert (solved["steps"], solved["converged"], solved["steps_to_goal"]) == (240, 1, 120)
    capped = trained([0.999**step for step in range(400)], 360)
    assert (capped["steps"], capped["converged"]) == (360, 0)
    plateau = trained([1.0] * 2400, 2400)  # at the null value, so learning has not started
    assert (plateau["steps"], plateau["converged"]) == (2400, 0)
    cooled = trained([0.06] * 300 + [0.04] * 60, 360)  # reaches the goal only while the rate decays
    assert cooled["relative_error"] == pytest.approx(0.04) and cooled["steps_to_goal"] is None
    fast, slow = (trained([0.5] * steps + [0.01] * 900, 1200)["loss"] for steps in (100, 300))
    near, far = (trained([1.0] * 300 + [last] * 60, 360)["loss"] for last in (0.5, 0.8))
    assert fast < slow < cooled["loss"] < near < far  # faster runs first, then runs that end nearer to the goal


def test_divergence_counts_examples(monkeypatch):
    """If training diverges, all examples seen so far count, including those of earlier fits in a `memorise` search."""
    with pytest.raises(TaskDivergence) as caught:
        trained([0.5, 0.5, math.nan], 2400)
    assert caught.value.examples == 3 * 2

    def fit(config, context, queries, labels, *settings):
        if len(queries) > 16:
            raise TaskDivergence("step 3", 3 * len(queries))
        return 5, True, 5

    monkeypatch.setattr("experiments.head_size.tasks.memorise.fit", fit)
    with pytest.raises(TaskDivergence) as caught:
        train_memorise(config(1, 5, hidden_size=6, value_head_size=2), 8, 100, 300, 0.1, 1)
    assert caught.value.examples == 5 * 16 + 3 * 32


@pytest.mark.parametrize("name", STUDIES)
def test_runs_leave_records(name, tmp_path):
    """Every series trains with its settings and records the metrics and counts that reports need."""
    study = load_study(name, "tiny")
    for series in study.series:
        stage = {"total_train_batch_size": 16 if name == "memorise" else 4, "max_steps": 12}
        run = study.run(series, 1, 0.003, 1)
        run = replace(run, pretraining=[{**run.pretraining[0], **stage}])
        record = execute(run, tmp_path / series.replace(" ", "-").replace("/", ""), DataSources())
        assert record["results"]["loss"] is not None
        assert record["value_head_size"] == run.config.value_head_sizes[0]
        if name != "memorise":
            assert record["results"]["steps"] == 12 and record["tokens"] == 12 * 4 * run.length
        assert record["training_flops"] == 3 * record["forward_flops"] * record["tokens"] and record["curve"] is None
        json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("name", STUDIES)
def test_shapes_of_a_seed_see_equal_data(name):
    """For a given seed and stage, all shapes see the same examples in the same order."""
    study, by_stage = load_study(name, "tiny"), {}
    for series, shapes in study.shapes.items():
        for point, seed in itertools.product((0, len(shapes) - 1), (1, 2)):
            run = study.run(series, point, 0.003, seed)
            settings = {setting: run.pretraining[0][setting] for setting in TASKS[name]}
            torch.manual_seed(seed)  # as `train` does
            if name == "memorise":
                data = memorise.examples(run.config, run.length, 16, seed)
            else:
                inputs, target = drawn(CLASSES[name](run.config, run.length, **settings), 5, seed)
                data = (*inputs, target)
            first = by_stage.setdefault((seed, *run.pretraining[0].items()), data)
            assert all(map(torch.equal, data, first)), (series, point)
    first, second, *_ = by_stage.values()  # two seeds
    assert not any(map(torch.equal, first, second))
