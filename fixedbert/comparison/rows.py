"""The rows on which models are compared: texts, texts split into words, or questions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import numpy as np

from ..data.file_formats import file_format
from ..options import AnswerOptions, CompareOptions
from ..support.errors import InputError
from ..tasks import words
from ..tasks.calibration import DOC_STRIDE, lines_of, texts_of
from ..tasks.columns import check_text_columns, split_names
from ..tasks.glue_metrics import GlueEvaluation
from ..tasks.label_columns import encode_labels
from ..tasks.labels import MULTI, REGRESSION, align_labels, default_names, problem_type_of
from ..tasks.predictions import Predictions
from ..tasks.answers import SquadEvaluation
from ..tasks.squad_metrics import best_score, exact_match, note_on_spaces
from ..tasks.questions import load_squad, questions_in, questions_that_fit
from ..tasks.windows import squad_windows
from ..tasks.texts import Columns, RowSource, TextData, load_files, load_task
from .candidates import TEXTS, Candidate, Features

Cells = list[tuple[str, Sequence]]  # names and contents of columns in changed.csv


@dataclass(frozen=True)
class Answers:
    """The predictions of a model for items, which are rows, words or questions."""

    outputs: list[Predictions]  # for measuring the fidelity; empty if the tokens differ from those of the first model
    scores: dict[str, float]  # metrics by name; empty without labels
    texts: Sequence[str] = ()  # the labels or the answer for each item; empty for scores and embeddings
    probabilities: Sequence[float] = ()  # the probability of each text
    correct: np.ndarray | None = None  # True for each item that is predicted correctly; None without labels


class Rows(ABC):
    """
    The rows of a file, with or without labels. The constructors read the file.

    Attributes:
        data: A dataset whose column `row` contains the 0-based index of each row in the file.
        config: Configuration of the first model, with its label names.
        item: The unit that has a prediction.
    """

    item = "row"

    def __init__(self, data: datasets.Dataset, models: list[Candidate], options: CompareOptions):
        self.data, self.config, self.file = data, models[0].config, Path(options.validation_file or "")
        self.id_columns = split_names(options.id_column_name)
        if self.id_columns and options.validation_file is None:
            raise InputError("requires `validation_file`.", "id_column_name")
        if self.id_columns:
            Columns((), ids=self.id_columns).check(str(self.file), RowSource.from_file(self.file).columns)

    def keys(self) -> Cells:
        """Returns the columns that identify the rows in the file."""
        rows = self.data["row"][:]
        values = [row.values for row in RowSource.from_file(self.file).rows] if self.id_columns else []
        return [("row", rows), *((name, [values[row].get(name) for row in rows]) for name in self.id_columns)]

    @abstractmethod
    def features(self, model: Candidate, length: int) -> tuple[list[Features], int]:
        """Returns the features of each row, at most `length` tokens long, and the number of truncated rows."""

    @abstractmethod
    def answers(self, model: Candidate, models: list[Candidate]) -> Answers:
        """Returns the predictions of a model for all items. `models` are all models that are compared."""

    @abstractmethod
    def cells(self, models: list[Candidate]) -> Cells:
        """Returns columns with the position of each item in the file, and its ids, text and label."""


class TextRows(Rows):
    """Texts or text pairs, for classification, regression or embeddings."""

    def __init__(self, options: CompareOptions, models: list[Candidate], length: int):
        self.label_ids: dict[str, int] | None = None  # by label name; None without labels
        self.task = options.task_name
        expected = [tuple(getattr(model.config, "text_column_names", None) or ()) for model in models]
        loaded = load_rows(options, models[0], expected[0])
        self.text_columns = loaded.text_columns
        for trained_on in dict.fromkeys(expected):
            check_text_columns(loaded.text_columns, trained_on)
        rows = next(iter(loaded.splits.values()))
        if models[0].head != TEXTS:  # each text of a pair becomes a row
            rows = datasets.Dataset.from_list([{"sentence1": text} for texts in texts_of(rows) for text in texts])
        elif "label" in rows.column_names:
            self.label_ids, _ = align_labels(loaded.labels, models[0].config, False, loaded.problem_type)
        super().__init__(rows, models, options)

    def features(self, model, length):
        columns = (
            [model.settings.prompt + text for text in column] for column in zip(*texts_of(self.data), strict=True)
        )
        encoded = model.tokenizer(*columns, truncation=True, max_length=length)
        features = [[dict(zip(encoded, values, strict=True))] for values in zip(*encoded.values(), strict=True)]
        return features, sum(bool(row.overflowing) for row in encoded.encodings or ())

    def answers(self, model, models):
        (outputs,) = model.outputs
        if outputs.kind == "embeddings":
            return Answers([outputs], {})
        evaluation, reference = GlueEvaluation(self.task, model.config), GlueEvaluation(self.task, self.config)
        kind, names = evaluation.problem_type, reference.class_names
        predictions, probabilities = evaluation.predict(outputs.values.numpy())
        scores, correct = {}, None
        if self.label_ids is not None:
            labels = encode_labels(self.data["label"][:], self.label_ids, self.config)
            scores = reference.scores(predictions, labels, probabilities)
            correct = (predictions == labels).reshape(len(labels), -1).all(axis=1)
        if probabilities is None:
            return Answers([outputs], scores)
        if kind == MULTI:  # the labels are independent, so the probability of a set of labels is a product
            sets = ([name for name, flag in zip(names, row, strict=True) if flag] for row in predictions)
            chosen = np.where(predictions, probabilities, 1 - probabilities).prod(axis=1)
            return Answers([outputs], scores, [", ".join(labels) for labels in sets], chosen, correct)
        return Answers([outputs], scores, [names[label] for label in predictions], probabilities.max(axis=1), correct)

    def cells(self, models):
        labels = self.data["label"][:] if self.label_ids is not None else [""] * len(self.data)
        labels = [", ".join(label) if isinstance(label, list) else label for label in labels]
        texts = zip(self.text_columns, zip(*texts_of(self.data), strict=True), strict=True)
        return [*self.keys(), *texts, ("label", labels)]


def load_rows(options: CompareOptions, model: Candidate, expected: tuple[str, ...]) -> TextData:
    """Reads the texts of a GLUE task's first validation split, or of a file. `expected` are the model's columns."""
    if options.task_name is not None:
        data = load_task(options.task_name.lower(), options.data_dir, ("validation",), options.skip_bad_rows)
        return replace(data, splits=dict([next(iter(data.splits.items()))]))
    file, labels = Path(str(options.validation_file)), split_names(options.label_column_name)
    if file_format(file) == ".txt":
        rows = [{"row": position, "sentence1": text} for position, text in lines_of(file)]
        return TextData(None, {"test": datasets.Dataset.from_list(rows)}, None, ("text",))
    has_labels = bool(labels) or "label" in RowSource.from_file(file).columns
    return load_files(
        {"validation" if model.head == TEXTS and has_labels else "test": str(file)},
        do_regression=problem_type_of(model.config) == REGRESSION,
        skip_bad_rows=options.skip_bad_rows,
        text_columns=split_names(options.text_column_names) or None,
        expected_columns=expected,
        label_columns=labels or ("label",),
    )


class WordRows(Rows):
    """
    Texts split into words, with or without labels, for token classification.

    The items are the words that all models read. Words that truncation removes for any of the models are not compared,
    and words without a label do not count toward the accuracy.
    """

    item = "word"

    def __init__(self, options: CompareOptions, models: list[Candidate], length: int):
        file = file_of(options)
        names = (options.text_column_names or words.WORDS, options.label_column_name)
        rows = words.load_words(file, *names, options.skip_bad_rows)
        super().__init__(words.align_word_labels(rows, models[0].config, file), models, options)

    def features(self, model, length):
        words.check_splits_words(model.tokenizer)
        encoded = [words.encode_words(model.tokenizer, row, length) for row in self.data["words"]]
        return [[row] for row in encoded], sum(row["truncated"] for row in encoded)

    def first_tokens(self, model: Candidate) -> np.ndarray:
        """Returns the index (words,) of each word's first token among the tokens of all rows, or -1 if it has none."""
        indices, begin = [], 0
        for (row,) in model.features:
            indices += [begin + token if token >= 0 else -1 for token in row["first_tokens"]]
            begin += len(row["input_ids"])
        return np.array(indices)

    def read_by_all(self, models: list[Candidate]) -> np.ndarray:
        """Returns a mask (words,) that is True for each word that has tokens in all models."""
        return np.logical_and.reduce([self.first_tokens(model) >= 0 for model in models])

    def answers(self, model, models):
        read, names = self.read_by_all(models), default_names(self.config)
        (outputs,) = model.outputs
        logits = outputs.values[self.first_tokens(model)[read]]
        probabilities, predicted = (x.numpy() for x in logits.softmax(-1).max(-1))
        scores, correct = {}, None
        if "labels" in self.data.column_names:
            labels = np.concatenate(self.data["labels"][:])[read]
            correct = predicted == labels  # never True for a word without a label, whose label id is -1
            scores = {"accuracy": float(correct[labels >= 0].mean()) if (labels >= 0).any() else 0.0}
        texts = [names[label] for label in predicted]
        return Answers([Predictions(logits, "classes")], scores, texts, probabilities, correct)

    def cells(self, models):
        counts, read = [len(row) for row in self.data["words"]], self.read_by_all(models)
        columns = [(name, np.repeat(np.array(values), counts)) for name, values in self.keys()]
        columns += [("word", np.concatenate([np.arange(count) for count in counts]))]
        columns += [("text", np.concatenate(self.data["words"][:]))]
        if "labels" in self.data.column_names:
            names = np.array([*default_names(self.config), ""])
            columns += [("label", names[np.concatenate(self.data["labels"][:])])]
        return [(name, values[read].tolist()) for name, values in columns]


class QuestionRows(Rows):
    """
    Questions, with or without answers, for question answering. If some of the questions have no answer, as in SQuAD
    2.0, the models can predict that a question has none.
    """

    item = "question"

    def __init__(self, options: CompareOptions, models: list[Candidate], length: int):
        file, skip_bad_rows = file_of(options), options.skip_bad_rows
        if options.text_column_names or options.label_column_name or options.id_column_name:
            raise InputError(f"{file}: files in SQuAD format have fixed column names; do not specify any.")
        rows = load_squad(file, version_2_with_negative=True, answered=False, skip_bad_rows=skip_bad_rows)
        for model in models:
            rows = questions_that_fit(rows, file, model.tokenizer, length, stride_for(length), skip_bad_rows)
        positions: dict[str, int] = {}
        for position, question in enumerate(questions_in(Path(file))):
            positions.setdefault(str(question["id"]), position)
        super().__init__(rows.add_column("row", [positions[name] for name in rows["id"]]), models, options)
        has_answers = [bool(answers["text"]) for answers in rows["answers"]]
        note_on_spaces(answers["text"] for answers in rows["answers"])
        self.labeled, self.version_2 = any(has_answers), any(has_answers) and not all(has_answers)

    def features(self, model, length):
        features: list[Features] = [[] for _ in self.data]
        for window in squad_windows(self.data, model.tokenizer, length, stride_for(length), for_training=False):
            features[window["question"]].append(window)
        return features, 0

    def answers(self, model, models):
        outputs, windows = model.outputs, [window for row in model.features for window in row]
        arguments = AnswerOptions(version_2_with_negative=self.version_2)
        evaluation = SquadEvaluation(self.data, datasets.Dataset.from_list(windows), arguments)
        evaluation.predict(*(output.values.numpy() for output in outputs))
        texts, references = evaluation.predictions, evaluation.answers
        n_best = [(answer, evaluation.n_best[name]) for name, answer in texts.items()]
        probabilities = [next((x["probability"] for x in best if x["text"] == text), 0.0) for text, best in n_best]
        first = [window["input_ids"] for row in models[0].features for window in row]
        if [window["input_ids"] for window in windows] != first:  # predictions for different tokens cannot be compared
            outputs = []
        scores, correct = {}, None
        if self.labeled:
            scores = evaluation.scores(evaluation.predictions)
            scores = {"exact_match": scores.get("exact", scores.get("exact_match", 0.0)), "f1": scores["f1"]}
            correct = np.array(
                [best_score(exact_match, texts, name, answers or [""]) == 1.0 for name, answers in references.items()]
            )
        return Answers(outputs, scores, [*texts.values()], probabilities, correct)

    def cells(self, models):
        answers = [" | ".join(dict.fromkeys(answers["text"])) for answers in self.data["answers"]]
        return [*self.keys(), ("id", self.data["id"][:]), ("question", self.data["question"][:]), ("answers", answers)]


def file_of(options: CompareOptions) -> str:
    """Returns the file with words or questions. Raises InputError if a GLUE task, which has texts, is given."""
    if options.validation_file is None:
        raise InputError("has texts, but the model needs words or questions; set `validation_file`.", "task_name")
    return options.validation_file


def stride_for(length: int) -> int:
    """Returns the number of tokens that consecutive windows of at most `length` tokens share."""
    return min(DOC_STRIDE, length // 2)
