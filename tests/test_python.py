"""The functions of `fixedbert`, as somebody in a notebook calls them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, save
from helpers.tiny_models import model_of
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback

import fixedbert
from fixedbert.model import modeling_fixed_head_bert
from fixedbert.support.errors import InputError
from fixedbert_cli import COMMANDS, TASKS

ROOT = Path(__file__).parents[1]
SMALL = {  # a pretraining
    "num_attention_heads": 5, "attention_head_size": 6, "hidden_size": 32, "num_hidden_layers": 1,
    "intermediate_size": 37, "vocab_size": 60, "max_seq_length": 32, "document_boundary": "line", "do_train": True,
    "use_cpu": True,
}  # fmt: skip
TEXTS = ["the cat sat on the mat", "a dog sat", "the dog and a cat", "a mat"]


@pytest.fixture
def classifier(tmp_path) -> Path:
    save(model_of("ForSequenceClassification", **SHAPE), tmp_path / "model")
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS * 19) + "\n")
    return tmp_path / "model"


def test_every_command_is_a_function_and_is_documented():
    """Guards: each command but study and theory has its function, which dir() shows and docs/api.md describes."""
    tasks = {"pretrain": "pretrain", "glue": "fine_tune_glue", "squad": "fine_tune_squad"}
    names = {*COMMANDS} - {"study", "theory"} | {tasks[name] for name in TASKS}
    assert names == set(fixedbert.COMMANDS) and names <= set(dir(fixedbert))
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in names:
        assert callable(getattr(fixedbert, name)) and f".. autofunction:: fixedbert.{name}\n" in page
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        fixedbert.train  # noqa: B018


def test_results_are_exported_and_a_star_takes_no_name_of_python():
    """Guards: what functions return and raise can be named and is documented; `import *` leaves `inspect` alone."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in (*fixedbert.RESULTS, "InputError"):
        assert getattr(fixedbert, name).__name__ == name in dir(fixedbert)
        assert f".. autoclass:: fixedbert.{name}\n" in page
    heads = modeling_fixed_head_bert.__all__
    assert {name for name in heads if f".. autoclass:: fixedbert.{name}\n" in page} == {*heads}
    names: dict = {}
    exec("import inspect; from fixedbert import *", names)
    assert names["inspect"].__name__ == "inspect" and names["InputError"] is InputError and "convert" not in names


@pytest.mark.slow
def test_type_checkers_see_the_functions(tmp_path):
    """Guards: mypy knows what the functions take and return, and no name that is not there."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(
        "import fixedbert\nreveal_type(fixedbert.convert('a'))\nreveal_type(fixedbert.plan(params=5e6))\n"
        "fixedbert.shrink('a', 'b', speedup='2')\nfixedbert.nonsense\nfixedbert.InputError('a')\n"
        "fixedbert.convert('a', num_attention_heads=[3, 7])\nfixedbert.Trained, fixedbert.FixedHeadBertModel\n"
    )
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path), "user.py"]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = [line.split(": ", 1)[1] for line in done.stdout.splitlines()[:-1] if line.startswith("user.py")]
    revealed = [line.split('"')[1] for line in lines if line.startswith("note: Revealed")]
    assert revealed == ["transformers.modeling_utils.PreTrainedModel", "fixedbert.planning.Plan"], done.stdout
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 2 and '"speedup"' in errors[0] and '"nonsense"' in errors[1], done.stdout


def test_importing_stays_quick():
    """Guards: `import fixedbert` imports no Trainer, no data sets and no matplotlib, which take seconds more."""
    found = "{'datasets', 'matplotlib', 'transformers.trainer', 'fixedbert.shrinking'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, fixedbert; print({found})"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "set()\n", done.stderr


def test_models_in_memory(classifier, tmp_path):
    """Guards: a model with its tokenizer does where a directory does; without the tokenizer it is asked for."""
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    larger = fixedbert.convert(model, attention_head_size=13)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(model(**inputs).logits, larger(**inputs).logits, atol=1e-5)
    with pytest.raises(InputError, match="`tokenizer` is missing: a model in memory needs its own"):
        fixedbert.convert(model, tmp_path / "larger", attention_head_size=13)
    with pytest.raises(InputError, match="`distil_steps` needs the directory of the model"):
        fixedbert.shrink(model, tmp_path / "cut", tokenizer=tokenizer, params=1e4, distil_steps=2)
    with pytest.raises(InputError, match="`tokenizer` is for a new directory: give `output_dir` too"):
        fixedbert.convert(model, tokenizer=tokenizer)
    with pytest.raises(InputError, match="`tokenizer` is for a model in memory"):
        fixedbert.export(classifier, tmp_path / "graph", tokenizer=tokenizer)
    rows = {"train_file": tmp_path / "rows.txt", "batch_size": 2}
    found = fixedbert.shrink(larger, tmp_path / "small", intermediate_size=13, tokenizer=tokenizer, **rows)
    assert found.folder == str(tmp_path / "small") and found.after[0].neurons == 13
    written = Path(found.folder, "shrinking.json").read_text()
    name = "FixedHeadBertForSequenceClassification"
    assert json.loads(written)["model"] == name and str(found).startswith(f"{name}: pruned with")
    again = AutoModelForSequenceClassification.from_pretrained(found.folder)
    assert again.config.intermediate_size == 13 and again.config.attention_head_size == 13


def test_errors_name_a_model_in_memory_by_its_class(classifier, tmp_path):
    """Guards: no error names the folder in which a model in memory was put for a moment."""
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    given = {"tokenizer": AutoTokenizer.from_pretrained(classifier), "max_seq_length": 1300}
    with pytest.raises(InputError, match="`max_seq_length` 1300: FixedHeadBertForSequenceClassification takes 3 to"):
        fixedbert.inspect(model, tmp_path / "out", tmp_path / "rows.txt", **given)


def test_results_show_themselves(classifier, tmp_path):
    """Guards: what is returned is short in a list and a report when printed."""
    rows = {"train_file": str(tmp_path / "rows.txt"), "batch_size": 2}
    found = fixedbert.shrink(classifier, tmp_path / "small", intermediate_size=13, **rows)
    assert len(repr(found).splitlines()) == 1 and "layer 0:" in str(found)
    planned = fixedbert.plan(params=5e6)
    assert str(planned).startswith("rows of 128 tokens; budget: params 5000000\n")


def test_interrupted_training_leaves_the_process_as_it_was(tmp_path):
    """Guards: Ctrl-C in a call is a KeyboardInterrupt, after which the handlers of signals are those before."""
    (tmp_path / "text.txt").write_text("\n".join(f"{text}. {text}." for text in TEXTS * 13) + "\n")
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    class Interrupted(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGINT)

    given = SMALL | {"train_file": str(tmp_path / "text.txt"), "max_steps": 7}
    with pytest.raises(KeyboardInterrupt):
        fixedbert.pretrain(**given, output_dir=tmp_path / "model", callbacks=[Interrupted()])
    assert [path.name for path in (tmp_path / "model.partial").glob("checkpoint-*")] == ["checkpoint-3"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_training_in_a_thread_returns_what_it_wrote(tmp_path):
    """Guards: a run needs no signal handlers, which a thread cannot have, and returns its directory with metrics."""
    (tmp_path / "text.txt").write_text("\n".join(f"{text}. {text}." for text in TEXTS * 13) + "\n")
    given = SMALL | {"train_file": str(tmp_path / "text.txt"), "max_steps": 2, "do_eval": True}
    found = []
    run = threading.Thread(target=lambda: found.append(fixedbert.pretrain(**given, output_dir=tmp_path / "model")))
    run.start()
    run.join()
    config = fixedbert.FixedHeadBertConfig.from_pretrained(tmp_path / "model")
    assert (config.hidden_size, config.num_attention_heads, config.attention_head_size) == (32, 5, 6)
    assert found[0].folder == tmp_path / "model" and re.match(f"{tmp_path}/model: .*eval_loss [0-9.]+", repr(found[0]))
    with pytest.raises(InputError, match="`num_attention_heads` is for a new model; .* fixedbert convert"):
        fixedbert.pretrain(model_name_or_path=tmp_path / "model", num_attention_heads=7, do_train=True)
