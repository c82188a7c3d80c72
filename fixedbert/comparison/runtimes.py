"""The ways to run a model on the CPU: PyTorch with or without padding, onnxruntime and OpenVINO, in several dtypes."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import normalize
from transformers import PreTrainedConfig

from ..conversion.growing import to_fixed_head_bert
from ..exporting.export import EMBEDDING, GRAPH, QUANTIZED, OnnxModel
from ..exporting.openvino_graphs import OPENVINO, OPENVINO_INT8, OpenVinoModel
from ..loading.loaded_model import LoadedModel
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..shrinking.serving import Serving
from ..tasks.predictions import Batch, Predictions, predict, predictions_of

REFERENCE = "torch"  # padded, in float32
# Whether each PyTorch runtime skips padding, and the dtype of its weights.
TORCH = {
    REFERENCE: Serving(unpad_inputs=False, dtype=torch.float32),
    "torch-unpadded": Serving(unpad_inputs=True, dtype=torch.float32),
    "torch-bf16": Serving(unpad_inputs=False, dtype=torch.bfloat16),
    "torch-unpadded-bf16": Serving(unpad_inputs=True, dtype=torch.bfloat16),
}


class GraphRuntime(NamedTuple):
    """A way to run an exported graph: its file in an exported directory, and the function that loads it."""

    file: str
    load: Callable[[Path], OnnxModel | OpenVinoModel]


GRAPHS = {  # each name begins with the package that runs the graph
    "onnxruntime": GraphRuntime(GRAPH, OnnxModel),
    "onnxruntime-int8": GraphRuntime(QUANTIZED, OnnxModel),
    "openvino": GraphRuntime(OPENVINO, partial(OpenVinoModel, precision="f32")),
    "openvino-bf16": GraphRuntime(OPENVINO, partial(OpenVinoModel, precision="bf16")),
    "openvino-int8": GraphRuntime(OPENVINO_INT8, OpenVinoModel),
}
RUNTIMES = (*TORCH, *GRAPHS)


def torch_runtime(loaded: LoadedModel, serving: Serving) -> tuple[Callable[[Batch], list[Predictions]], float]:
    """Returns a function that predicts with a copy of the model, and the size of its weights in megabytes."""
    model = loaded.model
    if serving.unpad_inputs and not isinstance(model, FixedHeadBertPreTrainedModel):
        model = to_fixed_head_bert(model)
    if isinstance(model, FixedHeadBertPreTrainedModel):
        model = serving.model(model)
    else:
        model = copy.deepcopy(model).eval().to(serving.dtype)

    def outputs(batch: Batch) -> list[Predictions]:
        return [Predictions(each.values.float(), each.kind) for each in predict(model, batch, loaded.pooling)]

    return outputs, sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 1e6


def graph_predictions(graph, head: str, config: PreTrainedConfig, batch: Batch) -> list[Predictions]:
    """Returns the predictions of an exported graph for a batch, as `LoadedModel.predict` does for a PyTorch model."""
    outputs = graph(**batch)
    if head:
        return predictions_of(head, config, outputs, batch["attention_mask"])
    return [Predictions(normalize(outputs[EMBEDDING], dim=-1), "embeddings")]
