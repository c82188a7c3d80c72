"""Matches the label names in a dataset with the label ids of a model."""

import re
from collections.abc import Iterable

from accelerate import PartialState
from transformers import PreTrainedConfig

from ..data.glue import TASKS
from ..support.errors import InputError

SHOWN, LONGEST_NAME = 20, 100  # maximum number of labels in a message, and of characters per label


def align_labels(names: list[str] | None, config: PreTrainedConfig, train: bool) -> tuple[dict[str, int], bool]:
    """
    Returns the model's id for each label name, and True if the model's head is for different labels and must be
    replaced. Writes the labels into the configuration.

    Args:
        names: label names in the dataset; empty for regression, None if the dataset has no labels.

    Raises:
        InputError: the labels are unknown, or the model is not trained and its head is for different labels.
    """
    known, new_head = label_names(config), False
    is_fine_tuned = any("SequenceClassification" in name for name in config.architectures or ())
    if unnamed := known is None and is_fine_tuned and not train:
        known = default_names(config)
    if names is None:
        if known is None:
            raise InputError("the labels are unknown; choose a fine-tuned model, or set `train_file`.")
        names = known
    if known and names and same_names(names, known):
        label_ids = dict(zip(names, label_numbers(known, names), strict=True))
        names = known
    elif known and unnamed and 0 < len(names) <= len(known):
        label_ids = assume_order(names, known)
        assumed = {number: name for name, number in label_ids.items()}
        names = [assumed.get(number, name) for number, name in enumerate(known)]
    else:
        label_ids = {name: number for number, name in enumerate(names)}
        if known is not None and known != names:
            new_head = True
            theirs, ours = (shorten(labels) or "scores" for labels in (known, names))
            if not train:
                raise InputError(
                    f"the model predicts {theirs}, but the labels in the data are {ours}; use data with the model's "
                    "labels, or set `do_train` to train a new head."
                )
            PartialState().print(f"replacing the model's head for {theirs} with a new one for {ours}")
    config.id2label = dict(enumerate(names or ["LABEL_0"]))
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = "single_label_classification" if names else "regression"
    return label_ids, new_head


def assume_order(names: list[str], known: list[str]) -> dict[str, int]:
    """Assigns ids to labels for a fine-tuned model without label names: numbers are ids, other names are in order."""
    are_numbers = all(name.isdecimal() and int(name) < len(known) for name in names)
    label_ids = {name: int(name) if are_numbers else number for number, name in enumerate(names)}
    assumed = shorten(f"{known[number]} = {name!r}" for name, number in label_ids.items())
    PartialState().print(
        f"the model's labels have no names; assuming {assumed}. If this is wrong, correct id2label in its config.json"
    )
    return label_ids


def label_names(config: PreTrainedConfig) -> list[str] | None:
    """Returns the model's label names in the order of its logits: empty for regression, None for LABEL_0, ..."""
    names = default_names(config)
    if config.problem_type == "regression":
        return []
    if all(re.fullmatch(rf"label[ _-]?{number}", name, re.IGNORECASE) for number, name in enumerate(names)):
        return [] if len(names) == 1 else None
    return names


def default_names(config: PreTrainedConfig) -> list[str]:
    """Returns id2label as a list, which is LABEL_0, LABEL_1, ... by default."""
    return [str(name) for _, name in sorted((config.id2label or {}).items())]


def normalize_name(name: str) -> str:
    """Ignores case, and the difference between blanks, hyphens and underscores within a name."""
    return re.sub(r"(?<=\w)[-_\s]+(?=\w)", "_", name.strip()).casefold()


def same_names(names: list[str], known: list[str]) -> bool:
    """Returns True if, after normalization, all names are in `known`."""
    return {*map(normalize_name, names)} <= {*map(normalize_name, known)}


def label_numbers(known: list[str], names: list[str]) -> list[int]:
    """Returns the index of each name in `known`; an exact match precedes one after normalization."""
    if {*names} <= {*known}:
        return [known.index(name) for name in names]
    normalized = [normalize_name(name) for name in known]
    return [normalized.index(normalize_name(name)) for name in names]


def submitted_names(task: str, names: list[str]) -> list[str]:
    """Returns the names that a GLUE submission uses for the model's label names, unless they are unknown."""
    own = [*TASKS[task].labels]
    if not same_names(names, own):
        return names
    return [str(number) if TASKS[task].numbered else own[number] for number in label_numbers(own, names)]


def shorten(names: Iterable[str]) -> str:
    """Joins names for a message, where it can become too long."""
    names = [name[:LONGEST_NAME] for name in names]
    more = [f"and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
