"""Texts that are split into words, with or without a label for each word: loads, tokenizes and scores them."""

from collections.abc import Sequence
from functools import partial
from itertools import chain

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from ..data.file_formats import FileRow, text_problem
from ..options import CompareOptions
from ..support.errors import InputError
from .entities import OUTSIDE, Entities, entities_of, entity_scores, split_tags
from .examples import SAMPLE_SEED, drawn
from .labels import SINGLE, Labels, default_names, label_problem, label_sort_key, normalized, shorten
from .predictions import Predictions
from .reading import RowSource, valid_rows
from .rows import Cells, Features, Model, RowPredictions, Rows, file_of

TOKENS, LABELS = "tokens", ("ner_tags", "labels")  # default names of the columns, as in transformers' run_ner.py
NO_LABEL = (None, -100, "-100")  # values for words that are not labeled, such as transformers' ignore_index


def has_words(file: str, column: str = TOKENS) -> bool:
    """Returns True if a column in the file contains lists of words instead of texts."""
    return isinstance(next(RowSource.from_file(file).rows).values.get(column), list)


def load_words(
    file: str,
    column: str = TOKENS,
    label_column: str | None = None,
    skip_bad_rows: bool = False,
    max_samples: int | None = None,
    seed: int = SAMPLE_SEED,
) -> datasets.Dataset:
    """
    Loads rows such as {"tokens": [...], "ner_tags": [...]} from a .json, .jsonl or .parquet file.

    Args:
        label_column: Column with a label for each word. By default, "ner_tags" or "labels", if the file contains one
            of them.
        skip_bad_rows: Print and skip invalid rows instead of raising InputError.
        max_samples: Number of rows to draw at random, or None for all.

    Returns:
        A dataset with the columns `words` and `row` (the 0-based index in the file). If the file contains labels,
        there is a third column `labels` ("" for words without a label).
    """
    source = RowSource.from_file(file)
    known = [name for name in LABELS if name in source.columns]
    if label_column is None and len(known) > 1:
        raise InputError(f"must be set for {file}; available columns: {', '.join(known)}.", "label_column_name")
    label = label_column or (known[0] if known else None)
    source.check_columns(text_column_names=[column], label_column_name=[label] if label else [])
    chosen = drawn(source.numbered_rows(), max_samples, seed)
    rows, _ = valid_rows(file, chosen, partial(parse_words, column=column, label=label), skip_bad_rows)
    return datasets.Dataset.from_list(rows)


def parse_words(row: FileRow, column: str, label: str | None) -> dict:
    """Returns the words and labels of a row. Raises ValueError if it lacks words or a label for each word."""
    words = row.values.get(column)
    if not isinstance(words, list) or not words:
        raise ValueError(row.problem or f"{column!r} is not a list of words")
    if problem := next(filter(None, (text_problem(word, repr(column)) for word in words)), None):
        raise ValueError(problem)
    if None in words:
        raise ValueError(f"a word in {column!r} is missing")
    parsed = {"words": words, "row": row.position}
    if label:
        labels = row.values.get(label)
        if not isinstance(labels, list) or len(labels) != len(words):
            raise ValueError(f"{label!r} is not a list with a label for each of the {len(words)} words")
        parsed["labels"] = [word_label(name) for name in labels]
    return parsed


def word_label(name: object) -> str:
    """Returns the label of a word, or "" if it has none. Raises ValueError if it is invalid."""
    if name in NO_LABEL:
        return ""
    if problem := label_problem(name):
        raise ValueError(problem)
    return normalized(name)


def check_splits_words(tokenizer: PreTrainedTokenizerBase):
    """Raises InputError if a tokenizer joins the words in a list, as RoBERTa's does without add_prefix_space."""
    if tokenizer(["a", "b"], is_split_into_words=True)["input_ids"] != tokenizer("a b")["input_ids"]:
        raise InputError(
            "the tokenizer joins the words in a list; save it with add_prefix_space=True, as run_ner.py does."
        )


def encode_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[str], max_length: int) -> dict:
    """
    Returns the tokens for a list of words.

    The entry `first_tokens` contains the index of the first token of each word, or -1 if a word has no tokens, because
    truncation or the tokenizer removes all of its characters. `truncated` is True if the row is truncated.
    """
    options = {"max_length": max_length, "truncation": True, "return_attention_mask": False}
    encoded = tokenizer([*words], is_split_into_words=True, **options)
    first = [-1] * len(words)
    for token, word in reversed([*enumerate(encoded.word_ids())]):
        if word is not None:
            first[word] = token
    return {**encoded, "first_tokens": first, "truncated": any(part.overflowing for part in encoded.encodings or ())}


class WordRows(Rows):
    """
    Texts split into words, with or without labels, for token classification.

    Only words that all models read count: not those that truncation removes for any of the models. Words without a
    label do not count toward the scores.

    Args:
        outputs: The label names of the models, in the order of their outputs. If "O" is one of them, the items are
            entities.
    """

    item = "word"

    def __init__(self, rows: datasets.Dataset, outputs: Sequence[str] = ()):
        super().__init__(rows)
        self.tags, self.names, self.parts = [*outputs], np.array([*outputs, ""]), split_tags(outputs)
        if OUTSIDE in outputs:
            self.item = "entity"

    @classmethod
    def load(cls, options: CompareOptions, head: str, models: list[Model], length: int) -> "WordRows":
        """Loads a file, and replaces its labels with the label ids of the models, or -1 for words without a label."""
        file, outputs = file_of(options), default_names(models[0][0])
        column = options.text_column_names or TOKENS
        rows = load_words(file, column, options.label_column_name, options.skip_bad_rows)
        if "labels" in rows.column_names:
            names = sorted({name for row in rows["labels"] for name in row if name}, key=label_sort_key)
            labels = Labels(SINGLE, {name: name for name in names})
            if not labels.match(outputs):
                raise InputError(
                    f"{file}: the labels are {shorten(names)}, but the model predicts {shorten(outputs)}; use the "
                    "names in id2label of the model's config.json, or remove the column to compare without labels."
                )
            ids = [[labels.ids.get(name, -1) for name in row] for row in rows["labels"]]
            rows = rows.remove_columns("labels").add_column("labels", ids)
        return cls(rows, outputs)

    def texts(self):
        return [(tuple(words),) for words in self.data["words"]]

    def features(self, tokenizer, settings, length):
        check_splits_words(tokenizer)
        encoded = [encode_words(tokenizer, row, length) for row in self.data["words"]]
        return [[row] for row in encoded], sum(row["truncated"] for row in encoded)

    def interpret(self, outputs, features, all_features):
        read = read_by_all(all_features)
        logits = outputs[0].values[first_tokens(features)[read]]
        predicted = logits.argmax(-1).numpy()
        sentences = np.repeat(np.arange(len(self.data)), [len(row) for row in self.data["words"]])[read]
        scores, correct = {}, None
        if "labels" in self.data.column_names:
            labels = np.concatenate(self.data["labels"][:])[read]
            labeled = labels >= 0
            if self.item == "entity":
                expected, found = (self.entities(ids[labeled], sentences[labeled]) for ids in (labels, predicted))
                scores = entity_scores(expected, found)
                correct = np.array([found.get(words) == kind for words, kind in expected.items()], dtype=bool)
            else:
                correct = predicted == labels  # never True for a word without a label, whose label id is -1
                scores = {"accuracy": float(correct[labeled].mean()) if labeled.any() else 0.0}
        texts = self.names[predicted].tolist()
        return RowPredictions([Predictions(logits, "classes")], scores, texts, correct, sentences)

    def entities(self, ids: np.ndarray, sentences: np.ndarray) -> Entities:
        """Returns the entities in label ids (words,)."""
        return entities_of(self.names[ids], sentences, self.parts)

    def cells(self, units, all_features):
        counts, read = [len(row) for row in self.data["words"]], read_by_all(all_features)
        sentences = np.repeat(np.arange(len(counts)), counts)[read]
        numbers = np.concatenate([np.arange(count) for count in counts])[read]
        words = np.array([*chain(*self.data["words"])], dtype=object)[read]  # arrays of strings drop final NULs
        labels = np.concatenate(self.data["labels"][:])[read] if "labels" in self.data.column_names else None
        spans = units if self.item == "entity" else [(unit, unit + 1) for unit in units]
        first = [begin for begin, _ in spans]
        columns: Cells = [("row", np.array(self.data["row"][:])[sentences[first]].tolist())]
        columns += [("word", numbers[first].tolist())]
        columns += [("text", [" ".join(words[begin:end]) for begin, end in spans])]
        if labels is None:
            return columns
        if self.item == "entity":
            expected = self.entities(labels, sentences)
            return [*columns, ("label", [expected.get(span, "") for span in spans])]
        return [*columns, ("label", self.names[labels[first]].tolist())]  # -1 is the last name, ""

    def predicted(self, units, answers, expected):
        if self.item != "entity":
            return super().predicted(units, answers, expected)
        found = self.entities(answers.outputs[0].values.argmax(-1).numpy(), answers.groups)
        return [found.get(words, "") for words in units]


def first_tokens(features: list[Features]) -> np.ndarray:
    """Returns the index (words,) of each word's first token among the tokens of all rows, or -1 if it has none."""
    indices, begin = [], 0
    for (row,) in features:
        indices += [begin + token if token >= 0 else -1 for token in row["first_tokens"]]
        begin += len(row["input_ids"])
    return np.array(indices)


def read_by_all(all_features: list[list[Features]]) -> np.ndarray:
    """Returns a mask (words,) that is True for each word that has tokens in all models."""
    return np.logical_and.reduce([first_tokens(features) >= 0 for features in all_features])
