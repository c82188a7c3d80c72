"""The built-in sample: deterministic, balanced, and not to be solved without looking into both segments."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from fixedbert.data.sample import SUBJECTS, documents, questions, sentence_pairs, stories, things_of, write_tasks
from fixedbert.fine_tuning.questions import load_squad
from fixedbert.fine_tuning.texts import load_files

SUBJECT_OF = {thing: subject for subject, (things, _) in SUBJECTS.items() for thing in things.split()}
SUBJECT_SAID = {saying: subject for subject, (_, sayings) in SUBJECTS.items() for saying in sayings}


def test_text_comes_from_this_python(monkeypatch):
    """Guards: enough documents of real prose, the same ones each time, none of them empty."""
    texts = documents()
    assert len(texts) > 250 and sum(map(len, texts)) > 1_000_000 and all(texts)
    monkeypatch.setattr("sysconfig.get_path", lambda _: Path(json.__file__).parent)
    assert documents() == documents()


def things_in(text: str) -> list[str]:
    return [word for word in text.lower().rstrip(".?").replace(".", " ").split() if word in SUBJECT_OF]


def test_stories_have_one_subject_each_and_name_every_thing():
    """Guards: what things are can be learned from the stories: each is about one subject, and no thing is left out."""
    texts = stories(500, seed=3)
    assert texts == stories(500, seed=3) != stories(500, seed=4)
    assert all(len({SUBJECT_OF[thing] for thing in things_in(text)}) == 1 for text in texts)
    assert {thing for text in texts for thing in things_in(text)} == set(SUBJECT_OF)


@pytest.mark.parametrize("rows", [sentence_pairs, questions], ids=lambda rows: rows.__name__)
def test_things_of_the_evaluation_are_not_trained_on(rows):
    """Guards: the rows to evaluate on name 6 things of each subject that no row to train on names."""
    texts = [str(rows(900, split)) for split in ("train", "dev")]
    train, dev = ({word for word in SUBJECT_OF if f"the {word}" in text} for text in texts)
    assert not train & dev and (len(train), len(dev)) == (4 * 14, 4 * 6)
    assert dev == {thing for subject in SUBJECTS for thing in things_of(subject, "dev")}


def test_pairs_need_both_sentences():
    """Guards: neither sentence alone tells the label: whatever one alone says, both are as likely."""
    rows = sentence_pairs(30_000, "train")
    assert rows == sentence_pairs(30_000, "train") != sentence_pairs(30_000, "dev")
    assert set(Counter(row["label"] for row in rows).values()) == {15_000}
    for sentence in ("sentence1", "sentence2"):
        labels = defaultdict(Counter)
        for row in rows:
            labels[row[sentence]][row["label"]] += 1
        # Guess for each row what the others with the same sentence suggest.
        right = sum(labels[row[sentence]][row["label"]] - 1 > labels[row[sentence]].total() / 2 for row in rows)
        assert right / len(rows) < 0.56, sentence


def test_pair_labels_hold():
    """Guards: two different things of one subject, and the label is whether what is said is said of that subject."""
    for row in sentence_pairs(300, "dev"):
        one, two = things_in(row["sentence1"])
        said = SUBJECT_SAID[row["sentence2"].removeprefix("each of them ").rstrip(".")]
        assert one != two and SUBJECT_OF[one] == SUBJECT_OF[two]
        assert (row["label"] == "entailment") == (said == SUBJECT_OF[one])


def test_questions_have_one_answer_among_equals():
    """Guards: a context names a thing of each subject, questions are about plants, and the answer is the plant."""
    for paragraph in questions(100, "train")["data"][0]["paragraphs"]:
        (question,) = paragraph["qas"]
        things = things_in(paragraph["context"])
        (answer,) = question["answers"]
        said = SUBJECT_SAID[question["question"].removeprefix("which of them ").rstrip("?")]
        assert sorted(SUBJECT_OF[thing] for thing in things) == sorted(SUBJECTS)
        assert said == SUBJECT_OF[answer["text"]] == "plants" and answer["text"] in things
        start = answer["answer_start"]
        assert paragraph["context"][start - 4 :].startswith(f"the {answer['text']}")


def test_position_says_nothing_about_the_answer():
    """Guards: by its place each of the four things of a context is as likely the answer."""
    places = Counter()
    for paragraph in questions(4000, "train")["data"][0]["paragraphs"]:
        places[things_in(paragraph["context"]).index(paragraph["qas"][0]["answers"][0]["text"])] += 1
    assert len(places) == 4 and max(places.values()) < 0.28 * 4000


def test_files_are_what_the_scripts_read(tmp_path):
    """Guards: the tasks are written in GLUE's and SQuAD's formats, the same bytes every time, dev apart from train."""
    write_tasks(tmp_path / "a")
    write_tasks(tmp_path / "b")
    files = [file.relative_to(tmp_path / "a") for file in sorted((tmp_path / "a").rglob("*.*"))]
    assert [str(file) for file in files] == [
        "pairs/dev.tsv",
        "pairs/train.tsv",
        "questions/dev.json",
        "questions/train.json",
        "stories.txt",
    ]
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    pairs = load_files({"train": f"{tmp_path}/a/pairs/train.tsv", "validation": f"{tmp_path}/a/pairs/dev.tsv"})
    assert pairs.labels == ["entailment", "not_entailment"]
    assert (len(pairs.splits["train"]), len(pairs.splits["validation"])) == (6000, 500)
    assert len(load_squad(str(tmp_path / "a" / "questions" / "train.json"))) == 8000
