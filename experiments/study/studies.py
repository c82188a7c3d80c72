"""
Studies: tables of runs, written as YAML. docs/study_and_theory.md explains every key.

A study has series of shapes. Each shape is trained with every learning rate of the grid and the first seed, and with
the best rate and the remaining seeds, so that all shapes are tuned on equal terms. `extend_learning_rates` extends a
grid whose best rate is at an end. `grid` makes the runs of the grid shorter; the first seed is then trained in full
too.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar, get_args

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError

from fixedbert.conversion.growing import heads_of
from fixedbert.counts import forward_flops, parameters
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.presets import SHAPE_FIELDS, preset_config
from fixedbert.pretraining.arguments import Objective
from fixedbert.support.checksums import stable_hash
from fixedbert.support.errors import InputError
from fixedbert.support.files import read_yaml

from .records import AXES, Record
from .registry import STAGE, STUDIES, TASKS, has_feed_forward

OBJECTIVES = get_args(Objective)  # on text, unlike TASKS
FINE_TUNING = {"mnli": 128, "squad": 384}  # tasks with their default sequence lengths
# Quantities that shapes can be made equal in; both without embeddings.
EQUAL = {"parameters": lambda config, length: parameters(config)[1], "flops": forward_flops}
SET_BY_THE_STUDY = ("learning_rate", "seed", "objective", "output_dir", "config_name", "config_overrides", "stages")
MOST_EXTENSIONS = 6  # learning rates of a shape beyond the grid
Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Run:
    """
    One training run, with everything that determines its result except the text.

    Args:
        point: index of the shape in the series.
        model: fields of FixedHeadBertConfig.
        pretraining: arguments of run_pretraining.py for each stage.
        fine_tuning: arguments of run_glue.py and run_squad.py by task.
        of_grid: whether this is a shorter run that only chooses the learning rate.
    """

    series: str
    point: int
    objective: str
    model: dict
    pretraining: list[dict]
    fine_tuning: dict[str, dict]
    learning_rate: float
    seed: int
    of_grid: bool = False

    @cached_property
    def key(self) -> str:
        """A fingerprint of the training, equal in all studies."""
        settings = asdict(self)
        del settings["series"], settings["point"], settings["of_grid"]
        return stable_hash(settings)

    @property
    def config(self) -> FixedHeadBertConfig:
        return preset_config("tiny", **self.model)

    @property
    def length(self) -> int:
        """Sequence length of the last stage."""
        return self.pretraining[-1]["max_seq_length"]

    @property
    def name(self) -> str:
        heads = "; ".join(map(str, dict.fromkeys(heads_of(self.config))))
        place = f"{self.series}, shape {self.point + 1} ({heads}), learning rate {self.learning_rate:g}"
        return f"{place}, seed {self.seed}{', grid' if self.of_grid else ''}"

    @property
    def tokens(self) -> int:
        """Tokens of pretraining without padding."""
        return sum(tokens_of(stage) for stage in self.pretraining)

    @property
    def training_flops(self) -> int:
        """FLOPs of pretraining in the layers: three times the forward pass."""
        return sum(
            3 * forward_flops(self.config, stage["max_seq_length"]) * tokens_of(stage) for stage in self.pretraining
        )


@strict
@dataclass
class Study:
    """
    A table of runs.

    Args:
        scale: name of the scale, if the study has scales.
        question: what the study asks.
        axis: horizontal axis of its figures, one of AXES.
        model: fields of FixedHeadBertConfig that all shapes share.
        series: fields of the shapes by series; a list has a value for each shape. A series can have its own
            `objective` and `pretraining` arguments, and be made `equal` in parameters or FLOPs `to` another series by
            its feed-forward width: each shape to the one with the same value on the axis, or to the only one.
        learning_rates: the grid.
        seeds: seeds of the runs; the grid uses the first.
        pretraining: arguments of run_pretraining.py for each stage.
        objective: one of OBJECTIVES or TASKS.
        fine_tuning: arguments of run_glue.py and run_squad.py, for "mnli" and "squad".
        extend_learning_rates: while the best rate is at an end of the grid, train the next rate by the ratio of the
            grid, for at most MOST_EXTENSIONS rates.
        grid: arguments of pretraining that shorten the runs of the grid; the best rate is then trained in full with
            every seed.
    """

    name: str
    question: str
    axis: str
    model: dict
    series: dict[str, dict]
    learning_rates: list[int | float]
    seeds: list[int]
    pretraining: list[dict]
    objective: str = "clm"
    fine_tuning: dict[str, dict] = field(default_factory=dict)
    extend_learning_rates: bool = False
    grid: dict = field(default_factory=dict)
    scale: str | None = None

    def __post_init__(self):
        self.check_one_of("axis", self.axis, AXES)
        for task in self.fine_tuning:
            self.check_one_of("fine_tuning", task, FINE_TUNING)
        for name in self.series:
            self.check_series(name)
        self.shapes  # noqa: B018  checks that every shape can be made

    def check(self, holds: bool, message: str):
        if not holds:
            raise InputError(f"study {self.name}: {message}.")

    def check_one_of(self, name: str, value: str, known):
        self.check(value in known, f"{name}: {value} is not one of {', '.join(known)}")

    def check_series(self, name: str):
        """
        Raises:
            InputError: the series cannot be trained, or a run would silently differ from what it describes.
        """
        series, place = self.series[name], f"series {name}"
        objective = series.get("objective", self.objective)
        self.check_one_of(f"{place}: objective", objective, (*OBJECTIVES, *TASKS))
        is_encoder = objective in ("mlm", "mlm+nsp")
        self.check(is_encoder or not self.fine_tuning, f"{place}: fine_tuning needs the objective mlm or mlm+nsp")
        for stage in (*self.stages(name), *self.stages(name, of_grid=True)):
            self.check_stage(f"{place}: pretraining", stage, objective)
        lengths = {len(value) for value in series.values() if isinstance(value, list)}
        self.check(len(lengths) <= 1 and 0 not in lengths, f"{place}: lists need one value for each shape")
        self.check(("equal" in series) == ("to" in series), f"{place}: equal and to need each other")
        if "to" in series:
            self.check_one_of(f"{place}: equal", series["equal"], EQUAL)
            self.check(has_feed_forward(objective), f"{place}: equal: {objective} has no feed-forward network")
            references = [other for other, entries in self.series.items() if "to" not in entries]
            self.check_one_of(f"{place}: to", series["to"], references)

    def check_stage(self, place: str, stage: dict, objective: str):
        settings = TASKS[objective].settings if objective in TASKS else {}
        for name in (*STAGE, *(name for name, is_required in settings.items() if is_required)):
            self.check(isinstance(stage.get(name), int), f"{place}: {name} is missing, or not an integer")
        for name in SET_BY_THE_STUDY:
            self.check(name not in stage, f"{place}: {name} is set by the study")
        for name in stage if objective in TASKS else ():
            self.check_one_of(place, name, (*STAGE, *settings))

    def stages(self, series: str, of_grid: bool = False) -> list[dict]:
        """Returns the stages of pretraining with the arguments of a series, or those of its runs of the grid."""
        changes = {**self.series[series].get("pretraining", {}), **(self.grid if of_grid else {})}
        return [{**stage, **changes} for stage in self.pretraining]

    def stages_on_text(self) -> list[tuple[str, dict]]:
        """Returns the distinct stages of pretraining on text, with their objectives and places in the study."""
        stages: list[tuple[str, dict]] = []
        for name, series in self.series.items():
            objective = series.get("objective", self.objective)
            for key, of_grid in (("pretraining", False), ("grid", True)):
                for stage in self.stages(name, of_grid) if objective not in TASKS else ():
                    stage = {**stage, "objective": objective}
                    if stage not in [other for _, other in stages]:
                        stages.append((f"series {name}: {key}", stage))
        return stages

    @cached_property
    def shapes(self) -> dict[str, list[dict]]:
        """
        The fields of every shape's configuration by series, with feed-forward widths that make shapes equal.

        Raises:
            InputError: a shape cannot be made.
        """
        shapes: dict[str, list[dict]] = {}
        for name, series in sorted(self.series.items(), key=lambda item: "to" in item[1]):
            shapes[name] = [self.shape(name, series, point, shapes) for point in range(shape_count(series))]
        return {name: shapes[name] for name in self.series}

    def shape(self, name: str, series: dict, point: int, references: dict[str, list[dict]]) -> dict:
        changes = {key: value[point] if isinstance(value, list) else value for key, value in series.items()}
        objective = changes.pop("objective", self.objective)
        changes.pop("pretraining", None)
        equal, to = changes.pop("equal", None), changes.pop("to", None)
        fields_set = {
            "vocab_size": self.stages(name)[-1].get("vocab_size", FixedHeadBertConfig().vocab_size),
            "max_position_embeddings": max(stage["max_seq_length"] for stage in self.stages_of_all(name)),
            "is_decoder": objective == "clm",
            **self.model,
            **changes,
        }
        for key in SHAPE_FIELDS:
            self.check(key in fields_set, f"series {name}: {key} is missing, here and under model")
        length = self.stages(name)[-1]["max_seq_length"]
        try:
            if to is not None:
                reference = references[to][self.reference_point(name, point)]
                goal = EQUAL[equal](preset_config("tiny", **reference), length)
                fields_set["intermediate_size"] = matching_width(fields_set, goal, EQUAL[equal], length)
                too_large = f"series {name}: shape {point + 1} has more {equal} than {to} without feed-forward"
                self.check(fields_set["intermediate_size"] > 0, too_large)
            config = preset_config("tiny", **fields_set)
        except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"study {self.name}, series {name}: {error.__cause__ or error}") from error
        sizes = {*zip(config.head_sizes, config.value_head_sizes, config.neuron_counts, strict=True)}
        self.check(len(sizes) == 1, f"series {name}: all layers of a shape must be alike")
        return fields_set | {"attention_head_size": config.head_dim}

    def reference_point(self, name: str, point: int) -> int:
        """Returns the index in the series `to` of the shape that a shape is made equal to."""
        to = self.series[name]["to"]
        if shape_count(self.series[to]) == 1:
            return 0
        values, others = (values_by_shape(self.series[one], self.axis) for one in (name, to))
        is_found = values[point] is not None and others.count(values[point]) == 1
        self.check(is_found, f"series {name}: {to} needs one shape, or one with {self.axis} {values[point]}")
        return others.index(values[point])

    def stages_of_all(self, series: str) -> Iterator[dict]:
        yield from self.stages(series)
        for task, arguments in self.fine_tuning.items():
            yield {"max_seq_length": FINE_TUNING[task], **arguments}

    def run(self, series: str, point: int, learning_rate: float, seed: int, of_grid: bool = False) -> Run:
        return Run(
            series,
            point,
            self.series[series].get("objective", self.objective),
            self.shapes[series][point],
            self.stages(series, of_grid),
            {} if of_grid else self.fine_tuning,
            learning_rate,
            seed,
            of_grid,
        )

    def run_of(self, record: Record) -> Run | None:
        """Returns the run of this study with the place, learning rate and seed of a record."""
        if record.series in self.shapes and record.point < len(self.shapes[record.series]):
            return self.run(record.series, record.point, record.learning_rate, record.seed, record.of_grid)
        return None

    def labels(self, run: Run) -> dict:
        """Returns the fields of a record that describe the place of a run in the study."""
        series = self.series[run.series]
        return {
            "study": self.name,
            "question": self.question,
            "scale": self.scale,
            "axis": self.axis,
            "series": run.series,
            "point": run.point,
            "equal": series.get("equal"),
            "to": series.get("to"),
            "of_grid": run.of_grid,
            "to_point": self.reference_point(run.series, run.point) if "to" in series else None,
        }

    def places(self, share: tuple[int, int] = (1, 1)) -> list[tuple[str, int]]:
        """Returns a share of all shapes as (series, point): (1, 2) is every second one, beginning with the first."""
        number, of = share
        every = [(series, point) for series, shapes in self.shapes.items() for point in range(len(shapes))]
        return every[number - 1 :: of]

    def runs(self, records: list[Record], share: tuple[int, int] = (1, 1)) -> list[Run]:
        """
        Returns the runs that can start now, shape by shape: those of the grid, then those of its extension, then the
        best rate with the remaining seeds.
        """
        results, ready = results_by_run(records), []
        for place in self.places(share):
            grid, rate = self.search(*place, results)
            ready += grid if rate is None else [self.run(*place, rate, seed) for seed in self.seeds]
        return [run for run in ready if (run.series, run.point, run.key) not in results]

    def planned_runs(self, records: list[Record], share: tuple[int, int] = (1, 1)) -> list[Run]:
        """Returns all distinct runs as far as they are known, with the first rate where none is chosen yet."""
        results = results_by_run(records)
        planned: dict[str, Run] = {}
        for place in self.places(share):
            grid, rate = self.search(*place, results)
            for run in (*grid, *(self.run(*place, rate or self.learning_rates[0], seed) for seed in self.seeds)):
                planned.setdefault(run.key, run)
        return list(planned.values())

    def search(self, series: str, point: int, results: dict[tuple, dict]) -> tuple[list[Run], float | None]:
        """Returns the known runs that choose the learning rate of a shape, and the rate once it is chosen."""
        grid = [self.run(series, point, rate, self.seeds[0], bool(self.grid)) for rate in self.learning_rates]
        while all((series, point, run.key) in results for run in grid):
            trained = [(results[series, point, run.key], run) for run in grid]
            rate = self.rate_beyond([(result["loss"], run.learning_rate) for result, run in trained])
            if rate is None:
                return grid, lowest_loss(trained).learning_rate
            grid.append(self.run(series, point, rate, self.seeds[0], bool(self.grid)))
        return grid, None

    def rate_beyond(self, losses: list[tuple[float | None, float]]) -> float | None:
        """
        Returns the next learning rate after those trained, given their losses; None if the best rate is not at an end
        or the grid must not be extended further.
        """
        if not self.extend_learning_rates or len(losses) == len(self.learning_rates) + MOST_EXTENSIONS:
            return None
        by_rate = {rate: math.inf if loss is None else loss for loss, rate in losses}
        rates = sorted(by_rate)
        ratio = rates[1] / rates[0]
        diverged = min(by_rate.values()) == math.inf
        if diverged or by_rate[rates[0]] < min(by_rate[rate] for rate in rates[1:]):
            return float(f"{rates[0] / ratio:.3g}")
        if by_rate[rates[-1]] < min(by_rate[rate] for rate in rates[:-1]):
            return float(f"{rates[-1] * ratio:.3g}")
        return None


def results_by_run(records: list[Record]) -> dict[tuple, dict]:
    """Returns results by series, point and key."""
    return {(record.series, record.point, record.key): record.results for record in records}


def lowest_loss(candidates: list[tuple[dict, Candidate]]) -> Candidate:
    """Returns the candidate with the lowest held-out loss; diverged runs come last."""
    return min(candidates, key=lambda pair: math.inf if pair[0]["loss"] is None else pair[0]["loss"])[1]


def parse_share(share: str) -> tuple[int, int]:
    """Parses "1/2" to (1, 2)."""
    number, slash, of = share.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InputError(f"{share}: give a fraction such as 1/2, for every second shape.", "share")
    return int(number), int(of)


def tokens_of(stage: dict) -> int:
    return stage["total_train_batch_size"] * stage["max_seq_length"] * stage["max_steps"]


def values_by_shape(series: dict, name: str) -> list:
    """Returns a field of each shape of a series; None where the series does not set it."""
    value = series.get(name)
    return value if isinstance(value, list) else [value] * shape_count(series)


def shape_count(series: dict) -> int:
    return next((len(value) for value in series.values() if isinstance(value, list)), 1)


def matching_width(shape: dict, goal: int, count, length: int) -> int:
    """Returns the feed-forward width with which `count`, linear in the width, is nearest to `goal`."""
    at = [count(preset_config("tiny", **{**shape, "intermediate_size": width}), length) for width in (1, 2)]
    return 1 + round((goal - at[0]) / (at[1] - at[0]))


def named_studies() -> dict[str, dict]:
    """Returns the studies in the files of STUDIES by name."""
    return {name: study for file in STUDIES for name, study in read_yaml(file).items() if name != "settings"}


def load_study(name: str, scale: str | None = None) -> Study:
    """
    Load a named study, or a study from a YAML file. The keys of its `scale` replace those outside.

    Raises:
        InputError: there is no such study or scale, or it is invalid.
    """
    named, file = named_studies(), Path(name)
    if name not in named and file.suffix not in (".yaml", ".yml"):
        raise InputError(f"study {name}: give one of {', '.join(named)}, or a YAML file.")
    entries = dict(named[name] if name in named else read_yaml(file))
    scales = entries.pop("scales", {})
    if scale not in (scales or {None}):
        raise InputError(f"study {name} has the scales {', '.join(scales) or 'none'}.", "scale")
    entries |= {**(scales.get(scale) or {}), "name": file.stem, "scale": scale}
    if isinstance(entries.get("pretraining"), dict):
        entries["pretraining"] = [entries["pretraining"]]
    try:
        return Study(**entries)
    except (TypeError, StrictDataclassError) as error:  # a key that is missing or unknown, or a wrong type
        reason = str(error).replace("Study.__init__() ", "").replace("\n    ", " ")
        raise InputError(f"study {name}: {reason}; docs/study_and_theory.md explains the keys.") from error
