"""The ways to run a graph, and the directories that `fixedbert export` writes."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torch.nn.functional import normalize
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from ..loading.loaded_model import head_name, load_text_tokenizer
from ..loading.sentence_models import TextSettings
from ..support.errors import require_package
from ..support.files import reading
from ..tasks.predictions import Batch, Predictions, predictions_of
from .onnx_graphs import EMBEDDING, GRAPH, QUANTIZED, OnnxModel, quantize
from .openvino_graphs import OPENVINO, OPENVINO_INT8, OpenVinoModel, convert_to_openvino, quantize_openvino


class GraphRuntime(NamedTuple):
    """
    A way to run a graph.

    Args:
        format: The graph's format, "onnx" or "openvino".
        file: Path to the graph in an exported directory.
        int8: Whether the graph is quantized.
        precision: OpenVINO's precision for floating-point computations, or None to let OpenVINO choose.
    """

    format: str
    file: str
    int8: bool = False
    precision: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the graph computes the model's outputs in float32."""
        return not self.int8 and self.precision != "bf16"

    def check_packages(self):
        """Raises InputError if a package for writing or running the graph is missing."""
        for package in ("onnxruntime", "onnxscript"):
            require_package(package, "onnx")
        if self.format == "openvino":
            require_package("openvino", "openvino")
        if self.format == "openvino" and self.int8:
            require_package("nncf", "openvino")

    def write(self, directory: Path, rows: Iterable[Batch]):
        """Writes the graph, unless it exists, from the ONNX graph in `directory`. `rows` are for calibration."""
        source, file = directory / GRAPH, directory / self.file
        if file.exists():
            return
        if self.format == "onnx":
            quantize(source, file)
        elif self.int8:
            quantize_openvino(source, file, rows)
        else:
            convert_to_openvino(source, file)

    def load(self, directory: Path, whole: bool = False) -> OnnxModel | OpenVinoModel:
        file = directory / self.file
        return OnnxModel(file, whole) if self.format == "onnx" else OpenVinoModel(file, self.precision, whole)

    def megabytes(self, directory: Path) -> float:
        """Returns the size of the graph and its weights, which OpenVINO, and ONNX for large models, store apart."""
        file = directory / self.file
        files = (file, file.with_suffix(".bin"), file.with_name(f"{file.name}.data"))
        return sum(path.stat().st_size for path in files if path.exists()) / 1e6


GRAPHS = {  # each name begins with the package that runs the graph
    "onnxruntime": GraphRuntime("onnx", GRAPH),
    "onnxruntime-int8": GraphRuntime("onnx", QUANTIZED, int8=True),
    "openvino": GraphRuntime("openvino", OPENVINO, precision="f32"),
    "openvino-bf16": GraphRuntime("openvino", OPENVINO, precision="bf16"),
    "openvino-int8": GraphRuntime("openvino", OPENVINO_INT8, int8=True),
}


class ExportedModel(NamedTuple):
    """The graphs in an exported directory, with their configuration and tokenizer."""

    head: str  # the task head, such as "SequenceClassification"; "" for an encoder
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    settings: TextSettings  # how a sentence-transformers model tokenizes texts
    graphs: dict[str, OnnxModel | OpenVinoModel]  # by runtime
    has_embeddings: bool  # whether the graphs compute sentence embeddings


def load_exported(directory: Path, runtimes: list[str]) -> ExportedModel:
    """Loads the graphs for the runtimes from an exported directory."""
    remedy, graphs = "export the model again", {}
    with reading(directory / "config.json", remedy):
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    tokenizer, settings = load_text_tokenizer(directory, config, directory)
    for name in runtimes:
        with reading(directory / GRAPHS[name].file, remedy):
            graphs[name] = GRAPHS[name].load(directory)
    head = head_name((config.architectures or [""])[0])
    has_embeddings = any(EMBEDDING in graph.outputs for graph in graphs.values())
    return ExportedModel(head, config, tokenizer, settings, graphs, has_embeddings)


def graph_predictions(
    graph: OnnxModel | OpenVinoModel, head: str, config: PreTrainedConfig, batch: Batch
) -> list[Predictions]:
    """Returns the predictions of a graph for a batch, as `tasks.predictions.predict` does for a PyTorch model."""
    outputs = graph(**batch)
    if head:
        return predictions_of(head, config, outputs, batch["attention_mask"])
    return [Predictions(normalize(outputs[EMBEDDING], dim=-1), "embeddings")]
