"""Tests that special tokens in texts, such as "[SEP]", are tokenized as ordinary text."""

import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from fixedbert.data.sequences import read_sequences
from fixedbert.data.store import tokenize_sentences
from fixedbert.data.tokenizers import encode
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


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_special_tokens_in_texts_are_text(vocabulary, tmp_path, family):
    """Fine-tuning, plain text and pretraining tokenize special tokens in texts as ordinary text."""
    tokenizer = BertTokenizer(vocab=vocabulary) if family == "bert" else byte_level_tokenizer()
    special = [token for token in tokenizer.all_special_tokens if token]
    text = f"one {' two '.join(special)} three"
    ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}  # "[" is not in the small vocabulary

    def special_ids(tokens):
        return [token for token in tokens if token in ids]

    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    rows = datasets.Dataset.from_dict({"sentence1": [text], "sentence2": [text]})
    (row,) = text_features(rows, tokenizer, 128)["input_ids"]
    assert special_ids(row) == ([cls, sep, sep] if family == "bert" else [cls, sep, sep, sep])
    answers = {"text": ["three"], "answer_start": [text.index("three")]}
    question = {"id": "1", "context": text, "question": text, "answers": answers}
    windows = squad_windows(datasets.Dataset.from_list([question], features=FEATURES), tokenizer, 128, 16, False)
    assert special_ids(windows["input_ids"][0]) == special_ids(row)
    first, last = windows["start_positions"][0], windows["end_positions"][0]
    offsets = np.array(windows["offsets"][0]).reshape(-1, 2)
    assert text[offsets[first, 0] : offsets[last, 1]] == "three"
    file = tmp_path / "a.txt"
    file.write_text(text)
    (sequence,) = next(read_sequences([str(file)], tokenizer, 24, 1))
    assert special_ids(sequence.tolist()) == [cls, sep]
    ((tokens, ends),) = tokenize_sentences([[text, "one two", text]], tokenizer)
    alone = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert special_ids(tokens) == [] and tokens[: len(alone)].tolist() == alone and len(ends) == 3
    assert tokenize_sentences([["one", "two"]], tokenizer)[0][1].tolist()[-1] < 10  # the option does not persist


def test_fill_mask_keeps_its_mask(vocabulary):
    """After `encode`, a direct call of the tokenizer still recognizes "[MASK]" as the special token."""
    tokenizer = BertTokenizer(vocab=vocabulary)
    encode(tokenizer, "one [MASK]")
    assert tokenizer.mask_token_id in tokenizer("one [MASK]")["input_ids"]
    assert not tokenizer.split_special_tokens
