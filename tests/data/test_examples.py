"""Pretraining examples: BERT's pairs and masks, as a pure function of (seed, epoch, index)."""

import os
import pickle
import random
from collections import Counter

import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from helpers.tiny_stores import store_of
from transformers import BertTokenizer

from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.documents import Documents
from fixedbert.data.epochs import EpochSampler, shuffled, split_documents
from fixedbert.data.masking import mask_tokens, tokens_inside_words
from fixedbert.data.packing import PackedExamples
from fixedbert.data.pairs import (
    CONTINUES,
    RANDOM,
    PairExamples,
    check_labels,
    check_pairs,
    ends_in_rows,
    plan_pairs,
    random_segment,
    truncate_pair,
)
from fixedbert.support.errors import InputError


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Documents:
    """300 documents of 1 to 40 sentences of 1 to 12 tokens; token 1000 d + i is the i-th of document d."""
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 13, size=rng.integers(1, 41)).tolist() for _ in range(300)]
    return store_of(tmp_path_factory.mktemp("many"), *lengths)


@pytest.fixture
def tokenizer(vocabulary):
    return BertTokenizer(vocab=vocabulary)


def plan_of(documents, epoch=0, max_tokens=40, short_seq_prob=0.1, seed=3):
    numbers = np.arange(len(documents))
    return plan_pairs(documents, numbers, numbers, max_tokens, short_seq_prob, (seed, epoch))


def test_half_of_the_pairs_are_random_and_never_from_one_document(many):
    """Guards: of many pairs half continue, and a random second segment always is another document's."""
    plans = np.concatenate([plan_of(many, epoch) for epoch in range(8)])
    assert len(plans) > 10_000
    continues = plans[:, 6] == CONTINUES
    assert (plans[continues, 0] == plans[continues, 3]).all()
    assert (plans[continues, 2] == plans[continues, 4]).all()  # b begins where a ends
    assert (plans[~continues, 0] != plans[~continues, 3]).all()
    assert continues.mean() == pytest.approx(0.5, abs=0.02)  # a fair coin: four standard deviations


def test_no_sentence_is_lost_and_none_is_used_twice(many):
    """Guards: what a random segment displaces is put back: an epoch goes through every document once, in order."""
    reached = dict.fromkeys(range(len(many)), 0)
    for a, start_a, end_a, _, _, end_b, label in plan_of(many).tolist():
        assert start_a == reached[a]
        reached[a] = end_b if label == CONTINUES else end_a
    assert reached == {number: len(many.tokens(number)) for number in reached}


def test_segments_are_whole_sentences(many):
    """Guards: both segments begin and end at a sentence, but for a last one alone; neither is empty."""
    for a, start_a, end_a, b, start_b, end_b, label in plan_of(many).tolist():
        ends_a, ends_b = {0, *many.ends(a).tolist()}, {0, *many.ends(b).tolist()}
        alone = label == CONTINUES and start_a == max({0, *many.ends(a)[:-1].tolist()})
        assert {start_a} if alone else {start_a, end_a} <= ends_a
        assert {end_b} if alone else {start_b, end_b} <= ends_b
        assert start_a < end_a and start_b < end_b


def test_sentences_that_fill_a_row_are_cut_by_hand(tmp_path):
    """Guards: a sentence of as many tokens as a row has becomes equal pieces, a shorter one stays whole."""
    assert ends_in_rows(np.array([3, 14, 19]), 6).tolist() == [3, 6, 10, 14, 19]  # 11 tokens as 3, 4, 4
    assert ends_in_rows(np.array([6, 7]), 6).tolist() == [3, 6, 7]
    assert ends_in_rows(np.array([5, 10]), 6).tolist() == [5, 10]
    store = store_of(tmp_path, [7], [7])  # as 3, 4
    found = {tuple(row) for seed in range(60) for row in plan_of(store, max_tokens=6, short_seq_prob=0, seed=seed)}
    begin = {(a, 0, 3, b, start, end, label) for a, b, start, end, label in ((0, 0, 3, 7, 0), (1, 1, 3, 7, 0))}
    begin |= {(a, 0, 3, 1 - a, *segment, RANDOM) for a in (0, 1) for segment in ((0, 3), (3, 7))}
    last = {(a, 3, 7, 1 - a, *segment, RANDOM) for a in (0, 1) for segment in ((0, 3), (3, 7))}
    last |= {(a, 3, cut, a, cut, 7, CONTINUES) for a in (0, 1) for cut in (4, 5, 6)}
    assert found == begin | last


@pytest.mark.parametrize("length", [16, 35, 67])
@pytest.mark.parametrize("lengths", [[400], [25] * 9, [3, 70, 2], [2, 2], [9]])
def test_half_of_the_pairs_are_random_for_every_kind_of_text(tmp_path, length, lengths):
    """Guards: neither long sentences, nor text without any, nor short documents decide the next-sentence label."""
    store = store_of(tmp_path, *[lengths] * 40)
    plans = np.concatenate([plan_of(store, max_tokens=length - 3, seed=seed) for seed in range(30)])
    assert (plans[:, 6] == RANDOM).mean() == pytest.approx(0.5, abs=0.06)


def test_random_segments_begin_at_any_piece_alike():
    """Guards: a random second segment begins at each sentence or piece as often as one that continues."""
    ends, rng = np.array([3, 14, 45, 46, 150]), random.Random(0)
    pieces = ends_in_rows(ends, 11).tolist()
    drawn = Counter(random_segment(ends, 1, 11, rng) for _ in range(19_000))
    assert sorted(drawn) == list(zip([0, *pieces], pieces, strict=False))
    assert all(count == pytest.approx(1000, abs=150) for count in drawn.values())
    for wanted in range(1, 160, 7):
        start, end = random_segment(ends, wanted, 11, rng)
        shorter = pieces[pieces.index(end) - 1] if pieces.index(end) else 0
        assert (end - start >= wanted or end == 150) and shorter - start < wanted


def test_labels_far_from_half_are_refused(tmp_path, tokenizer):
    """Guards: where most pairs cannot continue, the share of random ones is an error; the share is told otherwise."""
    with pytest.raises(InputError, match="^61% of 300 second segments are random .*`document_boundary`"):
        check_labels(np.arange(300) < 183)
    check_labels(np.arange(300) < 180)
    check_labels(np.arange(299) < 298)  # too few to tell
    store = store_of(tmp_path, *[[1, 1]] * 300)  # a token alone cannot be cut
    with pytest.raises(InputError, match="6[0-9]% of [34][0-9]{2} second segments are random"):
        PairExamples(store, np.arange(300), tokenizer, 8)
    examples = PairExamples(store, np.arange(50), tokenizer, 8)
    assert examples.random_share == (examples.plan(0)[:, 6] == RANDOM).mean() > 0.5


def test_a_tenth_of_the_pairs_are_short(many):
    """Guards: short_seq_prob makes some pairs shorter: without it nearly all are full."""

    def full(short_seq_prob):
        plan = plan_of(many, short_seq_prob=short_seq_prob)
        continues = plan[plan[:, 6] == CONTINUES]
        inside = continues[[row[5] < len(many.tokens(row[0])) for row in continues]]  # not cut by a document's end
        return (inside[:, 5] - inside[:, 1] >= 40).mean()

    assert full(0.0) == 1.0
    assert 0.80 < full(0.1) < 0.95


@pytest.fixture(params=["pairs", "mlm", "clm", "separate"])
def make(request, many, tokenizer):
    """Examples of every kind."""

    def examples(numbers=300, length=43, seed=5, **options):
        kind = PairExamples if request.param == "pairs" else PackedExamples
        if request.param in ("clm", "separate"):
            options |= {"objective": "clm", "separate_documents": request.param == "separate"}
        return kind(many, np.arange(numbers), tokenizer, length, seed=seed, **options)

    return examples


def test_examples_depend_on_seed_epoch_and_index_alone(make):
    """Guards: an example is the same whatever was looked at before, and another one in each epoch and seed."""
    one, other = make(), pickle.loads(pickle.dumps(make()))  # as a worker process gets it
    for index in (17, 3, 250):
        list(map(other.__getitem__, range(index)))
        for name, value in one[index].items():
            assert np.array_equal(value, other[index][name])
    before = one[3]["input_ids"]
    assert not np.array_equal(before, one[len(one) + 3]["input_ids"])  # the same index in epoch 1
    assert np.array_equal(before, one[3]["input_ids"])
    differs = make(seed=6)[3]["input_ids"]
    assert not np.array_equal(before, differs)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("skipped", [0, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_processes_see_what_one_with_a_larger_batch_sees(make, processes, skipped, workers):
    """Guards: as accelerate prepares it, any number of processes sees each epoch's own examples, also continued; the
    last step of an epoch, which has fewer, is filled up in the same way."""

    def loader(size, rank=0, of=1, workers=0):
        examples = make(60)
        collator = PretrainingCollator(0)
        plain = torch.utils.data.DataLoader(
            examples, size, sampler=EpochSampler(examples, 12), collate_fn=collator, num_workers=workers
        )
        return prepare_data_loader(plain, num_processes=of, process_index=rank, put_on_device=False)

    loaders = [loader(12 // processes, rank, processes, workers) for rank in range(processes)]
    single = loader(12)
    assert len(make(60)) % 12  # the last step has to be filled up
    seen = []
    for epoch in (0, 1):
        for one in (single, *loaders):
            one.set_epoch(epoch)
        alone, *together = (skip_first_batches(one, skipped) if skipped else one for one in (single, *loaders))
        expected = [row for batch in alone for row in unpadded(batch)]
        rounds = zip(*together, strict=True)
        assert [row for batches in rounds for batch in batches for row in unpadded(batch)] == expected
        seen.append(expected)
    assert len(seen[0]) > 50 and seen[0] != seen[1]
    assert len(seen[0]) == (-(-len(make(60)) // 12) - skipped) * 12


def unpadded(batch) -> list[list[int]]:
    """The real tokens of each row; padding is 0, and no token of a document, but for its first, is."""
    return [ids[: int(ids.nonzero().max()) + 1].tolist() for ids in batch["input_ids"]]


def test_workers_see_the_same_examples(make):
    """Guards: two loader processes give the batches of none."""
    examples = make()
    batches = [
        list(torch.utils.data.DataLoader(examples, 13, collate_fn=PretrainingCollator(0), num_workers=workers))
        for workers in (0, 2)
    ]
    for one, other in zip(*batches, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_example_layout(many, tokenizer):
    """Guards: [CLS] a [SEP] b [SEP], types 0 and 1, never longer than asked, special tokens never masked."""
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
        assert len(a) > 0 and (np.diff(a) == 1).all()  # unbroken runs of tokens
        assert len(b) > 0 and (np.diff(b) == 1).all()
        assert (types[first_b:] == 1).all() and len(types) == len(ids) == len(labels)
        assert (labels != -100).sum() == max(1, round(0.15 * (len(ids) - 3)))
        longest = max(longest, len(ids))
    assert longest == 43


def test_masking_is_80_10_10():
    """Guards: over 100,000 tokens 15 % are targets: 80 % [MASK], 10 % random, 10 % unchanged."""
    rng = np.random.default_rng(0)
    ids = np.arange(10, 110)
    masked, labels = zip(
        *(mask_tokens(ids, np.arange(5, 100), 0.15, 4, 1_000_000, rng) for _ in range(1000)), strict=True
    )
    masked, labels = np.stack(masked), np.stack(labels)
    target = labels != -100
    assert (labels[target] == np.broadcast_to(ids, labels.shape)[target]).all()
    assert (masked[~target] == np.broadcast_to(ids, labels.shape)[~target]).all()
    assert not target[:, :5].any()
    assert target.sum() == 1000 * round(0.15 * 95)
    inputs, originals = masked[target], labels[target]
    assert (inputs == 4).mean() == pytest.approx(0.8, abs=0.01)
    assert (inputs == originals).mean() == pytest.approx(0.1, abs=0.01)
    assert ((inputs != 4) & (inputs != originals)).mean() == pytest.approx(0.1, abs=0.01)


def test_truncation_shortens_the_longer_segment():
    """Guards: together exactly as long as asked, equally long where both are too long, and cut at either end."""
    rng = np.random.default_rng(0)
    fronts = set()
    for _ in range(50):
        a, b = truncate_pair(np.arange(100, 130), np.arange(9), 20, rng)
        assert len(a) + len(b) == 20 and b.tolist() == list(range(9))
        assert (np.diff(a) == 1).all()
        fronts.add(int(a[0]))
    assert len(fronts) > 5  # not always the end
    a, b = truncate_pair(np.arange(30), np.arange(25), 11, rng)
    assert (len(a), len(b)) == (6, 5)
    a, b = truncate_pair(np.arange(4), np.arange(5), 20, rng)
    assert (len(a), len(b)) == (4, 5)


def test_whole_words_are_masked_together():
    """Guards: over 100,000 tokens 15 % are targets, in whole words, and 80/10/10 holds word by word."""
    rng = np.random.default_rng(0)
    inside_word = np.array([False] * 60 + [True] * 40)
    ids = np.random.default_rng(1).integers(10, 100, size=120)
    maskable = np.delete(np.arange(120), [0, 50, 119])
    word = np.cumsum(~inside_word[ids] | np.isin(np.arange(120), [1, 51]))
    count, kinds = 0, []
    for _ in range(1000):
        masked, labels = mask_tokens(ids, maskable, 0.15, 4, 1_000_000, rng, inside_word)
        target = labels != -100
        count += target.sum()
        assert not target[[0, 50, 119]].any() and (labels[target] == ids[target]).all()
        for one in set(word[target]):
            tokens = maskable[word[maskable] == one]
            assert target[tokens].all()
            drawn = {"mask" if masked[t] == 4 else "same" if masked[t] == ids[t] else "other" for t in tokens}
            assert len(drawn) == 1
            kinds += drawn
    assert 0.97 < count / (1000 * round(0.15 * 117)) <= 1  # the last word may not fit any more
    shares = [kinds.count(kind) / len(kinds) for kind in ("mask", "same", "other")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.015)


def test_whole_words_mask_something_even_where_none_fits():
    """Guards: a row of words longer than 15 % of it still asks for one, the shortest."""
    inside_word = np.array([False] * 10 + [True] * 10)
    ids = np.array([1, 11, 12, 2, 13, 3, 14, 15])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        _, labels = mask_tokens(ids, np.arange(8), 0.15, 4, 20, rng, inside_word)
        assert (labels != -100).nonzero()[0].tolist() == [3, 4]


def test_words_are_told_by_wordpiece(tokenizer):
    """Guards: ## goes on with a word, and a vocabulary without it tells none."""
    inside = tokens_inside_words(tokenizer)
    assert inside[tokenizer.convert_tokens_to_ids("##s")] and not inside[tokenizer.convert_tokens_to_ids("s")]

    class Bytes:
        def __len__(self):
            return 3

        def convert_ids_to_tokens(self, ids):
            return ["a", "Ġb", "c"]

    assert tokens_inside_words(Bytes()) is None


def test_packed_rows_by_hand(tmp_path, tokenizer):
    """Guards: documents one after the other, each with [CLS] and [SEP]; a row inside of one begins with [CLS]."""
    store = store_of(tmp_path, [1], [3, 2], [1], [5])
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    examples = PackedExamples(store, [1, 2, 3], tokenizer, 6, objective="clm", separate_documents=True)
    order = examples.plan(0)[:-1, 0].tolist()
    stream = [slot for number in order for slot in (cls, *store.tokens(number).tolist(), sep)]
    starts = [place for place, slot in enumerate(stream) if slot == cls]
    assert len(stream) == 11 + 3 * 2 and len(examples) == 4  # 5 slots a row
    for row in range(4):
        slots = stream[5 * row : 5 * row + 5]
        expected = slots if slots[0] == cls else [cls, *slots]
        assert examples[row]["input_ids"].tolist() == expected
        assert examples[row]["labels"].tolist() == [-100 if slot == cls else slot for slot in expected]
        position = np.array([place for place, slot in enumerate(expected) if slot == cls] + [len(expected)])
        assert examples[row]["position_ids"].tolist() == [p for n in np.diff(position) for p in range(n)]
    assert starts == examples.plan(0)[:-1, 1].tolist()
    assert "position_ids" not in PackedExamples(store, [1, 2, 3], tokenizer, 6)[0]


def test_packed_rows_never_ask_for_special_tokens(many, tokenizer):
    """Guards: no [CLS] or [SEP] is masked, wherever documents begin and end in a row, and every row asks something."""
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    for length in (8, 9, 16):
        examples = PackedExamples(many, np.arange(1, 300), tokenizer, length, mlm_probability=0.9)
        for index in range(len(examples)):
            example = examples[index]
            asked = example["labels"] != -100
            assert asked.any() and not np.isin(example["labels"][asked], [cls, sep]).any()
            original = np.where(asked, example["labels"], example["input_ids"])
            assert (original[~asked] == example["input_ids"][~asked]).all() and original[0] == cls


@pytest.mark.parametrize("make", ["mlm", "clm", "separate"], indirect=True)
def test_packing_uses_every_token_once_in_every_epoch(make, many):
    """Guards: packed rows lose no token and repeat none, and another epoch packs anew."""
    examples = make()
    expected = sorted(token for number in range(300) for token in many.tokens(number).tolist() if token > 4)
    firsts = []
    for epoch in (0, 1):
        rows = [examples[epoch * len(examples) + index] for index in range(len(examples))]
        tokens = [t for row in rows for t in np.where(row["labels"] != -100, row["labels"], row["input_ids"]).tolist()]
        assert sorted(token for token in tokens if token > 4) == expected
        assert {len(row["input_ids"]) for row in rows[:-1]} <= {42, 43}
        firsts.append(tokens[:50])
    assert firsts[0] != firsts[1]


def test_order_of_an_epoch_is_a_permutation():
    """Guards: every example once, in an order that looks random, for any number of them, and another for each seed."""
    for size in (1, 2, 3, 13, 1000, 65_537):
        assert sorted(np.concatenate(list(shuffled(size, (1, 2)))).tolist()) == list(range(size))
    one, other = (np.concatenate(list(shuffled(100_000, seed, chunk=1000))) for seed in ((1, 2), (1, 3)))
    for x, y in ((one, np.arange(100_000)), (one[1:], one[:-1]), (one, other)):
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.02
    assert abs((one[1:] - one[:-1] == 1).mean()) < 0.001


def test_weights_repeat_a_corpus_or_take_a_part_of_it(tmp_path, tokenizer):
    """Guards: weight 2 uses every document twice, 0.5 half of them and others in another epoch."""
    store = store_of(tmp_path, *[[3, 4]] * 200, corpora=[0] * 100 + [1] * 100)
    examples = PackedExamples(store, range(200), tokenizer, 16, weights=[2, 0.5])
    seen = [examples.plan(epoch)[:-1, 0] for epoch in (0, 1)]
    for numbers in seen:
        counts = np.bincount(numbers, minlength=200)
        assert (counts[:100] == 2).all() and set(counts[100:]) == {0, 1} and 30 < counts[100:].sum() < 70
    assert set(seen[0]) != set(seen[1])
    plan = PairExamples(store, range(200), tokenizer, 16, weights=[1, 0]).plan(0)
    assert len(plan) >= 100 and plan[:, [0, 3]].max() < 100  # neither first nor second segments
    with pytest.raises(InputError, match="1 document"):
        PairExamples(store, [0, 150], tokenizer, 16, weights=[1, 0])


def test_plans_are_kept_and_made_by_several_processes_alike(many, tokenizer, monkeypatch):
    """Guards: a plan is made once for the same settings, and processes that share the work make the same one."""
    monkeypatch.setattr("fixedbert.data.pairs.PLANNED_TOGETHER", 10)
    plans = []
    for processes in (1, 2):
        examples = PairExamples(many, np.arange(300), tokenizer, 37, seed=8, num_proc=processes)
        plans.append(np.array(examples.plan(0)))
        again = PairExamples(many, np.arange(300), tokenizer, 37, seed=8)
        monkeypatch.setattr(PairExamples, "make_plan", None)  # not needed any more
        assert np.array_equal(PairExamples(many, np.arange(300), tokenizer, 37, seed=8).plan(0), plans[-1])
        monkeypatch.undo()
        monkeypatch.setattr("fixedbert.data.pairs.PLANNED_TOGETHER", 10)
        assert np.array_equal(again.plan(0), plans[-1])
        for file in (many.folder / "plans").glob("pairs-*"):
            os.remove(file)
    assert np.array_equal(*plans)


def test_deleted_store_is_one_sentence(tmp_path, tokenizer):
    """Guards: a store that is deleted while training ends the epoch with one sentence that says what to do."""
    (tmp_path / "store").mkdir()
    store = store_of(tmp_path / "store", *[[3, 4]] * 20)
    examples = PairExamples(store, range(20), tokenizer, 16)
    examples[3]
    for file in sorted((tmp_path / "store").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (tmp_path / "store").rmdir()
    examples[5]  # what is mapped stays
    sampler = EpochSampler(examples)
    with pytest.raises(InputError, match="if the store was deleted, the same command prepares it anew"):
        sampler.set_epoch(1)
    with pytest.raises(InputError, match="not a whole store"):
        pickle.loads(pickle.dumps(store))


def test_collator_pads_and_masks():
    """Guards: padding is masked out and unlabelled, and rows keep their order."""
    names = ("input_ids", "token_type_ids", "labels", "next_sentence_label")
    rows = [
        dict(zip(names, map(np.array, row), strict=True))
        for row in (([2, 7, 3], [0, 0, 1], [-100, 8, -100], 1), ([2], [1], [5], 0))
    ]
    batch = PretrainingCollator(pad_token_id=9)(rows)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[2, 7, 3], [2, 9, 9]],
        "token_type_ids": [[0, 0, 1], [1, 0, 0]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "labels": [[-100, 8, -100], [5, -100, -100]],
        "next_sentence_label": [1, 0],
    }
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_held_out_documents_are_whole_and_apart(many):
    """Guards: no document is on both sides, none with text is lost, and the share is the one asked for."""
    train, held_out = split_documents(many, 0.1)
    assert len(held_out) == 30 and not set(train) & set(held_out)
    assert sorted([*train, *held_out]) == list(range(300))


def test_collator_makes_padding_a_document_of_its_own():
    """Guards: with position_ids there is no mask, and the positions of padding begin anew."""
    rows = [{"input_ids": np.arange(n), "labels": np.arange(n), "position_ids": np.arange(n)} for n in (4, 2)]
    batch = PretrainingCollator(pad_token_id=9)(rows)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3], [0, 1, 0, 1]]
    assert batch["labels"].tolist() == [[0, 1, 2, 3], [0, 1, -100, -100]] and "attention_mask" not in batch


def test_corpora_without_pairs_are_refused(tmp_path):
    """Guards: next-sentence prediction on single sentences or one document is one clear error, not an endless loop."""
    stores = []
    for name, lengths in (("a", [[3], [4], [5], [6, 1]]), ("b", [[3, 4], []]), ("c", [[3, 4], [5, 1], [6]])):
        (tmp_path / name).mkdir()
        stores.append(store_of(tmp_path / name, *lengths))
    with pytest.raises(InputError, match="3 of the 4 documents are a single sentence.*`document_boundary`"):
        check_pairs(stores[0], np.arange(4))
    with pytest.raises(InputError, match="1 document"):
        check_pairs(stores[1], np.arange(1))
    with pytest.raises(InputError, match="3 documents.*too few"):
        split_documents(stores[2], 0.05)


def test_damaged_plan_is_made_again(many, tokenizer):
    """Guards: a plan that is cut off, or has another bit, is not trained on: the same examples come out."""
    examples = PairExamples(many, np.arange(300), tokenizer, 37, seed=9)
    expected = np.array(examples.plan(0))
    (file,) = (path for path in (many.folder / "plans").glob("*-0") if path.stat().st_size == expected.nbytes)
    whole = file.read_bytes()
    row = 4 * expected.shape[1]
    for damaged in (whole[: -10 * row], whole[:row] + bytes([whole[row] ^ 1]) + whole[row + 1 :]):
        file.write_bytes(damaged)
        assert np.array_equal(PairExamples(many, np.arange(300), tokenizer, 37, seed=9).plan(0), expected)
        assert file.read_bytes() == whole
