"""Functions that match the label names in a dataset with the label ids of a model."""

import re
from collections.abc import Iterable

from accelerate import PartialState
from transformers import PreTrainedConfig

from ..support.errors import InputError

MAX_LISTED, MAX_CHARACTERS = 20, 300  # maximum number of labels or rows in a message, and of characters for each
# The values of `problem_type`, as in transformers: one label, any number of labels, or scores for each text.
SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


def problem_type_of(config: PreTrainedConfig) -> str:
    """Returns the model's `problem_type`. By default, this is regression for a single output, as in transformers."""
    return config.problem_type or (REGRESSION if config.num_labels == 1 else SINGLE)


def align_labels(
    names: list[str] | None, config: PreTrainedConfig, train: bool, problem_type: str | None = None
) -> tuple[dict[str, int], bool]:
    """
    Matches the labels in a dataset with a model's labels by name. Also writes the label names to the model's `config`.

    Args:
        names: Label names in the dataset. An empty list for regression, and None if the dataset has no labels.
        train: True if the model will be trained, so its head can be replaced. If False, different labels raise
            InputError.
        problem_type: The dataset's problem type. By default, this is regression if `names` is empty.

    Returns:
        The model's label id for each label name in the dataset, and True if the head must be replaced because the
        model was trained for different labels or a different problem type.
    """
    check_label_ids(config)
    known, is_fine_tuned = label_names(config), any("SequenceClass" in name for name in config.architectures or ())
    own_type = problem_type_of(config)
    has_own_type = is_fine_tuned or config.problem_type is not None
    if known is None and is_fine_tuned:
        known = default_names(config)
    if names is None:
        if known is None:
            raise InputError("neither the data nor the model has labels; use a fine-tuned model, or set `train_file`.")
        if own_type == REGRESSION and known:
            raise InputError(f"the model predicts {len(known)} scores per text; use a model with a single score.")
        names, problem_type = known, own_type
    problem_type = problem_type or (SINGLE if names else REGRESSION)
    new_head = has_own_type and problem_type != own_type
    matched = match_names(names, known) if known and names and not new_head else None
    if matched is not None:
        label_ids = dict(zip(names, matched, strict=True))
        names = known
    else:
        label_ids = {name: number for number, name in enumerate(names)}
        if new_head := new_head or (known is not None and known != names):
            theirs, ours = describe(known or [], own_type), describe(names, problem_type)
            if not train:
                raise InputError(
                    f"the model predicts {theirs}, but the data contain {ours}; use data with the same labels, "
                    "correct id2label in the model's config.json, or fine-tune the model on data with these labels."
                )
            PartialState().print(f"replacing the model's head for {theirs} with a new head for {ours}")
    config.id2label = dict(enumerate(names or ["LABEL_0"]))
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = problem_type  # type: ignore[assignment]
    return label_ids, new_head


def check_label_ids(config: PreTrainedConfig):
    """Raises InputError if id2label and label2id contradict each other."""
    names, ids = default_names(config), config.label2id or {}
    if {*names} == {*ids} and any(int(ids[name]) != number for number, name in enumerate(names)):
        raise InputError(
            f"id2label and label2id in the model's config.json assign different ids to {shorten(names)}; correct "
            "one of these two fields."
        )


def describe(names: list[str], problem_type: str) -> str:
    """Returns a description of the labels for messages, such as "one label per text (no, yes)"."""
    kind = {SINGLE: "one label per text", MULTI: "several labels per text", REGRESSION: "scores"}[problem_type]
    return f"{kind} ({shorten(names)})" if names else kind


def label_names(config: PreTrainedConfig) -> list[str] | None:
    """Returns the model's label names, an empty list for a single score, or None if they are the default names."""
    names = default_names(config)
    if len(names) == 1 and problem_type_of(config) == REGRESSION:
        return []
    return None if is_unnamed(names) else names


def default_names(config: PreTrainedConfig) -> list[str]:
    """Returns the label names in id2label, ordered by label id."""
    return [str(name) for _, name in sorted((config.id2label or {}).items())]


def match_names(names: list[str], known: list[str]) -> list[int] | None:
    """
    Returns each name's index in `known`, or None if a name is missing.

    Unless all names match exactly, ignores case and differences in the spaces, hyphens or underscores between words.
    The numbers 0, 1, ... match transformers' default names LABEL_0, LABEL_1, ...
    """
    numbers = [str(number) for number in range(len(known))]
    for ours, theirs in (
        (names, known),
        ([*map(simplified, names)], [*map(simplified, known)]),
        (names, numbers if is_unnamed(known) else []),
    ):
        if {*ours} <= {*theirs} and len({*ours}) == len(ours) and len({*theirs}) == len(theirs):
            return [theirs.index(name) for name in ours]
    return None


def simplified(name: str) -> str:
    return re.sub(r"(?<=\w)[-_\s]+(?=\w)", "_", name.strip()).casefold()


def is_unnamed(names: list[str]) -> bool:
    """Returns True if the names are transformers' defaults: LABEL_0, LABEL_1, ..."""
    return all(re.fullmatch(rf"label[ _-]?{number}", name, re.IGNORECASE) for number, name in enumerate(names))


def shorten(names: Iterable[str], separator: str = ", ") -> str:
    """Joins names for a message. If there are many, lists the first ones and the number of the others."""
    names = [name[:MAX_CHARACTERS] for name in names]
    more = [f"and {len(names) - MAX_LISTED:,} more"] if len(names) > MAX_LISTED else []
    return separator.join([*names[:MAX_LISTED], *more])
