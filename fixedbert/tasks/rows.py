"""The base class for the rows of a task (texts, words or questions): what models read and predict for them."""

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import datasets
import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..loading.sentence_models import TextSettings
from ..options import CompareOptions
from ..support.errors import InputError
from .fidelity import Fidelity, Keys, fidelity
from .predictions import Predictions

Cells = list[tuple[str, Sequence]]  # names and contents of the columns of a table
Model = tuple[PreTrainedConfig, PreTrainedTokenizerBase]
# The metrics that say how good a model is, most important first. For each of them, higher values are better.
POINTS = ("nDCG@10", "micro_f1", "average_precision", "spearmanr", "accuracy", "matthews_correlation", "f1")
Features = list[dict]  # tokens of a row: one dict, or for a question, one dict per window of its context


@dataclass(frozen=True)
class RowPredictions:
    """The predictions of a model for rows, words or questions."""

    outputs: list[Predictions]  # for measuring the fidelity; empty if the tokens differ from those of the first model
    scores: dict[str, float]  # metrics by name; empty without labels
    texts: Sequence[str] = ()  # the label of each row or word, or the answer to each question
    correct: np.ndarray | None = None  # whether each row, query, word, question or labeled entity is predicted right
    groups: np.ndarray | None = None  # the number of the query of each row, or of the sentence of each word


class Rows(ABC):
    """
    The rows of a file or GLUE task, with or without labels.

    Args:
        data: A dataset whose column `row` contains the 0-based index of each row in the file.
    """

    item = "row"  # the unit that is predicted correctly, or changes; one of UNITS
    tags: Sequence[str] = ()  # for taggers, the tags in the order of the outputs
    note = ""  # what the report says about the metrics

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

    def sample(self, count: int):
        """Keeps at most `count` rows, drawn at random."""
        self.data = self.data.select(random.Random(0).sample(range(len(self.data)), min(len(self.data), count)))

    @property
    def groups(self) -> np.ndarray:
        """The number of each row's query, or for rows without queries, of the row."""
        return np.arange(len(self.data))

    def select(self, indices: Iterable[int]) -> "Rows":
        """Returns the rows with these indices, with the same labels and tags."""
        selected = copy.copy(self)
        selected.data = self.data.select(indices)
        return selected

    def fidelity(self, expected: RowPredictions, answers: RowPredictions) -> tuple[Fidelity, Keys]:
        """Compares the predictions of a model with those of the first. Also returns the units that change."""
        pairs = [(expected.outputs, answers.outputs)]
        return fidelity(pairs, len(self.data), self.item, expected.groups, self.tags)

    @abstractmethod
    def cells(self, units: Keys, all_features: list[list[Features]]) -> Cells:
        """Returns columns with the position of each of the units in the file, and its text and label."""

    def predicted(self, units: Keys, answers: RowPredictions, expected: RowPredictions) -> Sequence[str]:
        """Returns what a model predicts for each of the units. `expected` are the predictions of the first model."""
        return [answers.texts[unit] for unit in units]


def split_names(names: str | None) -> tuple[str, ...]:
    """Returns the column names in a comma-separated string."""
    return tuple(names.split(",")) if names else ()


def file_of(options: CompareOptions) -> str:
    """Returns the file with words or questions. Raises InputError if a GLUE task, which has texts, is given."""
    if options.validation_file is None:
        raise InputError("has texts, but the model needs words or questions; set `validation_file`.", "task_name")
    return options.validation_file
