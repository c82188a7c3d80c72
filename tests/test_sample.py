"""The built-in sample: deterministic, balanced, and not to be solved without looking into both segments."""

from collections import Counter, defaultdict

from fixedbert.data.glue import load_files
from fixedbert.data.sample import THINGS, documents, questions, sentence_pairs, write_tasks
from fixedbert.data.squad import load_squad


def test_text_comes_from_this_python():
    """Guards: enough documents of real prose, the same ones each time, none of them empty."""
    texts = documents()
    assert len(texts) > 250 and sum(map(len, texts)) > 1_000_000
    assert all(texts) and texts == documents()


def test_pairs_need_both_sentences():
    """Guards: neither sentence alone tells the label: whatever one alone says, both are as likely."""
    rows = sentence_pairs(30_000, seed=7)
    assert rows == sentence_pairs(30_000, seed=7) != sentence_pairs(30_000, seed=8)
    assert set(Counter(row["label"] for row in rows).values()) == {15_000}
    for sentence in ("sentence1", "sentence2"):
        labels = defaultdict(Counter)
        for row in rows:
            labels[row[sentence]][row["label"]] += 1
        # Guess for each row what the others with the same sentence suggest.
        right = sum(labels[row[sentence]][row["label"]] - 1 > labels[row[sentence]].total() / 2 for row in rows)
        assert right / len(rows) < 0.56, sentence


def test_pair_labels_hold():
    """Guards: the label is what the sentences say."""
    for row in sentence_pairs(300, seed=7):
        _, _, name, _, _, taken, _, _, _, returned = row["sentence1"].rstrip(".").split()
        _, _, same, _, _, said = row["sentence2"].rstrip(".").split()
        assert name == same and said != taken
        assert (row["label"] == "entailment") == (said == returned)


def test_questions_have_one_answer_among_equals():
    """Guards: of the two things in a question one stands in the context, once: the answer."""
    for paragraph in questions(100, seed=7)["data"][0]["paragraphs"]:
        (question,) = paragraph["qas"]
        *_, one, _, _, other = question["question"].rstrip("?").split()
        words = paragraph["context"].replace(".", "").split()
        (answer,) = question["answers"]
        assert sorted(map(words.count, (one, other))) == [0, 1] and words.count(answer["text"]) == 1
        assert answer["text"] in (one, other)
        assert answer["answer_start"] == paragraph["context"].index(f" {answer['text']}") + 1


def test_position_says_nothing_about_the_answer():
    """Guards: without the question each of the four things of a context is as likely the answer."""
    places = Counter()
    for paragraph in questions(4000, seed=7)["data"][0]["paragraphs"]:
        things = [word for word in paragraph["context"].replace(".", "").split() if word in THINGS]
        places[things.index(paragraph["qas"][0]["answers"][0]["text"])] += 1
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
    ]
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    pairs = load_files({"train": f"{tmp_path}/a/pairs/train.tsv", "validation": f"{tmp_path}/a/pairs/dev.tsv"})
    assert pairs.labels == ["entailment", "not_entailment"]
    assert (len(pairs.splits["train"]), len(pairs.splits["validation"])) == (6000, 500)
    assert len(load_squad(str(tmp_path / "a" / "questions" / "train.json"))) == 8000
