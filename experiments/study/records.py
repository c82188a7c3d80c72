"""The records in runs.jsonl: one line per finished run, with its position in the study, settings and results."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError

from fixedbert.support.errors import InputError
from fixedbert.support.files import reading

# Quantities that a study can vary, with their labels in figures: fields of FixedHeadBertConfig, and COUNTED.
AXES = {
    "num_attention_heads": "heads",
    "attention_head_size": "head size",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "intermediate_size": "feed-forward width",
    "non_embedding_parameters": "parameters without embeddings",
}
COUNTED = "non_embedding_parameters"
SHAPE = (  # fields of the configuration in a record
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "attention_head_size",
    "value_head_size",
    "intermediate_size",
    "head_embedding",
    "qk_norm",
)


@strict
@dataclass
class Record:
    """
    A finished run.

    Args:
        axis: Key of AXES that the study varies.
        series, point: Position in the study: the series, and the index of the shape in this series.
        equal, to, to_point: For a shape that has as many parameters or FLOPs as another shape: "parameters" or
            "flops", and the series and index of the other shape.
        of_grid: True for a shorter run whose only purpose is to choose the learning rate.
        num_attention_heads, ..., intermediate_size: Lists with one number per layer if layers differ.
        key: Hash of everything that determines the result, except for the text.
        parameters, non_embedding_parameters: None for synthetic tasks and diverged runs.
        forward_flops: FLOPs per token in the layers.
        training_flops, tokens: None if pretraining on text diverged.
        epochs, texts: None for synthetic tasks.
        results: Maps metrics to numbers, which are None if the run diverged.
        curve: [tokens seen, held-out loss] at each evaluation. None for synthetic tasks.
        decay_from: Tokens seen at the last evaluation before the learning rate decays.
        seconds: None if the run was interrupted.
    """

    study: str
    scale: str | None
    question: str | None
    axis: str
    series: str
    point: int
    equal: str | None
    to: str | None
    to_point: int | None
    of_grid: bool
    key: str
    objective: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int | list[int]
    attention_head_size: int | list[int]
    value_head_size: int | list[int]
    intermediate_size: int | list[int]
    head_embedding: str | None
    qk_norm: bool
    parameters: int | None
    non_embedding_parameters: int | None
    forward_flops: int
    training_flops: int | None
    max_seq_length: int
    tokens: int | None
    epochs: int | float | None
    texts: str | None
    learning_rate: int | float
    seed: int
    results: dict[str, int | float | None]
    curve: list[list[int | float]] | None
    decay_from: int | None
    seconds: int | float | None
    hardware: str
    threads: int
    versions: dict[str, str]
    commit: str | None

    @property
    def losses(self) -> list[float]:
        """The held-out loss at each evaluation."""
        return [loss for _, loss in self.curve or []]

    @property
    def diverged(self) -> bool:
        return self.results["loss"] is None


def read_records(files: Iterable[str | Path]) -> list[Record]:
    """
    Reads the records of runs and removes duplicates. Skips an incomplete last line, which a killed process leaves.

    Raises:
        InputError: If any other line is not the record of a run.
    """
    records: dict[tuple, Record] = {}
    for file in map(Path, files):
        with reading(file, "pass the runs.jsonl of a study"):
            lines = file.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, start=1):
            try:
                entries = json.loads(line)
                record = Record(**{field.name: entries[field.name] for field in fields(Record)})
            except (ValueError, KeyError, TypeError, StrictDataclassError) as error:
                if number == len(lines):
                    continue
                raise InputError(f"{file}, line {number}: not the record of a run ({error}).") from error
            records.setdefault((record.study, record.scale, record.series, record.point, record.key), record)
    return list(records.values())
