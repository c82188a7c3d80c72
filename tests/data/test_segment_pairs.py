"""Segment pairs for next-sentence prediction."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.tiny_stores import make_store

from fixedbert.data.examples import EpochSampler, split_documents
from fixedbert.data.segment_pairs import (
    IS_NEXT,
    NOT_NEXT,
    PairExamples,
    check_documents,
    plan_pairs,
    random_segment,
    split_long_sentences,
    truncate_pair,
)
from fixedbert.support.errors import InputError


def make_plan(documents, epoch=0, max_tokens=40, short_seq_prob=0.1, seed=3):
    document_ids = np.arange(len(documents))
    return plan_pairs(documents, document_ids, max_tokens, short_seq_prob, (seed, epoch))


def test_random_segments_come_from_different_documents(many):
    """Half of the second segments are random. Random segments always come from a different document."""
    plans = np.concatenate([make_plan(many, epoch) for epoch in range(8)])
    assert len(plans) > 10_000
    is_next = plans[:, 6] == IS_NEXT
    assert (plans[is_next, 0] == plans[is_next, 3]).all()
    assert (plans[is_next, 2] == plans[is_next, 4]).all()  # B begins where A ends
    assert (plans[~is_next, 0] != plans[~is_next, 3]).all()
    assert is_next.mean() == pytest.approx(0.5, abs=0.02)  # four standard deviations


def test_no_sentence_is_lost_or_used_twice(many):
    """An epoch uses each document once and in order, including the sentences that random segments replace."""
    reached = dict.fromkeys(range(len(many)), 0)
    for a, start_a, end_a, _, _, end_b, label in make_plan(many).tolist():
        assert start_a == reached[a]
        reached[a] = end_b if label == IS_NEXT else end_a
    assert reached == {document: len(many.tokens(document)) for document in reached}


def test_segments_are_complete_sentences(many):
    """Segments are not empty and consist of complete sentences, unless the last sentence in a document is split."""
    for a, start_a, end_a, b, start_b, end_b, label in make_plan(many).tolist():
        ends_a, ends_b = {0, *many.sentence_ends(a).tolist()}, {0, *many.sentence_ends(b).tolist()}
        alone = label == IS_NEXT and start_a == max({0, *many.sentence_ends(a)[:-1].tolist()})
        assert {start_a} if alone else {start_a, end_a} <= ends_a
        assert {end_b} if alone else {start_b, end_b} <= ends_b
        assert start_a < end_a and start_b < end_b


def test_long_sentences_are_divided(tmp_path):
    """A sentence that would fill an entire example is split into nearly equal pieces. Others are not split."""
    assert split_long_sentences(np.array([3, 14, 19]), 6).tolist() == [3, 6, 10, 14, 19]  # 11 tokens as 3, 4, 4
    assert split_long_sentences(np.array([6, 7]), 6).tolist() == [3, 6, 7]
    assert split_long_sentences(np.array([5, 10]), 6).tolist() == [5, 10]
    store = make_store(tmp_path, [7], [7])  # as 3, 4
    found = {tuple(row) for seed in range(60) for row in make_plan(store, max_tokens=6, short_seq_prob=0, seed=seed)}
    begin = {(a, 0, 3, b, start, end, label) for a, b, start, end, label in ((0, 0, 3, 7, 0), (1, 1, 3, 7, 0))}
    begin |= {(a, 0, 3, 1 - a, *segment, NOT_NEXT) for a in (0, 1) for segment in ((0, 3), (3, 7))}
    last = {(a, 3, 7, 1 - a, *segment, NOT_NEXT) for a in (0, 1) for segment in ((0, 3), (3, 7))}
    last |= {(a, 3, cut, a, cut, 7, IS_NEXT) for a in (0, 1) for cut in (4, 5, 6)}
    assert found == begin | last


@pytest.mark.parametrize("length", [16, 67])
@pytest.mark.parametrize("lengths", [[400], [25] * 9, [3, 70, 2], [2, 2], [9]])
def test_labels_are_balanced(tmp_path, length, lengths):
    """Next-sentence labels are balanced, even for long sentences, text without sentence ends and short documents."""
    store = make_store(tmp_path, *[lengths] * 40)
    plans = np.concatenate([make_plan(store, max_tokens=length - 3, seed=seed) for seed in range(30)])
    assert (plans[:, 6] == NOT_NEXT).mean() == pytest.approx(0.5, abs=0.06)


def test_random_segments_are_uniform():
    """A random segment starts at each sentence or piece with equal probability."""
    ends, rng = split_long_sentences(np.array([3, 14, 45, 46, 150]), 11), random.Random(0)
    pieces = ends.tolist()
    drawn = Counter(random_segment(ends, 1, rng) for _ in range(19_000))
    assert sorted(drawn) == list(zip([0, *pieces], pieces, strict=False))
    assert all(count == pytest.approx(1000, abs=150) for count in drawn.values())
    for min_tokens in range(1, 160, 7):
        start, end = random_segment(ends, min_tokens, rng)
        shorter = pieces[pieces.index(end) - 1] if pieces.index(end) else 0
        assert (end - start >= min_tokens or end == 150) and shorter - start < min_tokens


def test_short_pairs(many):
    """With `short_seq_prob` 0, only pairs at the end of a document are short. With 0.1, others are short, too."""

    def full(short_seq_prob):
        plan = make_plan(many, short_seq_prob=short_seq_prob)
        is_next = plan[plan[:, 6] == IS_NEXT]
        # Excludes pairs that are short because a document ends.
        inside = is_next[[row[5] < len(many.tokens(row[0])) for row in is_next]]
        return (inside[:, 5] - inside[:, 1] >= 40).mean()

    assert full(0.0) == 1.0
    assert 0.80 < full(0.1) < 0.95


def test_example_layout(many, tokenizer):
    """Examples have the format [CLS] A [SEP] B [SEP] and at most max_seq_length tokens."""
    examples = PairExamples(many, np.arange(300), tokenizer, 43, seed=5)
    longest = 0
    for index in range(len(examples)):
        example = examples[index]
        ids, labels, types = example["input_ids"], example["labels"], example["token_type_ids"]
        original = np.where(labels != -100, labels, ids)
        first_b = int(types.argmax())
        assert ids[0] == tokenizer.cls_token_id and ids[first_b - 1] == ids[-1] == tokenizer.sep_token_id
        assert labels[0] == labels[first_b - 1] == labels[-1] == -100
        a, b = original[1 : first_b - 1], original[first_b:-1]
        assert len(a) > 0 and (np.diff(a) == 1).all()  # consecutive tokens
        assert len(b) > 0 and (np.diff(b) == 1).all()
        assert (types[first_b:] == 1).all() and len(types) == len(ids) == len(labels)
        assert (labels != -100).sum() == max(1, round(0.15 * (len(ids) - 3)))
        longest = max(longest, len(ids))
    assert longest == 43


def test_truncation_shortens_the_longer_segment():
    """Truncation returns exactly the maximum length, shortens the longer segment, and removes tokens at both ends."""
    rng = np.random.default_rng(0)
    fronts = set()
    for _ in range(50):
        a, b = truncate_pair(np.arange(100, 130), np.arange(9), 20, rng)
        assert len(a) + len(b) == 20 and b.tolist() == list(range(9))
        assert (np.diff(a) == 1).all()
        fronts.add(int(a[0]))
    assert len(fronts) > 5
    a, b = truncate_pair(np.arange(30), np.arange(25), 11, rng)
    assert (len(a), len(b)) == (6, 5)
    a, b = truncate_pair(np.arange(4), np.arange(5), 20, rng)
    assert (len(a), len(b)) == (4, 5)


def test_too_few_documents_or_sentences(tmp_path):
    """A single document, or documents with one sentence, raise InputError."""
    stores = []
    for name, lengths in (("a", [[3], [4], [5], [6, 1]]), ("b", [[3, 4], []]), ("c", [[3, 4], [5, 1], [6]])):
        (tmp_path / name).mkdir()
        stores.append(make_store(tmp_path / name, *lengths))
    with pytest.raises(InputError, match="3 of 4 documents contain only one sentence.*boundary` to sentence_lines"):
        check_documents(stores[0], np.arange(4))
    with pytest.raises(InputError, match="but the corpus has 1;"):
        check_documents(stores[1], np.arange(1))
    with pytest.raises(InputError, match="the corpus has 3 different ones with text .made up.; add files"):
        split_documents(stores[2], 0.05)


def test_plans_are_cached_and_independent_of_the_number_of_processes(many, tokenizer, monkeypatch):
    """A plan is computed only once, does not depend on the number of processes, and is replaced if it is corrupted."""
    monkeypatch.setattr("fixedbert.data.segment_pairs.PLAN_BLOCK", 10)
    plans = many.directory.with_name("store-plans")
    expected = np.array(PairExamples(many, np.arange(300), tokenizer, 37, seed=8).plan(0))
    (path,) = (path for path in plans.glob("pairs-*-0") if path.stat().st_size == expected.nbytes)
    content = path.read_bytes()
    row = 4 * expected.shape[1]
    for corrupted in (None, content[: -10 * row], content[:row] + bytes([content[row] ^ 1]) + content[row + 1 :]):
        path.write_bytes(corrupted) if corrupted else path.unlink()
        examples = PairExamples(many, np.arange(300), tokenizer, 37, seed=8, num_proc=2)
        assert np.array_equal(examples.plan(0), expected) and path.read_bytes() == content
    monkeypatch.setattr("fixedbert.data.segment_pairs.plan_pairs", lambda *arguments: pytest.fail("the plan exists"))
    assert np.array_equal(PairExamples(many, np.arange(300), tokenizer, 37, seed=8).plan(0), expected)


def test_old_plans_are_removed(tmp_path, tokenizer):
    """The store keeps only the plans for epoch 0 and for the last two epochs."""
    examples = PairExamples(make_store(tmp_path, *[[3, 4]] * 20), range(20), tokenizer, 16)
    for epoch in range(5):
        examples.plan(epoch)
    names = {path.name for path in (tmp_path / "store-plans").iterdir() if path.suffix == ""}
    assert sorted(int(name.rpartition("-")[2]) for name in names) == [0, 3, 4]


def test_surplus_pairs_come_from_all_documents(many, tokenizer):
    """The pairs that later epochs drop, because epoch 0 has fewer, are not always those of the last documents."""
    examples = PairExamples(many, np.arange(300), tokenizer, 37, seed=8)
    dropped = np.concatenate([examples.plan(epoch)[len(examples) :, 0] for epoch in range(1, 13)])
    assert dropped.min() < 50 and dropped.max() >= 250
    assert set(examples.plan(1)[:, 0]) == set(range(300))


def test_workers_do_not_hash_plans(many, tokenizer, monkeypatch):
    """Data loader workers open the plans that the main process has verified."""
    examples = PairExamples(many, np.arange(300), tokenizer, 37, seed=8)
    sampler, count = EpochSampler(examples), len(examples)
    sampler.set_epoch(1)
    monkeypatch.setattr("fixedbert.data.store.has_valid_checksum", lambda path: pytest.fail("hashed again"))
    loader = torch.utils.data.DataLoader(examples, sampler=sampler, num_workers=1, collate_fn=len)
    assert sum(loader) == count
