"""
Studies: tables of runs, written as YAML. Those of this folder have names; docs/study.md explains every key.

A study has series of shapes. Of each shape, every learning rate of the grid is trained with the first seed, and the
best of them with the other seeds, so that all shapes are tuned alike.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError

from ..analysis.counts import forward_flops, parameters
from ..configuration_fixed_head_bert import FixedHeadBertConfig
from ..errors import InputError
from ..files import fingerprint_of, reading
from ..plain_yaml import read_yaml
from ..presets import SHAPE_FIELDS, preset_config
from .synthetic import TASKS

NAMED = Path(__file__).with_name("studies.yaml")
NAMES = ("heads", "head-size", "width", "mhe", "depth", "synthetic")
# What can be on the axis of a study's pictures: its name in the records of runs, and on the picture.
AXES = {
    "num_attention_heads": "heads",
    "attention_head_size": "size of a head",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "intermediate_size": "feed-forward width",
    "non_embedding_parameters": "parameters besides embeddings",
}
OBJECTIVES = ("mlm+nsp", "mlm", "clm", *TASKS)
# In what shapes can be made equal; both without embeddings.
EQUAL = {"parameters": lambda config, length: parameters(config)[1], "flops": forward_flops}
GIVEN_BY_THE_STUDY = ("learning_rate", "seed", "objective", "output_dir", "config_name", "config_overrides")


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

    @cached_property
    def key(self) -> str:
        """The same wherever and in whichever study the same training stands."""
        settings = asdict(self)
        del settings["series"], settings["point"]
        return fingerprint_of(settings)

    @property
    def config(self) -> FixedHeadBertConfig:
        return preset_config("tiny", **self.model)

    @property
    def length(self) -> int:
        """Tokens of a row, in the last stage."""
        return self.pretraining[-1]["max_seq_length"]

    @property
    def name(self) -> str:
        return f"{self.series}, shape {self.point + 1}, learning rate {self.learning_rate:g}, seed {self.seed}"

    @property
    def tokens(self) -> int:
        """Of pretraining, if all rows are full."""
        return sum(tokens_of(stage) for stage in self.pretraining)

    @property
    def training_flops(self) -> int:
        """Of the layers in pretraining: three times those of the forward pass."""
        return sum(
            3 * forward_flops(self.config, stage["max_seq_length"]) * tokens_of(stage) for stage in self.pretraining
        )


@dataclass(frozen=True)
class Study:
    """
    A table of runs.

    Args:
        name, scale: as given on the command line.
        question: what the study asks, for a person.
        axis: what its pictures have on the horizontal axis, one of AXES.
        model: fields of FixedHeadBertConfig that all shapes share.
        series: names, each with the fields of its shapes; lists in a series have a value for each of its shapes. A
            series can have an `objective` of its own, and be made `equal` in parameters or flops `to` another one, by
            its feed-forward width: each shape to the one with the same value on the axis, or to the only one.
        learning_rates: the grid.
        seeds: of the runs; the first one is also that of the grid.
        objective: one of OBJECTIVES.
        pretraining: arguments of run_pretraining.py, or a list of them: stages that go on one from another.
        fine_tuning: for any of mnli and squad, arguments of run_glue.py or run_squad.py.
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
    scale: str | None = None

    def __post_init__(self):
        def check(holds: bool, message: str):
            if not holds:
                raise InputError(f"study {self.name}: {message}.")

        check(isinstance(self.question, str), "question: a text is needed")
        check(self.axis in AXES, f"axis: {self.axis}: there are {', '.join(AXES)}")
        for name in ("learning_rates", "seeds"):
            values, kinds = getattr(self, name), (int, float) if name == "learning_rates" else int
            check(isinstance(values, list) and len(values) > 0, f"{name}: a list of numbers is needed")
            for value in values:
                check(
                    isinstance(value, kinds), f"{name}: {value} is no number that YAML knows; it takes 1.0e-3 for one"
                )
                check(name == "seeds" or 0 < value < math.inf, f"{name}: {value} is not a finite number above 0")
            check(len(set(values)) == len(values), f"{name}: each can be there once")
        for name in ("model", "fine_tuning"):
            check(isinstance(getattr(self, name), dict), f"{name}: names with their values are needed")
        check(isinstance(self.series, dict) and len(self.series) > 0, "series: names with shapes are needed")
        stages = self.pretraining if isinstance(self.pretraining, list) else [None]
        for stage in stages:
            check(isinstance(stage, dict), "pretraining: arguments with their values are needed")
            for name in ("max_steps", "max_seq_length", "total_train_batch_size"):
                number = stage.get(name)
                whole = isinstance(number, int) and number > 0
                check(whole, f"pretraining: {name} is missing, or not a whole number above 0")
            for name in GIVEN_BY_THE_STUDY:
                check(name not in stage, f"pretraining: {name} is not for a stage, the study sets it")
        for name, series in self.series.items():
            check(isinstance(series, dict), f"series {name}: fields with their values are needed")
            objective = series.get("objective", self.objective)
            check(objective in OBJECTIVES, f"series {name}: objective {objective}: there are {', '.join(OBJECTIVES)}")
            check(
                not (self.fine_tuning and objective in ("clm", *TASKS)),
                f"series {name}: fine_tuning is for encoders, objective mlm or mlm+nsp, not {objective}",
            )
            lengths = {len(value) for value in series.values() if isinstance(value, list)}
            check(len(lengths) <= 1, f"series {name}: lists of {sorted(lengths)} values; they need as many as shapes")
            check(
                ("equal" in series) == ("to" in series),
                f"series {name}: equal (in what) and to (which series) go together",
            )
            if "to" in series:
                check(
                    series["equal"] in EQUAL, f"series {name}: equal: {series['equal']}: there are {', '.join(EQUAL)}"
                )
                other = self.series.get(series["to"])
                check(other is not None, f"series {name}: to: {series['to']}: there is no such series")
                check("to" not in other, f"series {name}: to: {series['to']}: it is itself made equal to another one")
        for task in self.fine_tuning:
            check(task in ("mnli", "squad"), f"fine_tuning: {task}: there are mnli and squad")
        self.shapes  # noqa: B018  every shape can be made

    @cached_property
    def shapes(self) -> dict[str, list[dict]]:
        """By series, the fields of every shape's configuration; feed-forward widths are those after widening."""
        made = {}
        for name, series in sorted(self.series.items(), key=lambda item: "to" in item[1]):
            made[name] = [self.shape(name, series, point, made) for point in range(points_of(series))]
        return {name: made[name] for name in self.series}

    def shape(self, name: str, series: dict, point: int, made: dict) -> dict:
        changes = {key: value[point] if isinstance(value, list) else value for key, value in series.items()}
        objective = changes.pop("objective", self.objective)
        equal, to = changes.pop("equal", None), changes.pop("to", None)
        fields_set = {
            "vocab_size": self.pretraining[-1].get("vocab_size", FixedHeadBertConfig().vocab_size),
            "max_position_embeddings": max(stage["max_seq_length"] for stage in self.stages_of_all()),
            "is_decoder": objective == "clm",
            **self.model,
            **changes,
        }
        known = FixedHeadBertConfig()
        for key in fields_set:
            if not hasattr(known, key):
                raise InputError(f"study {self.name}, series {name}: {key} is no field of FixedHeadBertConfig.")
        for key in SHAPE_FIELDS:
            if key not in fields_set:
                raise InputError(f"study {self.name}, series {name}: {key} is missing, here and under model.")
        try:
            if to is not None:
                length = self.pretraining[-1]["max_seq_length"]
                goal = EQUAL[equal](preset_config("tiny", **made[to][self.goal(name, point)]), length)
                fields_set["intermediate_size"] = matching_width(fields_set, goal, EQUAL[equal], length)
                if fields_set["intermediate_size"] < 1:
                    raise InputError(
                        f"study {self.name}, series {name}: its shape {point + 1} has more {equal} than that of {to} "
                        "even without a feed-forward network."
                    )
            config = preset_config("tiny", **fields_set)
        except (ValueError, TypeError, StrictDataclassError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"study {self.name}, series {name}: {error.__cause__ or error}") from error
        if len(set(config.head_sizes)) > 1:
            raise InputError(f"study {self.name}, series {name}: the heads of a shape have one size in all layers.")
        return fields_set | {"attention_head_size": config.head_dim}

    def goal(self, name: str, point: int) -> int | None:
        """Of the series that the series `name` was made equal to, the shape that belongs to its shape `point`."""
        to = self.series[name].get("to")
        if to is None:
            return None
        if points_of(self.series[to]) == 1:
            return 0
        places, others = (column(self.series[one], self.axis) for one in (name, to))
        if places[point] is None or others.count(places[point]) != 1:
            raise InputError(
                f"study {self.name}, series {name}: {to} needs one shape, or one with {self.axis} {places[point]}."
            )
        return others.index(places[point])

    def stages_of_all(self) -> Iterator[dict]:
        yield from self.pretraining
        for task, arguments in self.fine_tuning.items():
            yield {"max_seq_length": {"mnli": 128, "squad": 384}[task], **arguments}

    def run(self, series: str, point: int, learning_rate: float, seed: int) -> Run:
        return Run(
            series,
            point,
            self.series[series].get("objective", self.objective),
            self.shapes[series][point],
            self.pretraining,
            self.fine_tuning,
            learning_rate,
            seed,
        )

    def run_of(self, line: dict) -> Run | None:
        """The run at the place in this study, and with the learning rate and seed, that a record has."""
        if line["series"] in self.shapes and line["point"] < len(self.shapes[line["series"]]):
            return self.run(line["series"], line["point"], line["learning_rate"], line["seed"])
        return None

    def labels(self, run: Run) -> dict:
        """Where in the study a run stands."""
        series = self.series[run.series]
        return {
            "study": self.name,
            "scale": self.scale,
            "axis": self.axis,
            "series": run.series,
            "point": run.point,
            "equal": series.get("equal"),
            "to": series.get("to"),
            "to_point": self.goal(run.series, run.point),
        }

    def places(self, share: tuple[int, int] = (1, 1)) -> list[tuple[str, int]]:
        """Every shape as (series, point); of them the `share`: of (1, 2) every second, from the first."""
        number, of = share
        every = [(series, point) for series, shapes in self.shapes.items() for point in range(len(shapes))]
        return every[number - 1 :: of]

    def runs(self, lines: list[dict], share: tuple[int, int] = (1, 1)) -> list[Run]:
        """
        What can be run now, after the runs whose records are `lines`.

        The grid comes first; of a shape whose grid is done the best rate goes on to the other seeds.
        """
        done = {(line["series"], line["point"], line["key"]): line["results"] for line in lines}

        def result(run: Run) -> dict | None:
            return done.get((run.series, run.point, run.key))

        first, *others = self.seeds
        grid = [
            [self.run(series, point, rate, first) for rate in self.learning_rates]
            for series, point in self.places(share)
        ]
        ready = [run for runs in grid for run in runs if result(run) is None]
        for runs in grid:
            if all(result(run) is not None for run in runs):
                best = best_run([(result(run), run) for run in runs])
                more = [self.run(best.series, best.point, best.learning_rate, seed) for seed in others]
                ready += [run for run in more if result(run) is None]
        return ready


def best_run(candidates: list[tuple[dict, object]]) -> object:
    """The one with the lowest held-out loss; one that diverged, whose loss is None, only if all did."""
    return min(candidates, key=lambda pair: math.inf if pair[0]["loss"] is None else pair[0]["loss"])[1]


def tokens_of(stage: dict) -> int:
    return stage["total_train_batch_size"] * stage["max_seq_length"] * stage["max_steps"]


def column(series: dict, name: str) -> list:
    """Of every shape of a series the field `name`; None where the series does not say."""
    value = series.get(name)
    return value if isinstance(value, list) else [value] * points_of(series)


def points_of(series: dict) -> int:
    return next((len(value) for value in series.values() if isinstance(value, list)), 1)


def matching_width(shape: dict, goal: int, count, length: int) -> int:
    """The feed-forward width with which `count` of the shape is nearest to `goal`, linear in it."""
    at = [count(preset_config("tiny", **{**shape, "intermediate_size": width}), length) for width in (1, 2)]
    return 1 + round((goal - at[0]) / (at[1] - at[0]))


def load_study(name: str, scale: str | None = None) -> Study:
    """
    A study by its name, one of NAMES, or from a YAML file.

    What stands under `scales` and the name of the scale takes the place of what stands outside.

    Raises:
        InputError: there is no such study or scale, or something in it makes no sense.
    """
    file = NAMED if name in NAMES else Path(name)
    if file.suffix not in (".yaml", ".yml"):
        raise InputError(f"study {name}: there are {', '.join(NAMES)}, or a YAML file of your own.")
    entries = read_yaml(file, "docs/study.md says what a study has")
    if name in NAMES:
        entries = entries[name]
    scales = entries.pop("scales", {})
    if not isinstance(scales, dict) or not isinstance(scales.get(scale), dict | type(None)):
        raise InputError(f"{file}: scales map names to keys of a study.")
    if scale is None and scales:
        raise InputError(f"study {name}: give --scale, one of {', '.join(scales)}.")
    if scale is not None and scale not in scales:
        raise InputError(f"--scale {scale}: study {name} has {', '.join(scales) or 'none'}.")
    entries = {**entries, **(scales.get(scale) or {}), "name": name if name in NAMES else file.stem, "scale": scale}
    unknown = [key for key in entries if key not in {one.name for one in fields(Study)}]
    if unknown:
        raise InputError(f"{file}: {unknown[0]}: no such key; docs/study.md lists them.")
    if isinstance(entries.get("pretraining"), dict):
        entries["pretraining"] = [entries["pretraining"]]
    absent = [name for name in ("question", "axis", "model", "series", "learning_rates", "seeds", "pretraining")
              if name not in entries]  # fmt: skip
    if absent:
        raise InputError(f"{file}: {absent[0]} is missing.")
    with reading(file, "docs/study.md says what a study has", "makes no study"):
        return Study(**entries)
