"""Checkpoints that an earlier version wrote, in tests/fixtures: they open, and compute what that version computed."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from fixedbert import FixedHeadBertForPreTraining

FIXTURES = Path(__file__).parent / "fixtures"
# SHA-256 over the names and bytes of the state dict, in sorted order, computed when the fixtures were written.
DIGESTS = {
    "plain": "e7bd09aad5bc0f3ce6925b9ce910e13176c234206718935b045cf598503683df",
    "add_by_layer": "79c5e2ff66f5c009cfc76d549489ae8fdff23457895e9bcb6e04424ef8e3bf72",
    "mul_qk_norm": "44b937abc825187ff75609ccc9ab304c5fb1368b077b236e3c7574d3d0d91762",
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


def test_earlier_checkpoints_open_by_their_own_code(tmp_path):
    """Guards: with the two files of code that were saved along, no fixedbert on the path, and trust_remote_code."""
    folder = shutil.copytree(FIXTURES / "plain", tmp_path / "plain")
    assert len(list(folder.glob("*.py"))) == 2
    script = f"""
import importlib.util, sys
sys.modules["fixedbert"] = None  # as if it were not installed
assert importlib.util.find_spec("fixedbert") is None
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining
model = AutoModelForPreTraining.from_pretrained({str(folder)!r}, trust_remote_code=True).eval()
inputs = load_file({str(folder / "expected.safetensors")!r})
expected = inputs.pop("prediction_logits")
del inputs["seq_relationship_logits"]
assert torch.allclose(model(**inputs).prediction_logits, expected, rtol=1e-5, atol=1e-5)
print(type(model).__module__)
"""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], env=clean, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("transformers_modules.") and "modeling_fixed_head_bert" in done.stdout
