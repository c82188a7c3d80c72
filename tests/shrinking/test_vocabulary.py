"""A smaller vocabulary: what a text says stays, bit for bit; nothing becomes unknown; ids follow; what is refused."""

import json
import random

import pytest
import torch
from helpers.tiny_checkpoints import SHAPE as TINY
from helpers.tiny_checkpoints import WORDS, save
from helpers.tiny_models import bert_of, model_of
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

import fixedbert
from fixedbert.data.encoding import encode
from fixedbert.data.sample import documents
from fixedbert.shrinking.repair import Repair
from fixedbert.shrinking.rows import Rows
from fixedbert.shrinking.shrink import Target, shrink_to, write_beside
from fixedbert.shrinking.text import shrinking_text, vocabulary_text
from fixedbert.shrinking.vocabulary import Text, renumber_tokenizer, shrink_vocabulary, tokens_that_stay
from fixedbert.support.errors import InputError
from fixedbert_cli import main

LINES = ["The cat sat on the mat,", "and Ångström's 7 naïve readers READ 42 books — twice!", "“Ωmega” 中文 日本"]
CORPUS = [*documents()[:12], *LINES * 3]
BERT = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}


def by_suffix() -> PreTrainedTokenizerFast:
    """BPE whose last characters of words have an ending of their own, and whose added tokens come last."""
    backend = Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=900, end_of_word_suffix="</w>", special_tokens=["[UNK]"])
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
    backend.add_tokens(["mat,"])
    ends = [(token, backend.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    backend.post_processor = processors.Sequence([processors.BertProcessing(*ends)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **BERT)


def by_pieces() -> PreTrainedTokenizerFast:
    """Unigram whose unknown token is the last one."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    trainer = trainers.UnigramTrainer(vocab_size=900, special_tokens=special, unk_token="[UNK]", show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    parts = json.loads(backend.to_str())
    pieces = parts["model"]["vocab"]
    pieces.append(pieces.pop(4))
    parts["added_tokens"][4]["id"] = parts["model"]["unk_id"] = len(pieces) - 1
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(parts)), **BERT)


MAKE = {
    "WordPiece, cased": lambda: BertTokenizer(do_lower_case=False).train_new_from_iterator(CORPUS, 900),
    "WordPiece, uncased": lambda: BertTokenizer().train_new_from_iterator(CORPUS, 900),
    "BPE of bytes": lambda: RobertaTokenizer().train_new_from_iterator(CORPUS, 900),
    "BPE with suffixes": by_suffix,
    "Unigram of XLM-R": lambda: XLMRobertaTokenizer().train_new_from_iterator(CORPUS, 900),
    "Unigram": by_pieces,
}


@pytest.fixture(scope="module", params=MAKE)
def shrunk(request, tmp_path_factory):
    """A masked LM with more embeddings than tokens, and with the tokens of LINES alone: both with their tokenizers."""
    tokenizer, folder = MAKE[request.param](), tmp_path_factory.mktemp("vocabulary")
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "eos", "mask")}
    shape = {"vocab_size": len(tokenizer) + 3, "max_position_embeddings": 61}
    model_of("ForMaskedLM", **shape, **ids).save_pretrained(folder / "old")
    tokenizer.save_pretrained(folder / "old")
    (folder / "text.txt").write_text("\n".join(LINES) + "\n")
    found = shrink_vocabulary(folder / "old", folder / "new", Text([str(folder / "text.txt")]))
    return found, *(opened(folder / name) for name in ("old", "new"))


def opened(folder):
    return AutoModelForMaskedLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def ids_of(tokenizer):
    return {token: number for token, number in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])}


def unknown(tokenizer, text):
    return tokenizer.unk_token_id in encode(tokenizer, text)["input_ids"]


def test_outputs_on_the_text_are_the_same(shrunk):
    """Guards: the same tokens, hidden states and logits, bit for bit; fewer of them, in the old order."""
    found, (old, reader), (new, smaller) = shrunk
    old_ids = torch.tensor([ids_of(reader)[token] for token in ids_of(smaller)])
    assert found.tokens == (len(reader), len(smaller)) and len(smaller) < 0.6 * len(reader)
    assert [*ids_of(smaller).values()] == [*range(len(smaller))] and (old_ids.diff() > 0).all()
    was, now = (encode(one, LINES, padding=True, return_tensors="pt") for one in (reader, smaller))
    assert torch.equal(old_ids[now["input_ids"]], was["input_ids"])
    assert torch.equal(now["attention_mask"], was["attention_mask"]) and 0 in now["attention_mask"]
    with torch.no_grad():
        before, after = (one(**given, output_hidden_states=True) for one, given in ((old, was), (new, now)))
    assert all(map(torch.equal, before.hidden_states, after.hidden_states))
    assert torch.equal(after.logits, before.logits[..., old_ids])
    bias = new.cls.predictions.bias
    assert torch.equal(bias, old.cls.predictions.bias[old_ids]) and new.cls.predictions.decoder.bias is bias
    embeddings = new.bert.embeddings.word_embeddings
    assert new.cls.predictions.decoder.weight is embeddings.weight and embeddings.padding_idx == smaller.pad_token_id
    assert found.parameters[1] == new.num_parameters() and found.size[0] - found.size[1] == 4 * 33 * (
        old.config.vocab_size - len(smaller)
    )


def test_nothing_becomes_unknown(shrunk):
    """Guards: whatever characters of the old vocabulary a text has, it has no unknown token where it had none."""
    _, (_, reader), (_, smaller) = shrunk
    draw, characters = random.Random(0), sorted({c for token in reader.get_vocab() for c in token} | {"ß", "語", "☂"})
    words = ["".join(draw.choices(characters, k=draw.randint(2, 9))) for _ in range(1000)]
    around = [form for c in characters for form in (c, f"a{c}", f"{c}a", f"{c}{c}", f"the {c}")]
    new = [text for text in (*around, *words, *CORPUS) if unknown(smaller, text) and not unknown(reader, text)]
    assert not new, new[:5]
    lost = [text for text in words if not unknown(smaller, text)]
    assert len(lost) > 300  # the test says something
    long = sum(len(encode(smaller, text)["input_ids"]) for text in CORPUS)
    assert long > sum(len(encode(reader, text)["input_ids"]) for text in CORPUS)  # there were tokens to lose


def test_ids_of_settings_follow(shrunk):
    """Guards: special tokens of the configuration, of the tokenizer and of pairs are the same tokens as before."""
    _, (old, reader), (new, smaller) = shrunk
    assert new.config.vocab_size == len(smaller) == new.bert.embeddings.word_embeddings.num_embeddings
    for name in ("pad_token_id", "cls_token_id", "eos_token_id", "mask_token_id", "bos_token_id"):
        was, now = getattr(old.config, name), getattr(new.config, name)
        assert (was is None and now is None) or reader.convert_ids_to_tokens(was) == smaller.convert_ids_to_tokens(now)
    assert smaller.special_tokens_map == reader.special_tokens_map
    pairs = [one.convert_ids_to_tokens(one("The cat", "and")["input_ids"]) for one in (reader, smaller)]
    assert pairs[0] == pairs[1]


def test_tokens_that_others_need_stay():
    """Guards: characters that are in tokens alone; all ways to merge a token; the lowest score and the unknown."""
    pieces = {token: number for number, token in enumerate(["[UNK]", "a", "b", "##b", "ab", "ac", "##bc", "##ba"])}
    model = {"type": "WordPiece", "vocab": pieces, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    assert tokens_that_stay(model, {4}) == {0, 1, 2, 3, 4, 5, 6, 7} - {pieces["ab"]} | {4}
    assert tokens_that_stay(model, set()) == {0, 1, 2, 3, 5, 6, 7}  # within words there is no ##a and no ##c
    pieces = {token: number for number, token in enumerate(["a", "b", "c", "ab", "bc", "abc", "cab", "<0x0A>"])}
    merges = [["a", "b"], ["b", "c"], ["ab", "c"], ["a", "bc"], ["c", "ab"]]
    assert tokens_that_stay({"type": "BPE", "vocab": pieces, "merges": merges}, {5}) == {0, 1, 2, 3, 4, 5, 7}
    scores = [["a", -3.0], ["b", -4.0], ["ab", -2.0], ["<unk>", 0.0], ["aab", -9.0], ["abb", -8.0], ["ac", -5.0]]
    assert tokens_that_stay({"type": "Unigram", "vocab": scores, "unk_id": 3}, {2}) == {0, 1, 2, 3, 4, 6}


def test_roberta_becomes_a_fixed_head_bert(tmp_path):
    """Guards: a RoBERTa whose padding token, by which it counts positions, gets another id."""
    tokenizer = by_suffix()
    shape = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    old = bert_of("Model", "Roberta", **shape, max_position_embeddings=tokenizer.pad_token_id + 62)
    old.save_pretrained(tmp_path / "old")
    tokenizer.save_pretrained(tmp_path / "old")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.jsonl").write_text(json.dumps({"id": "Ωmega", "texts": LINES}) + "\n")
    shrink_vocabulary(tmp_path / "old", tmp_path / "new", Text([str(tmp_path / "text")]))
    new, smaller = AutoModel.from_pretrained(tmp_path / "new").eval(), AutoTokenizer.from_pretrained(tmp_path / "new")
    was, now = (encode(one, LINES, padding=True, return_tensors="pt") for one in (tokenizer, smaller))
    with torch.no_grad():
        states, mask = new(**now).last_hidden_state, now["attention_mask"].bool()
        assert torch.equal(states, fixedbert.convert(old)(**was).last_hidden_state)
        assert torch.allclose(states[mask], old(**was).last_hidden_state[mask], atol=1e-4)
    assert new.config.pad_token_id == smaller.pad_token_id != tokenizer.pad_token_id


def test_text_of_every_kind(tmp_path):
    """Guards: strings of lines, rows, lists and objects but no ids; of a task and of rows; problems have a place."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.csv").write_text("id,sentence1,score\n7,three,four\n")
    (tmp_path / "c.json").write_text(json.dumps({"data": [{"qas": [{"id": "x", "question": "five"}], "n": 6}]}))
    (tmp_path / "d.tsv").write_text("sentence\tlabel\nseven\t1\n")
    assert [*Text([str(tmp_path / "*")])] == ["one\n", "two\n", "three", "four", "five", "seven", "1"]
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "d.tsv").rename(tmp_path / "SST-2" / "train.tsv")
    task = Text([str(tmp_path / "b.csv")], Rows("sst2", str(tmp_path)))
    assert [*task] == [*task] == ["seven", "three", "four"]
    assert [*Text([], Rows(files=[str(tmp_path / "a.txt")]))] == ["one\n", "two\n"]
    (tmp_path / "e.jsonl").write_text('{"text": "a"}\n{"text": "\\ud800"}\n')
    (tmp_path / "f.tsv").write_text("text\tlabel\nseven\n")
    for name, sentence in (("e.jsonl", "line 2: character 1 of a text is half"), ("f.tsv", "line 2: fewer fields")):
        with pytest.raises(InputError, match=f"{name}, {sentence}"):
            [*Text([str(tmp_path / name)])]


def test_prompts_are_text(tmp_path):
    """Guards: what sentence-transformers puts before texts keeps its tokens, and the pooling is beside the model."""
    save(model_of("Model", **TINY), tmp_path / "old")
    (tmp_path / "old" / "modules.json").write_text("[]")
    prompts = {"prompts": {"query": "who sat", "document": ""}}
    (tmp_path / "old" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (tmp_path / "text.txt").write_text("the dog")
    shrink_vocabulary(tmp_path / "old", tmp_path / "new", Text([str(tmp_path / "text.txt")]))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert tokenizer.tokenize("who sat: the dog ran") == ["who", "sat", "[UNK]", "the", "dog", "r", "##a", "##n"]
    assert (tmp_path / "new" / "modules.json").exists()


@pytest.mark.parametrize("repair", [None, Repair(2)])
def test_after_a_target(tmp_path, repair):
    """Guards: the cut, or cut and trained, model is left with the tokens of rows and files; the report says so."""
    save(model_of("ForSequenceClassification", **TINY), tmp_path / "old")
    lines = [f"{one} {other}" for one in ("the", "cat", "dog", "sat") for other in (*"abcdefghijklm", "mat ran")]
    (tmp_path / "rows.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "more.txt").write_text("who\n")
    rows = Rows(files=[str(tmp_path / "rows.txt")], batch_size=5)
    target = Target(intermediate_size=3)
    shrink_to(tmp_path / "old", tmp_path / "whole", rows, target, repair=repair)
    found = shrink_to(
        tmp_path / "old", tmp_path / "new", rows, target, repair=repair, vocabulary=[str(tmp_path / "more.txt")]
    )
    whole, new = (AutoModelForSequenceClassification.from_pretrained(tmp_path / name) for name in ("whole", "new"))
    was, now = (
        encode(AutoTokenizer.from_pretrained(tmp_path / name), [*lines, "who"], padding=True, return_tensors="pt")
        for name in ("whole", "new")
    )
    with torch.no_grad():
        assert torch.equal(whole.eval()(**was).logits, new.eval()(**now).logits)
    assert new.config.vocab_size == len(WORDS) - 4 == found.vocabulary.tokens[1]  # on where of and
    assert found.parameters[1] == new.num_parameters() == found.vocabulary.parameters[1]
    written = json.loads((tmp_path / "new" / "shrinking.json").read_text())
    assert written["vocabulary"]["tokens"] == [len(WORDS), len(WORDS) - 4]
    sentence = vocabulary_text(found.vocabulary)
    assert sentence in shrinking_text(found) and sentence in (tmp_path / "new" / "README.md").read_text()


def test_a_run_that_is_killed_after_the_vocabulary_is_cut(tmp_path, monkeypatch):
    """Guards: after the smaller model is written, and before its folder has its name, the same command goes on."""
    save(model_of("ForSequenceClassification", **TINY), tmp_path / "old")
    (tmp_path / "rows.txt").write_text("".join(f"{letter}{' the cat' * 7}\n" for letter in "abcdefghijklm"))
    rows = Rows(files=[str(tmp_path / "rows.txt")], batch_size=5)
    monkeypatch.setattr(
        "fixedbert.shrinking.repair.has_bf16", lambda _: False
    )  # whose sums are not always the same bits

    def run(name):
        return shrink_to(tmp_path / "old", tmp_path / name, rows, Target(intermediate_size=3), None, Repair(3), [])

    def killed(folder, *arguments, **options):
        found = write_beside(folder, *arguments, **options)
        if folder.name == "again.partial":
            raise KeyboardInterrupt
        return found

    whole = run("whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fixedbert.shrinking.shrink.write_beside", killed)
        run("again")
    assert json.loads((tmp_path / "again.partial" / "config.json").read_text())["vocab_size"] < len(WORDS)
    assert run("again").vocabulary == whole.vocabulary
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again"))
    # Adam turns a gradient that is nothing but rounding into a step, and rounding differs with where tensors lie.
    assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-8) for name in one)


def test_what_is_refused(tmp_path):
    """Guards: other tokenizers, no text, no files, no tokenizer: one sentence, and nothing is left."""
    backend = Tokenizer(models.WordLevel({token: number for number, token in enumerate(WORDS)}, unk_token="[UNK]"))
    whole = PreTrainedTokenizerFast(tokenizer_object=backend, **BERT)
    for name, tokenizer in (("words", whole), ("none", None)):
        model_of("Model", **TINY).save_pretrained(tmp_path / name)
        if tokenizer:
            tokenizer.save_pretrained(tmp_path / name)
    save(model_of("Model", **TINY), tmp_path / "good")
    (tmp_path / "a.txt").write_text("the cat\n")
    (tmp_path / "empty.txt").write_text("")
    cases = [
        ("words", "a.txt", "is for the tokens of WordPiece, BPE and Unigram, and these are of WordLevel"),
        ("none", "a.txt", "none: there is no tokenizer in it"),
        ("good", "empty.txt", "there is no text in the files"),
        ("good", "b.txt", "b.txt: no such file"),
    ]
    for name, file, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            shrink_vocabulary(tmp_path / name, tmp_path / "out", Text([str(tmp_path / file)]))
        assert not list(tmp_path.glob("out*"))
    with pytest.raises(InputError, match="needs files with text"):
        Text([])
    rows, target = Rows(files=[str(tmp_path / "a.txt")]), Target(params=1e4)
    with pytest.raises(InputError, match="these are of WordLevel"):  # before the rows are found to be too few
        shrink_to(tmp_path / "words", tmp_path / "out", rows, target, vocabulary=[])
    with pytest.raises(InputError, match="b.txt: no such file"):
        shrink_to(tmp_path / "good", tmp_path / "out", rows, target, vocabulary=[str(tmp_path / "b.txt")])


@pytest.mark.parametrize("wrong", ["ids", "case"])
def test_a_tokenizer_that_reads_differently_is_refused(tmp_path, monkeypatch, wrong):
    """Guards: what was written is opened again, and compared with the old one by its tokens and on the text."""
    tokenizer = by_suffix()
    tokenizer.save_pretrained(tmp_path / "old")
    model_of("Model", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "old")
    (tmp_path / "a.txt").write_text("The mat\n")

    def renumber_wrongly(parts, new_ids):
        renumber_tokenizer(parts, new_ids)
        if wrong == "case":
            parts["normalizer"] = {"type": "Lowercase"}
        else:
            vocabulary = parts["model"]["vocab"]
            vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    monkeypatch.setattr("fixedbert.shrinking.vocabulary.renumber_tokenizer", renumber_wrongly)
    with pytest.raises(InputError, match="reads the text differently"):
        shrink_vocabulary(tmp_path / "old", tmp_path / "out", Text([str(tmp_path / "a.txt")]))


def test_the_command(tmp_path, capsys):
    """Guards: alone the flag cuts the vocabulary and nothing else; a flag that needs a target still asks for one."""
    save(model_of("ForSequenceClassification", **TINY), tmp_path / "old")
    (tmp_path / "a.txt").write_text("the cat\n")
    words = f"shrink {tmp_path / 'old'} --output_dir {tmp_path / 'out'} --vocabulary {tmp_path / 'a.txt'}".split()
    main(words)
    assert capsys.readouterr().out.startswith("60 of 69 tokens are left: the 4 of the text,")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config.vocab_size == 60
    words[words.index("--output_dir") + 1] = str(tmp_path / "other")
    for flag in ("--distil_steps", "--text_column_names"):
        with pytest.raises(InputError, match="give one of `speedup`"):
            main([*words, flag, "3"])
