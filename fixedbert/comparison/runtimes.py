"""The ways to run a model on the CPU: PyTorch with or without padding, onnxruntime and OpenVINO, in several dtypes."""

from collections.abc import Callable
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from ..conversion.growing import to_fixed_head_bert
from ..exporting.graphs import GRAPHS
from ..loading.loaded_model import LoadedModel
from ..shrinking.serving import Serving
from ..support.machine import has_bf16
from ..tasks.predictions import Batch, Predictions, predict

REFERENCE = "torch"  # padded, in float32
# Whether each PyTorch runtime skips padding, and the dtype of its weights.
TORCH = {
    REFERENCE: Serving(unpad_inputs=False, dtype=torch.float32),
    "torch-unpadded": Serving(unpad_inputs=True, dtype=torch.float32),
    "torch-bf16": Serving(unpad_inputs=False, dtype=torch.bfloat16),
    "torch-unpadded-bf16": Serving(unpad_inputs=True, dtype=torch.bfloat16),
}
RUNTIMES = (*TORCH, *GRAPHS)


def is_slow(runtime: str) -> bool:
    """Returns True for a runtime in bfloat16 if the processor has no instructions for it."""
    return "bf16" in runtime and not has_bf16(use_cpu=True)


def torch_runtime(loaded: LoadedModel, serving: Serving) -> tuple[Callable[[Batch], list[Predictions]], float]:
    """Returns a function that predicts with a copy of the model, and the size of its weights in megabytes."""
    model = torch_model(loaded, serving)

    def outputs(batch: Batch) -> list[Predictions]:
        return [replace(each, values=each.values.float()) for each in predict(model, batch, loaded.pooling)]

    return outputs, sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 1e6


def torch_model(loaded: LoadedModel, serving: Serving) -> PreTrainedModel:
    """Returns a copy of the model with these settings, converted to a FixedHeadBert if it skips padding."""
    model = loaded.model
    if serving.unpad_inputs and model.config.model_type != "fixed_head_bert":
        model = to_fixed_head_bert(model)
    return serving.model(model)


def stored_runtime(loaded: LoadedModel) -> str:
    """Returns the PyTorch runtime with the padding and the dtype that a model is stored with."""
    stored = Serving(getattr(loaded.config, "unpad_inputs", False), loaded.model.dtype)
    return next((name for name, serving in TORCH.items() if serving == stored), REFERENCE)
