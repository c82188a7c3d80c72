"""Checkpoints that an earlier version wrote, in tests/fixtures: they open, and compute what that version computed."""

import hashlib
import subprocess
import sys
from pathlib import Path

import own_code
import pytest
import torch
from release_checkpoint import FIXTURES, write_checkpoint
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from fixedbert import FixedHeadBertForPreTraining, __version__
from fixedbert.errors import InputError

# SHA-256 over the names and bytes of the state dict, in sorted order, computed when the fixtures were written.
DIGESTS = {
    "plain": "e7bd09aad5bc0f3ce6925b9ce910e13176c234206718935b045cf598503683df",
    "add_by_layer": "79c5e2ff66f5c009cfc76d549489ae8fdff23457895e9bcb6e04424ef8e3bf72",
    "mul_qk_norm": "44b937abc825187ff75609ccc9ab304c5fb1368b077b236e3c7574d3d0d91762",
    "0.1.0": "0c9fe2cfb7ac51e3c899580cab12e6d5eac55f5823bdd4538272b4d1a7ae23c6",  # values and heads of each layer
}


def digest(state: dict[str, torch.Tensor]) -> str:
    sha = hashlib.sha256()
    for name, value in sorted(state.items()):
        sha.update(name.encode() + value.numpy().tobytes())
    return sha.hexdigest()


def assert_same_logits(model, folder: Path):
    """
    As they were stored. On the machine that wrote them they are equal bit for bit; others may add in another order,
    so they are compared to 1e-5 here. The weights have no such freedom: their digests are compared.
    """
    inputs = load_file(folder / "expected.safetensors")
    expected = {name: inputs.pop(name) for name in ("prediction_logits", "seq_relationship_logits")}
    assert expected["prediction_logits"].abs().max() > 0.1
    with torch.no_grad():
        outputs = model.eval()(**inputs)
    for name, logits in expected.items():
        assert torch.allclose(outputs[name], logits, rtol=1e-5, atol=1e-5), name


@pytest.mark.parametrize("name", DIGESTS)
def test_earlier_checkpoints_open(name):
    """Guards: every weight comes back bit for bit under its name, none is missing or new, and the logits are equal."""
    model, info = AutoModelForPreTraining.from_pretrained(FIXTURES / name, output_loading_info=True)
    assert type(model) is FixedHeadBertForPreTraining and not any(info.values())
    assert digest(model.state_dict()) == DIGESTS[name]
    assert_same_logits(model, FIXTURES / name)


def test_earlier_checkpoints_open_by_their_own_code():
    """Guards: by the code that was saved along and trust_remote_code alone; other logits than those stored fail."""
    assert len(list((FIXTURES / "plain").glob("*.py"))) == 2
    assert len(list((FIXTURES / __version__).glob("*.py"))) == 5
    done = subprocess.run([sys.executable, own_code.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split(": ")[0] for line in done.stdout.splitlines()[1:]] == [__version__, "plain"]


def test_own_code_with_other_weights(tmp_path, monkeypatch):
    """Guards: a checkpoint whose logits are not those it was written with ends the program."""
    monkeypatch.setattr(own_code, "largest_difference", lambda folder: 1e-3)
    with pytest.raises(SystemExit, match="other opens with other logits than those it was written with"):
        own_code.main([str(tmp_path / "other")])


def test_every_release_has_a_checkpoint(tmp_path):
    """Guards: this version has a fixture, and the script for the next writes one that opens, and none twice."""
    write_checkpoint(tmp_path / "next")
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "next")
    assert_same_logits(model, tmp_path / "next")
    files = sorted(file.name for file in (tmp_path / "next").iterdir())
    assert files == sorted(file.name for file in (FIXTURES / __version__).iterdir())
    with pytest.raises(InputError, match="the output directory is not empty"):
        write_checkpoint(tmp_path / "next")
