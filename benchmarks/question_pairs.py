"""Rows for a reranker from QQP's pairs of questions: labeled pairs for training, and queries with their candidates."""

import random
import re
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.feature_extraction.text import TfidfVectorizer

from fixedbert.tasks.texts import load_task

NEIGHBORS = 60  # most similar questions that are considered for each question
BLOCK = 1000  # questions whose similarities are computed at once

Row = dict[str, str | int]  # query, text and label, which is 1 for duplicates


def words_of(question: str) -> str:
    """Returns the words of a question without case and punctuation."""
    return " ".join(re.findall(r"\w+", question.lower()))


def load_pairs(glue: str) -> tuple[list[Row], list[Row]]:
    """Returns QQP's training pairs that contain no question of the validation pairs, and the validation pairs."""
    splits = load_task("qqp", glue).splits
    training, validation = (
        [
            {"query": row["sentence1"], "text": row["sentence2"], "label": int(row["label"] == "duplicate")}
            for row in splits[name]
        ]
        for name in ("train", "validation")
    )
    known = {words_of(row[side]) for row in validation for side in ("query", "text")}
    return [row for row in training if not {words_of(row["query"]), words_of(row["text"])} & known], validation


class Questions:
    """
    The questions of some pairs, their groups of duplicates, and the questions most similar to each by TF-IDF.

    Args:
        pairs: The pairs of questions.
    """

    def __init__(self, pairs: Sequence[Row]):
        by_words = {words_of(row[side]): row[side] for row in pairs for side in ("query", "text")}
        self.ids = {words: number for number, words in enumerate(by_words)}
        self.texts = [*by_words.values()]
        duplicates = [(self.id_of(row["query"]), self.id_of(row["text"])) for row in pairs if row["label"]]
        first, second = np.array(duplicates).T
        graph = coo_array((np.ones(len(first)), (first, second)), shape=(len(self.texts), len(self.texts)))
        self.groups = connected_components(graph, directed=False)[1]
        self.members: dict[int, list[int]] = {}
        for number, group in enumerate(self.groups):
            self.members.setdefault(int(group), []).append(number)
        self.vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit_transform(by_words).tocsr()

    def id_of(self, question: str) -> int:
        return self.ids[words_of(question)]

    def neighbors(self, numbers: Sequence[int]) -> list[list[int]]:
        """Returns the questions most similar to each of `numbers` that are no known duplicates, best first."""
        found = []
        for begin in range(0, len(numbers), BLOCK):
            block = [*numbers[begin : begin + BLOCK]]
            similarities = (self.vectors[block] @ self.vectors.T).toarray()
            similarities[self.groups[block][:, None] == self.groups] = -1
            best = np.argsort(-similarities, axis=1, kind="stable")[:, :NEIGHBORS]
            found += best.tolist()
        return found


def candidates(pairs: Sequence[Row], queries: int, size: int, seed: int) -> list[Row]:
    """
    Returns rows for at most `queries` queries: first questions of duplicate pairs, each from another group.

    The candidates of a query are its known duplicates (at most half of `size`, label 1), and the most similar
    questions that are not (label 0). A few of these are duplicates that QQP does not know.
    """
    questions, generator = Questions(pairs), random.Random(seed)
    by_group = {int(questions.groups[questions.id_of(row["query"])]): row["query"] for row in pairs if row["label"]}
    by_group = {group: query for group, query in by_group.items() if len(questions.members[group]) > 1}
    chosen = generator.sample(sorted(by_group.values()), min(queries, len(by_group)))
    numbers = [questions.id_of(query) for query in chosen]
    rows: list[Row] = []
    for number, near in zip(numbers, questions.neighbors(numbers), strict=True):
        same = [other for other in questions.members[int(questions.groups[number])] if other != number][: size // 2]
        labeled = [(other, 1) for other in same] + [(other, 0) for other in near[: size - len(same)]]
        generator.shuffle(labeled)
        query = questions.texts[number]
        rows += [{"query": query, "text": questions.texts[other], "label": label} for other, label in labeled]
    return rows


def training_pairs(pairs: Sequence[Row], count: int, seed: int) -> list[Row]:
    """Returns at most `count` labeled pairs, in which a third of the negative ones have similar questions instead."""
    generator = random.Random(seed)
    drawn = generator.sample([*pairs], min(count, len(pairs)))
    questions = Questions(pairs)
    negative = [row for row in drawn if not row["label"]]
    replaced = negative[: len(negative) // 3]
    near = questions.neighbors([questions.id_of(row["query"]) for row in replaced])
    similar = [
        {"query": row["query"], "text": questions.texts[generator.choice(others[:20])], "label": 0}
        for row, others in zip(replaced, near, strict=True)
    ]
    rows = [row for row in drawn if row["label"]] + negative[len(replaced) :] + similar
    generator.shuffle(rows)
    return rows


def question_texts(pairs: Iterable[Row]) -> list[str]:
    """Returns the distinct questions of some pairs."""
    return [*dict.fromkeys(str(row[side]) for row in pairs for side in ("query", "text"))]
