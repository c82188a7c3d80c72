"""Texts and text pairs on which models for classes, scores or embeddings are compared."""

import math
from collections.abc import Sequence

import datasets
import numpy as np
from accelerate import PartialState
from transformers import PreTrainedConfig

from ..options import CompareOptions
from ..support.errors import InputError
from .examples import drawn
from .glue_metrics import GlueEvaluation
from .labels import MULTI, REGRESSION, Labels, as_float, problem_type_of
from .predictions import TEXTS
from .ranking import first_results, ranking_scores, relevance_scores
from .reading import RowSource
from .rows import Model, RowPredictions, Rows, split_names
from .similarity import are_binary, nearest_neighbours, similarity_scores
from .texts import TextData, check_text_columns, find_text_columns, load_files, load_task, text_features, text_names


class TextRows(Rows):
    """
    Texts or text pairs, with one class or several labels each.

    Args:
        evaluation: Predicts and scores the labels in the data, or those of the model; None for embeddings.
        text_columns: The names of the text columns in the file or dataset.
    """

    def __init__(
        self,
        rows: datasets.Dataset,
        evaluation: GlueEvaluation | None = None,
        text_columns: tuple[str, ...] = (),
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
            data = load_validation(options, keep_labels=head == TEXTS)
        else:
            data = load_file(options, head, has_scores, expected[0])
        for trained_on in dict.fromkeys(expected):
            check_text_columns(data.text_columns, trained_on)
        rows = next(iter(data.splits.values()))
        if head != TEXTS:
            return EmbeddingRows(rows, None, data.text_columns)
        labels, threshold = data.labels or Labels.of(config), score_threshold(config)
        labels.align(config)
        evaluation = GlueEvaluation(options.task_name and options.task_name.lower(), labels)
        if not has_scores:
            return cls(rows, evaluation, data.text_columns)
        return ScoreRows(with_relevant_rows(rows, options), evaluation, data.text_columns, options, threshold)

    def texts(self):
        names = [name for name in ("group", "first", "sentence1", "sentence2") if name in self.data.column_names]
        return [*zip(*(self.data[name][:] for name in names), strict=True)]

    def features(self, tokenizer, settings, length):
        features = text_features(self.data, tokenizer, length, prompt=settings.prompt)
        return [[row] for row in features], sum(features["truncated"][:])

    def interpret(self, outputs, features, all_features):
        assert self.evaluation is not None
        labels = self.evaluation.labels
        predictions, probabilities = self.evaluation.predict(outputs[0].values.numpy(), outputs[0].threshold)
        assert probabilities is not None
        scores, correct = {}, None
        if self.labeled:
            expected = labels.encode(self.data["label"][:])
            scores = self.evaluation.scores(predictions, expected, probabilities)
            correct = (predictions == expected).reshape(len(expected), -1).all(axis=1)
        if labels.problem_type == MULTI:  # they are independent, so the probability of a set is a product
            chosen = np.where(predictions, probabilities, 1 - probabilities).prod(axis=1)
        else:
            chosen = probabilities.max(axis=1)
        return RowPredictions(outputs, scores, labels.decode(predictions), chosen, correct)

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
        threshold: Scores above it predict the label 1.
    """

    def __init__(self, rows, evaluation, text_columns, options: CompareOptions, threshold: float):
        super().__init__(rows, evaluation, text_columns)
        self.query_column, self.threshold = options.query_column_name, threshold
        self.are_relevant = self.labeled and are_binary(np.array(rows["label"][:]))
        if self.query_column:
            self.item, self.number = "query", "score"
            self.note = (
                "a query is correct if a row with a label above 0 has the highest score" if self.labeled else ""
            )
        elif self.are_relevant:
            self.note = f"accuracy: scores above {threshold:g} predict the label 1"

    def sample(self, count):
        if not self.query_column:
            return super().sample(count)
        self.data = self.data.select(drawn(range(len(self.data)), count, 0, self.data["group"][:].__getitem__))

    @property
    def queries(self) -> np.ndarray | None:
        """The number of each row's query."""
        return np.unique(self.data["group"][:], return_inverse=True)[1] if self.query_column else None

    def interpret(self, outputs, features, all_features):
        scores, queries = outputs[0].values[:, 0].double().numpy(), self.queries
        if not self.labeled:
            return RowPredictions(outputs, {}, groups=queries)
        labels = np.array(self.data["label"][:], dtype=np.float64)
        if queries is not None:
            metrics, correct = ranking_scores(scores, labels, queries)
        elif self.are_relevant:
            metrics, correct = relevance_scores(scores, labels, self.threshold)
        else:
            metrics, correct = self.evaluation.scores(scores, labels), None
        return RowPredictions(outputs, metrics, correct=correct, groups=queries)

    def cells(self, units, all_features):
        return [("query", np.unique(self.data["group"][:])[units].tolist())]

    def predicted(self, units, answers, expected):
        scores = answers.outputs[0].values[:, 0].numpy()
        first = first_results(scores, answers.groups)[units]
        names = text_names(self.data.column_names)
        shown = [name for name, column in zip(names, self.text_columns, strict=True) if column != self.query_column]
        return self.data.select(first)[shown[-1]][:], scores[first].tolist()


class EmbeddingRows(TextRows):
    """Texts to embed, of which each is a row, or pairs of texts with a label for their similarity."""

    item, number = "text", "cosine"

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
        return [texts[index] for index in neighbours.indices[units]], neighbours.cosines[units].tolist()


def separate(rows: datasets.Dataset) -> datasets.Dataset:
    """Makes each text of a pair a row, without labels. The column `first` contains the first text of the pair."""
    names = text_names(rows.column_names)
    each = [(row, row[name]) for row in rows for name in names]
    return datasets.Dataset.from_list(
        [{"row": row["row"], "sentence1": text, "first": row["sentence1"]} for row, text in each]
    )


def score_threshold(config: PreTrainedConfig) -> float:
    """Returns the score above which a row is relevant: 0.5, if the model learned the labels as numbers, otherwise a
    probability of 0.5, as in sentence-transformers."""
    return 0.5 if config.problem_type == REGRESSION else 0.0


def load_validation(options: CompareOptions, keep_labels: bool) -> TextData:
    """Loads the validation data of a GLUE task. For embeddings, only scores are kept."""
    hub_options, task = options.download_options(), str(options.task_name).lower()
    data = load_task(task, options.data_dir, ("validation",), hub_options, skip_bad_rows=options.skip_bad_rows)
    assert data.labels is not None
    if not keep_labels and data.labels.problem_type != REGRESSION:
        report_unused(f"GLUE {task}")
        data.splits = {name: rows.remove_columns("label") for name, rows in data.splits.items()}
    return data


def load_file(options: CompareOptions, head: str, has_scores: bool, expected: tuple[str, ...]) -> TextData:
    """Loads the rows of a file, with their labels, if it contains any that the models can predict."""
    file, columns = str(options.validation_file), split_names(options.label_column_name)
    source = RowSource.from_file(file)
    texts = split_names(options.text_column_names) or find_text_columns(source, expected)
    label, has_labels = columns or ("label",), bool(columns) or "label" in source.columns
    if head != TEXTS and has_labels:
        has_labels = has_scores = has_similarities(source, texts, label, is_required=bool(columns))
    return load_files(
        {"validation" if has_labels else "test": file},
        do_regression=has_scores,
        skip_bad_rows=options.skip_bad_rows,
        text_columns=texts,
        label_columns=label,
        group_column=options.query_column_name,
    )


def has_similarities(source: RowSource, texts: Sequence[str], columns: tuple[str, ...], is_required: bool) -> bool:
    """
    Returns True if the labels can be the similarities of pairs of texts. If not, prints that they are not used, or
    with `is_required`, raises InputError.
    """
    value = next(source.numbered_rows())[1].values.get(columns[0])
    if len(texts) == 2 and (is_required or math.isfinite(as_float(value))):
        return True
    if is_required:
        raise InputError(
            f"{columns[0]!r}: labels of embeddings are the similarities of two texts; set `text_column_names` to the "
            "columns of these texts, or leave the labels out.",
            "label_column_name",
        )
    report_unused(source.name)
    return False


def report_unused(source: str):
    PartialState().print(f"{source}: the labels are not used, because they are not the similarities of pairs of texts")


def check_queries(column: str | None, head: str, config: PreTrainedConfig):
    """Raises InputError if rows have queries, but the model does not score them."""
    if column and not (head == TEXTS and problem_type_of(config) == REGRESSION):
        raise InputError("is for models that predict one score per row, such as rerankers.", "query_column_name")


def with_relevant_rows(rows: datasets.Dataset, options: CompareOptions) -> datasets.Dataset:
    """
    Returns the rows of queries that have several rows, and if there are labels, one above 0. Others cannot be ranked.

    Raises:
        InputError: If there is no such query, or a label is negative.
    """
    if not options.query_column_name:
        return rows
    labels = rows["label"][:] if "label" in rows.column_names else [1] * len(rows)
    if min(labels) < 0:
        raise InputError(f"{options.validation_file}: with `query_column_name`, labels must be at least 0.")
    grades: dict[str, list[float]] = {}
    for query, label in zip(rows["group"][:], labels, strict=True):
        grades.setdefault(query, []).append(label)
    kept = {query for query, own in grades.items() if len(own) > 1 and max(own) > 0}
    reason = "a single row, or no row with a label above 0"
    if not kept:
        raise InputError(f"each query in {options.validation_file} has {reason}.", "query_column_name")
    if left_out := len(grades) - len(kept):
        text = f"{left_out:,} of {len(grades):,} queries are left out, because they have {reason}"
        PartialState().print(f"{options.validation_file}: {text}")
    return rows.select([index for index, query in enumerate(rows["group"][:]) if query in kept])
