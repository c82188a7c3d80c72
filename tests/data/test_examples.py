"""Pretraining examples: reproducibility, packing, masking, shuffling and batches."""

import pickle

import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from helpers.tiny_stores import make_store

from fixedbert.data.collator import PretrainingCollator
from fixedbert.data.examples import EpochSampler, PackedExamples
from fixedbert.data.masking import mask_tokens
from fixedbert.data.segment_pairs import PairExamples


@pytest.fixture(params=["pairs", "mlm", "clm", "separate"])
def make(request, many, tokenizer):
    """Returns a function that creates a dataset of the requested type."""

    def examples(count=300, length=43, seed=5, **options):
        dataset = PairExamples if request.param == "pairs" else PackedExamples
        if request.param in ("clm", "separate"):
            options |= {"objective": "clm", "separate_documents": request.param == "separate"}
        return dataset(many, np.arange(count), tokenizer, length, seed=seed, **options)

    return examples


def test_examples_depend_only_on_seed_epoch_and_index(make):
    """An example does not depend on the examples read before it, and it differs between epochs and seeds."""
    one, other = make(), pickle.loads(pickle.dumps(make()))  # as in a worker process
    for index in (17, 3, 250):
        list(map(other.__getitem__, range(index)))
        for name, value in one[index].items():
            assert np.array_equal(value, other[index][name])
    before = one[3]["input_ids"]
    assert not np.array_equal(before, one[len(one) + 3]["input_ids"])  # the same index in epoch 1
    assert np.array_equal(before, one[3]["input_ids"])
    assert not np.array_equal(before, make(seed=6)[3]["input_ids"])


@pytest.mark.parametrize("make", ["pairs", "mlm"], indirect=True)
@pytest.mark.parametrize("processes, skipped, workers", [(1, 2, 0), (2, 0, 0), (2, 2, 2)])
def test_examples_do_not_depend_on_the_number_of_processes(make, processes, skipped, workers):
    """Epochs have the same examples for any number of processes and workers, even if resumed. Last steps are full."""

    def loader(size, rank=0, world_size=1, workers=0):
        examples = make(61)
        collator = PretrainingCollator(0)
        plain = torch.utils.data.DataLoader(
            examples, size, sampler=EpochSampler(examples, 12), collate_fn=collator, num_workers=workers
        )
        return prepare_data_loader(plain, num_processes=world_size, process_index=rank, put_on_device=False)

    loaders = [loader(12 // processes, rank, processes, workers) for rank in range(processes)]
    single = loader(12)
    assert len(make(61)) % 12  # the last step has to be filled up
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
    assert len(seen[0]) == (-(-len(make(61)) // 12) - skipped) * 12


def unpadded(batch) -> list[list[int]]:
    """Returns the token ids in each row without the zeros at its end."""
    return [ids[: int(ids.nonzero().max()) + 1].tolist() for ids in batch["input_ids"]]


def test_masking_is_80_10_10():
    """15% of the tokens become targets. 80% of these are masked, 10% are random and 10% are unchanged."""
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


def test_packed_rows_against_a_simple_reference(tmp_path, tokenizer):
    """Rows are slices of the joined documents, with an additional [CLS] where a row continues a document."""
    store = make_store(tmp_path, [1], [3, 2], [1], [5])
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    examples = PackedExamples(store, [1, 2, 3], tokenizer, 6, objective="clm", separate_documents=True)
    order = examples.plan(0)[:-1, 0].tolist()
    stream = [token for document in order for token in (cls, *store.tokens(document).tolist(), sep)]
    starts = [position for position, token in enumerate(stream) if token == cls]
    assert len(stream) == 11 + 3 * 2 and len(examples) == 4  # 5 tokens of the stream per row
    for row in range(4):
        tokens = stream[5 * row : 5 * row + 5]
        expected = tokens if tokens[0] == cls else [cls, *tokens]
        assert examples[row]["input_ids"].tolist() == expected
        assert examples[row]["labels"].tolist() == [-100 if token == cls else token for token in expected]
        begins = [position for position, token in enumerate(expected) if token == cls]
        lengths = np.diff([*begins, len(expected)])
        assert examples[row]["position_ids"].tolist() == [p for length in lengths for p in range(length)]
    assert starts == examples.plan(0)[:-1, 1].tolist()
    assert "position_ids" not in PackedExamples(store, [1, 2, 3], tokenizer, 6)[0]


def test_packed_rows_never_mask_special_tokens(many, tokenizer):
    """Each packed row contains targets, and [CLS] and [SEP] are never targets."""
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    for length in (8, 9, 16):
        examples = PackedExamples(many, np.arange(1, 300), tokenizer, length, mlm_probability=0.9)
        for index in range(len(examples)):
            example = examples[index]
            target = example["labels"] != -100
            assert target.any() and not np.isin(example["labels"][target], [cls, sep]).any()
            original = np.where(target, example["labels"], example["input_ids"])
            assert (original[~target] == example["input_ids"][~target]).all() and original[0] == cls


def test_collator_pads_and_masks():
    """The attention mask excludes padding, padding has no labels, and the rows keep their order."""
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


def test_collator_makes_padding_a_separate_document():
    """If examples have position ids, the batch has no attention mask, and the position ids restart for padding."""
    rows = [{"input_ids": np.arange(n), "labels": np.arange(n), "position_ids": np.arange(n)} for n in (4, 2)]
    batch = PretrainingCollator(pad_token_id=9)(rows)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3], [0, 1, 0, 1]]
    assert batch["labels"].tolist() == [[0, 1, 2, 3], [0, 1, -100, -100]] and "attention_mask" not in batch
