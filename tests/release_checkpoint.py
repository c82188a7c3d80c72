"""
python tests/release_checkpoint.py

Write tests/fixtures/VERSION: a small checkpoint as this version publishes one, with its code, and inputs with their
logits. Every release has one, which later code never writes again; `make matrix` opens them all.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from small_models import UNEQUAL, inputs_of, model_of

import fixedbert
from fixedbert.files import new_directory

FIXTURES = Path(__file__).parent / "fixtures"


@torch.no_grad()
def write_checkpoint(output_dir: Path):
    """
    Raises:
        InputError: there is one already.
    """
    shape = {"hidden_size": 9, "intermediate_size": 21, "unpad_inputs": True, "sparse_prediction": True, **UNEQUAL}
    model, inputs = model_of("ForPreTraining", **shape).eval(), inputs_of("ForPreTraining", size=3)
    with new_directory(output_dir) as folder:
        model.save_pretrained(folder)
        outputs = model(**inputs)
        names = ("prediction_logits", "seq_relationship_logits")
        save_file({**inputs, **{name: outputs[name] for name in names}}, folder / "expected.safetensors")


if __name__ == "__main__":
    write_checkpoint(FIXTURES / fixedbert.__version__)
