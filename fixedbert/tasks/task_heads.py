"""The rows for each task head: those on which models are compared, and unlabeled ones for calibration."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..loading.families import max_tokens
from ..options import CalibrationOptions, CompareOptions
from ..support.errors import InputError, error_context
from .labels import check_label_ids, default_names, match_names
from .predictions import QUESTIONS, TEXTS, WORDS, kind_of_logits
from .questions import QuestionRows, unlabeled_questions
from .rows import Model, Rows, split_names
from .texts import TextRows, load_files, load_task
from .words import TOKENS, WordRows, has_words, load_words

MAX_LENGTH = 512  # default for the maximum number of tokens per row
ROWS: dict[str, type[Rows]] = {WORDS: WordRows, QUESTIONS: QuestionRows}


def compared_rows(options: CompareOptions, head: str, models: list[Model], length: int) -> Rows:
    """
    Loads the rows on which models with the same task head are compared, and matches their labels with the models'.

    `models` are the configuration and the tokenizer of each model, and `length` is the maximum number of tokens.
    """
    return ROWS.get(head, TextRows).load(options, head, models, length)


def unlabeled_rows(
    options: CalibrationOptions,
    head: str,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    split: str,
    separate: bool,
) -> list[Rows]:
    """
    Loads rows without labels from a split of a GLUE task, or from each file.

    Args:
        head: The task head of the model.
        length: The maximum number of tokens per row, which limits the length of questions.
        separate: Make each text of a pair a row.
    """
    skip, columns, files = options.skip_bad_rows, split_names(options.text_column_names), options.train_file or ()
    if head == QUESTIONS and not files:
        raise InputError("does not support question answering; use a `train_file` in SQuAD format.", "task_name")
    if options.task_name is not None:
        data = load_task(
            options.task_name.lower(), options.data_dir, (split,), options.download_options(), skip_bad_rows=skip
        )
        return [TextRows(rows, separate) for rows in data.splits.values()]
    found: list[Rows] = []
    column = columns[0] if columns else TOKENS
    for file in files:
        if head == QUESTIONS:
            found.append(QuestionRows(unlabeled_questions(file, [tokenizer], length, skip)))
        elif head == WORDS and has_words(file, column):
            found.append(WordRows(load_words(file, column, skip_bad_rows=skip)))
        else:
            data = load_files({"test": file}, text_columns=columns, skip_bad_rows=skip)
            found.append(TextRows(data.splits["test"], separate))
    return found


def row_length(max_seq_length: int | None, models: Iterable[Model]) -> int:
    """
    Returns the maximum number of tokens per row: `max_seq_length`, or by default the lowest limit of all models and
    tokenizers, capped at 512.

    Raises:
        InputError: If `max_seq_length` is less than 3, or exceeds the limit of a model.
    """
    configs, tokenizers = zip(*models, strict=True)
    longest = min(map(max_tokens, configs))
    length = max_seq_length
    if length is None:
        length = min(MAX_LENGTH, longest, *(tokenizer.model_max_length for tokenizer in tokenizers))
    if not 3 <= length <= longest:
        raise InputError(f"{length}: must be between 3 and {longest}, the maximum number of tokens.", "max_seq_length")
    return length


class Task(NamedTuple):
    """What a model predicts. Only models with the same kind of predictions and the same classes can be compared."""

    kind: str  # such as "classes"
    names: list[str]  # of the classes, in the order of the outputs

    @classmethod
    def of(cls, head: str, config: PreTrainedConfig, source: str, has_embeddings: bool) -> "Task":
        """Returns the task of a model. Raises InputError if the task head is not supported."""
        if head == "" and has_embeddings:
            return cls(f"embeddings of size {config.hidden_size}", [])
        if head == QUESTIONS:
            return cls("answers to questions", [])
        if head not in (TEXTS, WORDS):
            raise InputError(
                f"{source}: only models for classification, regression, token classification, question answering and "
                "sentence embeddings can be compared."
            )
        with error_context(source):
            check_label_ids(config)
        kind = "classes of words" if head == WORDS else kind_of_logits(config)
        return cls(f"{config.num_labels} numbers", []) if kind == "numbers" else cls(kind, default_names(config))

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(self.names)}".strip()

    def order_of(self, other: "Task") -> list[int] | None:
        """Returns the index of each of the classes among the outputs of the other model, or None if they differ."""
        if self == other:
            return [*range(len(self.names))]
        if self.kind != other.kind or len(self.names) != len(other.names):
            return None
        inverse = match_names(other.names, self.names)  # numbers match LABEL_0, ... in this direction or in the other
        return match_names(self.names, other.names) or (inverse and np.argsort(inverse).tolist())
