"""Loads weights without running a checkpoint's code, and checks that no weight of the base model is missing."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, modeling_utils
from transformers.modeling_utils import load_state_dict
from transformers.utils import cached_file

from ..support.errors import InputError, shorten
from ..support.files import read_json_object, reading
from ..support.layouts import transformer_directory

# Weight files, in the order in which transformers searches for them.
FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}  # dtypes of weights that are not quantized
COMPLETE = "use a complete checkpoint"
OPTIONAL = ("pooler", "decoder")  # parts of a base model that some task heads do not use


def load_weights(
    model_class: Any,
    source: str | Path,
    config: PreTrainedConfig,
    new_head: bool = True,
    ignore_mismatched_sizes: bool = True,
    **options,
) -> tuple[Any, dict]:
    """
    Loads a model with `model_class.from_pretrained` and checks that the file contains every weight of its base model.

    The model has the precision of the file or the configuration, whichever is higher.

    Args:
        new_head, ignore_mismatched_sizes: Whether weights of the task head and the pooler may be missing, or have a
            different shape. The loading info lists them.
        options: Keyword arguments for `from_pretrained`.

    Returns:
        The model, and transformers' loading info.

    Raises:
        InputError: If weights are missing, unexpected or quantized, have an invalid shape, or contain NaN or infinity.
    """
    stored = stored_tensors(source, **options)
    if "dtype" not in options:
        options["dtype"] = highest_precision(config, stored)
    options |= {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with without_load_report():
        model, info = model_class.from_pretrained(transformer_directory(source, **options), **options)
    empty = {name for name, tensor in stored.items() if 0 in tensor.shape}  # from layers without heads
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}  # may be in old files
    ignored = empty | {name for name in stored if name.rpartition(".")[2] in buffers}
    info["unexpected_keys"] -= ignored
    check_names(source, model, info, new_head, ignore_mismatched_sizes)
    for name in sorted(stored.keys() - ignored - info["unexpected_keys"]):
        if stored[name].dtype not in FLOATS and not getattr(config, "quantization_config", None):
            raise InputError(f"{source}: {name} has dtype {stored[name].dtype}; use weights that are not quantized.")
    for name, weight in model.named_parameters():
        if weight.device.type != "meta" and not weight.isfinite().all():
            raise InputError(f"{source}: {name} contains NaN or infinity; use a checkpoint with finite weights.")
    return model, info


def report_float32(source: object, model: PreTrainedModel):
    """Prints a line if a model that is used in float32 was loaded in a different dtype."""
    if model.dtype != torch.float32:
        dtype = str(model.dtype).removeprefix("torch.")
        PartialState().print(f"{source}: the weights are stored in {dtype} and are converted to float32.")


@contextmanager
def without_load_report() -> Iterator[None]:
    """Context manager that silences transformers' report about missing and unexpected weights."""
    logger = logging.getLogger(modeling_utils.__name__)
    logger.disabled = True  # if the level were raised instead, transformers would warn about tensor parallelism
    try:
        yield
    finally:
        logger.disabled = False


def stored_tensors(source: str | Path, **options) -> dict[str, Tensor]:
    """Returns the tensors that `from_pretrained` would load, on the meta device. Does not run pickled code."""
    hub_options = {name: options[name] for name in ("revision", "token", "cache_dir") if options.get(name) is not None}
    source = transformer_directory(source, **hub_options)
    for name in FILES:
        file = cached_file(source, name, _raise_exceptions_for_missing_entries=False, **hub_options)
        if file is not None:
            index = read_json_object(Path(file)).get("weight_map") if file.endswith(".json") else {"": name}
            if not isinstance(index, dict) or not all(isinstance(shard, str) for shard in index.values()):
                raise InputError(f"{file}: has no weight_map with the file of each weight; {COMPLETE}.")
            files = [Path(str(cached_file(source, shard, **hub_options))) for shard in sorted({*index.values()})]
            return {name: tensor for file in files for name, tensor in tensors_in(file).items()}
    return {}  # from_pretrained reports missing files


def tensors_in(file: Path) -> dict[str, Tensor]:
    """Returns the tensors in a file, on the meta device. Raises InputError if it contains anything else."""
    with reading(file, COMPLETE, "cannot be read as a file of weights"):
        content = load_state_dict(file, "meta")
    if not isinstance(content, dict):
        raise InputError(f"{file}: contains a {type(content).__name__} instead of weights by name; {COMPLETE}.")
    if others := [f"{name!r} ({type(x).__name__})" for name, x in content.items() if not isinstance(x, Tensor)]:
        found = f"{', '.join(others[:3])} besides or instead of weights"
        raise InputError(f"{file}: contains {found}; save the weights alone, as save_pretrained does.")
    return content


def highest_precision(config: PreTrainedConfig, stored: dict[str, Tensor]) -> torch.dtype | str:
    """Returns the smallest dtype at least as precise as the stored tensors and the configuration's dtype."""
    dtypes = {tensor.dtype for tensor in stored.values()} & FLOATS
    if not dtypes:
        return "auto"
    if config.dtype is not None:
        dtypes.add(getattr(torch, config.dtype) if isinstance(config.dtype, str) else config.dtype)
    return reduce(torch.promote_types, sorted(dtypes, key=str))


def check_names(source: str | Path, model: PreTrainedModel, info: dict, new_head: bool, ignore_mismatched_sizes: bool):
    """Raises InputError if `info` lists missing, unexpected or wrongly shaped weights. See `load_weights`."""
    base, prefix = model.base_model, f"{model.base_model_prefix}."
    parts = {name for name, _ in base.named_children()}

    def in_body(name: str) -> bool:
        return (base is model or name.startswith(prefix)) and "pooler" not in name

    def in_base(name: str) -> bool:
        part = name.removeprefix(prefix).partition(".")[0]
        return (part in parts or name.startswith(prefix)) and part not in OPTIONAL

    for name, actual, expected in sorted(info["mismatched_keys"]):
        if in_body(name) or not ignore_mismatched_sizes:
            remedy = "run fixedbert convert if the BERT has pruned heads"
            remedy = remedy if in_body(name) else "fine-tune a new task head with `ignore_mismatched_sizes`"
            shapes = f"{tuple(actual)}, but the configuration requires {tuple(expected)}"
            raise InputError(f"{source}: {name} has shape {shapes}; use the matching config.json, or {remedy}.")
    absent = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    missing = sorted(name for name in absent if in_body(name) or not new_head)
    if missing:
        others, remedy = "", "train the model first, or use a complete checkpoint"
        if any(map(in_body, missing)):
            remedy = "the file is incomplete, or config.json belongs to a different model"
            if info["unexpected_keys"]:
                others = f", but the file has {shorten(sorted(info['unexpected_keys']))}"
        raise InputError(f"{source}: weights are missing for {shorten(missing)}{others}; {remedy}.")
    if unexpected := sorted(filter(in_base, info["unexpected_keys"])):
        raise unexpected_weights(source, type(model).__name__, unexpected)


def unexpected_weights(source: str | Path, class_name: str, names: list[str]) -> InputError:
    return InputError(
        f"{source}: {class_name} with this configuration has no parameters for {shorten(names)}; use the config.json "
        "that was saved with the weights, or drop parts of a task head with `architecture` of fixedbert convert."
    )
