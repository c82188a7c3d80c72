"""
Exports models to ONNX, for use with onnxruntime, optimum, sentence-transformers or text-embeddings-inference.

The output directory is created only if the graph's outputs match the model's.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.auxiliary_files import CARD, auxiliary_directory, copy_auxiliary_files
from ..conversion.checkpoints import load_bert, model_directory
from ..conversion.convert import describe_shape
from ..conversion.families import fixed_head_config, max_tokens, shared_fields, task_head
from ..conversion.growing import to_fixed_head_bert
from ..data.tokenizers import load_tokenizer
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..support.errors import InputError, require_package
from ..support.files import new_directory
from .model_card import checkpoint_card
from .sentence_models import SentencePooling, TextSettings, read_pooling, read_text_settings

GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"  # file names that optimum uses
OPSET = 18  # optimum uses it too, and torch's exporter writes it without conversion
TOLERANCE = 1e-4  # maximum difference in float32 outputs, as defined by `largest_difference`

# Names of the outputs for each task head, as in optimum. All other task heads return `logits`.
OUTPUTS = {
    "Model": ("last_hidden_state",),
    "ForPreTraining": ("prediction_logits", "seq_relationship_logits"),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
}
EMBEDDING = "sentence_embedding"  # name of the additional output of sentence-transformers models
# Texts on which the graph and the model are compared. Their lengths differ, and their number is odd.
TEXTS = ["The cat sat on the mat.", "A transformer computes weighted means of its values.", "Yes!"]
TEXTS += ["Who wrote the letter that arrived on Monday?", "In 1905 he published four papers. " * 5]
LOADING = """```python
import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
session = onnxruntime.InferenceSession("{name}/{graph}")
texts = {texts}
batch = tokenizer(texts, padding=True, truncation=True, max_length={longest}, return_tensors="np")
inputs = {{node.name: {values} for node in session.get_inputs()}}
outputs = session.run({names}, inputs)
```
"""
Batch = dict[str, Tensor]


class Graph(nn.Module):
    """Model whose forward returns the graph's outputs as a list. Sentence embeddings, if any, come last."""

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
    Exports a model to ONNX. Creates a directory with the graph, its configuration, tokenizer and model card.

    Args:
        model: A model in memory, a directory or a Hub id.
        output_dir: New directory for the exported model.
        int8: Also write a graph with int8 weights.
        tokenizer: Tokenizer for a model in memory.
        revision, cache_dir, token: Options for downloading a model from the Hub.

    Returns:
        A summary with the names and sizes of the graphs, and the largest difference from the model's outputs.

    Raises:
        InputError: If the model cannot be loaded or exported, a package is missing, or `output_dir` is not empty.
    """
    for package in ("onnxruntime", "onnxscript"):
        require_package(package, "onnx")
    hub_options = {"revision": revision, "cache_dir": cache_dir, "token": token}
    with model_directory(model, tokenizer) as source, new_directory(output_dir) as directory:
        bert, auxiliary = load_bert(source, **hub_options).float().eval(), auxiliary_directory(source, **hub_options)
        if bert.config.model_type == "distilbert":  # its forward accepts no token types
            bert = to_fixed_head_bert(bert)
        bert.config.use_cache = False  # the graph would return the cache
        head = task_head(type(bert).__name__, bert.config.model_type)
        graph = Graph(bert, head, read_pooling(auxiliary) if head == "Model" else None).eval()
        tokenizer, settings = load_tokenizer(str(auxiliary), trust_remote_code=False), read_text_settings(auxiliary)
        batches = example_batches(graph, tokenizer)
        summary = f"{describe_shape(bert)} -> {write_graphs(graph, batches, directory, int8)}"
        graph_config(graph).save_pretrained(directory)
        origin, metadata = copy_auxiliary_files(source, auxiliary, directory)
        name = Path(output_dir).name
        loading = loading_instructions(graph, name, tokenizer, settings)
        metadata = {"library_name": "onnx", **metadata, "tags": ["onnx", *metadata.get("tags", [])]}
        checkpoint_card(
            bert.config, type(bert).__name__, name, f"Exported from `{origin}`: {summary}.",
            count=bert.num_parameters(), loading=loading, **metadata,
        ).save(directory / CARD)  # fmt: skip
    return summary


def loading_instructions(graph: Graph, name: str, tokenizer: PreTrainedTokenizerBase, settings: TextSettings) -> str:
    """Returns Python code in Markdown that runs the graph in the directory `name` on texts of any length."""
    longest = min(max_tokens(graph.model.config), settings.max_seq_length or tokenizer.model_max_length)
    texts = '["A text.", "A second text."]'
    if settings.prompt or settings.do_lower_case:
        text = f"({json.dumps(settings.prompt, ensure_ascii=False)} + text)" if settings.prompt else "text"
        texts = f"[{text}{'.lower()' if settings.do_lower_case else ''} for text in {texts}]"
    names = json.dumps([EMBEDDING] if graph.pooling else graph.names)
    values = "batch[node.name][None]" if graph.head == "ForMultipleChoice" else "batch[node.name]"
    code = LOADING.format(name=name, graph=GRAPH, texts=texts, longest=longest, names=names, values=values)
    return code if graph.pooling is None else f'{code}\nOr `SentenceTransformer("{name}", backend="onnx")`.'


def example_batches(graph: Graph, tokenizer: PreTrainedTokenizerBase) -> list[Batch]:
    """Returns a padded batch of all TEXTS, and one batch per text: (B, L), or (B, 2, L) for multiple choice."""
    config = fixed_head_config(graph.model.config)
    names = ["input_ids", "attention_mask"]
    has_types = "token_type_ids" in tokenizer.model_input_names and config.type_vocab_size > 1
    if has_types and graph.head != "LMHeadModel":  # decoders in optimum accept no token types
        names.append("token_type_ids")
    options: dict[str, Any] = {"padding": True, "truncation": True, "max_length": max_tokens(config)}
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
    """Writes the graph and, if `int8` is True, a quantized copy. Returns a summary."""
    file, quantized = directory / GRAPH, directory / QUANTIZED
    with torch.no_grad():
        expected = [graph(**batch) for batch in batches]
    file.parent.mkdir()
    trace(graph, batches[0], file)
    difference = largest_difference(expected, run_graph(file, batches))
    if not difference <= TOLERANCE:  # also true for NaN
        raise InputError(
            f"the graph's outputs differ from the model's by {difference:.2g}, but at most {TOLERANCE:g} is allowed; "
            "please report this error with the model's config.json."
        )
    summary = f"{GRAPH}, {file.stat().st_size / 1e6:.1f} MB, largest difference between outputs {difference:.1g}"
    if int8:
        quantize(file, quantized)
        difference = largest_difference(expected, run_graph(quantized, batches))
        summary += f"; {QUANTIZED}, {quantized.stat().st_size / 1e6:.1f} MB, largest difference {difference:.1g}"
    return summary


def trace(graph: Graph, batch: Batch, file: Path):
    """
    Writes a graph that accepts any batch size and any length up to the model's maximum.

    Uses eager attention, because sdpa needs more operations, and pads values whose size differs from the key size.
    """
    lengths = torch.export.Dim("sequence_length", max=max_tokens(graph.model.config))
    axes = [torch.export.Dim("batch_size"), lengths]
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
        node.metadata_props.clear()  # contains local paths to the source code
    program.save(file, external_data=False)


def quantize(file: Path, quantized: Path):
    """Writes a graph with int8 weights. The inputs to matrix products are quantized dynamically."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    folded = quantized.with_name("folded.onnx")
    quant_pre_process(file, folded, skip_symbolic_shape=True)  # quantize_dynamic does not find transposed weights
    model = onnx.load(folded)
    del model.graph.value_info[:]  # shapes that are invalid after quantize_dynamic transposes the pooler
    # Uses 7 bits, because sums of 8-bit products overflow on x86 processors without VNNI.
    quantize_dynamic(model, quantized, per_channel=True, reduce_range=True)
    folded.unlink()


def session_of(file: Path, threads: int = 0):
    """Returns an onnxruntime session that runs a graph on the CPU. If `threads` is 0, the session uses all cores."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    return InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run_graph(file: Path, batches: list[Batch]) -> list[list[Tensor]]:
    """Runs a graph and returns its outputs for each batch."""
    session = session_of(file)
    outputs = (session.run(None, {name: x.numpy() for name, x in batch.items()}) for batch in batches)
    return [[torch.from_numpy(x) for x in tensors] for tensors in outputs]


def largest_difference(expected: list[list[Tensor]], actual: list[list[Tensor]]) -> float:
    """
    Returns the largest difference between two lists of outputs, or NaN if any output is NaN.

    Differences are absolute where the expected value is between -1 and 1, and relative elsewhere.
    """
    pairs = [pair for tensors in zip(expected, actual, strict=True) for pair in zip(*tensors, strict=True)]
    return float(torch.stack([((a - b).abs() / a.abs().clamp(min=1)).max() for a, b in pairs]).max())


def graph_config(graph: Graph) -> PreTrainedConfig:
    """Returns the configuration. For a FixedHeadBert, this is a BertConfig, which ONNX libraries support."""
    config = graph.model.config
    if config.model_type != FixedHeadBertConfig.model_type:
        return config
    fields = shared_fields(config) | {"intermediate_size": max(config.neuron_counts)}  # BertConfig accepts no list
    return BertConfig(**fields, architectures=[f"Bert{graph.head}"])
