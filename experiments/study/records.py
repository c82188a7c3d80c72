"""runs.jsonl: a record for each run of a study that is done, with the metrics and axes that a report shows."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from fixedbert.support.files import reading

Record: TypeAlias = dict[str, Any]  # JSON; check_record checks it against FIELDS

# What a study can vary: its name in records, where it is a whole number, and its label in figures. All but
# COUNTED are properties of FixedHeadBertConfig.
AXES = {
    "num_attention_heads": "heads",
    "attention_head_size": "size of a head",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "intermediate_size": "feed-forward width",
    "non_embedding_parameters": "parameters besides embeddings",
}
COUNTED = "non_embedding_parameters"
SHAPE = tuple(  # what a record has of the configuration
    dict.fromkeys(
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "attention_head_size", "value_head_size",
         "intermediate_size", "head_embedding", "qk_norm", *(axis for axis in AXES if axis != COUNTED))
    )
)  # fmt: skip
IDENTITY = ("study", "scale", "series", "point", "key")
NUMBER, TEXT = (int, float, type(None)), (str, type(None))
FIELDS = {  # of a record, with their types
    **dict.fromkeys(("study", "axis", "series", "key", "objective", "hardware"), (str,)),
    **dict.fromkeys(("scale", "question", "equal", "to", "head_embedding", "texts", "commit"), TEXT),
    **dict.fromkeys(("point", "seed", "threads", "forward_flops"), (int,)),
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "attention_head_size"), (int,)),
    **dict.fromkeys(("value_head_size", "intermediate_size", "max_seq_length"), (int,)),
    **dict.fromkeys(("parameters", "non_embedding_parameters", "to_point", "decay_from"), (int, type(None))),
    **dict.fromkeys(("training_flops", "tokens"), (int, type(None))),  # None of a text where a run diverged
    **dict.fromkeys(("epochs", "seconds"), NUMBER),
    "learning_rate": (int, float),
    "qk_norm": (bool,),
    "results": (dict,),
    "of_grid": (bool,),  # true of a shorter run that only chooses the learning rate
    "curve": (list, type(None)),  # [tokens, held-out loss]; None without a text, and after a divergence
    "versions": (dict,),
}  # fmt: skip


def read_records(files: Iterable[str | Path]) -> list[Record]:
    """
    The records of runs, each once. A last line that was not written to its end is left out.

    Raises:
        InputError: a file is not there, or a line of it is no record.
    """
    records: dict[tuple, Record] = {}
    for file in map(Path, files):
        with reading(file, "give the runs.jsonl of a study"):
            lines = file.read_text(encoding="utf-8-sig").split("\n")
        if not is_whole(lines[-1]):
            lines.pop()
        for number, line in enumerate(lines, start=1):
            with reading(f"{file}, line {number}", "remove the line", "not the record of a run"):
                record = json.loads(line)
                check_record(record)
            records.setdefault(tuple(record[name] for name in IDENTITY), record)
    return list(records.values())


def is_whole(line: str) -> bool:
    """Whether a last line without its end is JSON, and not what a killed process has left."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def check_record(record: Record):
    """Raises ValueError where a field that the report or a continued study needs is missing, or of another type."""
    for name, types in FIELDS.items():
        if name not in record:
            raise ValueError(f"without {name}")
        value = record[name]
        if not isinstance(value, types) or isinstance(value, bool) and bool not in types:
            raise ValueError(f"{name}: {str(value)[:100]}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: {value}")
    if record["axis"] not in AXES or "loss" not in record["results"]:
        raise ValueError("without a known axis, or without a loss")
    for name in ("tokens", "training_flops"):
        if record[name] is None and record["results"]["loss"] is not None:
            raise ValueError(f"without {name}, and yet with a loss")
    if record["axis"] not in record:
        raise ValueError(f"without {record['axis']}")
    check_results(record["results"])
    check_curve(record["curve"] or [])


def check_results(results: dict):
    """Raises ValueError where a result is not a finite number, or null."""
    for name, value in results.items():
        if not isinstance(value, NUMBER) or isinstance(value, bool) or value is not None and not math.isfinite(value):
            raise ValueError(f"results: {name}: {str(value)[:100]}")


def check_curve(curve: list):
    """Raises ValueError where a point is not [tokens, loss], or has no more tokens than the one before it."""
    before = -1
    for point in curve:
        match point:
            case [int(tokens), int() | float() as loss] if tokens > before and math.isfinite(loss):
                before = tokens
            case _:
                raise ValueError(f"curve: {str(point)[:100]}")
