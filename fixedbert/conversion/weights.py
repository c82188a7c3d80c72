"""The weights of a model that somebody else wrote: what the files hold, and whether it is what the model needs."""

import logging
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel, modeling_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import cached_file

from ..support.errors import InputError, listed
from ..support.files import read_object, reading

# In the order in which transformers looks for them.
FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
FLOATS |= {str(dtype): dtype for dtype in FLOATS.values()}
# While it loads, transformers replaces PreTrainedModel.tie_weights: of two loads at once, one would leave it replaced,
# and no later model would have its embeddings tied.
LOADING = threading.RLock()
LEFT_OUT = ("pooler", "decoder")  # parts of a body that some heads do without


class Stored(NamedTuple):
    """A tensor in a file: the name that the file has for its type, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def load_whole(model_class: Any, source: str | Path, config: PreTrainedConfig, **options) -> tuple[Any, dict]:
    """
    `model_class.from_pretrained`, where all of the base model comes from the file, and is finite. What lies outside
    it, and a pooler, can be missing or of another shape: that is in the loading info.

    The model has the precision of the file or of the configuration, whichever is higher.

    Args:
        options: of from_pretrained.

    Returns:
        The model, and transformers' loading info.

    Raises:
        InputError: the file lacks weights of the base model, has others, has no floating-point numbers for them, or
            cannot be read.
    """
    stored = tensors_of(source, **options)
    dtypes = {name: tensor.dtype for name, tensor in stored.items()}
    if "dtype" not in options:
        options["dtype"] = precision_of(source, config, dtypes)
    options |= {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with LOADING, without_report():  # what is missing is said below, or where it may be
        model, loaded = model_class.from_pretrained(source, **options)
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}  # which earlier versions saved
    nothing = {name for name, tensor in stored.items() if 0 in tensor.shape}  # in a layer whose heads are all pruned
    unexpected = loaded["unexpected_keys"] - nothing
    loaded["unexpected_keys"] = {name for name in unexpected if name.rpartition(".")[2] not in buffers}
    check_body(source, model, loaded, sorted(dtypes))
    if not getattr(config, "quantization_config", None):
        check_numbers(source, model, dtypes, loaded["unexpected_keys"])
    return model, loaded


@contextmanager
def without_report() -> Iterator[None]:
    """Without transformers' table of what a file lacks or has too much, in this thread alone."""
    logger, thread = logging.getLogger(modeling_utils.__name__), threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return threading.get_ident() != thread or record.levelno > logging.WARNING

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def tensors_of(source: str | Path, **options) -> dict[str, Stored]:
    """The tensors that from_pretrained with `options` loads a model from, by the names that the file has for them."""
    place = {name: options[name] for name in ("revision", "token", "cache_dir") if options.get(name) is not None}
    for name in FILES:
        file = cached_file(source, name, _raise_exceptions_for_missing_entries=False, **place)
        if file is not None:
            shards = shards_of(Path(file)) if file.endswith(".json") else [name]
            files = [Path(str(cached_file(source, shard, **place))) for shard in shards]
            return {name: tensor for file in files for name, tensor in read_header(file).items()}
    return {}  # transformers says so


def shards_of(index: Path) -> list[str]:
    """The files that an index of weights names; one that is not beside it is refused."""
    weight_map = read_object(index, "download it again").get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else [None]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"{index}: weight_map names no file beside it ({str(name)[:100]}); download it again.")
    return sorted({*names})


def read_header(file: Path) -> dict[str, Stored]:
    """The tensors in a file, by their names; no code in it is run."""
    with reading(file, "download it again", "the weights are damaged or incomplete"):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as tensors:
                slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
                return {name: Stored(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
        members = zipfile.ZipFile(file).namelist() if zipfile.is_zipfile(file) else []
        if any(name.endswith("/constants.pkl") for name in members):
            raise InputError(
                f"{file}: a TorchScript file, which is code; save the model that it is of by save_pretrained."
            )
        try:
            found = torch.load(file, map_location="meta", weights_only=True)
        except (UnpicklingError, EOFError) as error:
            raise InputError(f"{file}: the pickle is damaged or holds more than tensors; it was not run.") from error
    return stored_in(file, found)


def stored_in(file: Path, found: object) -> dict[str, Stored]:
    """The tensors in what a pickle holds, which has to be one tensor to a name."""
    if not isinstance(found, dict) or not found:
        raise InputError(f"{file}: holds no tensors with names, but {type(found).__name__}; save a state_dict.")
    for name, value in found.items():
        if isinstance(value, dict) and any(isinstance(inner, torch.Tensor) for inner in value.values()):
            raise InputError(
                f"{file}: the weights are one level down, under {name!r}; save them alone, by "
                f"torch.save(torch.load({file.name!r}, weights_only=True)[{name!r}], {file.name!r})."
            )
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{file}: {name!r} is no tensor, but {type(value).__name__}; save the tensors alone.")
    return {str(name): Stored(str(tensor.dtype), tuple(tensor.shape)) for name, tensor in found.items()}


def precision_of(source: str | Path, config: PreTrainedConfig, dtypes: dict[str, str]) -> torch.dtype | str:
    """The higher precision of file and configuration; one line says if it is not the configuration's."""
    found = {FLOATS[dtype] for dtype in dtypes.values() if dtype in FLOATS}
    asked = getattr(torch, config.dtype) if isinstance(config.dtype, str) else config.dtype
    if not found:
        return "auto"
    highest = reduce(torch.promote_types, sorted({*found, *([asked] if asked else [])}, key=str))
    if asked not in (None, highest):
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found))
        PartialState().print(
            f"{source}: config.json says {str(asked).removeprefix('torch.')} and the file holds {names}; nothing is "
            f"rounded, the model is {str(highest).removeprefix('torch.')}."
        )
    return highest


def check_body(source: str | Path, model: PreTrainedModel, loaded: dict, names: list[str]):
    """
    Refuse weights of the base model that are missing, left over, or of another shape.

    Args:
        loaded: transformers' loading info.
        names: of the tensors in the file.
    """
    base, prefix = model.base_model, f"{model.base_model_prefix}."
    parts = {name for name, _ in base.named_children()}

    def needed(name: str) -> bool:
        return (base is model or name.startswith(prefix)) and "pooler" not in name

    def left_over(name: str) -> bool:
        part = name.removeprefix(prefix).partition(".")[0]
        return (part in parts or name.startswith(prefix)) and part not in LEFT_OUT

    if prefix[:-1] not in parts and any(name.startswith(2 * prefix) for name in names):
        raise InputError(f"{source}: {prefix_text(prefix, names, 2 * prefix)}.")
    unexpected = sorted(filter(left_over, loaded["unexpected_keys"]))
    if missing := sorted(filter(needed, loaded["missing_keys"])):
        found = sorted(loaded["unexpected_keys"])
        layers = [name for name in found if re.search(r"\.\d+\.", name)]  # heads have none
        other = layers or ([] if any(map(left_over, names)) else found)
        raise InputError(
            f"{source}: there are no weights for {listed(missing)}; {why_missing(prefix, missing, names, other)}."
        )
    for name, there, wanted in sorted(loaded["mismatched_keys"]):
        if needed(name):
            raise InputError(
                f"{source}: {name} has the shape {tuple(there)} where the configuration asks for {tuple(wanted)}; "
                "give the one that belongs to the weights, or a BERT with pruned heads to fixedbert convert."
            )
    if unexpected:
        raise InputError(
            f"{source}: a {type(model).__name__}, as the configuration has it, has no place for {listed(unexpected)}; "
            "give the configuration of the model that the weights were saved from."
        )


def why_missing(own: str, missing: list[str], names: list[str], other: list[str]) -> str:
    """
    Why weights of the body are missing, with what to do: another prefix, another family, or a gap.

    Args:
        own: the prefix of the base model.
        other: names in the file that may stand for the missing ones.
    """
    bare = missing[-1].removeprefix(own)
    example = next((name for name in names if name.endswith(f".{bare}")), "")
    prefix = example.removesuffix(bare).removesuffix(own) or example.removesuffix(bare)
    if prefix.rstrip(".").rpartition(".")[2] in CONFIG_MAPPING_NAMES and prefix != own:
        other = [name for name in names if name.startswith(prefix)]
    elif prefix:
        return prefix_text(prefix, names)
    if other:
        return f"the file has {listed(other)} instead; give the config.json that belongs to the weights"
    return "the file is incomplete, or config.json belongs to another model"


def prefix_text(prefix: str, names: list[str], found: str | None = None) -> str:
    """A clause: so many names begin with `found`, by default the prefix, and how to save weights without a prefix."""
    found = found or prefix
    count = sum(name.startswith(found) for name in names)
    share = f"all {count:,}" if count == len(names) else f"{count:,} of {len(names):,}"
    return (
        f"{share} names in the file begin with {found!r}; save it again with names that lack it, as in "
        f"{{name.removeprefix({prefix!r}): tensor for name, tensor in tensors.items()}}"
    )


def check_numbers(source: str | Path, model: PreTrainedModel, dtypes: dict[str, str], unused: set[str]):
    """Refuse weights that were not saved as floating-point numbers of 16 bits or more, or are not finite."""
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    for name, dtype in dtypes.items():
        if dtype not in FLOATS and name not in unused and name.rpartition(".")[2] not in buffers:
            raise InputError(
                f"{source}: {name} holds {dtype.removeprefix('torch.')}, no floating-point numbers of 16 bits or "
                "more; give the weights before they were quantized."
            )
    check_finite(source, model)


def check_finite(source: str | Path, model: PreTrainedModel):
    """Refuse weights that are infinite or not a number."""
    for name, weight in model.named_parameters():
        if weight.device.type != "meta" and not weight.isfinite().all():
            raise InputError(f"{source}: {name} is not finite everywhere; the weights are damaged, give others.")
