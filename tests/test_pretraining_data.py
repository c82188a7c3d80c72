"""Pretraining examples: BERT's pairs and masks, as a pure function of (seed, epoch, index)."""

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from transformers import BertTokenizer

from fixedbert.data.documents import Documents, tokenize_documents
from fixedbert.data.pretraining import (
    CONTINUES,
    EpochSampler,
    PretrainingCollator,
    PretrainingExamples,
    mask_tokens,
    plan_pairs,
    split_documents,
    truncate_pair,
    usable_documents,
)
from fixedbert.errors import InputError


def documents_of(*sentence_lengths: list[int]) -> Documents:
    """Documents with sentences of these lengths; token 1000 d + i is the i-th of document d, so that origin shows."""
    rows = {"input_ids": [], "sentence_ends": []}
    for number, lengths in enumerate(sentence_lengths):
        rows["input_ids"].append([1000 * number + token for token in range(sum(lengths))])
        rows["sentence_ends"].append(np.cumsum(lengths).tolist() if lengths else [])
    features = {name: datasets.List(datasets.Value("int32")) for name in rows}
    return Documents(datasets.Dataset.from_dict(rows, features=datasets.Features(features)))


@pytest.fixture(scope="module")
def many() -> Documents:
    """300 documents of 1 to 40 sentences of 1 to 12 tokens."""
    rng = np.random.default_rng(0)
    return documents_of(*(rng.integers(1, 13, size=rng.integers(1, 41)).tolist() for _ in range(300)))


@pytest.fixture
def tokenizer(vocabulary):
    return BertTokenizer(vocab=vocabulary)


def test_documents_give_tokens_and_sentences():
    """Guards: rows of the Arrow table come back whole, in order, also after a selection, and empty ones stay empty."""
    documents = documents_of([2, 3], [], [1])
    assert len(documents) == 3
    assert documents.tokens(0).tolist() == [0, 1, 2, 3, 4] and documents.ends(0).tolist() == [2, 5]
    assert documents.tokens(1).tolist() == [] and documents.tokens(2).tolist() == [2000]
    assert Documents(documents.dataset.select([2, 0])).tokens(1).tolist() == [0, 1, 2, 3, 4]


def test_tokenizing_keeps_sentences_apart(tokenizer):
    """Guards: sentence ends fall where the splitter puts them, without special tokens, over several documents."""
    corpus = datasets.Dataset.from_dict({"text": ["The list. Two files read one string?", None, "", "Write."]})
    documents = Documents(tokenize_documents(corpus, tokenizer))
    texts = []
    for number in range(len(documents)):
        parts = np.split(documents.tokens(number), documents.ends(number))[:-1]
        texts.append([tokenizer.decode(part) for part in parts])
    assert texts == [["the list.", "two files read one string?"], [], [], ["write."]]


def test_half_of_the_pairs_are_random_and_never_from_one_document(many):
    """Guards: of many pairs half continue, and a random second segment always is another document's."""
    plans = np.concatenate(
        [plan_pairs(many, usable_documents(many), 40, 0.1, seed=3, epoch=epoch) for epoch in range(8)]
    )
    assert len(plans) > 10_000
    continues = plans[:, 6] == CONTINUES
    assert (plans[continues, 0] == plans[continues, 3]).all()
    assert (plans[continues, 2] == plans[continues, 4]).all()  # b begins where a ends
    assert (plans[~continues, 0] != plans[~continues, 3]).all()
    # A fair coin, but a sentence that stands alone at the end of its document always gets a random second.
    assert 0.40 < continues.mean() < 0.5


def test_no_sentence_is_lost_and_none_is_used_twice(many):
    """Guards: what a random segment displaces is put back: an epoch goes through every document once, in order."""
    numbers = usable_documents(many)
    reached = dict.fromkeys(numbers.tolist(), 0)
    for a, start_a, end_a, _, _, end_b, label in plan_pairs(many, numbers, 40, 0.1, seed=3, epoch=0).tolist():
        assert start_a == reached[a]
        reached[a] = end_b if label == CONTINUES else end_a
    assert reached == {number: len(many.tokens(number)) for number in reached}


def test_segments_are_whole_sentences(many):
    """Guards: both segments begin and end at a sentence, and neither is empty."""
    for a, start_a, end_a, b, start_b, end_b, _ in plan_pairs(many, usable_documents(many), 40, 0.1, 3, 0).tolist():
        ends_a, ends_b = {0, *many.ends(a).tolist()}, {0, *many.ends(b).tolist()}
        assert {start_a, end_a} <= ends_a and {start_b, end_b} <= ends_b
        assert start_a < end_a and start_b < end_b


def test_a_tenth_of_the_pairs_are_short(many):
    """Guards: short_seq_prob makes some pairs shorter: without it nearly all are full."""
    numbers = usable_documents(many)

    def full(short_seq_prob):
        plan = plan_pairs(many, numbers, 40, short_seq_prob, seed=0, epoch=0)
        continues = plan[plan[:, 6] == CONTINUES]
        inside = continues[[row[5] < len(many.tokens(row[0])) for row in continues]]  # not cut by a document's end
        return (inside[:, 5] - inside[:, 1] >= 40).mean()

    assert full(0.0) == 1.0
    assert 0.80 < full(0.1) < 0.95


def test_examples_depend_on_seed_epoch_and_index_alone(many, tokenizer):
    """Guards: an example is the same whatever was looked at before, and another one in each epoch and seed."""
    one, other = (PretrainingExamples(many, usable_documents(many), tokenizer, 43, seed=5) for _ in range(2))
    for index in (17, 3, 250):
        list(map(other.__getitem__, range(index)))
        for name, value in one[index].items():
            assert np.array_equal(value, other[index][name])
    before = one[3]["input_ids"]
    assert not np.array_equal(before, one[len(one) + 3]["input_ids"])  # the same index in epoch 1
    assert np.array_equal(before, one[3]["input_ids"])
    differs = PretrainingExamples(many, usable_documents(many), tokenizer, 43, seed=6)[3]["input_ids"]
    assert not np.array_equal(before, differs)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("skipped", [0, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_processes_see_what_one_with_a_larger_batch_sees(many, tokenizer, processes, skipped, workers):
    """Guards: as accelerate prepares it, any number of processes sees each epoch's own examples, also continued."""

    def loader(size, rank=0, of=1, workers=0):
        examples = PretrainingExamples(many, usable_documents(many)[:60], tokenizer, 43, seed=5)
        collator = PretrainingCollator(0)
        plain = torch.utils.data.DataLoader(
            examples, size, sampler=EpochSampler(examples), collate_fn=collator, num_workers=workers, drop_last=True
        )
        prepared = prepare_data_loader(plain, num_processes=of, process_index=rank, put_on_device=False)
        return skip_first_batches(prepared, skipped) if skipped else prepared

    loaders = [loader(6, rank, processes, workers) for rank in range(processes)]
    single = loader(6 * processes)
    seen = []
    for epoch in (0, 1):
        for one in (single, *loaders):
            one.set_epoch(epoch)
        expected = [row for batch in single for row in unpadded(batch)]
        rounds = zip(*loaders, strict=True)
        assert [row for batches in rounds for batch in batches for row in unpadded(batch)] == expected
        seen.append(expected)
    assert len(seen[0]) > 50 and seen[0] != seen[1]


def unpadded(batch) -> list[list[int]]:
    return [ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


def test_workers_see_the_same_examples(many, tokenizer):
    """Guards: two loader processes give the batches of none."""
    examples = PretrainingExamples(many, usable_documents(many), tokenizer, 43, seed=5)
    batches = [
        list(torch.utils.data.DataLoader(examples, 13, collate_fn=PretrainingCollator(0), num_workers=workers))
        for workers in (0, 2)
    ]
    for one, other in zip(*batches, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_example_layout(many, tokenizer):
    """Guards: [CLS] a [SEP] b [SEP], types 0 and 1, never longer than asked, special tokens never masked."""
    examples = PretrainingExamples(many, usable_documents(many), tokenizer, 43, seed=5)
    longest = 0
    for index in range(len(examples)):
        example = examples[index]
        ids, labels, types = example["input_ids"], example["labels"], example["token_type_ids"]
        original = np.where(labels != -100, labels, ids)
        first_b = int(types.argmax())
        assert ids[0] == tokenizer.cls_token_id and ids[first_b - 1] == ids[-1] == tokenizer.sep_token_id
        assert labels[0] == labels[first_b - 1] == labels[-1] == -100
        a, b = original[1 : first_b - 1], original[first_b:-1]
        assert len(a) and len(b) and (np.diff(a) == 1).all() and (np.diff(b) == 1).all()  # unbroken runs of tokens
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


def test_corpora_without_pairs_are_refused():
    """Guards: next-sentence prediction on single sentences or one document is one clear error, not an endless loop."""
    with pytest.raises(InputError, match="3 of the 4 documents are a single sentence.*--document_boundary"):
        usable_documents(documents_of([3], [4], [5], [6, 1]))
    with pytest.raises(InputError, match="1 document"):
        usable_documents(documents_of([3, 4], []))
    with pytest.raises(InputError, match="3 documents.*too few"):
        split_documents(documents_of([3, 4], [5, 1], [6]), 0.05)
