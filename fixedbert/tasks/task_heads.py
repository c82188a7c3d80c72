"""The rows for each task head: those on which models are compared, and unlabeled ones for calibration."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedConfig

from ..loading.families import check_length, max_tokens
from ..options import CalibrationOptions, CompareOptions
from ..support.errors import InputError, error_context
from .labels import check_label_ids, default_names, match_names
from .predictions import MASKED_LM, QUESTIONS, TEXTS, WORDS, kind_of_logits
from .questions import QuestionRows, questions_in, unlabeled_questions
from .reading import RowSource
from .rows import Model, Rows, split_names
from .text_rows import EmbeddingRows, TextRows, check_queries
from .texts import check_text_columns, load_files, load_task
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
    options: CalibrationOptions, head: str, model: Model, length: int, split: str, count: int
) -> list[Rows]:
    """
    Draws `count` rows without labels from each split of one kind of a GLUE task, or from all files.

    Args:
        head: The task head of the model. For a masked LM or an encoder, each text of a pair becomes a row.
        length: The maximum number of tokens per row, which limits the length of questions.

    Raises:
        InputError: If a model for text pairs is given single texts or vice versa, or if rows are unsuitable.
    """
    (config, tokenizer), files = model, options.train_file or ()
    kind = EmbeddingRows if head in MASKED_LM or not head else TextRows
    trained_on = () if kind is EmbeddingRows else tuple(getattr(config, "text_column_names", None) or ())
    if head == QUESTIONS and not files:
        raise InputError("does not support question answering; use a `train_file` in SQuAD format.", "task_name")
    if head == QUESTIONS and options.text_column_names:
        raise InputError("files in SQuAD format have fixed column names; do not specify any.", "text_column_names")
    queries = getattr(options, "query_column_name", None)  # not an option of export
    check_queries(queries, head, config)
    sampling: dict[str, Any] = {"skip_bad_rows": options.skip_bad_rows, "seed": options.seed}
    if options.task_name is not None:
        task, hub_options = options.task_name.lower(), options.download_options()
        data = load_task(task, options.data_dir, (split,), hub_options, max_samples={split: count}, **sampling)
        check_text_columns(data.text_columns, trained_on)
        return [kind(rows.remove_columns("label")) for rows in data.splits.values()]
    found: list[Rows] = []
    column = options.text_column_names or TOKENS
    for file, number in zip(files, shares(files, head, count, options.seed), strict=True):
        if not number:
            continue
        if head == QUESTIONS:
            found.append(QuestionRows(unlabeled_questions(file, [tokenizer], length, max_samples=number, **sampling)))
        elif head == WORDS and has_words(file, column):
            found.append(WordRows(load_words(file, column, max_samples=number, **sampling)))
        else:
            columns = {"text_columns": split_names(options.text_column_names), "expected_columns": trained_on}
            data = load_files(
                {"test": file}, max_samples={"test": number}, group_column=queries, **columns, **sampling
            )
            check_text_columns(data.text_columns, trained_on)
            found.append(kind(data.splits["test"]))
    return found


def shares(files: Sequence[str], head: str, count: int, seed: int) -> list[int]:
    """Returns how many of `count` rows to draw from each file, so that the rows of all files have the same chance."""
    if len(files) < 2:
        return [count] * len(files)
    sizes = []
    for file in files:
        source = RowSource.from_file(file)
        sizes.append(sum(1 for _ in (questions_in(source) if head == QUESTIONS else source.numbered_rows())))
    return np.random.default_rng(seed).multivariate_hypergeometric(sizes, min(count, sum(sizes))).tolist()


def row_length(max_seq_length: int | None, models: Iterable[Model]) -> int:
    """
    Returns the maximum number of tokens per row: `max_seq_length`, or by default the lowest limit of all models and
    tokenizers, capped at 512.

    Raises:
        InputError: If `max_seq_length` exceeds the limit of a model.
    """
    limits = [min(max_tokens(config), tokenizer.model_max_length) for config, tokenizer in models]
    if max_seq_length is None:
        return min(MAX_LENGTH, *limits)
    for config, _ in models:
        check_length(max_seq_length, config)
    return max_seq_length


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
