"""The tasks of the demo."""

import pytest

from experiments.sample_tasks import SUBJECTS, nouns_in, questions, sentence_pairs, write_tasks
from fixedbert.tasks.questions import load_squad
from fixedbert.tasks.texts import load_files

NOUNS = {noun: subject for subject, (nouns, _) in SUBJECTS.items() for noun in nouns.split()}
PREDICATES = {predicate: subject for subject, (_, predicates) in SUBJECTS.items() for predicate in predicates}


def find_nouns(text: str) -> list[str]:
    return [word for word in text.lower().rstrip(".?").replace(".", " ").split() if word in NOUNS]


@pytest.mark.parametrize("rows", [sentence_pairs, questions], ids=lambda rows: rows.__name__)
def test_nouns_in_the_evaluation_are_not_trained_on(rows):
    """The evaluation rows contain 6 nouns per subject, none of which occur in the training rows."""
    texts = [str(rows(900, split)) for split in ("train", "dev")]
    train, dev = ({word for word in NOUNS if f"the {word}" in text} for text in texts)
    assert not train & dev and (len(train), len(dev)) == (4 * 14, 4 * 6)
    assert dev == {noun for subject in SUBJECTS for noun in nouns_in(subject, "dev")}


def test_labels_of_pairs():
    """The label is entailment if and only if the predicate belongs to the subject of the two nouns."""
    for row in sentence_pairs(300, "dev"):
        one, two = find_nouns(row["sentence1"])
        predicate_subject = PREDICATES[row["sentence2"].removeprefix("each of them ").rstrip(".")]
        assert one != two and NOUNS[one] == NOUNS[two]
        assert (row["label"] == "entailment") == (predicate_subject == NOUNS[one])


def test_answers():
    """Each context contains one noun per subject, and the answer to each question is the noun for a plant."""
    for paragraph in questions(100, "train")["data"][0]["paragraphs"]:
        (question,) = paragraph["qas"]
        nouns = find_nouns(paragraph["context"])
        (answer,) = question["answers"]
        predicate_subject = PREDICATES[question["question"].removeprefix("which of them ").rstrip("?")]
        assert sorted(NOUNS[noun] for noun in nouns) == sorted(SUBJECTS)
        assert predicate_subject == NOUNS[answer["text"]] == "plants" and answer["text"] in nouns
        start = answer["answer_start"]
        assert paragraph["context"][start - 4 :].startswith(f"the {answer['text']}")


def test_written_files(tmp_path):
    """The loaders can read the files for both tasks, and writing them twice results in identical files."""
    write_tasks(tmp_path / "a")
    write_tasks(tmp_path / "b")
    files = [file.relative_to(tmp_path / "a") for file in sorted((tmp_path / "a").rglob("*.*"))]
    assert len(files) == 5
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    pairs = load_files({"train": f"{tmp_path}/a/pairs/train.tsv", "validation": f"{tmp_path}/a/pairs/dev.tsv"})
    assert pairs.labels.classes == ["entailment", "not_entailment"]
    assert (len(pairs.splits["train"]), len(pairs.splits["validation"])) == (6000, 500)
    assert len(load_squad(str(tmp_path / "a" / "questions" / "train.json"))) == 8000
