"""Tests that special tokens in texts, such as "[SEP]", are tokenized as ordinary text."""

import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from fixedbert.data.sequences import read_sequences
from fixedbert.data.store import tokenize_sentences
from fixedbert.data.tokenizers import encode, tokenizer_state
from fixedbert.fine_tuning.squad_questions import FEATURES
from fixedbert.fine_tuning.squad_windows import squad_windows
from fixedbert.fine_tuning.texts import text_features


def byte_level_tokenizer():
    """Returns a small byte-level tokenizer, like RoBERTa's."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(["one two three"], trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = zip(("cls", "pad", "eos", "unk", "mask"), special, strict=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, sep_token="</s>", bos_token="<s>", **{f"{role}_token": one for role, one in roles}
    )


MARKERS = ["[E1]", "[/E1]"]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_additional_special_tokens_stay_intact(vocabulary, tmp_path, family):
    """Additional special tokens and added tokens stay intact in all data. Other special tokens in texts are text."""
    tokenizer = byte_level_tokenizer() if family == "roberta" else BertTokenizer(vocab=vocabulary)
    tokenizer.add_special_tokens({"additional_special_tokens": MARKERS})
    tokenizer.add_tokens(["<num>"])
    plain = {tokenizer.convert_ids_to_tokens(index) for index in tokenizer.all_special_ids} - {*MARKERS}

    def counts(tokens):
        names = tokenizer.convert_ids_to_tokens([*map(int, tokens)])
        return [name for name in names if name in (*MARKERS, "<num>")], [name for name in names if name in plain]

    marked, intact = "one [E1]two[/E1] three <num>", ["[E1]", "[/E1]", "<num>"]
    assert encode(tokenizer, marked)["input_ids"] == tokenizer(marked)["input_ids"]  # as in transformers
    assert encode(tokenizer, "one Two")["input_ids"] == tokenizer("one Two")["input_ids"]
    text = f"{marked} {tokenizer.sep_token} {tokenizer.mask_token}[E1] {tokenizer.cls_token}"
    mixed = encode(tokenizer, text, add_special_tokens=False)["input_ids"]
    found, special = counts(mixed)
    assert found == [*intact, "[E1]"] and not {*special} - {tokenizer.unk_token}
    rows = datasets.Dataset.from_dict({"sentence1": [text], "sentence2": [marked]})
    (row,) = text_features(rows, tokenizer, 128)["input_ids"]
    assert counts(row)[0] == [*intact, "[E1]", *intact]
    own_special = [name for name in counts(row)[1] if name != tokenizer.unk_token]
    assert own_special == [tokenizer.cls_token, *[tokenizer.sep_token] * (3 if family == "roberta" else 2)]
    answers = {"text": ["three"], "answer_start": [text.index("three")]}
    question = {"id": "1", "context": text, "question": marked, "answers": answers}
    windows = squad_windows(datasets.Dataset.from_list([question], features=FEATURES), tokenizer, 128, 16, False)
    assert counts(windows["input_ids"][0])[0] == [*intact, *intact, "[E1]"]
    first, last = windows["start_positions"][0], windows["end_positions"][0]
    offsets = np.array(windows["offsets"][0]).reshape(-1, 2)
    assert text[offsets[first, 0] : offsets[last, 1]] == "three"
    (tmp_path / "a.txt").write_text(text)
    (sequence,) = read_sequences([str(tmp_path / "a.txt")], tokenizer, len(mixed) + 2, 1)
    assert sequence[1:-1].tolist() == mixed
    ((tokens, ends),) = tokenize_sentences([[marked, text, marked]], tokenizer)
    pieces = np.split(tokens, ends[:-1])
    expected = [encode(tokenizer, piece, add_special_tokens=False)["input_ids"] for piece in (marked, text, marked)]
    assert [piece.tolist() for piece in pieces] == expected
    assert tokenize_sentences([[marked]], tokenizer)[0][0].tolist() == expected[0]
    state = tokenizer_state(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E2]"]}, replace_extra_special_tokens=False)
    assert tokenizer_state(tokenizer) != state
    assert tokenizer.convert_tokens_to_ids("[E2]") in encode(tokenizer, "one [E2]")["input_ids"]


def test_fill_mask_keeps_its_mask(vocabulary):
    """After `encode`, a direct call of the tokenizer still recognizes "[MASK]" as the special token."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    encode(tokenizer, "one [MASK]")
    assert tokenizer.mask_token_id in tokenizer("one [MASK]")["input_ids"]
    assert not tokenizer.split_special_tokens
