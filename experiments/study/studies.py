"""
Studies: tables of runs that are defined in YAML files.

A study has series of shapes. Each shape is trained with all learning rates of a grid and the first seed, and then with
the best rate and the remaining seeds, so that all shapes are tuned equally. `extend_learning_rates` extends the grid
if the best rate is at an end. With `grid`, the runs that choose the learning rate are shorter, and the first seed is
trained again with the best rate.
"""

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar, get_args

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError

from experiments.head_size.tasks import STAGE, TASKS
from fixedbert.counts import forward_flops, parameters
from fixedbert.fine_tuning.fine_tune import FineTuningTask
from fixedbert.fine_tuning.glue import TextClassification
from fixedbert.fine_tuning.squad import QuestionAnswering
from fixedbert.loading.heads import heads_of, int_or_list
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.option_values import convert_all, input_errors
from fixedbert.options import Objective
from fixedbert.presets import SHAPE_FIELDS, preset_config
from fixedbert.pretraining.arguments import ARGUMENTS
from fixedbert.support.checksums import stable_hash
from fixedbert.support.errors import InputError, error_context
from fixedbert.support.files import read_yaml

from .records import AXES, Record

EXPERIMENTS = Path(__file__).parents[1]
STUDIES = (EXPERIMENTS / "study" / "studies.yaml", EXPERIMENTS / "head_size" / "studies.yaml")
OBJECTIVES = get_args(Objective)  # objectives on text; TASKS contains the others
FINE_TUNED: dict[str, type[FineTuningTask]] = {"mnli": TextClassification, "squad": QuestionAnswering}
# Quantities that can be equal in two shapes. Both exclude embeddings.
EQUAL = {"parameters": lambda config, length: parameters(config)[1], "flops": forward_flops}
SET_BY_THE_STUDY = ("learning_rate", "seed", "objective", "output_dir", "config_name", "config_overrides", "stages")
MOST_EXTENSIONS = 6  # maximum number of learning rates beyond the grid for each shape
Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Run:
    """
    One training run, with everything that determines its result except the text.

    Args:
        point: Index of the shape in the series.
        model: Fields of FixedHeadBertConfig.
        pretraining: Arguments of run_pretraining.py for each stage.
        fine_tuning: Maps tasks to arguments of run_glue.py or run_squad.py.
        of_grid: True for a shorter run whose only purpose is to choose the learning rate.
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
        """Hash of the training settings. Equal runs in different studies have the same key."""
        settings = asdict(self)
        del settings["series"], settings["point"], settings["of_grid"]
        return stable_hash(settings)

    @property
    def config(self) -> FixedHeadBertConfig:
        return preset_config("tiny", **self.model)

    @property
    def length(self) -> int:
        """The sequence length in the last stage."""
        return self.pretraining[-1]["max_seq_length"]

    @property
    def name(self) -> str:
        heads = "; ".join(map(str, dict.fromkeys(heads_of(self.config))))
        place = f"{self.series}, shape {self.point + 1} ({heads}), learning rate {self.learning_rate:g}"
        return f"{place}, seed {self.seed}{', grid' if self.of_grid else ''}"

    @property
    def tokens(self) -> int:
        """The number of pretraining tokens if rows have no padding."""
        return sum(tokens_of(stage) for stage in self.pretraining)

    @property
    def training_flops(self) -> int:
        """FLOPs of pretraining in the layers, three times those of the forward pass."""
        return sum(
            3 * forward_flops(self.config, stage["max_seq_length"]) * tokens_of(stage) for stage in self.pretraining
        )


@strict
@dataclass
class Study:
    """
    A table of runs.

    Args:
        scale: Name of the scale, if the study has scales.
        question: The question that the study answers.
        axis: Horizontal axis of the figures, a key of AXES.
        model: Fields of FixedHeadBertConfig that all shapes have in common.
        series: Maps each series to the fields of its shapes. A list has one value per shape, which can be a list with
            one number per layer. A series can set its own `objective` and `pretraining` arguments. With `equal`
            ("parameters" or "flops") and `to` (another series), feed-forward widths are chosen so that each shape
            has as many parameters or FLOPs as the shape of `to` with the same value on the axis, or its only shape.
        learning_rates: The grid of learning rates.
        seeds: Seeds of the runs. The grid uses the first seed.
        pretraining: Arguments of run_pretraining.py for each stage.
        objective: One of OBJECTIVES or TASKS.
        fine_tuning: Maps "mnli" and "squad" to arguments of run_glue.py and run_squad.py.
        extend_learning_rates: While the best rate is at an end of the grid, trains with the next rate in the same
            ratio, up to MOST_EXTENSIONS times.
        grid: Pretraining arguments that shorten the runs of the grid. The best rate is then trained in complete runs
            with all seeds.
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
        for task, arguments in self.fine_tuning.items():
            self.check_one_of("fine_tuning", task, FINE_TUNED)
            with error_context(f"study {self.name}, fine_tuning: {task}"):
                given = {name: value for name, value in arguments.items() if name != "train_batch_size"}
                with input_errors():
                    convert_all(given, FINE_TUNED[task].arguments)
            self.check("max_seq_length" in arguments, f"fine_tuning: {task}: max_seq_length is missing")
        for name in self.series:
            self.check_series(name)
        self.shapes  # noqa: B018  raises an error if a shape is invalid

    def check(self, holds: bool, message: str):
        if not holds:
            raise InputError(f"study {self.name}: {message}.")

    def check_one_of(self, name: str, value: str | None, known):
        self.check(value in known, f"{name}: {value} is not one of {', '.join(known)}")

    def check_series(self, name: str):
        """
        Raises:
            InputError: If the series is invalid, or if a run would silently differ from its description.
        """
        series, place, objective = self.series[name], f"series {name}", self.objective_of(name)
        self.check_one_of(f"{place}: objective", objective, (*OBJECTIVES, *TASKS))
        is_encoder = objective in ("mlm", "mlm+nsp")
        self.check(is_encoder or not self.fine_tuning, f"{place}: fine_tuning needs the objective mlm or mlm+nsp")
        for stage in (*self.stages(name), *self.stages(name, of_grid=True)):
            self.check_stage(f"{place}: pretraining", stage, objective)
        lengths = {len(value) for value in series.values() if isinstance(value, list)}
        self.check(len(lengths) <= 1 and 0 not in lengths, f"{place}: lists need one value for each shape")
        if "to" in series or "equal" in series:
            self.check_one_of(f"{place}: equal", series.get("equal"), EQUAL)
            self.check(has_feed_forward(objective), f"{place}: equal: {objective} has no feed-forward network")
            references = [other for other, entries in self.series.items() if "to" not in entries]
            self.check_one_of(f"{place}: to", series.get("to"), references)

    def check_stage(self, place: str, stage: dict, objective: str):
        settings = TASKS.get(objective, ())
        for name in (*STAGE, *settings):
            self.check(isinstance(stage.get(name), int), f"{place}: {name} is missing, or not an integer")
        for name in SET_BY_THE_STUDY:
            self.check(name not in stage, f"{place}: {name} is set by the study")
        if objective in TASKS:
            for name in stage:
                self.check_one_of(place, name, (*STAGE, *settings))
        else:
            with error_context(f"study {self.name}, {place}"), input_errors():
                convert_all(stage, ARGUMENTS)

    def objective_of(self, series: str) -> str:
        return self.series[series].get("objective", self.objective)

    def stages(self, series: str, of_grid: bool = False) -> list[dict]:
        """Returns the pretraining stages for a series, for complete runs or for the runs of the grid."""
        changes = {**self.series[series].get("pretraining", {}), **(self.grid if of_grid else {})}
        return [{**stage, **changes} for stage in self.pretraining]

    @cached_property
    def shapes(self) -> dict[str, list[dict]]:
        """
        The configuration fields for the shapes of each series, with the feed-forward widths that make shapes equal.

        Raises:
            InputError: If a shape is invalid.
        """
        shapes: dict[str, list[dict]] = {}
        for name, series in sorted(self.series.items(), key=lambda item: "to" in item[1]):
            shapes[name] = [self.shape(name, series, point, shapes) for point in range(shape_count(series))]
        return {name: shapes[name] for name in self.series}

    def shape(self, name: str, series: dict, point: int, references: dict[str, list[dict]]) -> dict:
        changes = {key: value[point] if isinstance(value, list) else value for key, value in series.items()}
        for key in ("objective", "pretraining", "equal", "to"):
            changes.pop(key, None)
        fields_set = {
            "vocab_size": self.stages(name)[-1].get("vocab_size", FixedHeadBertConfig().vocab_size),
            "max_position_embeddings": max(
                stage["max_seq_length"] for stage in (*self.stages(name), *self.fine_tuning.values())
            ),
            "is_decoder": self.objective_of(name) == "clm",
            **self.model,
            **changes,
        }
        for key in (*self.model, *changes):
            self.check(key in FixedHeadBertConfig.__dataclass_fields__, f"series {name}: models have no field {key}")
        for key in SHAPE_FIELDS:
            self.check(key in fields_set, f"series {name}: {key} is missing; set it here or under model")
        length = self.stages(name)[-1]["max_seq_length"]
        try:
            reference: dict | None = None
            if "to" in series:
                equal, to = series["equal"], series["to"]
                reference = references[to][self.reference_point(name, point)]
                goal = EQUAL[equal](preset_config("tiny", **reference), length)
                fields_set["intermediate_size"] = matching_width(fields_set, goal, EQUAL[equal], length)
            config = preset_config("tiny", **fields_set)
        except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"study {self.name}, series {name}: {error.__cause__ or error}") from error
        fields_set["attention_head_size"] = int_or_list(config.head_sizes)
        by_layer = {
            "num_attention_heads": config.head_counts,
            "attention_head_size": config.head_sizes,
            "intermediate_size": config.neuron_counts,
        }
        is_same = fields_set == reference
        self.check(not is_same, f"series {name}: {series.get('to')} has the same shape, so nothing can differ")
        is_list = len({*by_layer.get(self.axis, ())}) > 1
        self.check(not is_list, f"series {name}: {self.axis} is the axis, so it must be one number for all layers")
        return fields_set

    def reference_point(self, name: str, point: int) -> int:
        """Returns the index of the shape in the series `to` whose parameters or FLOPs a shape has to match."""
        to = self.series[name]["to"]
        if shape_count(self.series[to]) == 1:
            return 0
        values, others = (values_by_shape(self.series[one], self.axis) for one in (name, to))
        is_found = values[point] is not None and others.count(values[point]) == 1
        self.check(
            is_found,
            f"series {name}: {to} must have exactly one shape with {self.axis} {values[point]}; add it there, remove "
            "it here, or refer to a series with only one shape",
        )
        return others.index(values[point])

    def run(self, series: str, point: int, learning_rate: float, seed: int, of_grid: bool = False) -> Run:
        return Run(
            series,
            point,
            self.objective_of(series),
            self.shapes[series][point],
            self.stages(series, of_grid),
            {} if of_grid else self.fine_tuning,
            learning_rate,
            seed,
            of_grid,
        )

    def run_of(self, record: Record) -> Run | None:
        """Returns the run with a record's position, learning rate and seed, or None if the shape does not exist."""
        if record.series in self.shapes and record.point < len(self.shapes[record.series]):
            return self.run(record.series, record.point, record.learning_rate, record.seed, record.of_grid)
        return None

    def labels(self, run: Run) -> dict:
        """Returns those fields of a record that describe the position of a run in the study."""
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
        """Returns (series, point) for the shapes in a share. The share (1, 2) has every second shape."""
        number, of = share
        every = [(series, point) for series, shapes in self.shapes.items() for point in range(len(shapes))]
        return every[number - 1 :: of]

    def runs(self, records: list[Record], share: tuple[int, int] = (1, 1)) -> list[Run]:
        """
        Returns the runs that can start, shape by shape. The runs of the grid come first, then those of its extension,
        then those with the best rate and the remaining seeds.
        """
        results, ready = results_by_run(records), []
        for place in self.places(share):
            grid, rate = self.search(*place, results)
            ready += grid if rate is None else [self.run(*place, rate, seed) for seed in self.seeds]
        return [run for run in ready if (run.series, run.point, run.key) not in results]

    def planned_runs(self, records: list[Record], share: tuple[int, int] = (1, 1)) -> list[Run]:
        """Returns all distinct runs that are known. Uses the first learning rate for shapes without a chosen rate."""
        results = results_by_run(records)
        planned: dict[str, Run] = {}
        for place in self.places(share):
            grid, rate = self.search(*place, results)
            for run in (*grid, *(self.run(*place, rate or self.learning_rates[0], seed) for seed in self.seeds)):
                planned.setdefault(run.key, run)
        return list(planned.values())

    def search(self, series: str, point: int, results: dict[tuple, dict]) -> tuple[list[Run], float | None]:
        """Returns the known runs that choose a shape's learning rate, and that rate, or None if not yet known."""
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
        Returns the learning rate by which to extend the grid, given the loss for each rate. Returns None if the best
        rate is not at an end of the grid, or if the grid cannot be extended further.
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
    """Maps (series, point, key) of each record to its results."""
    return {(record.series, record.point, record.key): record.results for record in records}


def lowest_loss(candidates: list[tuple[dict, Candidate]]) -> Candidate:
    """Returns the candidate with the lowest held-out loss. Diverged runs count as infinite."""
    return min(candidates, key=lambda pair: math.inf if pair[0]["loss"] is None else pair[0]["loss"])[1]


def parse_share(share: str) -> tuple[int, int]:
    """Parses a share such as "1/2". Returns (1, 2)."""
    number, slash, of = share.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InputError(f"{share}: must be a fraction such as 1/2, which trains every second shape.", "share")
    return int(number), int(of)


def has_feed_forward(objective: str) -> bool:
    """Returns True if models with this objective have feed-forward networks."""
    return objective not in TASKS or objective == "recall"


def tokens_of(stage: dict) -> int:
    return stage["total_train_batch_size"] * stage["max_seq_length"] * stage["max_steps"]


def values_by_shape(series: dict, name: str) -> list:
    """Returns the value of a field for each shape in a series, or None if the series does not set the field."""
    value = series.get(name)
    return value if isinstance(value, list) else [value] * shape_count(series)


def shape_count(series: dict) -> int:
    return next((len(value) for value in series.values() if isinstance(value, list)), 1)


def matching_width(shape: dict, goal: int, count, length: int) -> int:
    """Returns the feed-forward width for which `count`, which is linear in the width, is nearest to `goal`."""
    at = [count(preset_config("tiny", **{**shape, "intermediate_size": width}), length) for width in (1, 2)]
    return 1 + round((goal - at[0]) / (at[1] - at[0]))


def named_studies() -> dict[str, dict]:
    """Returns the studies in all files of STUDIES, with their names as keys."""
    return {name: study for file in STUDIES for name, study in read_yaml(file).items() if name != "settings"}


def load_study(name: str, scale: str | None = None) -> Study:
    """
    Loads a named study, or a study from a YAML file. Entries under its `scale` replace entries with the same name.

    Raises:
        InputError: If the study or scale does not exist or is invalid.
    """
    named, file = named_studies(), Path(name)
    if name not in named and file.suffix not in (".yaml", ".yml"):
        raise InputError(f"study {name} not found; available: {', '.join(named)}, or pass a YAML file.")
    entries = dict(named[name] if name in named else read_yaml(file))
    scales = entries.pop("scales", {})
    if scale not in (scales or {None}):
        raise InputError(f"{scale}: study {name} has these scales: {', '.join(scales) or 'none'}.", "scale")
    entries |= {**(scales.get(scale) or {}), "name": file.stem, "scale": scale}
    if isinstance(entries.get("pretraining"), dict):
        entries["pretraining"] = [entries["pretraining"]]
    try:
        return Study(**entries)
    except (TypeError, StrictDataclassError) as error:  # a missing or unknown key, or an invalid type
        reason = str(error).replace("Study.__init__() ", "").replace("\n    ", " ")
        raise InputError(f"study {name}: {reason}.") from error
