"""Writes ONNX graphs, quantizes them to int8, and runs them."""

import logging
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..loading.families import max_tokens, task_head
from ..loading.sentence_models import SentencePooling
from ..support.errors import InputError, require_package
from ..tasks.predictions import Batch

GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"  # file names that optimum uses
OPSET = 18  # also used by optimum; torch's exporter writes this opset without conversion

# Names of the outputs for each task head, as in optimum. Task heads that are not listed return `logits`.
OUTPUTS = {
    "Model": ("last_hidden_state",),
    "ForPreTraining": ("prediction_logits", "seq_relationship_logits"),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
}
EMBEDDING = "sentence_embedding"  # name of the additional output for sentence-transformers models


class Graph(nn.Module):
    """
    Model whose forward returns the graph's outputs as a list. Sentence embeddings, if any, come last.

    Args:
        model: The model, which is changed: to float32 and, by `trace`, to eager attention.
    """

    def __init__(self, model: PreTrainedModel, pooling: SentencePooling | None):
        super().__init__()
        self.model = model.float().eval()
        self.model.config.use_cache = False  # otherwise, the graph would return the cache
        self.head = task_head(type(self.model).__name__, self.model.config.model_type)
        if self.head == "ForMultipleChoice":
            raise InputError("multiple-choice models cannot be exported.")
        self.pooling = pooling if self.head == "Model" else None
        self.model_outputs = [*OUTPUTS.get(self.head, ("logits",))]
        self.results = [EMBEDDING] if self.pooling else self.model_outputs
        self.names = list(dict.fromkeys([*self.model_outputs, *self.results]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> list[Tensor]:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **types)
        tensors = [outputs[name] for name in self.model_outputs]
        return tensors if self.pooling is None else [*tensors, self.pooling(tensors[0], attention_mask)]


def trace(graph: Graph, batch: Batch, file: Path):
    """Exports an ONNX graph that accepts any batch size and any length up to the model's maximum."""
    lengths = torch.export.Dim("sequence_length", max=max_tokens(graph.model.config))
    axes = [torch.export.Dim("batch_size"), lengths]
    graph.model.set_attn_implementation("eager")  # sdpa needs more operations, and equal sizes for keys and values
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # hides a message that torchvision is not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names of equal axes and about functions that torch itself calls
        program = torch.onnx.export(
            graph,
            kwargs=batch,
            dynamic_shapes={name: dict(enumerate(axes)) for name in batch},
            output_names=graph.names,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # contains local paths to the source code
    program.save(file, external_data=False)


def quantize(file: Path, quantized: Path):
    """Writes a graph with int8 weights. The inputs to matrix products are quantized dynamically."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(dir=quantized.parent) as directory:
        folded = Path(directory) / "folded.onnx"
        # Otherwise, quantize_dynamic misses transposed weights. A file of a graph can have at most 2 GB.
        quant_pre_process(file, folded, skip_symbolic_shape=True, save_as_external_data=True)
        model = onnx.load(folded)
    del model.graph.value_info[:]  # shapes that are invalid after quantize_dynamic transposes the pooler
    # Uses 7 bits, because sums of 8-bit products overflow on x86 processors without VNNI.
    quantize_dynamic(model, quantized, per_channel=True, reduce_range=True)


class OnnxModel:
    """
    An ONNX graph that onnxruntime runs on the CPU, called in the same way as the exported PyTorch model.

    Args:
        file: The graph.
        whole: Return all outputs. By default, a graph with embeddings returns only these, because copying the hidden
            states, which other libraries need, takes time.
    """

    def __init__(self, file: Path, whole: bool = False):
        require_package("onnxruntime", "onnx")
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Otherwise, its threads keep a core busy after each run and slow down whatever else the process computes.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self.session = InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.inputs = [node.name for node in self.session.get_inputs()]
        outputs = [node.name for node in self.session.get_outputs()]
        self.outputs = [EMBEDDING] if EMBEDDING in outputs and not whole else outputs

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        outputs = self.session.run(self.outputs, {name: inputs[name].numpy() for name in self.inputs})
        return dict(zip(self.outputs, map(torch.from_numpy, outputs), strict=True))
