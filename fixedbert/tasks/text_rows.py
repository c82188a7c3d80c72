"""Texts and text pairs on which models for classes, scores or embeddings are compared."""

import math
import random

import datasets
import numpy as np
from accelerate import PartialState
from transformers import PreTrainedConfig

from ..options import CompareOptions
from ..support.errors import InputError
from .examples import drawn
from .glue_metrics import GlueEvaluation
from .labels import REGRESSION, Labels, as_float, is_missing, problem_type_of
from .predictions import TEXTS
from .ranking import first_results, ranking_scores, relevance_scores
from .reading import RowSource
from .rows import Model, RowPredictions, Rows, split_names
from .similarity import are_binary, nearest_neighbours, similarity_scores
from .texts import TextData, check_text_columns, find_text_columns, load_files, load_task, text_features, text_names

SIMILARITIES = "for embedding models, a label must be a number for a pair of texts"


class TextRows(Rows):
    """
    Texts or text pairs, with one class or several labels each.

    Args:
        evaluation: Predicts and scores the labels in the data, or those of the model; None for embeddings.
        text_columns: The names of the text columns in the file or dataset.
    """

    def __init__(
        self, rows: datasets.Dataset, evaluation: GlueEvaluation | None = None, text_columns: tuple[str, ...] = ()
    ):
        super().__init__(rows)
        self.evaluation, self.text_columns = evaluation, text_columns
        self.labeled = "label" in rows.column_names

    @classmethod
    def load(cls, options: CompareOptions, head: str, models: list[Model], length: int) -> "TextRows":
        config, _ = models[0]
        expected = [tuple(getattr(config, "text_column_names", None) or ()) for config, _ in models]
        has_scores = head == TEXTS and problem_type_of(config) == REGRESSION
        check_queries(options.query_column_name, head, config)
        if options.task_name is not None:
            data = load_validation(options, head)
        else:
            data = load_file(options, head, has_scores, expected[0])
        for trained_on in dict.fromkeys(expected):
            check_text_columns(data.text_columns, trained_on)
        rows = next(iter(data.splits.values()))
        if head != TEXTS:
            return EmbeddingRows(rows, None, data.text_columns)
        # The score above which a row is relevant: a probability of 0.5, unless a model learned the labels as numbers.
        threshold = 0.5 if config.problem_type == REGRESSION else 0.0
        labels = data.labels or Labels.of(config)
        labels.align(config)
        evaluation = GlueEvaluation(options.task_name and options.task_name.lower(), labels)
        if not has_scores:
            return cls(rows, evaluation, data.text_columns)
        if options.query_column_name:
            rows = with_relevant_rows(rows, options.validation_file)
        return ScoreRows(rows, evaluation, data.text_columns, options.query_column_name, threshold)

    def texts(self):
        names = [name for name in ("group", "first", "sentence1", "sentence2") if name in self.data.column_names]
        return [*zip(*(self.data[name][:] for name in names), strict=True)]

    def features(self, tokenizer, settings, length):
        names = self.data.column_names
        if len(text_names(names)) == 1 and (settings.takes_pairs or "group" in names):
            raise InputError(
                "the model reads pairs of texts, but each row has a single text; name both columns in "
                "`text_column_names`, for example query,text."
            )
        features = text_features(self.data, tokenizer, length, prompt=settings.prompt)
        return [[row] for row in features], sum(features["truncated"][:])

    def interpret(self, outputs, features, all_features):
        assert self.evaluation is not None
        labels = self.evaluation.labels
        predictions, probabilities = self.evaluation.predict(outputs[0].values.numpy(), outputs[0].threshold)
        scores, correct = {}, None
        if self.labeled:
            expected = labels.encode(self.data["label"][:])
            scores = self.evaluation.scores(predictions, expected, probabilities)
            correct = (predictions == expected).reshape(len(expected), -1).all(axis=1)
        return RowPredictions(outputs, scores, labels.decode(predictions), correct)

    def cells(self, units, all_features):
        rows = self.data.select(units)
        labels = rows["label"][:] if self.labeled else [""] * len(rows)
        labels = [", ".join(label) if isinstance(label, list) else label for label in labels]
        texts = [rows[name][:] for name in text_names(rows.column_names)]
        return [("row", rows["row"][:]), *zip(self.text_columns, texts, strict=True), ("label", labels)]


class ScoreRows(TextRows):
    """
    Texts or text pairs with one predicted score each, for regression, or for reranking the rows of each query.

    Labels that are all 0 or 1 say which rows are relevant. With queries, these can also be grades.

    Args:
        query_column: The column with the query of each row, or None.
        threshold: Scores above it predict the label 1.
    """

    def __init__(self, rows, evaluation, text_columns, query_column: str | None, threshold: float):
        super().__init__(rows, evaluation, text_columns)
        self.query_column, self.threshold = query_column, threshold
        self.are_relevant = self.labeled and are_binary(np.array(rows["label"][:]))
        if self.query_column:
            self.item = "query"
            self.note = (
                "a query is correct if a row with a label above 0 has the highest score" if self.labeled else ""
            )
        elif self.are_relevant:
            self.note = f"accuracy: scores above {threshold:g} predict the label 1"

    def sample(self, count):
        if not self.query_column:
            return super().sample(count)
        chosen = drawn(range(len(self.data)), count, 0, self.data["group"][:].__getitem__)
        self.data = self.data.select(random.Random(0).sample(chosen, len(chosen)))

    @property
    def groups(self):
        return np.unique(self.data["group"][:], return_inverse=True)[1] if self.query_column else super().groups

    def interpret(self, outputs, features, all_features):
        scores, queries = outputs[0].values[:, 0].double().numpy(), self.groups if self.query_column else None
        if not self.labeled:
            return RowPredictions(outputs, {}, groups=queries)
        labels = np.array(self.data["label"][:], dtype=np.float64)
        if queries is not None:
            metrics, correct = ranking_scores(scores, labels, queries)
        elif self.are_relevant:
            metrics, correct = relevance_scores(scores, labels, self.threshold)
        else:
            assert self.evaluation is not None
            metrics, correct = self.evaluation.scores(scores, labels), None
        return RowPredictions(outputs, metrics, correct=correct, groups=queries)

    def cells(self, units, all_features):
        return [("query", np.unique(self.data["group"][:])[units].tolist())]

    def predicted(self, units, answers, expected):
        first = first_results(answers.outputs[0].values[:, 0].numpy(), answers.groups)[units]
        names = text_names(self.data.column_names)
        shown = [name for name, column in zip(names, self.text_columns, strict=True) if column != self.query_column]
        return self.data.select(first)[shown[-1]][:]


class EmbeddingRows(TextRows):
    """Texts to embed, of which each is a row, or pairs of texts with a label for their similarity."""

    item = "text"

    def __init__(self, rows: datasets.Dataset, evaluation=None, text_columns: tuple[str, ...] = ()):
        super().__init__(rows if "label" in rows.column_names else separate(rows), evaluation, text_columns)
        self.are_relevant = self.labeled and are_binary(np.array(rows["label"][:]))

    def features(self, tokenizer, settings, length):
        if not self.labeled:
            return super().features(tokenizer, settings, length)
        features = text_features(separate(self.data), tokenizer, length, prompt=settings.prompt)
        pairs = [[*pair] for pair in zip(*[iter(features)] * 2, strict=True)]
        return pairs, sum(any(text["truncated"] for text in pair) for pair in pairs)

    def interpret(self, outputs, features, all_features):
        scores = {}
        if self.labeled:
            labels = np.array(self.data["label"][:], dtype=np.float64)
            scores = similarity_scores(outputs[0].values, labels, self.are_relevant)
        return RowPredictions(outputs, scores)

    def cells(self, units, all_features):
        rows = (separate(self.data) if self.labeled else self.data).select(units)
        return [("row", rows["row"][:]), ("text", rows["sentence1"][:])]

    def predicted(self, units, answers, expected):
        neighbours = nearest_neighbours(answers.outputs[0].values, expected.outputs[0].values)
        texts = (separate(self.data) if self.labeled else self.data)["sentence1"][:]
        return [texts[index] for index in neighbours.indices[units]]


def separate(rows: datasets.Dataset) -> datasets.Dataset:
    """Makes each text of a pair a row, without labels. The column `first` contains the first text of the pair."""
    names = text_names(rows.column_names)
    each = [(row, row[name]) for row in rows for name in names]
    return datasets.Dataset.from_list(
        [{"row": row["row"], "sentence1": text, "first": row["sentence1"]} for row, text in each]
    )


def load_validation(options: CompareOptions, head: str) -> TextData:
    """Loads the validation data of a GLUE task. Of the labels, embedding models use only scores."""
    hub_options, task = options.download_options(), str(options.task_name).lower()
    data = load_task(task, options.data_dir, ("validation",), hub_options, skip_bad_rows=options.skip_bad_rows)
    if head != TEXTS and data.labels and data.labels.problem_type != REGRESSION:
        PartialState().print(f"GLUE {task}: {SIMILARITIES}; the labels are not used")
        data.splits = {name: rows.remove_columns("label") for name, rows in data.splits.items()}
    return data


def load_file(options: CompareOptions, head: str, has_scores: bool, expected: tuple[str, ...]) -> TextData:
    """
    Loads the rows of a file, with their labels, if it contains any that the models can predict.

    Args:
        has_scores: Whether the models predict scores.
        expected: Text columns that the models were trained on.
    """
    file, named = str(options.validation_file), split_names(options.label_column_name)
    source = RowSource.from_file(file)
    texts = split_names(options.text_column_names) or find_text_columns(source, expected)
    columns = named or (("label",) if "label" in source.columns else ())
    if columns and head != TEXTS:
        values = (row.values.get(columns[0]) for _, row in source.numbered_rows())
        first = next((value for value in values if not is_missing(value)), None)
        has_scores = len(texts) == 2 and (bool(named) or math.isfinite(as_float(first)))
        if named and not has_scores:
            raise InputError(f"{columns[0]!r}: {SIMILARITIES}; leave the labels out.", "label_column_name")
        if not has_scores:
            PartialState().print(f"{file}: {SIMILARITIES}; the labels are not used")
            columns = ()
    return load_files(
        {"validation" if columns else "test": file},
        do_regression=has_scores,
        skip_bad_rows=options.skip_bad_rows,
        text_columns=texts,
        label_columns=columns,
        group_column=options.query_column_name,
    )


def check_queries(column: str | None, head: str, config: PreTrainedConfig):
    """Raises InputError if rows have queries, but the model does not score them."""
    if column and not (head == TEXTS and problem_type_of(config) == REGRESSION):
        raise InputError("is for models that predict one score per row, such as rerankers.", "query_column_name")


def with_relevant_rows(rows: datasets.Dataset, file: str | None) -> datasets.Dataset:
    """
    Returns the rows of queries that have several rows, and if there are labels, one above 0. Others cannot be ranked.

    Raises:
        InputError: If there is no such query, or a label is negative.
    """
    labels = np.array(rows["label"][:] if "label" in rows.column_names else [1] * len(rows))
    if labels.min() < 0:
        raise InputError(f"{file}: with `query_column_name`, labels must be at least 0.")
    _, queries, sizes = np.unique(rows["group"][:], return_inverse=True, return_counts=True)
    kept = (sizes > 1) & (np.bincount(queries, labels) > 0)
    reason = "a single row, or no row with a label above 0"
    if not kept.any():
        raise InputError(f"each query in {file} has {reason}; check `query_column_name`.")
    if not kept.all():
        PartialState().print(f"{file}: {(~kept).sum():,} of {len(kept):,} queries are left out; they have {reason}")
    return rows.select(np.flatnonzero(kept[queries]))
