"""
Export to ONNX.

The exported directory works with onnxruntime, optimum, sentence-transformers and text-embeddings-inference. It appears
only if the outputs of the graph equal those of the model.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.auxiliary_files import CARD, auxiliary_directory, copy_auxiliary_files
from ..conversion.checkpoints import load_bert, model_directory
from ..conversion.convert import describe_shape
from ..conversion.families import fixed_head_config, shared_fields, task_head
from ..conversion.growing import to_fixed_head_bert
from ..data.tokenizers import load_tokenizer
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..support.errors import InputError, require_package
from ..support.files import new_directory
from .model_card import checkpoint_card
from .pooling import SentencePooling, read_pooling

GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"  # optimum's file names
OPSET = 18  # optimum's, and the one that torch's exporter writes without conversion
TOLERANCE = 1e-4  # for outputs in float32, relative to those above 1

# Output names of each head, as in optimum. All other heads have `logits`.
OUTPUTS = {
    "Model": ("last_hidden_state",),
    "ForPreTraining": ("prediction_logits", "seq_relationship_logits"),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
}
EMBEDDING = "sentence_embedding"  # additional output of sentence-transformers models
# An odd number of texts with different lengths, on which graphs are compared with the model.
TEXTS = ["The cat sat on the mat.", "A transformer computes weighted means of its values.", "Yes!"]
TEXTS += ["Who wrote the letter that arrived on Monday?", "In 1905 he published four papers. " * 5]
Batch = dict[str, Tensor]


class Graph(nn.Module):
    """A model whose forward returns the outputs of the graph as a list, sentence embeddings last."""

    def __init__(self, model: PreTrainedModel, head: str, pooling: SentencePooling | None):
        super().__init__()
        self.model, self.head, self.pooling = model, head, pooling
        self.names = OUTPUTS.get(head, ("logits",))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> list[Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = self.model(**inputs, return_dict=True)
        tensors = [outputs[name] for name in self.names]
        return tensors if self.pooling is None else [*tensors, self.pooling(tensors[0], attention_mask)]


def export(
    model: str | Path | PreTrainedModel,
    output_dir: str | Path,
    int8: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    revision: str = "main",
    cache_dir: str | None = None,
    token: str | None = None,
) -> str:
    """
    Exports a model to ONNX, to a new directory with its configuration, tokenizer and model card.

    Args:
        model: a model, or the directory or Hub id of one.
        output_dir: the directory to create.
        int8: also write a graph with int8 weights.
        tokenizer: tokenizer of a model in memory.
        revision, cache_dir, token: for a model on the Hub.

    Returns:
        A summary with the files, their sizes, and the difference of their outputs from the model's.

    Raises:
        InputError: the model cannot be loaded or exported, a package is missing, or `output_dir` is not empty.
    """
    for package in ("onnxruntime", "onnxscript"):
        require_package(package, "onnx")
    hub_options = {"revision": revision, "cache_dir": cache_dir, "token": token}
    with model_directory(model, tokenizer) as source, new_directory(output_dir) as directory:
        bert, auxiliary = load_bert(source, **hub_options).float().eval(), auxiliary_directory(source, **hub_options)
        if bert.config.model_type == "distilbert":  # its forward has no token types
            bert = to_fixed_head_bert(bert)
        bert.config.use_cache = False  # a cache would be an output
        head = task_head(type(bert).__name__, bert.config.model_type)
        graph = Graph(bert, head, read_pooling(auxiliary) if head == "Model" else None).eval()
        batches = example_batches(graph, load_tokenizer(str(auxiliary), trust_remote_code=False))
        summary = f"{describe_shape(bert)} -> {write_graphs(graph, batches, directory, int8)}"
        graph_config(graph).save_pretrained(directory)
        origin, metadata = copy_auxiliary_files(source, auxiliary, directory)
        name = Path(output_dir).name
        loading = f'`onnxruntime.InferenceSession("{name}/{GRAPH}")`'
        if graph.pooling is not None:
            loading += f' or, with sentence-transformers, `SentenceTransformer("{name}", backend="onnx")`'
        metadata = {"library_name": "onnx", **metadata, "tags": ["onnx", *metadata.get("tags", [])]}
        checkpoint_card(
            bert.config, type(bert).__name__, name, f"Exported from `{origin}`: {summary}.",
            count=bert.num_parameters(), loading=loading, **metadata,
        ).save(directory / CARD)  # fmt: skip
    return summary


def example_batches(graph: Graph, tokenizer: PreTrainedTokenizerBase) -> list[Batch]:
    """Returns TEXTS as inputs (B, L), or (B, 2, L) for multiple choice: one padded batch, and each text alone."""
    config = fixed_head_config(graph.model.config)
    names = ["input_ids", "attention_mask"]
    has_types = "token_type_ids" in tokenizer.model_input_names and config.type_vocab_size > 1
    if has_types and graph.head != "LMHeadModel":  # optimum's decoders take no token types
        names.append("token_type_ids")
    options: dict[str, Any] = {"padding": True, "truncation": True, "max_length": config.max_position_embeddings}
    options |= {"return_token_type_ids": True, "return_tensors": "pt"}
    batches = []
    for texts in (TEXTS, *([text] for text in TEXTS)):
        encoded = tokenizer(texts, **options)
        batch = {name: encoded[name] for name in names}
        if graph.head == "ForMultipleChoice":
            batch = {name: torch.stack([x, x.flip(0)], dim=1) for name, x in batch.items()}
        batches.append(batch)
    return batches


def write_graphs(graph: Graph, batches: list[Batch], directory: Path, int8: bool) -> str:
    """Writes the graph and, with `int8`, the quantized graph. Returns a summary."""
    file, quantized = directory / GRAPH, directory / QUANTIZED
    with torch.no_grad():
        expected = [graph(**batch) for batch in batches]
    file.parent.mkdir()
    trace(graph, batches[0], file)
    difference = largest_difference(expected, run_graph(file, batches))
    if not difference <= TOLERANCE:  # also if NaN
        raise InputError(
            f"the graph's outputs differ from the model's by {difference:.2g}, more than {TOLERANCE:g}; please report "
            "this with the model's config.json."
        )
    summary = f"{GRAPH}, {file.stat().st_size / 1e6:.1f} MB, largest difference between outputs {difference:.1g}"
    if int8:
        quantize(file, quantized)
        difference = largest_difference(expected, run_graph(quantized, batches))
        summary += f"; {QUANTIZED}, {quantized.stat().st_size / 1e6:.1f} MB, largest difference {difference:.1g}"
    return summary


def trace(graph: Graph, batch: Batch, file: Path):
    """
    Writes the graph for any batch size and any length up to the model's maximum.

    Uses eager attention, because sdpa needs more operations, and pads values if their size is not that of the keys.
    """
    longest = fixed_head_config(graph.model.config).max_position_embeddings
    axes = [torch.export.Dim("batch_size"), torch.export.Dim("sequence_length", max=longest)]
    if batch["input_ids"].ndim == 3:
        axes.insert(1, torch.export.Dim("num_choices"))
    graph.model.set_attn_implementation("eager")
    program = torch.onnx.export(
        graph,
        kwargs=batch,
        dynamic_shapes={name: dict(enumerate(axes)) for name in batch},
        output_names=[*graph.names, *([EMBEDDING] if graph.pooling else [])],
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # local paths of the source code
    program.save(file, external_data=False)


def quantize(file: Path, quantized: Path):
    """Writes the graph with int8 weights and dynamically quantized inputs of matrix products."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    folded = quantized.with_name("folded.onnx")
    quant_pre_process(file, folded, skip_symbolic_shape=True)  # transposes hide matrices from quantize_dynamic
    model = onnx.load(folded)
    del model.graph.value_info[:]  # contains the shapes of pooler weights, which quantize_dynamic transposes
    # 7-bit weights: on x86 without VNNI, sums of 8-bit products overflow.
    quantize_dynamic(model, quantized, per_channel=True, reduce_range=True)
    folded.unlink()


def session_of(file: Path, threads: int = 0):
    """Returns an onnxruntime session on the CPU. With 0 threads, onnxruntime uses all cores."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    return InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run_graph(file: Path, batches: list[Batch]) -> list[list[Tensor]]:
    """Returns the outputs of a graph for each batch."""
    session = session_of(file)
    outputs = (session.run(None, {name: x.numpy() for name, x in batch.items()}) for batch in batches)
    return [[torch.from_numpy(x) for x in tensors] for tensors in outputs]


def largest_difference(expected: list[list[Tensor]], actual: list[list[Tensor]]) -> float:
    """Returns the largest difference between two outputs, relative to outputs above 1. NaN if any difference is."""
    pairs = [pair for tensors in zip(expected, actual, strict=True) for pair in zip(*tensors, strict=True)]
    return float(torch.stack([((a - b).abs() / a.abs().clamp(min=1)).max() for a, b in pairs]).max())


def graph_config(graph: Graph) -> PreTrainedConfig:
    """Returns the configuration to export, a BERT's for a FixedHeadBert, which libraries for ONNX do not know."""
    config = graph.model.config
    if config.model_type != FixedHeadBertConfig.model_type:
        return config
    fields = shared_fields(config) | {"intermediate_size": max(config.neuron_counts)}  # BertConfig takes no list
    return BertConfig(**fields, architectures=[f"Bert{graph.head}"])
