"""
Export to ONNX.

The result is a directory that onnxruntime, optimum, sentence-transformers and text-embeddings-inference can open. The
graph is traced by torch's exporter, and its outputs are compared with the model's before the directory appears.
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
from ..support.files import error_reason, new_directory
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
LOADING = """
```python
import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
session = onnxruntime.InferenceSession("{name}/{graph}")
inputs = tokenizer(["A text.", "Another one."], padding=True, return_tensors="np")
outputs = session.run(None, {{x.name: inputs[x.name]{choices} for x in session.get_inputs()}})
```
"""
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
    Export a model to ONNX, into a new directory with its configuration, tokenizer and model card.

    Args:
        model: a model, or the directory or Hub id of one.
        output_dir: the directory to create.
        int8: also write a graph with int8 weights.
        tokenizer: tokenizer of a model in memory.
        revision, cache_dir, token: for a model on the Hub.

    Returns:
        A summary: files, their sizes, and how close their outputs are to the model's.

    Raises:
        InputError: the model cannot be loaded or exported, the graph does not compute what the model computes, a
            package is missing, or `output_dir` is not empty.
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
        loading = LOADING.format(name=name, graph=GRAPH, choices="[None]" if head == "ForMultipleChoice" else "")
        if graph.pooling is not None:
            loading += f'\nOr with sentence-transformers: `SentenceTransformer("{name}", backend="onnx")`.\n'
        metadata = {"library_name": "onnx", **metadata, "tags": ["onnx", *metadata.get("tags", [])]}
        checkpoint_card(
            bert.config, type(bert).__name__, name, f"Exported from `{origin}`: {summary}.",
            count=bert.num_parameters(), loading=loading, **metadata,
        ).save(directory / CARD)  # fmt: skip
    return summary


def example_batches(graph: Graph, tokenizer: PreTrainedTokenizerBase) -> list[Batch]:
    """TEXTS as inputs (B, L), or (B, 2, L) for multiple choice: all of them padded, and each alone."""
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
    """Writes the graph, and with `int8` the quantized one. Returns a summary."""
    file, quantized = directory / GRAPH, directory / QUANTIZED
    with torch.no_grad():
        expected = [graph(**batch) for batch in batches]
    file.parent.mkdir()
    trace(graph, batches[0], file)
    difference = largest_difference(expected, run_graph(file, batches))
    if not difference <= TOLERANCE:  # also if NaN
        raise InputError(
            f"the graph's outputs differ from the model's by {difference:.2g}, more than {TOLERANCE:g}; "
            "please report this with the model's config.json."
        )
    summary = f"{GRAPH}, {file.stat().st_size / 1e6:.1f} MB, largest difference between outputs {difference:.1g}"
    if graph.model.config.is_decoder:
        summary += ", without a cache"
    if int8:
        quantize(file, quantized)
        cosine = lowest_cosine(expected, run_graph(quantized, batches))
        summary += f"; {QUANTIZED}, {quantized.stat().st_size / 1e6:.1f} MB, cosine of outputs {cosine:.4f}"
    return summary


def trace(graph: Graph, batch: Batch, file: Path):
    """
    Writes the graph for any batch size and any length up to the model's maximum.

    Uses eager attention: sdpa needs more operations, and pads values whose size differs from the keys'.
    """
    longest = fixed_head_config(graph.model.config).max_position_embeddings
    axes = [torch.export.Dim("batch_size"), torch.export.Dim("sequence_length", max=longest)]
    if batch["input_ids"].ndim == 3:
        axes.insert(1, torch.export.Dim("num_choices"))
    graph.model.set_attn_implementation("eager")
    try:
        program = torch.onnx.export(
            graph,
            kwargs=batch,
            dynamic_shapes={name: dict(enumerate(axes)) for name in batch},
            output_names=[*graph.names, *([EMBEDDING] if graph.pooling else [])],
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise InputError(f"torch's exporter cannot trace the model ({error_reason(error)}).") from error
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # local paths of the source code
    program.save(file, external_data=False)


def quantize(file: Path, quantized: Path):
    """Writes the graph with int8 weights. The inputs of matrix products are quantized dynamically."""
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
    """An onnxruntime session on the CPU. With 0 threads, onnxruntime uses all cores."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    return InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run_graph(file: Path, batches: list[Batch]) -> list[list[Tensor]]:
    """The outputs of a graph for each batch."""
    session = session_of(file)
    outputs = (session.run(None, {name: x.numpy() for name, x in batch.items()}) for batch in batches)
    return [[torch.from_numpy(x) for x in tensors] for tensors in outputs]


def largest_difference(expected: list[list[Tensor]], actual: list[list[Tensor]]) -> float:
    """The largest difference between two outputs, relative to those above 1. NaN if any difference is NaN."""
    pairs = [pair for tensors in zip(expected, actual, strict=True) for pair in zip(*tensors, strict=True)]
    return float(torch.stack([((a - b).abs() / a.abs().clamp(min=1)).max() for a, b in pairs]).max())


def lowest_cosine(expected: list[list[Tensor]], actual: list[list[Tensor]]) -> float:
    """The lowest cosine similarity between an output and its counterpart, over the batches without padding."""
    alone = [(a, b) for a, b in zip(expected, actual, strict=True) if len(a[0]) == 1]
    cosines = []
    for output in range(len(alone[0][0])):
        a, b = (torch.cat([tensors[side][output].flatten() for tensors in alone]) for side in (0, 1))
        cosines.append(torch.cosine_similarity(a, b, dim=0))
    return float(torch.stack(cosines).min())


def graph_config(graph: Graph) -> PreTrainedConfig:
    """
    The configuration in the exported directory.

    A FixedHeadBert gets a BERT's: libraries that run graphs need only its fields, and know no other model type.
    """
    config = graph.model.config
    if config.model_type != FixedHeadBertConfig.model_type:
        return config
    fields = shared_fields(config) | {"intermediate_size": max(config.neuron_counts)}  # BertConfig takes no list
    return BertConfig(**fields, architectures=[f"Bert{graph.head}"])
