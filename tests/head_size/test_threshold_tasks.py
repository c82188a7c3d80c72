"""Tasks with a predicted threshold: their data, hand-made solutions, how training ends, and their records."""

import itertools
import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from experiments.head_size.tasks import TASKS, train_synthetic
from experiments.head_size.tasks.average import Average
from experiments.head_size.tasks.extremes import Extremes
from experiments.head_size.tasks.memorise import Memory, grid, train_memorise
from experiments.head_size.tasks.memorise import examples as examples_to_memorise
from experiments.head_size.tasks.nearest import GAP, Nearest
from experiments.head_size.tasks.recall import Recall
from experiments.head_size.tasks.training import SyntheticTask, is_flat, train
from experiments.study.registry import METRICS
from experiments.study.run import execute
from experiments.study.sources import DataSources
from experiments.study.studies import load_study
from fixedbert.presets import preset_config
from fixedbert.support.errors import Divergence, InputError

STUDIES = ("nearest", "memorise", "average", "extremes", "recall")


def config(heads: int, size: int, **fields):
    shape = {
        "num_hidden_layers": 1,
        "intermediate_size": 7,
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
    }
    return preset_config("tiny", **{**shape, "num_attention_heads": heads, "attention_head_size": size, **fields})


def drawn(task, rows: int, seed: int = 0):
    return task.examples(rows, torch.Generator().manual_seed(seed))


def zeroed(task):
    """In float64, with all weights and biases zero, to be set by hand."""
    task = task.double().requires_grad_(False)
    for weight in task.parameters():
        weight.zero_()
    return task


def test_data_of_nearest():
    """Guards: unit vectors; the target is the point with the largest inner product, by 0.1 or more, one by one."""
    (points, queries), target = drawn(Nearest(config(2, 3, hidden_size=7), 10, dimension=5), 13)
    assert points.shape == queries.shape == target.shape == (13, 5, 5)
    for vectors in (points, queries, target):
        assert torch.allclose(vectors.norm(dim=-1), torch.ones(13, 5))
    for row, query in itertools.product(range(13), range(5)):
        products = [float(sum(points[row, i] * queries[row, query])) for i in range(5)]
        first, second = sorted(products, reverse=True)[:2]
        assert first - second >= GAP - 1e-6
        assert torch.equal(target[row, query], points[row, products.index(first)])


def test_nearest_by_hand():
    """Guards: one head of the full size with proportional identities is exact to the tail of the softmax."""
    dimension, points, scale = 5, 6, 200.0
    task = zeroed(Nearest(config(1, dimension, hidden_size=dimension + 2), 2 * points, dimension))
    (attention,), (output,) = task.attention, task.output
    for matrix, value in ((attention.query, scale * dimension**0.5), (attention.key, 1), (attention.value, 1)):
        matrix.weight[:, :dimension] = value * torch.eye(dimension)
    output.weight[:dimension] = torch.eye(dimension)
    inputs, target = drawn(task, 50)
    errors = (task(*(x.double() for x in inputs)) - target).norm(dim=-1)
    assert errors.max() <= 2 * (points - 1) * math.exp(-scale * GAP) + 1e-6  # examples are in float32
    assert task.threshold == dimension


def test_layers_of_nearest_see_what_they_should():
    """Guards: queries do not see each other nor themselves in the last layer, nor do points see queries."""
    torch.manual_seed(0)
    for layers in (1, 2):
        task = Nearest(config(2, 3, hidden_size=7, num_hidden_layers=layers, value_head_size=4), 10, 5).double()
        points, queries = (x.double() for x in drawn(task, 3)[0])
        other = queries.clone()
        other[:, 0] = -queries[:, 0]
        before, after = task(points, queries), task(points, other)
        assert torch.allclose(before[:, 1:], after[:, 1:], rtol=0, atol=1e-14)
        assert (before[:, 0] - after[:, 0]).abs().min() > 1e-9
        assert task.threshold == (5 if layers == 1 else None)


def test_data_of_average():
    """Guards: every token names as many different places as it should; the target is the mean of their vectors."""
    task = Average(config(1, 3, hidden_size=18, value_head_size=3), 7, subset=3)
    assert task.threshold is None and task.order == 7  # 3 log2 7 is more, and 7 are enough with one-hot keys
    (sets, vectors), target = drawn(task, 11)
    assert sets.shape == (11, 7, 7) and vectors.shape == target.shape == (11, 7, 3)
    assert (sets.sum(dim=-1) == 3).all() and set(sets.flatten().tolist()) == {0, 1}
    for row, token in itertools.product(range(11), range(7)):
        chosen = [vectors[row, place] for place in range(7) if sets[row, token, place]]
        assert torch.allclose(target[row, token], sum(chosen) / 3, atol=1e-6)
    assert not torch.equal(sets[0, 0], sets[0, 1]) or not torch.equal(sets[0, 0], sets[0, 2])
    # Without the sets: the mean of all has the error of the null line.
    (_, vectors), target = drawn(task, 20_000)
    guess = vectors.mean(dim=1, keepdim=True).expand_as(target)
    assert task.loss(guess, target).item() == pytest.approx(task.null, rel=0.02) and task.null == 1 - 3 / 7
    assert task.loss(torch.zeros_like(target), target).item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("length, q", [(32, 2), (11, 3)])
def test_average_by_hand(length, q):
    """Guards: size 2 q is enough, by the moment curve; a hidden unit of the MLP for each set has its coefficients."""
    places = 2 * math.pi * torch.arange(length, dtype=torch.float64) / length
    sets = list(itertools.combinations(range(length), q))
    least = min(
        math.prod(1 - math.cos(places[i] - places[s]) for s in chosen)
        for chosen in sets if 0 in chosen
        for i in range(length) if i not in chosen
    )  # fmt: skip
    scale = 30 / least
    width = 2 * length + 3 + 2 * q
    task = zeroed(Average(config(1, 2 * q, hidden_size=width, value_head_size=3), length, subset=q, mlp=len(sets)))
    frequencies = torch.arange(1, q + 1)
    curve = torch.cat([(places[:, None] * frequencies).cos(), (places[:, None] * frequencies).sin()], dim=1)
    fitted = torch.cat([torch.ones(length, 1), curve], dim=1)
    first, _, second = task.mlp
    for unit, chosen in enumerate(sets):  # it is 1 for its own set, and 0 for all others
        first.weight[unit, [length + s for s in chosen]] = 1
        first.bias[unit] = 1 - q
        scores = -scale * (1 - (places[:, None] - places[list(chosen)]).cos()).prod(dim=1)
        coefficients = torch.linalg.lstsq(fitted, scores[:, None]).solution[1:, 0]  # a constant changes no softmax
        second.weight[-2 * q :, unit] = coefficients
    attention = task.attention
    attention.query.weight[:, -2 * q :] = (2 * q) ** 0.5 * torch.eye(2 * q)
    attention.key.weight[:, :length] = curve.T
    attention.value.weight[:, 2 * length : 2 * length + 3] = torch.eye(3)
    task.output.weight[:] = torch.eye(3)
    (chosen, vectors), target = drawn(task, 20)
    output = task(chosen.double(), vectors.double())
    tail = 2 * (length - q) * math.exp(-30) * vectors.abs().max().item()
    assert (output - target).abs().max() <= tail + 1e-6  # vectors are in float32
    assert task.threshold == 2 * q and task.order is None


def test_data_of_extremes():
    """Guards: features are maxima of orthonormal directions; the target is their product form; null and variance."""
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
    """Guards: a head of size 1 for each feature gives its maximum, to ln T / scale, the tail of the softmax."""
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


def test_data_of_recall():
    """Guards: pairs of a key and its value, then the same keys in another order, each with its value as the target."""
    task = Recall(config(1, 2, hidden_size=9), 15, symbols=7)
    (tokens,), target = drawn(task, 12)
    assert tokens.shape == (12, 15) and target.shape == (12, 5) and task.null == 1 / 5
    for row, values in zip(tokens.tolist(), target.tolist(), strict=True):
        pairs = dict(zip(row[:10:2], row[1:10:2], strict=True))
        assert len(pairs) == 5 and max(pairs) < 7 <= min(pairs.values()) < max(pairs.values()) < 14
        assert sorted(row[10:]) == sorted(pairs) and [pairs[key] - 7 for key in row[10:]] == values
        assert len(set(values)) == 5
    assert not torch.equal(tokens[:, 10:], tokens[:, :10:2])


CIRCLE = [[math.cos(2 * math.pi * key / 7), math.sin(2 * math.pi * key / 7)] for key in range(7)]
SIGNS = list(itertools.product([-1, 1], repeat=3))[:7]


@pytest.mark.parametrize("keys, scale", [(CIRCLE, 300.0), (SIGNS, 60.0)], ids=["circle", "signs"])
def test_recall_by_hand(keys, scale):
    """Guards: size 2 recalls every value, with keys on a circle, and log2 of the symbols, with signs; causally."""
    symbols, size = len(keys), len(keys[0])
    width = 5 * symbols + 1  # token, previous token, value found
    shape = {"hidden_size": width, "num_hidden_layers": 2, "value_head_size": symbols}
    task = zeroed(Recall(config(1, size, **shape), 15, symbols))
    task.token.weight[:, : 2 * symbols] = torch.eye(2 * symbols)
    task.previous.weight[:, 2 * symbols : 4 * symbols + 1] = torch.eye(2 * symbols + 1)
    for layer in task.layers:
        layer.attention.output.LayerNorm.weight[:] = layer.output.LayerNorm.weight[:] = 1
    codes = torch.tensor(keys, dtype=torch.float64).T
    attention = task.layers[1].attention.self
    attention.query.weight[:, :symbols] = scale * codes  # the key itself
    attention.key.weight[:, 2 * symbols : 3 * symbols] = codes  # the key before
    attention.value.weight[:, symbols : 2 * symbols] = torch.eye(symbols)
    task.layers[1].attention.output.dense.weight[4 * symbols + 1 :] = torch.eye(width)[4 * symbols + 1 :][
        :, 4 * symbols + 1 :
    ]
    task.classifier.weight[:, 4 * symbols + 1 :] = torch.eye(symbols)
    (tokens,), target = drawn(task, 30)
    logits = task(tokens)
    assert (logits.argmax(dim=-1) == target).all() and task.score(logits, target) == 1
    changed = tokens.clone()
    changed[:, -1] = tokens[:, -2]
    assert torch.equal(task(changed)[:, :-1], logits[:, :-1])


def test_memorise_begins_anew_where_training_is_stuck(monkeypatch):
    """Guards: a number counts as fitted if one of three initial weights fits it; the loss is flat if it is of all."""
    starts: dict[int, list[int]] = {}

    def fit(config, context, queries, labels, max_steps, rate, seed):
        starts.setdefault(len(queries), []).append(seed)
        fits = len(queries) <= 38 and len(starts[len(queries)]) == 3
        return (5, True, 5) if fits else (None, len(starts[len(queries)]) != 2, 7)

    monkeypatch.setattr("experiments.head_size.tasks.memorise.fit", fit)
    results = train_memorise(config(1, 5, hidden_size=6, value_head_size=2), 8, 100, 300, 0.1, 4)
    assert results["memorised"] == 38 and results["converged"] == 0 and results["steps_to_goal"] == 5
    assert all(len(set(seeds)) == 3 and seeds[0] == 4 for seeds in starts.values())
    steps = {T: 7 + 7 + (5 if T <= 38 else 7) for T in starts}
    assert results["examples"] == sum(T * count for T, count in steps.items())


def test_a_head_of_size_one_memorises_as_many_as_the_width():
    """Guards: signs are easier than labels of any kind: one head of size 1 is a linear classifier."""
    length, width = 4, 13
    context, queries, labels = (
        x.double() for x in examples_to_memorise(config(1, 1, hidden_size=width), length, width, seed=2)
    )
    memory = zeroed(Memory(config(1, 1, hidden_size=width), context))
    positions = torch.tensor([-1.0, -0.5, 0.5, 1.0], dtype=torch.float64)  # of tokens on a line
    onto = torch.linalg.lstsq(context, positions[:, None]).solution[:, 0]
    memory.attention.query.weight[0] = torch.linalg.solve(queries, labels)
    memory.attention.key.weight[0] = memory.attention.value.weight[0] = onto
    memory.readout.weight[:] = 1
    assert torch.equal(memory(queries).sign(), labels)


def test_memorise_finds_the_largest_number():
    """Guards: T is on the grid, at the most the number given, and larger for a larger head."""
    found = {}
    for size in (1, 5):
        results = train_memorise(config(1, size, hidden_size=6, value_head_size=2), 8, 100, 300, 0.1, 1)
        assert (
            results["memorised"] in {grid(place) for place in range(40)} and results["loss"] == -results["memorised"]
        )
        assert results["examples"] >= results["memorised"] * results["steps"]
        assert results["predicted"] == size and results["threshold"] == 8 and results["steps_to_goal"] <= 300
        found[size] = results["memorised"]
        assert results["at_limit"] == 0
    assert 6 <= found[1] < found[5] < 100
    capped = train_memorise(config(1, 5, hidden_size=6, value_head_size=2), 8, 12, 300, 0.1, 1)
    assert capped["memorised"] == grid(2) == 11 and (capped["at_limit"], capped["converged"]) == (1, 0)


def flat_after(losses: list[float]) -> int | None:
    """Windows after which training ends."""
    return next((count for count in range(1, len(losses) + 1) if is_flat(losses[:count])), None)


def test_a_loss_is_flat_after_as_long_as_it_fell():
    """Guards: a plateau between two phases ends training if it is as long as all before; slow falls do not end it."""
    falling = [1 - 0.025 * place for place in range(1, 21)]  # 20 windows, the last at 0.5
    second = [0.5 * 0.9**place for place in range(1, 100)]
    assert flat_after([1.0] * 50) == 16 and flat_after([0.5] + [1.0] * 50) == 16
    assert flat_after(falling + [0.5] * 19 + second) is None
    assert flat_after(falling + [0.5] * 20 + second) == 40
    for power, after in ((0.5, None), (0.05, None), (0.02, 16)):
        assert flat_after([place**-power for place in range(1, 300)]) == after
    assert flat_after([1.0] * 15 + [0.979] + [1.0] * 15) is None
    assert flat_after([1.0] * 15 + [0.981] + [1.0] * 15) == 16


def test_noise_hardly_changes_when_training_ends():
    """Guards: windows with noise of half a percent end neither a fall nor go on for long after it."""
    generator = torch.Generator().manual_seed(1)
    falling = [0.97**place for place in range(40)]
    for _ in range(50):
        noise = 1 + 0.005 * torch.randn(120, generator=generator)
        noisy = [loss * float(factor) for loss, factor in zip(falling + [falling[-1]] * 80, noise, strict=True)]
        assert 78 <= flat_after(noisy) <= 90


class Scripted(SyntheticTask):
    """A task whose losses, and measure, follow a script, whatever is trained. The null line is 1, the goal 0.05."""

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


def test_training_ends_by_rule_or_at_its_cap():
    """Guards: flat, at the goal or at the cap, a fifth of the steps follows; what the cap ended has not converged."""
    flat = trained([0.525] * 4000, 2400)
    assert (flat["steps"], flat["converged"], flat["steps_to_goal"]) == (1920, 1, None)
    solved = trained([0.5] * 100 + [0.04] * 200, 2400)
    assert (solved["steps"], solved["converged"], solved["steps_to_goal"]) == (240, 1, 120)
    capped = trained([0.999**step for step in range(400)], 360)
    assert (capped["steps"], capped["converged"]) == (360, 0)
    plateau = trained([1.0] * 2400, 2400)  # before learning
    assert (plateau["steps"], plateau["converged"]) == (2400, 0)
    learned = trained([1.0] * 1700 + [0.04] * 2000, 4800)  # 6 of 23 windows at the goal
    assert (learned["steps"], learned["converged"], learned["steps_to_goal"]) == (2760, 1, 1720)


def test_steps_to_the_goal_are_at_the_constant_rate():
    """Guards: what is at the goal only while the rate falls has an error at the goal, and no steps to it."""
    cooled = trained([0.06] * 300 + [0.04] * 60, 360)
    assert cooled["relative_error"] == pytest.approx(0.04) and cooled["steps_to_goal"] is None
    assert cooled["loss"] == 0 and cooled["converged"] == 0


def test_which_learning_rate_is_the_best():
    """Guards: the loss of rates is lowest for the fastest at the goal, then for the nearest to it."""
    fast, slow = (trained([0.5] * steps + [0.01] * 900, 1200)["loss"] for steps in (100, 300))
    cooled, near, far = (trained([1.0] * 300 + [last] * 60, 360)["loss"] for last in (0.04, 0.5, 0.8))
    assert fast < slow < cooled < near < far
    assert fast == pytest.approx(120 / 1200 - 1) and near == pytest.approx(0.45 / 0.95)


def test_an_error_that_is_no_number_is_no_success():
    """Guards: a run whose evaluation is nan has no loss that would make its learning rate the best."""

    class Unmeasured(Scripted):
        def score(self, output, target):
            return torch.tensor(math.nan)

    assert math.isnan(train(partial(Unmeasured, [0.5] * 360), 2, 360, 0.01, 1)["loss"])


def test_divergence_says_what_was_trained_on(monkeypatch):
    """Guards: the examples of all steps until then, of `memorise` with those of the numbers that were tried before."""
    with pytest.raises(Divergence) as caught:
        trained([0.5, 0.5, math.nan], 2400)
    assert caught.value.examples == 3 * 2

    def fit(config, context, queries, labels, *settings):
        if len(queries) > 16:
            raise Divergence("step 3: the loss is not finite.", 3 * len(queries))
        return 5, True, 5

    monkeypatch.setattr("experiments.head_size.tasks.memorise.fit", fit)
    with pytest.raises(Divergence) as caught:
        train_memorise(config(1, 5, hidden_size=6, value_head_size=2), 8, 100, 300, 0.1, 1)
    assert caught.value.examples == 5 * 16 + 3 * 32


def small(name: str, series: str, point: int, rate: float, **stage):
    run = load_study(name, "tiny").run(series, point, rate, 1)
    return replace(run, pretraining=[{**run.pretraining[0], **stage}])


def test_steps_to_the_goal_and_full_rank():
    """Guards: a head of the full size learns the nearest of 4 points, and says after how many steps; a run repeats."""
    run = small("nearest", "1 layer, 16 / r heads", 4, 0.03, max_seq_length=8, max_steps=360, dimension=3)
    run = replace(run, model={**run.model, "attention_head_size": 3, "num_attention_heads": 1, "hidden_size": 5})
    results = train_synthetic(run.objective, run.config, run.pretraining[0], run.learning_rate, run.seed)
    assert results["relative_error"] <= 0.05 and results["threshold"] == 3
    shorter = replace(run, pretraining=[{**run.pretraining[0], "max_steps": 60}])
    arguments = shorter.objective, shorter.config, shorter.pretraining[0], shorter.learning_rate
    assert train_synthetic(*arguments, 1) == train_synthetic(*arguments, 1) != train_synthetic(*arguments, 2)


@pytest.mark.parametrize("name", STUDIES)
def test_runs_leave_records(name, tmp_path):
    """Guards: every series trains by its settings, and leaves metrics, counts and sizes that reports know."""
    study = load_study(name, "tiny")
    for series in study.series:
        stage = {"total_train_batch_size": 16 if name == "memorise" else 4, "max_steps": 12}
        run = small(name, series, 1, 0.003, **stage)
        record = execute(run, tmp_path / series.replace(" ", "-").replace("/", ""), DataSources())
        assert set(record["results"]) <= set(METRICS) and record["results"]["loss"] is not None
        assert record["value_head_size"] == run.config.value_head_sizes[0]
        if name != "memorise":
            assert record["results"]["steps"] == 12 and record["tokens"] == 12 * 4 * run.length
        assert record["training_flops"] == 3 * record["forward_flops"] * record["tokens"] and record["curve"] is None
        json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("name", STUDIES)
def test_studies_can_run(name):
    """Guards: all shapes of the named studies have one size of values, that does not vary where sizes of scores do."""
    study = load_study(name, "tiny")
    assert study.extend_learning_rates and len(study.seeds) == 3
    if name != "extremes":
        assert len({shape["value_head_size"] for shapes in study.shapes.values() for shape in shapes}) == 1
    else:
        products = {s["num_attention_heads"] * s["attention_head_size"] for s in sum(study.shapes.values(), [])}
        assert len(products) == 1


@pytest.mark.parametrize("name", STUDIES)
def test_shapes_of_a_seed_see_equal_data(name, monkeypatch):
    """Guards: whatever weights a shape draws, it gets the examples of its seed and stage, in the same order."""
    seen: list[torch.Tensor] = []

    def fit(config, context, queries, labels, *settings):
        seen.extend([context, queries, labels])
        return None, True, 1

    def examples(task, rows, generator):
        inputs, target = original(task, rows, generator)
        seen.extend([*inputs, target])
        return inputs, target

    if name == "memorise":
        monkeypatch.setattr("experiments.head_size.tasks.memorise.fit", fit)
    else:
        original = TASKS[name].examples
        monkeypatch.setattr(TASKS[name], "examples", examples)
        monkeypatch.setattr("experiments.head_size.tasks.training.EVALUATED", 64)
    study, by_stage = load_study(name, "tiny"), {}
    for series, shapes in study.shapes.items():
        for point, seed in itertools.product((0, len(shapes) - 1), (1, 2)):
            run = small(name, series, point, 0.003, total_train_batch_size=16, max_steps=3)
            train_synthetic(name, run.config, run.pretraining[0], run.learning_rate, seed)
            stage = (seed, *run.pretraining[0].items())
            first = by_stage.setdefault(stage, [tensor.clone() for tensor in seen])
            assert len(seen) == len(first) > 2 and all(map(torch.equal, seen, first)), (series, point)
            seen.clear()
    one, other, *_ = by_stage.values()  # of two seeds
    assert not any(map(torch.equal, one, other))


def test_widths_that_are_too_small():
    """Guards: a width without room for the input is refused, with the least that is enough."""
    with pytest.raises(InputError, match="nearest: hidden_size 5: more than the dimension, 5"):
        Nearest(config(1, 1, hidden_size=5), 4, dimension=5)
    with pytest.raises(InputError, match="average: hidden_size 13: at least 14"):
        Average(config(1, 1, hidden_size=13, value_head_size=4), 5, subset=2)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Nearest(config(1, 1), 3), "nearest: 3 tokens in 16 dimensions: at least 4, and 2"),
        (lambda: Nearest(config(1, 1), 8, dimension=1), "nearest: 8 tokens in 1 dimensions"),
        (lambda: drawn(Nearest(config(1, 1), 600, dimension=2), 1), "nearest: 300 points in 2 dimensions: too few"),
        (lambda: Average(config(1, 1), 5, subset=6), "average: subset 6: at least 1, and less than the length, 5"),
        (lambda: Average(config(1, 1), 5, subset=0), "average: subset 0"),
        (lambda: Extremes(config(1, 1), 8, features=3), "extremes: features 3: an even number"),
        (lambda: Recall(config(1, 1), 12, symbols=3), "recall: 4 pairs in 12 tokens, 3 symbols"),
        (lambda: Recall(config(1, 1), 5), "recall: 1 pairs in 5 tokens"),
        (lambda: train_memorise(config(1, 1), 8, 9, 3, 0.1, 1), "memorise: total_train_batch_size 9: at least 10"),
    ],
)
def test_settings_without_a_task(make, message):
    """Guards: settings of which no task can be made end in a sentence, not in another task, a crash or a loop."""
    with pytest.raises(InputError, match=message):
        make()
