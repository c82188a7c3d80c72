"""A small study of two shapes, and the fields of its runs' records."""

from pathlib import Path

import yaml

from experiments.study.records import SHAPE, Record
from experiments.study.studies import Study
from experiments.tests.study_records import RECORD

SMALL = {
    "question": "?",
    "axis": "num_attention_heads",
    "learning_rates": [0.003],
    "seeds": [5],
    "model": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 37},
    "pretraining": {
        "max_seq_length": 16,
        "total_train_batch_size": 4,
        "max_steps": 30,
        "save_steps": 5,
        "save_total_limit": 2,
        "max_eval_samples": 13,
        "preprocessing_num_workers": 1,
        "logging_steps": 5,
    },
    "series": {"fixed": {"num_attention_heads": [5, 3], "attention_head_size": 6}},
}


def table(**changes) -> Study:
    """Returns the small study with changed entries."""
    entries = {**SMALL, **changes}
    stages = entries["pretraining"]
    return Study(name="small", **{**entries, "pretraining": stages if isinstance(stages, list) else [stages]})


def write(directory: Path, **changes) -> str:
    """Writes the small study with changed entries to a YAML file and returns the path."""
    file = directory / "small.yaml"
    file.write_text(yaml.safe_dump({**SMALL, **changes}))
    return str(file)


def fields_of(run, loss: float | None) -> dict:
    """Returns the fields of the record of a run with this loss, in the form in which `execute` returns them."""
    shape = {name: getattr(run.config, name) for name in SHAPE} | {"attention_head_size": run.config.head_dim}
    shape["value_head_size"] = run.config.value_head_sizes[0]
    settings = {"key": run.key, "objective": run.objective, "learning_rate": run.learning_rate, "seed": run.seed}
    return {**RECORD, **shape, **settings, "results": {"loss": loss}}


def line_of(study: Study, run, loss: float | None) -> Record:
    return Record(**(fields_of(run, loss) | study.labels(run)))
