"""Special tokens in the texts of a store."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from fixedbert.data.store import tokenize_sentences
from fixedbert.data.tokenizers import tokenizer_state


def byte_level_tokenizer():
    """Returns a small byte-level tokenizer, like RoBERTa's."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(["one two three"], trainer)
    roles = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


@pytest.mark.parametrize("split_special_tokens", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_sentences_are_tokenized_as_by_separate_calls(vocabulary, family, split_special_tokens):
    """Joined sentences get the tokens of separate calls, also with added tokens. A separator ends a sentence."""
    tokenizer = byte_level_tokenizer() if family == "roberta" else BertTokenizer(vocab=vocabulary)
    state = tokenizer_state(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]", "[/E1]"]})
    tokenizer.add_tokens(["<num>"])
    assert tokenizer_state(tokenizer) != state
    sentences = ["one [E1]two[/E1] three <num>", f"{tokenizer.mask_token} four", "five"]
    expected = tokenizer(sentences, add_special_tokens=False)["input_ids"]
    assert {*tokenizer.convert_tokens_to_ids(["[E1]", "[/E1]", "<num>"])} < {*expected[0]}
    tokenizer.backend_tokenizer.encode_special_tokens = split_special_tokens  # as after a call with this option
    (tokens, ends), *_ = tokenize_sentences([sentences], tokenizer)
    assert [piece.tolist() for piece in np.split(tokens, ends[:-1])] == expected and ends[-1] == len(tokens)
    (tokens, ends), *_ = tokenize_sentences([[f"one{tokenizer.sep_token}two"]], tokenizer)
    assert [piece.tolist() for piece in np.split(tokens, ends[:-1])] == [
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("one", "two")
    ]
