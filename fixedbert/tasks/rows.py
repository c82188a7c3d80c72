"""The base class for the rows of a task (texts, words or questions): what models read and predict for them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import datasets
import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..loading.sentence_models import TextSettings
from ..options import CompareOptions
from ..support.errors import InputError
from .predictions import Predictions

Cells = list[tuple[str, Sequence]]  # names and contents of the columns of a table
Model = tuple[PreTrainedConfig, PreTrainedTokenizerBase]
Features = list[dict]  # tokens of a row: one dict, or for a question, one dict per window of its context


@dataclass(frozen=True)
class RowPredictions:
    """The predictions of a model for items, which are rows, words or questions."""

    outputs: list[Predictions]  # for measuring the fidelity; empty if the tokens differ from those of the first model
    scores: dict[str, float]  # metrics by name; empty without labels
    texts: Sequence[str] = ()  # the labels or the answer for each item; empty for scores and embeddings
    probabilities: Sequence[float] = ()  # the probability of each text
    correct: np.ndarray | None = None  # True for each item that is predicted correctly; None without labels


class Rows(ABC):
    """
    The rows of a file or GLUE task, with or without labels.

    Args:
        data: A dataset whose column `row` contains the 0-based index of each row in the file.
    """

    item = "row"  # the unit that has a prediction

    def __init__(self, data: datasets.Dataset):
        self.data = data

    @abstractmethod
    def texts(self) -> list[tuple[str, ...]]:
        """Returns the texts of each row. The first one can be the same in several rows, such as a context."""

    @classmethod
    @abstractmethod
    def load(cls, options: CompareOptions, head: str, models: list[Model], length: int) -> "Rows":
        """
        Loads the rows on which models are compared, from a file, or from the first validation split of a GLUE task.

        Args:
            head: The task head of the models.
            models: The configuration and the tokenizer of each model.
            length: The maximum number of tokens per row.
        """

    @abstractmethod
    def features(
        self, tokenizer: PreTrainedTokenizerBase, settings: TextSettings, length: int
    ) -> tuple[list[Features], int]:
        """Returns the features of each row, at most `length` tokens long, and the number of truncated rows."""

    @abstractmethod
    def interpret(
        self, outputs: list[Predictions], features: list[Features], all_features: list[list[Features]]
    ) -> RowPredictions:
        """
        Converts the outputs of a model for all rows to predictions.

        `features` are the model's features of all rows. `all_features` contains the features of every compared
        model, to find the items that all of them read.
        """

    @abstractmethod
    def cells(self, all_features: list[list[Features]]) -> Cells:
        """Returns columns with the position of each item in the file, and its text and label."""


def split_names(names: str | None) -> tuple[str, ...]:
    """Returns the column names in a comma-separated string."""
    return tuple(names.split(",")) if names else ()


def file_of(options: CompareOptions) -> str:
    """Returns the file with words or questions. Raises InputError if a GLUE task, which has texts, is given."""
    if options.validation_file is None:
        raise InputError("has texts, but the model needs words or questions; set `validation_file`.", "task_name")
    return options.validation_file
