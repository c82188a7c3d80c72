"""The labels of a dataset and of a model: which class name has which number."""

import re
from collections.abc import Iterable

from accelerate import PartialState
from transformers import PreTrainedConfig

from ..data.glue import TASKS
from ..support.errors import InputError

SHOWN, LONGEST_NAME = 20, 100  # labels in a message, and characters of each


def align_labels(names: list[str] | None, config: PreTrainedConfig, train: bool) -> tuple[dict[str, int], bool]:
    """
    Number the labels of a dataset as the model does, and write them into its configuration.

    Args:
        names: class names in the dataset; empty for a regression, None if the dataset has no labels.

    Returns:
        The model's number for each name, and True if the model's head is for other labels and must be replaced.

    Raises:
        InputError: the model's head is for other labels and there is no training, or nobody knows the labels.
    """
    known = label_names(config)
    has_head = any("SequenceClassification" in name for name in config.architectures or ())
    if known is None and has_head and not train:
        return assume_order(names, config)
    if names is None:
        if known is None:
            raise InputError("the labels are unknown: give a fine-tuned model or `train_file`.")
        names = known
    new_head = False
    if known and names and same_names(names, known):
        label_ids = dict(zip(names, label_numbers(known, names), strict=True))
        names = known
    else:
        label_ids = {name: number for number, name in enumerate(names)}
        if known is not None and known != names:
            if not train:
                raise different_labels(known, names)
            PartialState().print(f"the model's head for {listed(known)} is replaced by a new one for {listed(names)}")
            new_head = True
    config.id2label = dict(enumerate(names or ["LABEL_0"]))
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = "single_label_classification" if names else "regression"
    return label_ids, new_head


def assume_order(names: list[str] | None, config: PreTrainedConfig) -> tuple[dict[str, int], bool]:
    """
    Align labels with a fine-tuned model whose configuration calls them LABEL_0, LABEL_1 and so on: numbers are taken
    as they are, other names in the order of the dataset. Prints this assumption.

    Raises:
        InputError: the dataset has more labels, or scores.
    """
    unnamed = default_names(config)
    if names is None:
        return {}, False
    if not names or len(names) > len(unnamed):
        raise different_labels(unnamed, names)
    if same_names(names, unnamed):
        return dict(zip(names, label_numbers(unnamed, names), strict=True)), False
    are_numbers = all(name.isdecimal() and int(name) < len(unnamed) for name in names)
    label_ids = {name: int(name) if are_numbers else number for number, name in enumerate(names)}
    assumed = [f"{unnamed[number]} = {name!r}" for name, number in label_ids.items()]
    PartialState().print(
        f"the model's labels have no names; assuming {shorten(assumed)}. If that is wrong, correct id2label in its "
        "config.json"
    )
    config.id2label = dict(enumerate(unnamed)) | {number: name for name, number in label_ids.items()}
    config.label2id = {name: number for number, name in config.id2label.items()}
    return label_ids, False


def label_names(config: PreTrainedConfig) -> list[str] | None:
    """Returns the model's class names in the order of its logits: empty for a regression, None for LABEL_0, ..."""
    names = default_names(config)
    if config.problem_type == "regression":
        return []
    if all(re.fullmatch(rf"label[ _-]?{number}", name, re.IGNORECASE) for number, name in enumerate(names)):
        return [] if len(names) == 1 else None
    return names


def default_names(config: PreTrainedConfig) -> list[str]:
    """Returns id2label as a list: LABEL_0, LABEL_1 and so on if the classes have no names."""
    return [str(name) for _, name in sorted((config.id2label or {}).items())]


def normalize_name(name: str) -> str:
    """Removes differences in case and between blanks, hyphens and underscores within a name."""
    return re.sub(r"(?<=\w)[-_\s]+(?=\w)", "_", name.strip()).casefold()


def same_names(names: list[str], known: list[str]) -> bool:
    """Returns True if all names are among the known ones after normalization."""
    return {*map(normalize_name, names)} <= {*map(normalize_name, known)}


def label_numbers(known: list[str], names: list[str]) -> list[int]:
    """Returns the position of each name in `known`, where it may be written differently (`normalize_name`)."""
    if {*names} <= {*known}:
        return [known.index(name) for name in names]
    normalized = [normalize_name(name) for name in known]
    return [normalized.index(normalize_name(name)) for name in names]


def submitted_names(task: str, names: list[str]) -> list[str]:
    """Returns what a GLUE submission writes for each of the model's class names; unknown names stay as they are."""
    own = [*TASKS[task].labels]
    if not same_names(names, own):
        return names
    return [str(number) if TASKS[task].numbered else own[number] for number in label_numbers(own, names)]


def different_labels(known: list[str], names: list[str]) -> InputError:
    return InputError(
        f"the model's labels are {listed(known)}, and those of the data {listed(names)}: use data with the model's "
        "labels, or train a new head with `do_train`."
    )


def listed(names: list[str]) -> str:
    return shorten(names) or "scores"


def shorten(names: Iterable[str]) -> str:
    """Joins names for a message: at most SHOWN of them, each with at most LONGEST_NAME characters."""
    names = [name[:LONGEST_NAME] for name in names]
    more = [f"and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
