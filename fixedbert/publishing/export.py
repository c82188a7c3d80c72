"""
Export to ONNX: a directory that onnxruntime, optimum, sentence-transformers and text-embeddings-inference open.

The graph is traced by torch's exporter and compared with the model on text before the directory appears.
"""

import logging
import shlex
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.auxiliary_files import CARD, auxiliary_directory, copy_auxiliary_files
from ..conversion.checkpoints import load_bert, model_directory
from ..conversion.convert import describe_shape
from ..conversion.families import fixed_head_config, shared_fields, task_head
from ..conversion.growing import to_fixed_head_bert
from ..data.tokenizers import load_tokenizer
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..support.errors import InputError, error_context, require_package
from ..support.files import error_reason, new_directory, read_json_object
from .model_card import checkpoint_card
from .pooling import SentencePooling, read_pooling

GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"  # the names that optimum gives and looks for
OPSET = 18  # optimum's, which torch's exporter writes without a conversion
LARGEST_FILE = 2**31  # bytes, of a protobuf
TOLERANCE = 1e-4  # of outputs in float32, relative to those above 1
FEW = 8  # numbers, about which a cosine says little
ONE_AT_A_TIME = threading.Lock()  # torch's exporter has one state for all threads

# The outputs of a head by optimum's names; logits for all others.
OUTPUTS = {
    "Model": ("last_hidden_state",),
    "ForPreTraining": ("prediction_logits", "seq_relationship_logits"),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
}
EMBEDDING = "sentence_embedding"  # after them, for a sentence-transformers model
# An odd number of texts, of different lengths, on which graphs are compared with the model.
TEXTS = [
    "The cat sat on the mat.",
    "A transformer computes a weighted mean of its values, and how it weighs them is learned from text.",
    "Yes!",
    "In 1905 he published four papers, on light, on Brownian motion, on bodies that move, and on mass and energy; "
    "the first of them brought him the Nobel Prize sixteen years later.",
    "Who wrote the letter that arrived on Monday?",
]


class Graph(nn.Module):
    """The outputs of a model with this head, and after them the embeddings, where it has a pooling of sentences."""

    def __init__(self, model: PreTrainedModel, head: str, pooling: SentencePooling | None):
        super().__init__()
        self.model, self.head, self.pooling = model, head, pooling
        self.names = OUTPUTS.get(head, ("logits",))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> list[Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = self.model(**inputs, return_dict=True)
        tensors = [outputs[name] for name in self.names]
        return tensors if self.pooling is None else [*tensors, self.pooling(tensors[0], attention_mask)]


def export(  # noqa: PLR0913  the options of the command
    model: str | Path | PreTrainedModel,
    output_dir: str | Path,
    int8: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    revision: str = "main",
    cache_dir: str | None = None,
    token: str | None = None,
) -> str:
    """
    Write a model as a graph of ONNX for servers, into a new directory with its tokenizer and a card.

    Args:
        model: a model, or the directory or Hub id of one.
        int8: also write a graph with matrices in int8.
        tokenizer: of a model in memory.
        revision, cache_dir, token: for a model on the Hub.

    Returns:
        The files, their sizes, and how near their outputs are to the model's, in words.

    Raises:
        InputError: as `export_onnx`.
    """
    with model_directory(model, tokenizer) as source:
        done = export_onnx(source, output_dir, int8, revision=revision, cache_dir=cache_dir, token=token)
    (architecture,) = read_json_object(Path(output_dir) / "config.json", "export the model again")["architectures"]
    embeds = architecture.endswith("Model") and (Path(output_dir) / "modules.json").is_file()
    if isinstance(model, PreTrainedModel) or not (embeds or architecture.endswith("ForSequenceClassification")):
        return done
    return f"{done}.\nNext: fixedbert compare {shlex.join([str(model), str(output_dir)])} --validation_file FILE"


def export_onnx(source: str | Path, output_dir: str | Path, int8: bool = False, **hub_options) -> str:
    """
    Write a directory with the graph of a model in float32, its configuration, tokenizer and card, and the pooling of a
    sentence-transformers model.

    Args:
        int8: also write a graph with matrices in int8.

    Returns:
        The files, their sizes, and how near their outputs are to the model's, in words.

    Raises:
        InputError: as `load_bert`; a package is missing; the model cannot be exported; the graph does not compute what
            the model computes; or `output_dir` exists and is not empty.
    """
    for package in ("onnxruntime", "onnxscript"):
        require_package(package, "onnx")
    with ONE_AT_A_TIME, new_directory(output_dir) as folder:
        model, beside = load_bert(source, **hub_options).float().eval(), auxiliary_directory(source, **hub_options)
        if model.config.model_type == "distilbert":  # whose graph has no token types
            model = to_fixed_head_bert(model)
        tokenizer = load_tokenizer(str(beside), trust_remote_code=False)
        head = task_head(type(model).__name__, model.config.model_type)
        if head != "Model" and (beside / "modules.json").is_file():
            raise InputError(
                f"{source}: modules.json makes it a sentence-transformers model, while its weights have another head "
                f"({head}): load it by SentenceTransformer and save it, which keeps the encoder, or remove the file."
            )
        graph = Graph(model, head, read_pooling(beside) if head == "Model" else None).eval()
        with error_context(source):
            check_model(model)
            done = f"{describe_shape(model)} -> {write_graphs(graph, texts_for(graph, tokenizer), folder, int8)}"
        config_of(graph).save_pretrained(folder)
        if model.can_generate() and model.generation_config is not None:
            model.generation_config.use_cache = False
            model.generation_config.save_pretrained(folder)
        origin, metadata = copy_auxiliary_files(source, beside, folder)
        making = f"Exported from `{origin}`: {done}."
        card_of(graph, Path(output_dir).name, making, {"library_name": "onnx"} | metadata).save(folder / CARD)
    return done


def check_model(model: PreTrainedModel):
    """Refuse a model that cannot be exported."""
    size = sum(parameter.nbytes for parameter in model.parameters())
    if size >= LARGEST_FILE:
        raise InputError(f"{size / 1e9:.2f} GB of weights in float32; a file of ONNX has room for 2.14.")


def texts_for(graph: Graph, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Tensor]]:
    """
    The texts as inputs (B, L), or (B, 2, L) for multiple choice: all with padding, pairs of them, and each by itself.
    A tokenizer with ids that the model does not know is refused.
    """
    config = fixed_head_config(graph.model.config)
    if len(tokenizer) > config.vocab_size:
        raise InputError(f"the tokenizer has {len(tokenizer)} tokens and the model {config.vocab_size}: not its own.")
    names = ["input_ids", "attention_mask"]
    has_types = "token_type_ids" in tokenizer.model_input_names and config.type_vocab_size > 1
    if has_types and graph.head != "LMHeadModel":  # optimum's decoders have none
        names.append("token_type_ids")
    options: dict[str, Any] = {"padding": True, "truncation": True, "max_length": config.max_position_embeddings}
    options |= {"return_token_type_ids": True, "return_tensors": "pt"}
    texts: list[tuple[list[str], list[str] | None]] = [(TEXTS, None), (TEXTS[:3], TEXTS[2:])]
    texts += [([text], None) for text in TEXTS]
    batches = []
    for first, second in texts:
        rows = tokenizer(first, second, **options)
        batch = {name: rows[name] for name in names}
        if graph.head == "ForMultipleChoice":
            batch = {name: torch.stack([x, x.flip(0)], dim=1) for name, x in batch.items()}
        batches.append(batch)
    return batches


def write_graphs(graph: Graph, batches: list[dict[str, Tensor]], folder: Path, int8: bool) -> str:
    """Write the graph, with `int8` also a quantized one; say what was written, and how far it is from the model."""
    graph.model.config.use_cache = False  # a cache would be an output
    with torch.no_grad():
        expected = [graph(**batch) for batch in batches]
    (folder / GRAPH).parent.mkdir()
    trace(graph, batches[0], folder / GRAPH)
    difference = largest_difference(expected, run(folder / GRAPH, batches))
    if not difference <= TOLERANCE:  # or not a number
        raise InputError(
            f"the graph's outputs differ from the model's by {difference:.2g}, more than {TOLERANCE:g}; "
            "please report it with the model's config.json."
        )
    done = f"{GRAPH}, {(folder / GRAPH).stat().st_size / 1e6:.1f} MB, largest difference of outputs {difference:.1g}"
    if graph.model.config.is_decoder:
        done += ", without a cache"
    if int8:
        quantize(folder / GRAPH, folder / QUANTIZED)
        cosine = lowest_cosine(expected, run(folder / QUANTIZED, batches))
        size = (folder / QUANTIZED).stat().st_size / 1e6
        done += f"; {QUANTIZED}, {size:.1f} MB, cosine of outputs at least {cosine:.4f}"
    return done


def trace(graph: Graph, batch: dict[str, Tensor], file: Path):
    """
    Write the graph for any batch, and for any length that the model takes, with eager attention: sdpa's has more
    operations, and pads values that have another size than keys.
    """
    longest = fixed_head_config(graph.model.config).max_position_embeddings
    axes = [torch.export.Dim("batch_size"), torch.export.Dim("sequence_length", max=longest)]
    if batch["input_ids"].ndim == 3:
        axes.insert(1, torch.export.Dim("num_choices"))
    graph.model.set_attn_implementation("eager")
    try:
        with quiet():
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
    assert program is not None  # of the other exporter
    for node in program.model.graph:
        node.metadata_props.clear()  # where the code is on this machine
    program.save(file, external_data=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch and the libraries of ONNX say about themselves, in warnings and logs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(torch|onnx\w*)(\.|$)")
            warnings.filterwarnings("ignore", r"`isinstance\(treespec")  # torch's own, which it lays to copyreg
            yield
    finally:
        logger.setLevel(level)


def quantize(file: Path, quantized: Path):
    """The graph with matrices and embedding tables in int8; the inputs of a matrix are quantized as they come."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    folded = quantized.with_name("folded.onnx")
    with quiet():
        quant_pre_process(file, folded, skip_symbolic_shape=True)  # transposes hide matrices from quantize_dynamic
        model = onnx.load(folded)
        del model.graph.value_info[:]  # has the shapes of a pooler's weights, which quantize_dynamic transposes
        # Weights of 7 bits: on x86 without VNNI, sums of products of 8 bits overflow.
        quantize_dynamic(model, quantized, per_channel=True, reduce_range=True)
    folded.unlink()


def session_of(file: Path, threads: int = 0):
    """A graph in onnxruntime, on the CPU; as many threads as there are cores, or those."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    return InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run(file: Path, batches: list[dict[str, Tensor]]) -> list[list[Tensor]]:
    """The outputs of a graph for each batch."""
    session = session_of(file)
    outputs = (session.run(None, {name: x.numpy() for name, x in batch.items()}) for batch in batches)
    return [[torch.from_numpy(x) for x in tensors] for tensors in outputs]


def largest_difference(expected: list[list[Tensor]], found: list[list[Tensor]]) -> float:
    """Largest difference of two numbers, relative to those above 1; NaN if any is."""
    pairs = [pair for tensors in zip(expected, found, strict=True) for pair in zip(*tensors, strict=True)]
    return float(torch.stack([((a - b).abs() / a.abs().clamp(min=1)).max() for a, b in pairs]).max())


def lowest_cosine(expected: list[list[Tensor]], found: list[list[Tensor]]) -> float:
    """
    Lowest cosine of an output and its counterpart, over texts that are a batch by themselves, and so have no padding.
    A few logits point in much the same direction whatever they are: there all texts together are one vector.
    """
    alone = [both for both in zip(expected, found, strict=True) if len(both[0][0]) == 1]
    cosines = []
    for output in zip(*(zip(*both, strict=True) for both in alone), strict=True):
        pairs = [(a.flatten(), b.flatten()) for a, b in output]
        if len(pairs[0][0]) < FEW:
            pairs = [(torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs]))]
        cosines += [cosine_similarity(a, b, dim=0) for a, b in pairs]
    return float(torch.stack(cosines).min())


def config_of(graph: Graph) -> PreTrainedConfig:
    """
    The configuration that is saved. A FixedHeadBert gets a BERT's: libraries that run graphs need no more, and know no
    other model type without remote code.
    """
    config = graph.model.config
    if config.model_type != FixedHeadBertConfig.model_type:
        return config
    fields = shared_fields(config) | {"intermediate_size": max(config.neuron_counts)}  # one number, not a list
    return BertConfig(**fields, architectures=[f"Bert{graph.head}"])


def card_of(graph: Graph, name: str, making: str, metadata: dict[str, Any]) -> ModelCard:
    """The card, with how to run the graph."""
    architecture = type(graph.model).__name__
    choices = "[None]" if graph.head == "ForMultipleChoice" else ""  # of one question
    loading = f"""
```python
import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
session = onnxruntime.InferenceSession("{name}/{GRAPH}")
inputs = tokenizer(["A text.", "Another one."], padding=True, return_tensors="np")
outputs = session.run(None, {{given.name: inputs[given.name]{choices} for given in session.get_inputs()}})
```
"""
    if graph.pooling is not None:
        loading += f'\nOr by sentence-transformers: `SentenceTransformer("{name}", backend="onnx")`.\n'
    metadata = metadata | {"tags": ["onnx", *metadata.get("tags", [])]}
    count = graph.model.num_parameters()
    return checkpoint_card(graph.model.config, architecture, name, making, count=count, loading=loading, **metadata)
