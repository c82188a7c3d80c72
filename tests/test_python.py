"""Tests of the commands as Python functions."""

import re
import subprocess
import sys
import threading

import pytest
from helpers import ROOT
from helpers.tiny_checkpoints import SHAPE, save
from helpers.tiny_models import model_of
from transformers import AutoModelForSequenceClassification

import fixedbert
from fixedbert.commands import COMMANDS
from fixedbert.model import modeling_fixed_head_bert

PRETRAINING = {
    "num_attention_heads": 5, "attention_head_size": 6, "hidden_size": 32, "num_hidden_layers": 1,
    "intermediate_size": 37, "vocab_size": 60, "max_seq_length": 32, "document_boundary": "line", "do_train": True,
    "use_cpu": True,
}  # fmt: skip
TEXTS = ["the cat sat on the mat", "a dog sat", "the dog and a cat", "a mat"]


def test_functions_and_results_are_exported_and_documented():
    """Commands are also functions, and docs/reference.md lists all functions, result classes and model classes."""
    functions = {command.function for command in COMMANDS.values()}
    results = {*fixedbert.LAZY} - functions | {"InputError"}
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert functions <= {*fixedbert.LAZY}
    for name in functions:
        assert callable(getattr(fixedbert, name)) and f".. autofunction:: fixedbert.{name}\n" in page
    for name in (*results, *modeling_fixed_head_bert.__all__):
        assert getattr(fixedbert, name).__name__ == name in dir(fixedbert)
        assert f".. autoclass:: fixedbert.{name}\n" in page
    names: dict = {}
    exec("import inspect; from fixedbert import *", names)
    assert names["inspect"].__name__ == "inspect"  # from the standard library


@pytest.mark.slow
def test_type_checkers_see_the_functions(tmp_path):
    """mypy infers the types of results and reports unknown names."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(
        "import fixedbert\nreveal_type(fixedbert.convert('a', 'b'))\nreveal_type(fixedbert.inspect('a', 'b', 'c'))\n"
        "fixedbert.nonsense\nfixedbert.InputError('a')\n"
        "fixedbert.convert('a', 'b', num_attention_heads=[3, 7])\nfixedbert.Trained, fixedbert.FixedHeadBertModel\n"
    )
    command = [sys.executable, "-m", "mypy", str(tmp_path / "user.py")]  # with the cache of `make lint`
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line.split(": ", 1)[1] for line in done.stdout.splitlines()[:-1] if "user.py:" in line]
    revealed = [line.split('"')[1].rpartition(".")[2] for line in lines if line.startswith("note: Revealed")]
    assert revealed == ["PreTrainedModel", "Inspection"], done.stdout
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and '"nonsense"' in errors[0], done.stdout


def test_functions_return_printable_results(tmp_path):
    """`convert` returns the converted model, and the result of `shrink` is printed in one line or as a report."""
    save(model_of("ForSequenceClassification", **SHAPE), tmp_path / "model")
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS * 19) + "\n")
    larger = fixedbert.convert(tmp_path / "model", tmp_path / "larger", attention_head_size=13)
    assert larger.config.attention_head_size == 13
    rows = {"train_file": tmp_path / "rows.txt", "batch_size": 2}
    result = fixedbert.shrink(tmp_path / "larger", tmp_path / "small", intermediate_size=13, **rows)
    assert len(repr(result).splitlines()) == 1 and str(result).startswith("larger: ")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    assert again.config.intermediate_size == 13 and again.config.attention_head_size == 13


def test_training_in_a_thread(tmp_path):
    """Training runs in a thread, which cannot set signal handlers, and returns the directory and the metrics."""
    (tmp_path / "text.txt").write_text("\n".join(f"{text}. {text}." for text in TEXTS * 13) + "\n")
    arguments = PRETRAINING | {"train_file": str(tmp_path / "text.txt"), "max_steps": 2, "do_eval": True}
    results = []
    run = threading.Thread(
        target=lambda: results.append(fixedbert.pretrain(**arguments, output_dir=tmp_path / "model"))
    )
    run.start()
    run.join()
    config = fixedbert.FixedHeadBertConfig.from_pretrained(tmp_path / "model")
    assert (config.hidden_size, config.num_attention_heads, config.attention_head_size) == (32, 5, 6)
    assert re.match(f"{tmp_path}/model: .*eval_loss [0-9.]+", repr(results[0]))
