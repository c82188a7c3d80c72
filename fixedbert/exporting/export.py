"""
Exports models to ONNX or OpenVINO, for use with onnxruntime, openvino, optimum, sentence-transformers or
text-embeddings-inference.

The output directory is created only if the graph's outputs match the model's.
"""

import copy
import json
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, PreTrainedConfig, PreTrainedTokenizerBase

from ..commands import takes_options
from ..loading.auxiliary_files import CARD, RANKING, copy_auxiliary_files
from ..loading.families import max_tokens, shared_fields
from ..loading.loaded_model import LoadedModel
from ..loading.sentence_models import SIGMOID, read_activation
from ..loading.weights import report_float32
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..options import ExportOptions
from ..publishing.model_card import checkpoint_card, describe_shape
from ..publishing.snippets import batch_code, results_code, takes_pairs
from ..support.errors import InputError
from ..support.files import new_directory
from ..tasks.calibration import task_rows
from ..tasks.predictions import Batch
from .graphs import GRAPHS, GraphRuntime
from .onnx_graphs import GRAPH, Graph, OnnxModel, trace
from .openvino_graphs import OpenVinoModel, openvino_options

# In a model card. OpenVINO's int8 graphs have fixed scales.
DYNAMIC = """

The int8 graph scales the inputs of each matrix product by the largest value in the batch. Therefore, a text has
different results alone and in a batch: for all-MiniLM-L6-v2, the cosine similarity of the two embeddings is 0.976 to
1.000. If this matters, as in a search index, run one text at a time, or use the float32 graph."""
TOLERANCE = 1e-4  # maximum difference in float32 outputs, as defined by `largest_difference`
# Texts for comparing the graph with the model. Their lengths differ, and their number is odd. The last one is long
# enough for the local attention of ModernBERT, and for relative positions in MPNet and DeBERTa that share a bucket.
TEXTS = ["The cat sat on the mat.", "A transformer computes weighted means of its values.", "Yes!"]
TEXTS += ["Who wrote the letter that arrived on Monday?", "In 1905 he published four papers. " * 25]


@takes_options("export")
def export(options: ExportOptions) -> str:
    """
    Exports a model to ONNX or OpenVINO. Creates a directory with a graph, configuration, tokenizer and model card.

    Returns:
        A summary with the size and output error of each graph, and the command that compares the speed.

    Raises:
        InputError: If the model cannot be loaded or exported, a package is missing, or `output_dir` is not empty.
    """
    name = "onnxruntime" if options.runtime == "onnx" else "openvino"
    runtimes = [GRAPHS[name], *([GRAPHS[f"{name}-int8"]] if options.int8 else [])]
    for runtime in runtimes:
        runtime.check_packages()
    with new_directory(options.output_dir) as directory:
        loaded = LoadedModel.load(options.model, **options.hub_options())
        report_float32(options.model, loaded.model)
        rows = calibration_rows(options, loaded)
        summary = write_exported(loaded, options.model, directory, Path(options.output_dir).name, runtimes, rows)
    command = f"fixedbert compare {options.model} {options.output_dir} --validation_file FILE"
    return f"{summary}\nTo compare the speed: {command}"


def write_exported(
    loaded: LoadedModel, source: str, directory: Path, name: str, runtimes: list[GraphRuntime], rows: list[Batch]
) -> str:
    """
    Writes the graphs for runtimes of one format, the configuration, the tokenizer and the model card to a directory.

    Args:
        source: Directory or Hub id of the model.
        name: The name of the directory in the model card, whose code runs the graph for the last runtime.
        rows: Calibration rows for OpenVINO's int8 graph.

    Returns:
        A summary with the size and output error of each graph.
    """
    package, graph = runtimes[-1].format, Graph(loaded.model, loaded.pooling)
    written = write_graphs(graph, loaded.tokenizer, directory, runtimes, rows)
    summary = f"{describe_shape(graph.model)} -> {written}"
    if package == "openvino":
        shutil.rmtree((directory / GRAPH).parent)
    graph_config(graph).save_pretrained(directory)
    origin, metadata = copy_auxiliary_files(source, loaded.directory, directory)
    metadata = {"library_name": package, **metadata, "tags": [package, *metadata.get("tags", [])]}
    code = graph_code(name, runtimes[-1], graph, loaded, metadata)
    provenance = f"Exported from `{origin}`: {summary}."
    provenance += DYNAMIC if package == "onnx" and runtimes[-1].int8 else ""
    checkpoint_card(graph.model, name, provenance, code=code, **metadata).save(directory / CARD)
    return summary


def graph_code(name: str, runtime: GraphRuntime, graph: Graph, loaded: LoadedModel, metadata: dict[str, Any]) -> str:
    """
    Returns Python code that runs a graph in the directory `name`, with the options that `fixedbert compare` uses.
    `metadata` is that of the model card.
    """
    config, names = graph.model.config, json.dumps(graph.results)
    variables = "embeddings" if graph.pooling else ", ".join(graph.results)
    variables = f"({variables},)" if len(graph.results) == 1 else variables
    if runtime.format == "onnx":
        load = f"""options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {torch.get_num_threads()}
session = onnxruntime.InferenceSession("{name}/{runtime.file}", options)
"""
        inputs = "{node.name: batch[node.name] for node in session.get_inputs()}"
        run = f"{variables} = session.run({names}, {inputs})\n"
    else:
        load = f"""options = {json.dumps(openvino_options(runtime.precision))}
model = openvino.compile_model("{name}/{runtime.file}", "CPU", options)
"""
        inputs = "{node.any_name: batch[node.any_name] for node in model.inputs}"
        run = f"outputs = model({inputs})\n{variables} = (outputs[name] for name in {names})\n"
    longest = min(max_tokens(config), loaded.tokenizer.model_max_length)
    activation = read_activation(loaded.directory, config) or SIGMOID
    code = batch_code(graph.head, longest, takes_pairs(config, metadata), loaded.settings) + run
    code += results_code(name, graph.head, config, activation if metadata.get("pipeline_tag") == RANKING else None)
    modules = {"np": "numpy as np", "onnxruntime": "onnxruntime", "openvino": "openvino", "torch": "torch"}
    imports = [f"import {module}\n" for used, module in modules.items() if f" {used}." in load + code]
    classes = "AutoConfig, AutoTokenizer" if "AutoConfig" in code else "AutoTokenizer"
    return f"""{"".join(imports)}from transformers import {classes}

tokenizer = AutoTokenizer.from_pretrained("{name}")
{load}{code}"""


def example_batches(graph: Graph, tokenizer: PreTrainedTokenizerBase) -> list[Batch]:
    """Returns a padded batch (B, L) of all TEXTS, and a batch per text."""
    config, accepted = graph.model.config, signature(graph.model.forward).parameters
    names = ["input_ids", "attention_mask"]
    has_types = all("token_type_ids" in inputs for inputs in (tokenizer.model_input_names, accepted))
    # Decoders in optimum accept no token types.
    if has_types and getattr(config, "type_vocab_size", 2) > 1 and graph.head != "LMHeadModel":
        names.append("token_type_ids")
    options: dict[str, Any] = {"padding": True, "truncation": True, "max_length": max_tokens(config)}
    options |= {"return_token_type_ids": True, "return_tensors": "pt"}
    batches = []
    for texts in (TEXTS, *([text] for text in TEXTS)):
        encoded = tokenizer(texts, **options)
        batches.append({name: encoded[name] for name in names})
    return batches


def calibration_rows(options: ExportOptions, loaded: LoadedModel) -> list[Batch]:
    """Returns calibration rows as batches of one row, or an empty list without calibration data."""
    if options.train_file is None and options.task_name is None:
        return []
    rows = task_rows(options, loaded, options.max_train_samples)
    return [dict(loaded.tokenizer.pad([row.tokens], return_tensors="pt")) for row in rows]


def write_onnx(loaded: LoadedModel, directory: Path):
    """Writes a new directory with only a float32 ONNX graph. Does not change the model."""
    graph = Graph(copy.deepcopy(loaded.model), loaded.pooling)
    with new_directory(directory) as partial:
        write_graphs(graph, loaded.tokenizer, partial, [GRAPHS["onnxruntime"]], [])


def write_graphs(
    graph: Graph,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    runtimes: list[GraphRuntime],
    rows: list[Batch],
) -> str:
    """
    Writes an ONNX graph, and from it the graphs for the runtimes. Returns a summary with their sizes and errors.

    Args:
        rows: Calibration rows for OpenVINO's int8 graph.

    Raises:
        InputError: If the outputs of a float32 graph differ from those of the model.
    """
    batches = example_batches(graph, tokenizer)
    with torch.no_grad():
        expected = [dict(zip(graph.names, graph(**batch), strict=True)) for batch in batches]
    (directory / GRAPH).parent.mkdir(parents=True)
    trace(graph, batches[0], directory / GRAPH)
    parts = []
    for runtime in runtimes:
        runtime.write(directory, rows)
        # Applications use only the embeddings, so the error in the hidden states of an int8 graph does not matter.
        names = graph.names if runtime.is_exact else graph.results[:1]
        difference = largest_difference(expected, runtime.load(directory, whole=True), batches, names)
        if runtime.is_exact and not difference <= TOLERANCE:  # also true for NaN
            raise InputError(
                f"the graph's outputs differ from the model's by {difference:.2g}, but at most {TOLERANCE:g} is "
                "allowed; please report this error with the model's config.json."
            )
        size = f"{Path(runtime.file).name}, {runtime.megabytes(directory):.1f} MB"
        outputs = "between outputs" if runtime.is_exact else f"of {names[0]}"
        parts.append(f"{size}, largest difference {outputs} {difference:.1g}")
    return "; ".join(parts)


def largest_difference(
    expected: list[dict[str, Tensor]], graph: OnnxModel | OpenVinoModel, batches: list[Batch], names: list[str]
) -> float:
    """
    Returns the largest difference between the expected and actual outputs of a graph, or NaN if any output is NaN.

    Differences are absolute where the expected value is between -1 and 1, and relative elsewhere. The outputs for
    padding do not count, because with local attention, they depend on how attention is computed.
    """
    differences = []
    for batch, outputs in zip(batches, expected, strict=True):
        actual, mask = graph(**batch), batch["attention_mask"]
        for name in names:
            error = (outputs[name] - actual[name]).abs() / outputs[name].abs().clamp(min=1)
            differences.append((error[mask.bool()] if error.shape[: mask.ndim] == mask.shape else error).max())
    return float(torch.stack(differences).max())


def graph_config(graph: Graph) -> PreTrainedConfig:
    """Returns the configuration. For a FixedHeadBert, this is a BertConfig, which ONNX libraries support."""
    config = graph.model.config
    config.architectures = [type(graph.model).__name__]  # sentence-transformers ignores the class of the original
    if config.model_type != FixedHeadBertConfig.model_type:
        return config
    fields = shared_fields(config) | {"intermediate_size": max(config.neuron_counts)}  # BertConfig accepts no list
    return BertConfig(**fields, architectures=[f"Bert{graph.head}"])
