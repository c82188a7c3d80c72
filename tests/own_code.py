"""
python tests/own_code.py [FOLDER ...]

Open checkpoints by the code beside their weights, as if fixedbert were not installed, and compare their logits with
those that were stored when they were written. By default all in tests/fixtures that have code.
"""

import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining


@torch.no_grad()
def largest_difference(folder: Path) -> float:
    """Of the logits; a padded batch."""
    model = AutoModelForPreTraining.from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    inputs = load_file(folder / "expected.safetensors")
    expected = {name: inputs.pop(name) for name in ("prediction_logits", "seq_relationship_logits")}
    outputs = model(**inputs)
    return max(float((outputs[name] - logits).abs().max()) for name, logits in expected.items())


def main(folders: list[str]):
    with_code = Path(__file__).parent.glob("fixtures/*/modeling_fixed_head_bert.py")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for folder in [Path(given) for given in folders] or sorted(file.parent for file in with_code):
        difference = largest_difference(folder)
        print(f"{folder.name}: largest difference of logits {difference:.1g}")
        if not difference < 1e-4:  # or not a number; of logits of 1 to 10
            sys.exit(f"error: {folder} opens with other logits than those it was written with.")


if __name__ == "__main__":
    sys.modules["fixedbert"] = None  # no import finds it
    main(sys.argv[1:])
