"""Converts ONNX graphs to OpenVINO, quantizes them to int8, and runs them."""

import logging
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ..support.errors import InputError, require_package
from .onnx_graphs import EMBEDDING

OPENVINO, OPENVINO_INT8 = "openvino/openvino_model.xml", "openvino/openvino_model_qint8_quantized.xml"
CALIBRATION_ROWS, MIN_CALIBRATION_ROWS = 200, 32  # maximum and minimum number of rows for int8 calibration


@cache
def openvino_core():
    """
    Returns a Core that is never deleted.

    Each Core replaces the stack of signal handlers. If two are deleted in the order of their creation, Ctrl-C crashes.
    """
    import openvino

    return openvino.Core()


def convert_to_openvino(onnx_file: Path, file: Path):
    """Converts an ONNX graph to OpenVINO. Writes a .xml file and a .bin file with float32 weights."""
    import openvino

    openvino.save_model(openvino.convert_model(onnx_file), file, compress_to_fp16=False)


def quantize_openvino(source: Path, file: Path, batches: Iterable[dict[str, Tensor]]):
    """
    Quantizes the weights and activations of a graph to int8 with NNCF's post-training quantization for transformers.

    Args:
        source: An ONNX or OpenVINO graph.
        batches: At least 32 batches of one calibration row each, on which NNCF measures the ranges of the activations.
    """
    import nncf
    import openvino

    graph = openvino_core().read_model(source)
    names = [node.get_any_name() for node in graph.inputs]
    rows = [{name: batch[name].numpy() for name in names} for batch in batches]
    if len(rows) < MIN_CALIBRATION_ROWS:
        raise InputError(f"int8 needs at least {MIN_CALIBRATION_ROWS} calibration rows, but there are {len(rows)}.")
    # Uses 7 bits for weights, because sums of 8-bit products overflow on x86 processors without VNNI.
    fix = nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE)
    options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(rows), "advanced_parameters": fix}
    logging.getLogger("nncf").setLevel(logging.ERROR)
    with redirect_stdout(None):  # hides progress bars
        quantized = nncf.quantize(graph, nncf.Dataset(rows), **options)
    openvino.save_model(quantized, file, compress_to_fp16=False)


def openvino_options(precision: str | None) -> dict[str, str | int]:
    """Returns the options with which a graph is compiled for low latency. `precision` is that of `OpenVinoModel`."""
    options: dict[str, str | int] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    return options if precision is None else options | {"INFERENCE_PRECISION_HINT": precision}


class OpenVinoModel:
    """
    An OpenVINO graph that runs on the CPU, called in the same way as the exported PyTorch model.

    Args:
        file: The graph, in OpenVINO's or ONNX's format.
        precision: Floating-point precision of computations, "f32" or "bf16", or None to let OpenVINO choose.
        whole: Return all outputs, as in `OnnxModel`.
    """

    def __init__(self, file: Path, precision: str | None = None, whole: bool = False):
        require_package("openvino", "openvino")
        import openvino

        graph = openvino_core().read_model(file)
        if not whole and any(EMBEDDING in node.get_names() for node in graph.outputs):
            graph = openvino.Model([graph.output(EMBEDDING)], graph.get_parameters())
        self.model = openvino_core().compile_model(graph, "CPU", openvino_options(precision))
        self.inputs = [node.get_any_name() for node in self.model.inputs]
        self.outputs = [node.get_any_name() for node in self.model.outputs]

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        outputs = self.model({name: inputs[name].numpy() for name in self.inputs})
        return {name: torch.from_numpy(outputs[name]) for name in self.outputs}
