"""The tokenizer and the examples that the options of pretraining describe, and what the run prints about them."""

import pytest
from helpers.script_arguments import pretraining, read

from fixedbert.option_values import make
from fixedbert.options import PretrainingDataOptions
from fixedbert.pretraining.arguments import ARGUMENTS
from fixedbert.pretraining.examples import make_examples, make_tokenizer, processes_of
from fixedbert.support.errors import InputError
from fixedbert.training.models import load_config


def prepare(corpus, output, *more):
    """Returns the tokenizer and the result of `make_examples` for options of the command."""
    model_args, data_args, training_args = make(read("pretrain", pretraining(corpus, output, *more)), *ARGUMENTS)
    tokenizer = make_tokenizer(model_args, data_args, load_config(model_args), None)
    return tokenizer, make_examples(model_args, data_args, training_args, tokenizer)


def test_numbers_are_printed(tmp_path, capsys):
    """The run prints how many files, documents, duplicates, tokens and examples the text has."""
    letters = "abcdefghij"
    lines = [f"the {x} {y} list." for x in letters for y in letters + "k"]  # 110 documents of 5 tokens
    file, held_out = tmp_path / "a.txt", tmp_path / "b.txt"
    file.write_text("\n\n".join(lines + 189 * lines[:10]) + "\n")
    held_out.write_text("\n".join(["the other text.", "something else.", *lines[3:6]]) + "\n")
    options = ("--document_boundary", "line", "--objective", "mlm")
    _, (examples, held_out_examples, _) = prepare(str(file), tmp_path / "out", *options)
    characters = sum(map(len, lines)) + 189 * sum(map(len, lines[:10])) + 3998
    first, second = capsys.readouterr().out.splitlines()
    assert f"; of {characters + 1:,} characters, 0 lose an accent or vowel sign" in first
    size = "files: 1, documents: 3,999, of which 1,890 duplicates and 1,999 empty ones are left out, tokens: 550, "
    assert second == f"{size}examples: {len(examples) + len(held_out_examples)}"
    prepare(str(file), tmp_path / "out", *options, "--validation_file", str(held_out))
    assert capsys.readouterr().out.endswith("\n3 of 5 held-out documents are in the training text\n")


@pytest.mark.parametrize(
    "options, tokens",
    [
        (("--language", "de"), ["möchte", "café"]),
        (("--strip_accents", "false"), ["möchte", "café"]),
        (("--language", "de", "--strip_accents", "true"), ["mochte", "cafe"]),
        (("--do_lower_case", "false"), ["Möchte", "Café"]),
    ],
)
def test_accents_depend_on_the_language(tmp_path, options, tokens):
    """A new vocabulary removes accents only in English text, unless `strip_accents` is set."""
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"Möchte Café. Möchte Café {number}. " * 20)
    tokenizer, _ = prepare(str(tmp_path), tmp_path / "out", "--objective", "mlm", *options)
    assert tokenizer.tokenize("Möchte Café") == tokens


@pytest.mark.parametrize("text", ["Möchte Café. Und jetzt nicht.", "ที่นี่ไม่มีใคร", "한국어 문장이다.", "Мой ёж."])
def test_other_languages_need_an_option(tmp_path, text):
    """A new vocabulary for English does not silently remove the accents of text in other languages."""
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"The text has number {number}. {text} " * 20)
    with pytest.raises(InputError, match=r"^\d+\.\d% of the characters .* set `language`, or set `strip_accents`"):
        prepare(str(tmp_path), tmp_path / "out", "--objective", "mlm")


def test_available_cores(monkeypatch):
    """A job on some of a machine's cores prepares the corpus with that many processes, also without an affinity."""
    monkeypatch.setattr("os.cpu_count", lambda: 128)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5, 6, 7}, raising=False)
    assert processes_of(PretrainingDataOptions()) == 4
    assert processes_of(PretrainingDataOptions(preprocessing_num_workers=3)) == 3
    monkeypatch.delattr("os.sched_getaffinity")  # macOS
    assert processes_of(PretrainingDataOptions()) == 128
