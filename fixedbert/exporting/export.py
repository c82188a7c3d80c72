"""
Exports models to ONNX or OpenVINO, for use with onnxruntime, openvino, optimum, sentence-transformers or
text-embeddings-inference.

The output directory is created only if the graph's outputs match the model's.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.convert import describe_shape
from ..conversion.growing import to_fixed_head_bert
from ..data.tokenizers import load_tokenizer
from ..loading.auxiliary_files import CARD, auxiliary_directory, copy_auxiliary_files
from ..loading.checkpoints import load_bert
from ..loading.families import fixed_head_config, max_tokens, shared_fields, task_head
from ..loading.loaded_model import LoadedModel
from ..loading.sentence_models import SentencePooling, TextSettings, read_pooling, read_text_settings
from ..loading.weights import report_float32
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..options import ExportOptions, takes_options
from ..publishing.model_card import checkpoint_card
from ..support.errors import InputError, require_package
from ..support.files import new_directory
from ..tasks.calibration import task_rows
from .openvino_graphs import OPENVINO, OPENVINO_INT8, OpenVinoModel, convert_to_openvino, quantize_openvino

GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"  # file names that optimum uses
OPSET = 18  # also used by optimum; torch's exporter writes this opset without conversion
TOLERANCE = 1e-4  # maximum difference in float32 outputs, as defined by `largest_difference`

# Names of the outputs for each task head, as in optimum. Task heads that are not listed return `logits`.
OUTPUTS = {
    "Model": ("last_hidden_state",),
    "ForPreTraining": ("prediction_logits", "seq_relationship_logits"),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
}
EMBEDDING = "sentence_embedding"  # name of the additional output for sentence-transformers models
# Texts for comparing the graph with the model. Their lengths differ, and their number is odd.
TEXTS = ["The cat sat on the mat.", "A transformer computes weighted means of its values.", "Yes!"]
TEXTS += ["Who wrote the letter that arrived on Monday?", "In 1905 he published four papers. " * 5]
# Maps each runtime to code that runs a graph.
LOADING = {
    "onnx": """import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{directory}")
session = onnxruntime.InferenceSession("{file}")
texts = {texts}
batch = tokenizer(texts, padding=True, truncation=True, max_length={longest}, return_tensors="np")
outputs = session.run({names}, {{node.name: batch[node.name]{index} for node in session.get_inputs()}})
""",
    "openvino": """import openvino
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{directory}")
model = openvino.compile_model("{file}", "CPU"{options})
texts = {texts}
batch = tokenizer(texts, padding=True, truncation=True, max_length={longest}, return_tensors="np")
outputs = model({{node.any_name: batch[node.any_name]{index} for node in model.inputs}})
outputs = [outputs[name] for name in {names}]
""",
}
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


@takes_options("export")
def export(options: ExportOptions) -> str:
    """
    Exports a model to ONNX or OpenVINO. Creates a directory with a graph, configuration, tokenizer and model card.

    Returns:
        A summary with the size and output error of each graph, and the command that compares the speed.

    Raises:
        InputError: If the model cannot be loaded or exported, a package is missing, or `output_dir` is not empty.
    """
    check_packages(options)
    source, runtime, hub_options = options.model, options.runtime, options.hub_options()
    with new_directory(options.output_dir) as directory:
        bert, auxiliary = load_bert(source, **hub_options), auxiliary_directory(source, **hub_options)
        report_float32(source, bert)
        bert = bert.float().eval()
        if bert.config.model_type == "distilbert":  # its forward accepts no token types
            bert = to_fixed_head_bert(bert)
        bert.config.use_cache = False  # otherwise, the graph would return the cache
        head = task_head(type(bert).__name__, bert.config.model_type)
        graph = Graph(bert, head, read_pooling(auxiliary) if head == "Model" else None).eval()
        tokenizer, settings = load_tokenizer(str(auxiliary), trust_remote_code=False), read_text_settings(auxiliary)
        batches, rows = example_batches(graph, tokenizer), calibration_batches(options)
        summary = f"{describe_shape(bert)} -> {write_graphs(graph, batches, directory, runtime, options.int8, rows)}"
        graph_config(graph).save_pretrained(directory)
        origin, metadata = copy_auxiliary_files(source, auxiliary, directory)
        name = Path(options.output_dir).name
        loading = loading_instructions(graph, name, tokenizer, settings, runtime, options.int8)
        metadata = {"library_name": runtime, **metadata, "tags": [runtime, *metadata.get("tags", [])]}
        provenance = f"Exported from `{origin}`: {summary}."
        checkpoint_card(bert, name, provenance, loading=loading, **metadata).save(directory / CARD)
    command = f"fixedbert compare {source} {options.output_dir} --validation_file FILE"
    return f"{summary}\nTo compare the speed: {command}"


def loading_instructions(
    graph: Graph, name: str, tokenizer: PreTrainedTokenizerBase, settings: TextSettings, runtime: str, int8: bool
) -> str:
    """Returns Python code in Markdown that runs the graph in the directory `name` on texts of any length."""
    file = {"onnx": (GRAPH, QUANTIZED), "openvino": (OPENVINO, OPENVINO_INT8)}[runtime][int8]
    longest = min(max_tokens(graph.model.config), settings.max_seq_length or tokenizer.model_max_length)
    names, precision = [EMBEDDING] if graph.pooling else graph.names, None if int8 else "f32"
    code = loading_code(f"{name}/{file}", names, longest, settings, precision, graph.head == "ForMultipleChoice")
    return f"```python\n{code}```\n"


def loading_code(
    file: str, names: Sequence[str], longest: int, settings: TextSettings, precision: str | None, pairs=False
) -> str:
    """
    Returns Python code that runs the graph `file` in an exported directory on texts truncated to `longest` tokens.

    Args:
        names: Names of the outputs.
        precision: OpenVINO's inference precision, or None to let OpenVINO choose.
        pairs: Whether the model is for multiple choice. If so, the two texts are the choices of one example.
    """
    texts = '["A text.", "A second text."]'
    if settings.prompt or settings.do_lower_case:
        text = f"({json.dumps(settings.prompt, ensure_ascii=False)} + text)" if settings.prompt else "text"
        texts = f"[{text}{'.lower()' if settings.do_lower_case else ''} for text in {texts}]"
    return LOADING["onnx" if file.endswith(".onnx") else "openvino"].format(
        directory=Path(file).parents[1].as_posix(),
        file=file,
        texts=texts,
        longest=longest,
        names=json.dumps([*names]),
        index="[None]" if pairs else "",
        options=f', {{"INFERENCE_PRECISION_HINT": "{precision}"}}' if precision else "",
    )


def check_packages(options: ExportOptions):
    """Raises InputError if a package is missing."""
    is_openvino = options.runtime == "openvino"
    for package in ("onnxruntime", "onnxscript"):
        require_package(package, "onnx")
    for package in ["openvino"] * is_openvino + ["nncf"] * (is_openvino and options.int8):
        require_package(package, "openvino")


def example_batches(graph: Graph, tokenizer: PreTrainedTokenizerBase) -> list[Batch]:
    """Returns a padded batch of all TEXTS, and a batch per text. Shapes: (B, L), or (B, 2, L) for multiple choice."""
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


def calibration_batches(options: ExportOptions) -> list[Batch]:
    """Returns calibration rows as batches of one row, or an empty list without calibration data."""
    if options.train_file is None and options.task_name is None:
        return []
    loaded = LoadedModel.load(options.model, **options.hub_options())
    rows = task_rows(options, loaded, options.max_train_samples)
    return [dict(loaded.tokenizer.pad([row], return_tensors="pt")) for row in rows]


def write_graphs(
    graph: Graph, batches: list[Batch], directory: Path, runtime: str, int8: bool, calibration: list[Batch]
) -> str:
    """Writes the graph and, if `int8` is True, a quantized copy. Returns a summary."""
    with torch.no_grad():
        names = [*graph.names, *([EMBEDDING] if graph.pooling else [])]
        expected = [dict(zip(names, graph(**batch), strict=True)) for batch in batches]
    file, quantized, is_onnx = directory / GRAPH, directory / QUANTIZED, runtime == "onnx"
    file.parent.mkdir()
    trace(graph, batches[0], file)
    if not is_onnx:
        file, quantized = directory / OPENVINO, directory / OPENVINO_INT8
        convert_to_openvino(directory / GRAPH, file)
        shutil.rmtree((directory / GRAPH).parent)
    load: Callable[..., OnnxModel | OpenVinoModel] = OnnxModel if is_onnx else partial(OpenVinoModel, precision="f32")
    difference = largest_difference(expected, load(file), batches)
    if not difference <= TOLERANCE:  # also true for NaN
        raise InputError(
            f"the graph's outputs differ from the model's by {difference:.2g}, but at most {TOLERANCE:g} is allowed; "
            "please report this error with the model's config.json."
        )
    summary = f"{file.name}, {graph_size(file):.1f} MB, largest difference between outputs {difference:.1g}"
    if int8:
        if is_onnx:
            quantize(file, quantized)
        else:
            quantize_openvino(file, quantized, calibration)
        name = names[-1] if graph.pooling else names[0]  # embeddings, rather than the hidden states behind them
        difference = largest_difference([{name: outputs[name]} for outputs in expected], load(quantized), batches)
        summary += f"; {quantized.name}, {graph_size(quantized):.1f} MB, largest difference of {name} {difference:.1g}"
    return summary


def trace(graph: Graph, batch: Batch, file: Path):
    """
    Exports an ONNX graph that accepts any batch size and any length up to the model's maximum.

    Uses eager attention, because sdpa needs more operations, and equal sizes for keys and values.
    """
    lengths = torch.export.Dim("sequence_length", max=max_tokens(graph.model.config))
    axes = [torch.export.Dim("batch_size"), lengths]
    if batch["input_ids"].ndim == 3:
        axes.insert(1, torch.export.Dim("num_choices"))
    graph.model.set_attn_implementation("eager")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # hides a message that torchvision is not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names of equal axes and about functions that torch itself calls
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
    quant_pre_process(file, folded, skip_symbolic_shape=True)  # otherwise, quantize_dynamic misses transposed weights
    model = onnx.load(folded)
    del model.graph.value_info[:]  # shapes that are invalid after quantize_dynamic transposes the pooler
    # Uses 7 bits, because sums of 8-bit products overflow on x86 processors without VNNI.
    quantize_dynamic(model, quantized, per_channel=True, reduce_range=True)
    folded.unlink()


class OnnxModel:
    """An ONNX graph that onnxruntime runs on the CPU, called in the same way as the exported PyTorch model."""

    def __init__(self, file: Path):
        require_package("onnxruntime", "onnx")
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Otherwise, its threads keep a core busy after each run and slow down whatever else the process computes.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self.session = InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.inputs = [node.name for node in self.session.get_inputs()]
        self.outputs = [node.name for node in self.session.get_outputs()]

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        outputs = self.session.run(None, {name: inputs[name].numpy() for name in self.inputs})
        return dict(zip(self.outputs, map(torch.from_numpy, outputs), strict=True))


def graph_size(file: Path) -> float:
    """Returns the size of a graph in megabytes, including the .bin file of an OpenVINO graph."""
    return sum(path.stat().st_size for path in {file, *file.parent.glob(f"{file.stem}.bin")}) / 1e6


def largest_difference(
    expected: list[dict[str, Tensor]], graph: OnnxModel | OpenVinoModel, batches: list[Batch]
) -> float:
    """
    Returns the largest difference between the expected and actual outputs of a graph, or NaN if any output is NaN.

    Differences are absolute where the expected value is between -1 and 1, and relative elsewhere.
    """
    actual = [graph(**batch) for batch in batches]
    pairs = [(x, outputs[name]) for own, outputs in zip(expected, actual, strict=True) for name, x in own.items()]
    return float(torch.stack([((a - b).abs() / a.abs().clamp(min=1)).max() for a, b in pairs]).max())


def graph_config(graph: Graph) -> PreTrainedConfig:
    """Returns the configuration. For a FixedHeadBert, this is a BertConfig, which ONNX libraries support."""
    config = graph.model.config
    if config.model_type != FixedHeadBertConfig.model_type:
        return config
    fields = shared_fields(config) | {"intermediate_size": max(config.neuron_counts)}  # BertConfig accepts no list
    return BertConfig(**fields, architectures=[f"Bert{graph.head}"])
