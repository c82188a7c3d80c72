"""Weights from third parties: what the files hold, and whether they provide the whole base model."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel, modeling_utils
from transformers.utils import cached_file

from ..support.errors import InputError, shorten
from ..support.files import read_json_object, reading

# In the order in which transformers looks for them.
FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
FLOATS |= {str(dtype): dtype for dtype in FLOATS.values()}
# While it loads, transformers replaces PreTrainedModel.tie_weights. Of two concurrent loads, one would leave it
# replaced, and no later model would have its embeddings tied.
LOADING = threading.RLock()
OPTIONAL = ("pooler", "decoder")  # parts of a base model that some task heads do without


class StoredTensor(NamedTuple):
    """A tensor in a file: its dtype, by the file's own name for it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def load_body(model_class: Any, source: str | Path, config: PreTrainedConfig, **options) -> tuple[Any, dict]:
    """
    Loads a model with `model_class.from_pretrained`, and checks that the whole base model comes from the file.

    Parameters outside the base model, and a pooler, may be missing or have a different shape: the loading info lists
    them. The model's precision is the higher one of the file's and the configuration's.

    Args:
        options: keyword arguments of `from_pretrained`.

    Returns:
        The model, and transformers' loading info.

    Raises:
        InputError: weights of the base model are missing, superfluous, misshapen, not floating-point or not finite, or
            the file cannot be read.
    """
    stored = stored_tensors(source, **options)
    if "dtype" not in options:
        options["dtype"] = highest_precision(config, stored)
    options |= {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with LOADING, without_load_report():
        model, info = model_class.from_pretrained(source, **options)
    empty = {name for name, tensor in stored.items() if 0 in tensor.shape}  # from layers whose heads are all pruned
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}  # earlier versions saved some
    ignored = empty | {name for name in stored if name.rpartition(".")[2] in buffers}
    info["unexpected_keys"] -= ignored
    check_body(source, model, info, sorted(stored))
    if not getattr(config, "quantization_config", None):
        used = stored.keys() - ignored - info["unexpected_keys"]
        check_numbers(source, model, {name: stored[name].dtype for name in sorted(used)})
    return model, info


@contextmanager
def without_load_report() -> Iterator[None]:
    """Silences transformers' report of missing and unexpected weights."""
    logger = logging.getLogger(modeling_utils.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def stored_tensors(source: str | Path, **options) -> dict[str, StoredTensor]:
    """Returns the tensors that `from_pretrained` with `options` would load, by their names in the file."""
    hub_options = {name: options[name] for name in ("revision", "token", "cache_dir") if options.get(name) is not None}
    for name in FILES:
        file = cached_file(source, name, _raise_exceptions_for_missing_entries=False, **hub_options)
        if file is not None:
            shards = shard_names(Path(file)) if file.endswith(".json") else [name]
            files = [Path(str(cached_file(source, shard, **hub_options))) for shard in shards]
            return {name: tensor for file in files for name, tensor in read_header(file).items()}
    return {}  # from_pretrained reports it


def shard_names(index: Path) -> list[str]:
    """Returns the files in an index of sharded weights. They must lie in its directory."""
    weight_map = read_json_object(index, "download it again").get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else [None]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(
                f"{index}: weight_map must contain file names, not {str(name)[:100]!r}; download it again."
            )
    return sorted({*names})


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Returns the tensors in a file, by name, without running code from it."""
    with reading(file, "download it again", "the weights cannot be read"):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as tensors:
                slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
                return {name: StoredTensor(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
        tensors = torch.load(file, map_location="meta", weights_only=True)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise InputError(f"{file}: must hold a state_dict, that is, only named tensors; save it again as one.")
    return {str(name): StoredTensor(str(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}


def highest_precision(config: PreTrainedConfig, stored: dict[str, StoredTensor]) -> torch.dtype | str:
    """Returns the smallest dtype that represents the values in the file and has the configuration's precision."""
    dtypes = {FLOATS[tensor.dtype] for tensor in stored.values() if tensor.dtype in FLOATS}
    if not dtypes:
        return "auto"
    if config.dtype is not None:
        dtypes.add(getattr(torch, config.dtype) if isinstance(config.dtype, str) else config.dtype)
    return reduce(torch.promote_types, sorted(dtypes, key=str))


def check_body(source: str | Path, model: PreTrainedModel, info: dict, names: list[str]):
    """
    Raises InputError if weights of the base model are missing, superfluous or misshapen.

    Args:
        info: transformers' loading info.
        names: all tensors in the file.
    """
    base, prefix = model.base_model, f"{model.base_model_prefix}."
    parts = {name for name, _ in base.named_children()}

    def required(name: str) -> bool:
        return (base is model or name.startswith(prefix)) and "pooler" not in name

    def superfluous(name: str) -> bool:
        part = name.removeprefix(prefix).partition(".")[0]
        return (part in parts or name.startswith(prefix)) and part not in OPTIONAL

    if missing := sorted(filter(required, info["missing_keys"])):
        suffix = missing[-1].removeprefix(prefix)
        reason = "the file is incomplete, or config.json belongs to a different model"
        if prefixed := next((name for name in names if name.endswith(f".{suffix}")), None):
            actual = prefixed.removesuffix(suffix)
            reason = f"their names begin with {actual!r} instead of {prefix!r}; save the model without its wrapper"
        raise InputError(f"{source}: weights are missing for {shorten(missing)}; {reason}.")
    for name, actual, expected in sorted(info["mismatched_keys"]):
        if required(name):
            raise InputError(
                f"{source}: {name} has shape {tuple(actual)}, but the configuration implies {tuple(expected)}; use "
                "the matching config.json, or fixedbert convert for a BERT with pruned heads."
            )
    if unexpected := sorted(filter(superfluous, info["unexpected_keys"])):
        raise InputError(
            f"{source}: {type(model).__name__} with this configuration has no parameters {shorten(unexpected)}; use "
            "the config.json that was saved with the weights."
        )


def check_numbers(source: str | Path, model: PreTrainedModel, dtypes: dict[str, str]):
    """Raises InputError if weights are quantized, or are infinite or not a number."""
    for name, dtype in dtypes.items():
        if dtype not in FLOATS:
            raise InputError(
                f"{source}: {name} has dtype {dtype.removeprefix('torch.')}; use weights that are not quantized."
            )
    for name, weight in model.named_parameters():
        if weight.device.type != "meta" and not weight.isfinite().all():
            raise InputError(f"{source}: {name} contains infinite values or NaN; use undamaged weights.")
