"""
A BERT as a FixedHeadBert, and a FixedHeadBert with larger and more heads: the same function, and room to learn.

"Low-Rank Bottleneck in Multi-head Attention Models" (Bhojanapalli et al., 2020), section 3: MultiHead is a special
case of FixedMultiHead where the head size is at least d / h. With s = sqrt(new head size / old head size):

                  dimensions added to a head         added heads
    W_q           zero, and what was there times s   random
    W_k, W_v      random                             random
    W_o           zero                               zero

Scores keep their value, since 1 / sqrt(head size) shrinks by s, and all that is new meets a zero on its way. Each zero
stands across from random numbers and so gets a gradient in the first step; these get theirs once it has moved. Biases
of what is new are zero, as BERT's are in the beginning. (A bias of keys never learns, in BERT neither: it adds the
same to all scores of a query.)
"""

import logging
import math
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path
from pickle import UnpicklingError

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, BertConfig, PreTrainedConfig, PreTrainedModel

from . import modeling_fixed_head_bert
from .configuration_fixed_head_bert import FixedHeadBertConfig
from .data.tokenizers import load_tokenizer
from .errors import InputError
from .modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from .tensorflow_checkpoint import read_bert
from .training.output import new_directory

logger = logging.getLogger(__name__)

# Model types that are BERT but for names and positions, and what their classes begin with.
FAMILIES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "fixed_head_bert": "FixedHeadBert",
}
# RoBERTa's names for BERT's parts. Its classifier begins with what is BERT's pooler.
ROBERTA_NAMES = (
    (r"^roberta\.", "bert."),
    (r"^lm_head\.(bias|decoder)", r"cls.predictions.\1"),
    (r"^lm_head\.dense", "cls.predictions.transform.dense"),
    (r"^lm_head\.layer_norm", "cls.predictions.transform.LayerNorm"),
    (r"^classifier\.dense", "bert.pooler.dense"),
    (r"^classifier\.out_proj", "classifier"),
)
LAYER = re.compile(r"(.*encoder\.layer\.)(\d+)(\..*)")
ATTENTION = re.compile(r"attention\.(?:self\.(query|key|value)|(output)\.dense)\.(weight|bias)$")
# What makes a sentence-transformers model of an encoder: how tokens are pooled, and how long a text can be.
SENTENCE_FILES = ("modules.json", "*sentence*.json", "[0-9]*_*/*")


def convert(
    model: PreTrainedModel,
    attention_head_size: int | None = None,
    num_attention_heads: int | None = None,
    num_hidden_layers: int | None = None,
    seed: int = 0,
) -> FixedHeadBertPreTrainedModel:
    """
    A FixedHeadBert with the function of `model`, to rounding: 1e-10 in float64, 1e-5 in float32.

    Args:
        model: a BERT, a RoBERTa-like model, or a FixedHeadBert, bare or with any head. Of RoBERTa, which gives padding
            no position, texts padded on the right keep their function.
        attention_head_size: of the new model, at least that of `model`, which is the default.
        num_attention_heads: of the new model, at least as many as `model` has, the default.
        num_hidden_layers: layers of the new model, each of which is one of `model`: layer i is i * old // new. This
            changes the function, and warns of it.
        seed: of the random numbers in what is new.

    Returns:
        The model, in evaluation mode, with the dtype of `model` and no memory shared with it.

    Raises:
        InputError: a model that is no BERT, or fewer or smaller heads.
    """
    config = fixed_head_config(model.config)
    old = (config.num_attention_heads, config.head_dim)
    new = (num_attention_heads or old[0], attention_head_size or old[1])
    check_growth(config, old, new)
    config.num_attention_heads, config.attention_head_size = new
    config.num_hidden_layers = num_hidden_layers or config.num_hidden_layers
    scale = (new[1] / old[1]) ** 0.5
    if model.dtype in (torch.float16, torch.bfloat16) and not math.log2(scale).is_integer():
        logger.warning(
            "Queries times %.3f are rounded to %s: heads of %d would be exact.", scale, model.dtype, 4 * old[1]
        )
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: grown(name, tensor, config, old, new, generator)
        for name, tensor in with_layers(bert_tensors(model), config.num_hidden_layers).items()
    }
    return build(getattr(modeling_fixed_head_bert, f"FixedHeadBert{head_of(model)}"), config, tensors, model.dtype)


def to_bert(model: FixedHeadBertPreTrainedModel) -> PreTrainedModel:
    """
    transformers' BERT with the function of `model`: bit for bit where the head size is hidden_size / heads, to
    rounding where it is smaller and heads are padded.

    Raises:
        InputError: there is no BERT of this shape.
    """
    config = model.config
    heads, size, width = config.num_attention_heads, config.head_dim, config.hidden_size
    if config.head_embedding is not None or config.qk_norm:
        raise InputError("BERT knows neither head_embedding nor qk_norm: this model has no counterpart there.")
    if width % heads or size > width // heads:
        raise InputError(
            f"{heads} heads of {size} in width {width}: BERT's heads have the size hidden_size / heads, which must be "
            f"whole and hold these, so that heads * {size} is at most {width}."
        )
    model = convert(model, attention_head_size=width // heads)
    config = BertConfig(**shared_fields(model.config))
    return build(getattr(transformers, f"Bert{head_of(model)}"), config, model.state_dict(), model.dtype)


def check_growth(config: FixedHeadBertConfig, old: tuple[int, int], new: tuple[int, int]):
    """Raises InputError where `new` (heads, size) cannot hold the heads that are there."""
    (heads, size), (new_heads, new_size) = old, new
    if new_heads < heads or new_size < size:
        raise InputError(
            f"{new_heads} heads of {new_size} cannot represent {heads} heads of {size}: give "
            f"--num_attention_heads {heads} or more and --attention_head_size {size} or more, or train a smaller "
            "model anew."
        )
    if config.qk_norm and new_size != size:
        raise InputError(
            f"attention_head_size={new_size}: with qk_norm whatever is added to a head of {size} changes its root "
            "mean square; only the number of heads can grow."
        )


def grown(
    name: str,
    tensor: torch.Tensor,
    config: FixedHeadBertConfig,
    old: tuple[int, int],
    new: tuple[int, int],
    generator: torch.Generator,
) -> torch.Tensor:
    """A copy of the parameter `name`, in an attention with `new` instead of `old` (heads, size)."""
    (_, size), (heads, new_size) = old, new
    if old == new:
        return tensor.clone()
    scale = (new_size / size) ** 0.5

    def placed(values: torch.Tensor, shape: tuple[int, ...], random: bool) -> torch.Tensor:
        """`values` in the first corner of a tensor of `shape` that is random or zero elsewhere."""
        wide = values.new_zeros(shape)
        if random:
            wide.normal_(0, config.initializer_range, generator=generator)
        wide[tuple(map(slice, values.shape))] = values
        return wide

    if name.endswith("head_embedding"):  # (3, H, P)
        factor = tensor.new_ones(3, 1, 1)
        factor[0] = scale if config.head_embedding == "add" else 1  # added to queries, which are scaled
        wide = placed(tensor * factor, (3, heads, new_size), random=True)
        if config.head_embedding == "add":
            wide[0, : tensor.shape[1], size:] = 0
        return wide

    match = ATTENTION.search(name)
    if match is None or (match[2] and match[3] == "bias"):
        return tensor.clone()
    part, kind = match[1] or match[2], match[3]
    if part == "output":
        return placed(tensor.unflatten(1, (-1, size)), (len(tensor), heads, new_size), random=False).flatten(1)
    if config.head_embedding is not None:
        heads = 1  # one projection, which all share
    values = tensor.unflatten(0, (-1, size))  # (G, P, D), a bias (G, P)
    if part == "query":
        values = values * scale
    wide = placed(values, (heads, new_size, *values.shape[2:]), random=kind == "weight")
    if part == "query":
        wide[: len(values), size:] = 0
    return wide.flatten(0, 1)


def with_layers(tensors: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """The same tensors for `count` layers, which are those there are, repeated or left out evenly."""
    layers = [match for match in map(LAYER.fullmatch, tensors) if match]
    there = 1 + max(int(match[2]) for match in layers)
    if count == there:
        return tensors
    chosen = [number * there // count for number in range(count)]
    logger.warning("The function changes: of %d layers these become %d: %s.", there, count, chosen)
    others = {name: tensor for name, tensor in tensors.items() if not LAYER.fullmatch(name)}
    return others | {
        f"{match[1]}{number}{match[3]}": tensors[match[0]]
        for number, layer in enumerate(chosen)
        for match in layers
        if int(match[2]) == layer
    }


def head_of(model: PreTrainedModel) -> str:
    """What follows the family's name in the name of the model's class, in BERT's words: Model, ForMaskedLM, ..."""
    head = type(model).__name__.removeprefix(FAMILIES[model.config.model_type])
    return "LMHeadModel" if head == "ForCausalLM" else head


def bert_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The parameters of `model` under BERT's names."""
    tensors = model.state_dict()
    if model.config.model_type in ("bert", "fixed_head_bert"):
        return tensors
    for pattern, name in ROBERTA_NAMES:
        tensors = {re.sub(pattern, name, old): tensor for old, tensor in tensors.items()}
    first = model.config.pad_token_id + 1  # RoBERTa counts positions from there
    positions = next(name for name in tensors if name.endswith("position_embeddings.weight"))
    return tensors | {positions: tensors[positions][first:]}


def shared_fields(config: PreTrainedConfig) -> dict:
    """The fields of `config` that BERT's configuration has too, but for those that name a class or a version."""
    own = ("architectures", "model_type", "transformers_version", "dtype")
    return {
        name: value
        for name, value in config.to_dict().items()
        if name in BertConfig.__dataclass_fields__ and name not in own
    }


def fixed_head_config(config: PreTrainedConfig) -> FixedHeadBertConfig:
    """
    The configuration of the FixedHeadBert that has the function of a model with this one.

    Raises:
        InputError: it is none of FAMILIES, or has relative positions.
    """
    if config.model_type not in FAMILIES:
        raise InputError(
            f"model_type {config.model_type!r} is no BERT; {', '.join(FAMILIES)} and Google's TensorFlow checkpoints "
            "can be converted."
        )
    if getattr(config, "position_embedding_type", "absolute") != "absolute":
        raise InputError(
            f"position_embedding_type {config.position_embedding_type!r}: only absolute positions are BERT's."
        )
    if config.model_type == "fixed_head_bert":
        return FixedHeadBertConfig.from_dict(config.to_dict(), architectures=None)
    fields = shared_fields(config)
    if config.model_type != "bert":
        fields["max_position_embeddings"] -= config.pad_token_id + 1
    return FixedHeadBertConfig(**fields, attention_head_size=config.hidden_size // config.num_attention_heads)


def build(model_class: type, config: PreTrainedConfig, tensors: dict[str, torch.Tensor], dtype: torch.dtype):
    """A model of exactly these tensors."""
    model, loaded = model_class.from_pretrained(
        None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
    )
    assert not (loaded["missing_keys"] or loaded["unexpected_keys"] or loaded["mismatched_keys"]), loaded
    return model


def load_bert(source: str | Path, **hub_options) -> PreTrainedModel:
    """
    The model that can be converted in a directory or on the Hub, with the head that it was saved with.

    transformers' checkpoints in safetensors, or in pytorch_model.bin, of which nothing but tensors is read; Google's
    in TensorFlow's format (bert_config.json, bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001).

    Args:
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: no BERT, or a file that is damaged or has too few, too many or wrongly shaped tensors.
    """
    if is_tensorflow(source):
        config, tensors = read_bert(Path(source))
        return build(transformers.BertForPreTraining, config, tensors, torch.float32)
    if not (Path(source).is_dir() or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source))):
        raise InputError(f"{source}: neither a directory nor the name of a model on the Hub.")
    try:
        config = AutoConfig.from_pretrained(source, **hub_options)
        fixed_head_config(config)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise InputError(f"{source}: {str(error).splitlines()[0]}") from error
    library = modeling_fixed_head_bert if config.model_type == "fixed_head_bert" else transformers
    name = (config.architectures or [f"{FAMILIES[config.model_type]}Model"])[0]
    if not (name.startswith(FAMILIES[config.model_type]) and hasattr(library, name)):
        raise InputError(f"{source}: config.json names a class that there is not, {name}; name one of transformers.")
    model, unexpected = load_tensors(getattr(library, name), source, config, **hub_options)
    if any("seq_relationship" in key for key in unexpected):  # Google's, saved with one head's name and both heads
        model, unexpected = load_tensors(
            getattr(library, f"{FAMILIES[config.model_type]}ForPreTraining"), source, config, **hub_options
        )
    if unexpected:
        raise InputError(
            f"{source}: a {name} has no place for {some(unexpected)}; name the right class in config.json."
        )
    return model


def load_tensors(
    model_class: type, source: str | Path, config: PreTrainedConfig, **hub_options
) -> tuple[PreTrainedModel, list[str]]:
    """The model, and the names of the tensors for which it has no place."""
    try:
        model, loaded = model_class.from_pretrained(
            source, config=config, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True, **hub_options
        )
    except (OSError, RuntimeError, ValueError, EOFError, SafetensorError, UnpicklingError) as error:
        raise InputError(f"{source}: the weights cannot be read: {error}") from error
    for key, there, wanted in sorted(loaded["mismatched_keys"]):
        raise InputError(f"{source}: {key} has the shape {tuple(there)} where config.json asks for {tuple(wanted)}.")
    missing = [key for key in sorted(loaded["missing_keys"]) if "pooler" not in key]
    if missing:
        raise InputError(
            f"{source}: there are no weights for {some(missing)}; the file is not whole, or of another model."
        )
    if loaded["missing_keys"]:
        logger.warning("%s has no pooler: the new model's begins with random weights.", source)
    return model, sorted(loaded["unexpected_keys"])


def some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def is_tensorflow(source: str | Path) -> bool:
    return Path(f"{source}.index").is_file() or any(Path(source).glob("*.index"))


def convert_checkpoint(
    source: str | Path,
    output: str | Path,
    attention_head_size: int | None = None,
    num_attention_heads: int | None = None,
    num_hidden_layers: int | None = None,
    bert: bool = False,
    seed: int = 0,
    do_lower_case: bool = True,
    **hub_options,
) -> str:
    """
    Convert a checkpoint, with its tokenizer and, of a sentence-transformers model, its pooling, into a new directory.

    Args:
        bert: convert a FixedHeadBert to transformers' BERT instead.
        do_lower_case: of the tokenizer of a TensorFlow checkpoint, which does not say.

    Returns:
        What was done, in a sentence, with the largest difference that was found between the two models.

    Raises:
        InputError: as `load_bert`, `convert` and `to_bert`; or `output` is there and not empty.
    """
    with new_directory(output) as folder:
        model = load_bert(source, **hub_options)
        before = shape_of(model)
        if bert and model.config.model_type != "fixed_head_bert":
            raise InputError(
                f"{source}: it is a {model.config.model_type} model; only a FixedHeadBert goes back to BERT."
            )
        sizes = attention_head_size, num_attention_heads, num_hidden_layers
        converted = convert(model, *sizes, seed=seed) if not bert or any(sizes) else model
        converted = to_bert(converted) if bert else converted
        same = converted.config.num_hidden_layers == model.config.num_hidden_layers
        found = (
            f"largest difference of outputs {largest_difference(model, converted):.1g}"
            if same
            else "not the same function"
        )
        del model
        converted.save_pretrained(folder)
        if is_tensorflow(source):
            vocabulary = (Path(source) if Path(source).is_dir() else Path(source).parent) / "vocab.txt"
            load_tokenizer(str(vocabulary), do_lower_case).save_pretrained(folder)
        else:
            copy_tokenizer(source, folder, **hub_options)
    return f"{before} -> {shape_of(converted)}; {found}"


def shape_of(model: PreTrainedModel) -> str:
    config = model.config
    size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    return (
        f"{type(model).__name__}, {config.num_hidden_layers} layers of width {config.hidden_size} with "
        f"{config.num_attention_heads} heads of {size}, {model.num_parameters() / 1e6:.1f} M parameters"
    )


@torch.no_grad()
def largest_difference(one: PreTrainedModel, other: PreTrainedModel) -> float:
    """Between any two outputs of the models for the same two texts of 16 random tokens."""
    config = one.config
    length = min(16, other.config.max_position_embeddings)
    shape = (2, 2, length) if "MultipleChoice" in type(one).__name__ else (2, length)
    ids = torch.randint(config.vocab_size - 1, shape, generator=torch.Generator().manual_seed(0))
    ids += ids >= (config.pad_token_id or 0)  # RoBERTa gives padding no position
    outputs = (model.eval()(input_ids=ids, return_dict=True) for model in (one, other))
    pairs = zip(*(output.to_tuple() for output in outputs), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs if isinstance(a, torch.Tensor))


def copy_tokenizer(source: str | Path, folder: Path, **hub_options):
    """The tokenizer, and the files of a sentence-transformers model, where there are any."""
    try:
        AutoTokenizer.from_pretrained(source, **hub_options).save_pretrained(folder)
    except (OSError, ValueError) as error:
        logger.warning("%s has no tokenizer that can be read, and the new directory none: %s", source, error)
    if not Path(source).is_dir():
        source = snapshot_download(str(source), allow_patterns=SENTENCE_FILES, **hub_options)
    if not (Path(source) / "modules.json").is_file():
        return
    for file in Path(source).rglob("*"):
        name = file.relative_to(source).as_posix()
        if file.is_file() and any(fnmatch(name, pattern) for pattern in SENTENCE_FILES):
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(file, folder / name)


__all__ = ["convert", "convert_checkpoint", "load_bert", "to_bert"]
