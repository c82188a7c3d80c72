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
    Returns the model's number for each label of a dataset, and True if the model's head is for other labels and must
    be replaced. Writes the labels into the configuration.

    Args:
        names: class names in the dataset; empty for a regression, None if the dataset has no labels.

    Raises:
        InputError: the model's head is for other labels and there is no training, or the labels are unknown.
    """
    known, new_head = label_names(config), False
    is_fine_tuned = any("SequenceClassification" in name for name in config.architectures or ())
    if unnamed := known is None and is_fine_tuned and not train:
        known = default_names(config)
    if names is None:
        if known is None:
            raise InputError("the labels are unknown: give a fine-tuned model or `train_file`.")
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
            if not train:
                raise InputError(
                    f"the model's labels are {listed(known)}, and those of the data {listed(names)}: use data with "
                    "the model's labels, or train a new head with `do_train`."
                )
            PartialState().print(f"the model's head for {listed(known)} is replaced by a new one for {listed(names)}")
    config.id2label = dict(enumerate(names or ["LABEL_0"]))
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = "single_label_classification" if names else "regression"
    return label_ids, new_head


def assume_order(names: list[str], known: list[str]) -> dict[str, int]:
    """
    Numbers the labels for a fine-tuned model that only has the names LABEL_0, LABEL_1 and so on: numbers are taken as
    they are, other names in the order of the dataset. Prints this assumption.
    """
    are_numbers = all(name.isdecimal() and int(name) < len(known) for name in names)
    label_ids = {name: int(name) if are_numbers else number for number, name in enumerate(names)}
    assumed = shorten(f"{known[number]} = {name!r}" for name, number in label_ids.items())
    PartialState().print(
        f"the model's labels have no names; assuming {assumed}. If that is wrong, correct id2label in its config.json"
    )
    return label_ids


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


def listed(names: list[str]) -> str:
    return shorten(names) or "scores"


def shorten(names: Iterable[str]) -> str:
    """Joins names for a message: at most SHOWN of them, each with at most LONGEST_NAME characters."""
    names = [name[:LONGEST_NAME] for name in names]
    more = [f"and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
