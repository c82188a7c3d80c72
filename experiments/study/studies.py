"""
Studies: tables of runs, written as YAML. Those of this folder have names; docs/study.md explains every key.

A study has series of shapes. Of each shape, every learning rate of the grid is trained with the first seed, and the
best of them with the other seeds, so that all shapes are tuned alike. With `extend_learning_rates` a grid whose best
rate is at its end goes on beyond it first. With `grid` the runs of the grid are shorter, and the first seed is trained
in full too.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TypeVar, get_args

from huggingface_hub.errors import StrictDataclassError

from fixedbert.conversion.growing import heads_of
from fixedbert.counts import forward_flops, parameters
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.presets import SHAPE_FIELDS, preset_config
from fixedbert.pretraining.arguments import Objective
from fixedbert.support.checksums import stable_hash
from fixedbert.support.errors import InputError
from fixedbert.support.files import read_yaml, reading

from .records import AXES, COUNTED, Record
from .registry import STAGE, STUDIES, TASKS, has_feed_forward

OBJECTIVES = get_args(Objective)  # on a text, beside TASKS
FINE_TUNING = {"mnli": 128, "squad": 384}  # tasks, with the length of their rows where a study does not say
# In what shapes can be made equal; both without embeddings.
EQUAL = {"parameters": lambda config, length: parameters(config)[1], "flops": forward_flops}
GIVEN_BY_THE_STUDY = ("learning_rate", "seed", "objective", "output_dir", "config_name", "config_overrides")
MOST_EXTENSIONS = 6  # learning rates beyond the grid, of a shape
REQUIRED = ("question", "axis", "model", "series", "learning_rates", "seeds", "pretraining")
NOT_IN_YAML = ("name", "scale")  # fields of a study that are not its author's
Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Run:
    """One training: a shape, a learning rate and a seed, with all that decides its result but the text itself."""

    series: str
    point: int  # of the series
    objective: str
    model: dict  # fields of FixedHeadBertConfig
    pretraining: list[dict]  # arguments of run_pretraining.py, stage by stage
    fine_tuning: dict[str, dict]  # arguments of run_glue.py and run_squad.py, by task
    learning_rate: float
    seed: int
    of_grid: bool = False  # a shorter run that only chooses the learning rate

    @cached_property
    def key(self) -> str:
        """A fingerprint of the training, the same in every study."""
        settings = asdict(self)
        del settings["series"], settings["point"], settings["of_grid"]
        return stable_hash(settings)

    @property
    def config(self) -> FixedHeadBertConfig:
        return preset_config("tiny", **self.model)

    @property
    def length(self) -> int:
        """Tokens of a row, in the last stage."""
        return self.pretraining[-1]["max_seq_length"]

    @property
    def name(self) -> str:
        heads = "; ".join(map(str, dict.fromkeys(heads_of(self.config))))
        place = f"{self.series}, shape {self.point + 1} ({heads}), learning rate {self.learning_rate:g}"
        return f"{place}, seed {self.seed}{', grid' if self.of_grid else ''}"

    @property
    def tokens(self) -> int:
        """Tokens of pretraining, if all rows are full."""
        return sum(tokens_of(stage) for stage in self.pretraining)

    @property
    def training_flops(self) -> int:
        """FLOPs of the layers in pretraining: three times the forward pass."""
        return sum(
            3 * forward_flops(self.config, stage["max_seq_length"]) * tokens_of(stage) for stage in self.pretraining
        )


@dataclass(frozen=True)
class Study:
    """
    A table of runs.

    Args:
        name, scale: of the study, and of its scale if it has scales.
        question: what the study asks, for a person.
        axis: what its pictures have on the horizontal axis, one of AXES.
        model: fields of FixedHeadBertConfig that all shapes share.
        series: names, each with the fields of its shapes; lists in a series have a value for each of its shapes. A
            series can have an `objective` of its own and `pretraining` arguments of its own, and be made `equal` in
            parameters or flops `to` another one, by its feed-forward width: each shape to the one with the same value
            on the axis, or to the only one.
        learning_rates: the grid.
        seeds: of the runs; the first one is also the grid's.
        objective: one of OBJECTIVES or TASKS.
        pretraining: arguments of run_pretraining.py, or a list of them: stages that go on one from another.
        fine_tuning: for any of mnli and squad, arguments of run_glue.py or run_squad.py.
        extend_learning_rates: where the best rate of a grid is the highest or the lowest, and no other is as good,
            train the next one by the ratio of the grid, until it is not, or for MOST_EXTENSIONS rates.
        grid: arguments of pretraining that the runs of the grid have instead, to be shorter; the best rate is then
            trained in full with every seed.
    """

    name: str
    question: str
    axis: str
    model: dict
    series: dict[str, dict]
    learning_rates: list[float]
    seeds: list[int]
    pretraining: list[dict]
    objective: str = "clm"
    fine_tuning: dict[str, dict] = field(default_factory=dict)
    extend_learning_rates: bool = False
    grid: dict = field(default_factory=dict)
    scale: str | None = None

    def __post_init__(self):
        check = self.check
        check(isinstance(self.question, str), "question: a text is needed")
        check(self.axis in AXES, f"axis: {self.axis}: there are {', '.join(AXES)}")
        of_configuration = self.axis == COUNTED or hasattr(FixedHeadBertConfig(), self.axis)
        check(of_configuration, f"axis: {self.axis} is no property of FixedHeadBertConfig")
        for name in ("learning_rates", "seeds"):
            values, kinds = getattr(self, name), (int, float) if name == "learning_rates" else int
            check(isinstance(values, list) and len(values) > 0, f"{name}: a list of numbers is needed")
            for value in values:
                check(
                    isinstance(value, kinds) and not isinstance(value, bool),
                    f"{name}: {value} is no number that YAML knows; it takes 1.0e-3 for one",
                )
                check(name == "seeds" or 0 < value < math.inf, f"{name}: {value} is not a finite number above 0")
            check(len(set(values)) == len(values), f"{name}: each can be there once")
        check(isinstance(self.extend_learning_rates, bool), "extend_learning_rates: true or false is needed")
        check(
            len(self.learning_rates) > 1 or not self.extend_learning_rates,
            "extend_learning_rates: a grid of two learning rates or more is needed",
        )
        for name in ("model", "fine_tuning", "grid"):
            check(isinstance(getattr(self, name), dict), f"{name}: names with their values are needed")
        check(isinstance(self.series, dict) and len(self.series) > 0, "series: names with shapes are needed")
        stages = self.pretraining if isinstance(self.pretraining, list) else [None]
        for stage in stages:
            check(isinstance(stage, dict), "pretraining: arguments with their values are needed")
            self.check_stage("", stage)
        for name, series in self.series.items():
            self.check_series(name, series)
        for task in self.fine_tuning:
            check(task in FINE_TUNING, f"fine_tuning: {task}: there are {' and '.join(FINE_TUNING)}")
        self.shapes  # noqa: B018  every shape can be made

    def check(self, holds: bool, message: str):
        """Raises InputError, with the name of the study and the message, if something does not hold."""
        if not holds:
            raise InputError(f"study {self.name}: {message}.")

    def check_series(self, name: str, series: dict):
        """Raises InputError where a series cannot be trained as it says."""
        check = self.check
        check(isinstance(series, dict), f"series {name}: fields with their values are needed")
        objective = series.get("objective", self.objective)
        known = (*OBJECTIVES, *TASKS)
        check(objective in known, f"series {name}: objective {objective}: there are {', '.join(known)}")
        check(
            not (self.fine_tuning and objective in ("clm", *TASKS)),
            f"series {name}: fine_tuning is for encoders, objective mlm or mlm+nsp, not {objective}",
        )
        check(isinstance(series.get("pretraining", {}), dict), f"series {name}: pretraining: arguments are needed")
        in_full, of_grid = self.stages(name), self.stages(name, of_grid=True)
        check(not self.grid or of_grid != in_full, f"grid: it changes nothing in series {name}; give max_steps")
        for stage in (*in_full, *of_grid):
            self.check_stage(f"series {name}: ", stage)
            if objective in TASKS:
                check(len(in_full) == 1, f"series {name}: pretraining: {objective} has a single stage")
                check(self.axis != COUNTED, f"axis: {self.axis} are not counted for {objective}")
                self.check_task(f"series {name}: ", stage, objective)
        lengths = {len(value) for value in series.values() if isinstance(value, list)}
        check(len(lengths) <= 1, f"series {name}: lists of {sorted(lengths)} values; they need as many as shapes")
        check(0 not in lengths, f"series {name}: a list without values; it needs one for each shape")
        check(
            ("equal" in series) == ("to" in series),
            f"series {name}: equal (in what) and to (which series) go together",
        )
        if "to" in series:
            check(series["equal"] in EQUAL, f"series {name}: equal: {series['equal']}: there are {', '.join(EQUAL)}")
            check(
                has_feed_forward(objective),
                f"series {name}: equal: {objective} has no feed-forward network to widen; leave equal and to out",
            )
            check(series["to"] in self.series, f"series {name}: to: {series['to']}: there is no such series")
            check(
                "to" not in self.series[series["to"]],
                f"series {name}: to: {series['to']}: it is itself made equal to another one",
            )

    def check_stage(self, place: str, stage: dict):
        for name in STAGE:
            number = stage.get(name)
            if type(number) is not int or number < 1:  # true is an int too
                raise InputError(
                    f"study {self.name}: {place}pretraining: {name} is missing, or not a whole number above 0."
                )
        for name in GIVEN_BY_THE_STUDY:
            if name in stage:
                raise InputError(
                    f"study {self.name}: {place}pretraining: {name} is not for a stage, the study sets it."
                )
        if "stages" in stage:
            raise InputError(
                f"study {self.name}: {place}pretraining: stages: the shapes of a study do not grow, and its costs are "
                "of one shape; leave it out."
            )
        settings = stage.get("lr_scheduler_kwargs")
        decay = settings.get("num_decay_steps") if isinstance(settings, dict) else None
        if stage.get("lr_scheduler_type") == "warmup_stable_decay" and type(decay) is not int:
            raise InputError(
                f"study {self.name}: {place}pretraining: lr_scheduler_kwargs: num_decay_steps is missing, or not a "
                "whole number; warmup_stable_decay needs it."
            )

    def check_task(self, place: str, stage: dict, objective: str):
        """A stage has the settings of the task `objective`."""
        settings = TASKS[objective].settings
        for name, value in stage.items():
            if name not in (*STAGE, *settings):
                known = ", ".join((*STAGE, *settings))
                raise InputError(f"study {self.name}: {place}pretraining: {name}: {objective} has {known}.")
            if type(value) is not int or value < 0:  # true is an int too
                raise InputError(f"study {self.name}: {place}pretraining: {name}: {value} is not a whole number.")
        for name, is_needed in settings.items():
            if is_needed and name not in stage:
                raise InputError(f"study {self.name}: {place}pretraining: {name} is missing, which {objective} needs.")

    def stages(self, series: str, of_grid: bool = False) -> list[dict]:
        """Stages of pretraining, with the arguments of the series and, for a run of the grid, its own."""
        own = {**self.series[series].get("pretraining", {}), **(self.grid if of_grid else {})}
        return [{**stage, **own} for stage in self.pretraining]

    def stages_on_text(self) -> list[tuple[str, dict]]:
        """
        The stages of pretraining on text, with their objective: of every series in full and of the grid, each with its
        place in the study. Of stages that are the same, the first.
        """
        found: list[tuple[str, dict]] = []
        for name, series in self.series.items():
            objective = series.get("objective", self.objective)
            for key, of_grid in (("pretraining", False), ("grid", True)):
                for stage in self.stages(name, of_grid) if objective not in TASKS else ():
                    stage = {**stage, "objective": objective}
                    if stage not in [one for _, one in found]:
                        found.append((f"series {name}: {key}", stage))
        return found

    @cached_property
    def shapes(self) -> dict[str, list[dict]]:
        """
        By series, the fields of every shape's configuration; feed-forward widths are those after widening.

        Raises:
            InputError: a shape cannot be made.
        """
        made: dict[str, list[dict]] = {}
        for name, series in sorted(self.series.items(), key=lambda item: "to" in item[1]):
            made[name] = [self.shape(name, series, point, made) for point in range(shape_count(series))]
        return {name: made[name] for name in self.series}

    def shape(self, name: str, series: dict, point: int, made: dict[str, list[dict]]) -> dict:
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
        self.check_fields(name, fields_set, objective)
        length = self.stages(name)[-1]["max_seq_length"]
        try:
            if to is not None:
                goal = EQUAL[equal](preset_config("tiny", **made[to][self.reference_point(name, point)]), length)
                fields_set["intermediate_size"] = matching_width(fields_set, goal, EQUAL[equal], length)
                if fields_set["intermediate_size"] < 1:
                    raise InputError(
                        f"study {self.name}, series {name}: its shape {point + 1} has more {equal} than that of {to} "
                        "even without a feed-forward network."
                    )
            config = preset_config("tiny", **fields_set)
        except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"study {self.name}, series {name}: {error.__cause__ or error}") from error
        if len(set(config.head_sizes)) > 1:
            raise InputError(f"study {self.name}, series {name}: the heads of a shape have one size in all layers.")
        return fields_set | {"attention_head_size": config.head_dim}

    def check_fields(self, name: str, given: dict, objective: str):
        """Raises InputError where a shape of the series `name` lacks a field, or has one that a study cannot vary."""
        check, known = self.check, FixedHeadBertConfig()
        for key in given:
            check(hasattr(known, key), f"series {name}: {key} is no field of FixedHeadBertConfig")
        for key in ("value_head_size", "layer_attention_heads", "intermediate_size"):  # a record would not say them
            check(not isinstance(given.get(key), list), f"series {name}: {key}: a study's layers are all alike")
        has_none = objective not in TASKS or given.get("head_embedding") is None
        check(has_none, f"series {name}: head_embedding: {objective} has no head embeddings")
        for key in SHAPE_FIELDS:
            check(key in given, f"series {name}: {key} is missing, here and under model")

    def reference_point(self, name: str, point: int) -> int:
        """The shape that shape `point` of the series `name` was made equal to: its place in the series `to`."""
        to = self.series[name]["to"]
        if shape_count(self.series[to]) == 1:
            return 0
        values, others = (values_by_shape(self.series[one], self.axis) for one in (name, to))
        if values[point] is None or others.count(values[point]) != 1:
            raise InputError(
                f"study {self.name}, series {name}: {to} needs one shape, or one with {self.axis} {values[point]}."
            )
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
        """The run at the place in this study, and with the learning rate and seed, that a record has."""
        if record["series"] in self.shapes and record["point"] < len(self.shapes[record["series"]]):
            names = ("series", "point", "learning_rate", "seed", "of_grid")
            return self.run(*(record[name] for name in names))
        return None

    def labels(self, run: Run) -> dict:
        """The place of a run in the study, as fields of its record."""
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
        """Every shape as (series, point); of them the `share`: of (1, 2) every second, from the first."""
        number, of = share
        every = [(series, point) for series, shapes in self.shapes.items() for point in range(len(shapes))]
        return every[number - 1 :: of]

    def runs(self, records: list[Record], share: tuple[int, int] = (1, 1)) -> list[Run]:
        """
        What can be run now, after the runs of `records`: shape by shape, so that the first ones are complete first.

        The grid comes first, then its extension; the best rate goes on to the other seeds.
        """
        results, ready = results_by_run(records), []
        for place in self.places(share):
            grid, rate = self.search(*place, results)
            ready += grid if rate is None else [self.run(*place, rate, seed) for seed in self.seeds]
        return [run for run in ready if (run.series, run.point, run.key) not in results]

    def planned_runs(self, records: list[Record], share: tuple[int, int] = (1, 1)) -> list[Run]:
        """
        All runs as far as `records` let them be known, each training once. Where no learning rate is chosen yet, those
        of the other seeds have the first rate.
        """
        results = results_by_run(records)
        planned: dict[str, Run] = {}
        for place in self.places(share):
            grid, rate = self.search(*place, results)
            for run in (*grid, *(self.run(*place, rate or self.learning_rates[0], seed) for seed in self.seeds)):
                planned.setdefault(run.key, run)
        return list(planned.values())

    def search(self, series: str, point: int, results: dict[tuple, dict]) -> tuple[list[Run], float | None]:
        """The runs that choose the learning rate of a shape, as far as they are known; the rate once it is chosen."""
        grid = [self.run(series, point, rate, self.seeds[0], bool(self.grid)) for rate in self.learning_rates]
        while all((series, point, run.key) in results for run in grid):
            found = [(results[series, point, run.key], run) for run in grid]
            rate = self.rate_beyond([(result["loss"], run.learning_rate) for result, run in found])
            if rate is None:
                return grid, lowest_loss(found).learning_rate
            grid.append(self.run(series, point, rate, self.seeds[0], bool(self.grid)))
        return grid, None

    def rate_beyond(self, losses: list[tuple[float | None, float]]) -> float | None:
        """
        The learning rate that comes next after those trained, with their losses; None where no other is better than
        the best within, or the grid is not to be extended further.
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
    """By series, point and key."""
    return {(record["series"], record["point"], record["key"]): record["results"] for record in records}


def lowest_loss(candidates: list[tuple[dict, Candidate]]) -> Candidate:
    """The candidate with the lowest held-out loss; one that diverged only if all did."""
    return min(candidates, key=lambda pair: math.inf if pair[0]["loss"] is None else pair[0]["loss"])[1]


def parse_share(share: str) -> tuple[int, int]:
    """(1, 2) of "1/2"."""
    number, slash, of = share.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InputError(f"{share}: of the form 1/2, for every second shape.", "share")
    return int(number), int(of)


def tokens_of(stage: dict) -> int:
    return stage["total_train_batch_size"] * stage["max_seq_length"] * stage["max_steps"]


def values_by_shape(series: dict, name: str) -> list:
    """The field `name` of each shape of a series; None where the series does not say."""
    value = series.get(name)
    return value if isinstance(value, list) else [value] * shape_count(series)


def shape_count(series: dict) -> int:
    return next((len(value) for value in series.values() if isinstance(value, list)), 1)


def matching_width(shape: dict, goal: int, count, length: int) -> int:
    """The feed-forward width with which `count` of the shape is nearest to `goal`, linear in it."""
    at = [count(preset_config("tiny", **{**shape, "intermediate_size": width}), length) for width in (1, 2)]
    return 1 + round((goal - at[0]) / (at[1] - at[0]))


def named_studies() -> dict[str, dict]:
    """The studies in the files of STUDIES by name."""
    files = [read_yaml(file) for file in STUDIES]
    return {name: study for entries in files for name, study in entries.items() if name != "settings"}


def load_study(name: str, scale: str | None = None) -> Study:
    """
    A study by its name in studies.yaml, or from a YAML file.

    The keys under `scales` and the name of the scale replace those outside.

    Raises:
        InputError: there is no such study or scale, or something in it makes no sense.
    """
    named, file = named_studies(), Path(name)
    if name not in named and file.suffix not in (".yaml", ".yml"):
        raise InputError(f"study {name}: there are {', '.join(named)}, or a YAML file of your own.")
    entries = dict(named[name] or {} if name in named else read_yaml(file))
    place = f"study {name}" if name in named else str(file)
    scales = entries.pop("scales", {})
    if not isinstance(scales, dict) or not isinstance(scales.get(scale), dict | type(None)):
        raise InputError(f"{place}: scales map names to keys of a study.")
    if scale is None and scales:
        raise InputError(f"is missing: study {name} has {', '.join(scales)}.", "scale")
    if scale is not None and scale not in scales:
        raise InputError(f"{scale}: study {name} has {', '.join(scales) or 'none'}.", "scale")
    entries = {**entries, **(scales.get(scale) or {})}
    unknown = [key for key in entries if key not in {one.name for one in fields(Study)} - {*NOT_IN_YAML}]
    if unknown:
        raise InputError(f"{place}: {unknown[0]}: no such key; docs/study.md lists them.")
    entries |= {"name": file.stem, "scale": scale}
    if isinstance(entries.get("pretraining"), dict):
        entries["pretraining"] = [entries["pretraining"]]
    absent = [key for key in REQUIRED if key not in entries]
    if absent:
        raise InputError(f"{place}: {absent[0]} is missing.")
    with reading(place, "docs/study.md says what a study has", "makes no study"):
        return Study(**entries)
