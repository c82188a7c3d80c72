"""Errors of input: the field at fault, and packages that are not installed."""

import sys

import pytest
from helpers import fork_server

from experiments.head_size.theory import theory
from fixedbert.inspection.inspect import inspect
from fixedbert.planning import plan
from fixedbert.support.errors import InputError, exit_on_input_error, require_package

pytestmark = pytest.mark.usefixtures("same_signals")


def test_field_is_a_flag_on_the_command_line():
    """Guards: Python reads the names of parameters, the command line their flags; other words stay the same."""
    with pytest.raises(InputError, match="^`max_seq_length` 4: must be between 8 and 512.$"):
        plan(max_seq_length=4, params="110M")
    with pytest.raises(SystemExit, match="^error: --max_seq_length 4: must be"):
        exit_on_input_error(lambda: plan(max_seq_length=4, params="110M"))
    with pytest.raises(SystemExit, match="^error: no budget"):
        exit_on_input_error(plan)

    def refuse():
        raise InputError("a: give `num_attention_heads` 12, or `pip install a`.")

    with pytest.raises(SystemExit, match="^error: a: give --num_attention_heads 12, or `pip install a`.$"):
        exit_on_input_error(refuse)


def test_missing_package_is_a_sentence(monkeypatch, tmp_path):
    """Guards: what draws a picture says at its start which extra is missing, and leaves nothing."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    sentence = r'matplotlib is not installed; run pip install matplotlib, or "\.\[plots\]" in a checkout'
    for draw in (
        lambda: require_package("matplotlib", "plots"),
        lambda: theory(tmp_path / "out"),
        lambda: inspect("model", tmp_path / "out", "text.txt"),
    ):
        with pytest.raises(InputError, match=sentence):
            draw()
    assert not list(tmp_path.iterdir())


def test_analysis_needs_no_matplotlib_but_to_draw(tmp_path):
    """Guards: without the extra everything can be imported, and planning works."""
    code = (
        "import sys\n"
        "for name in [*sys.modules]:\n"
        "    if name.split('.')[0] in ('fixedbert', 'matplotlib'):\n"
        "        del sys.modules[name]\n"
        "sys.modules['matplotlib'] = None\n"
        "from fixedbert.planning import plan\n"
        "print(plan(params='110M'))"
    )
    (tmp_path / "plan.py").write_text(code)
    run = fork_server.run(tmp_path / "plan.py", [], tmp_path, tmp_path)
    assert run.returncode == 0, run.stderr
    assert "BERT-base" in run.stdout
