"""Classes of one's own for the attention of a study: imported where the user asks for it, and tried before a run."""

import inspect
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from ..attention_fixed_head_bert import ATTENTION_CLASSES, self_attention
from ..checksums import content_hash_of, fingerprint_of
from ..configuration_fixed_head_bert import FixedHeadBertConfig
from ..errors import InputError
from ..files import reason_of

ROWS, QUERIES = 2, 3  # of a trial
LIBRARIES = ("builtins", "torch", "transformers", "fixedbert")  # whose versions are in records


def import_attentions(names: Iterable[str], folder: Path) -> dict[str, str]:
    """
    Run the modules of classes such as my_module.MyAttention, and enter the classes in ATTENTION_CLASSES.

    Args:
        folder: where modules are looked up first, before the Python path.

    Raises:
        InputError: a module is not there or cannot be imported, or the class is not in it.

    Returns:
        By name, what a configuration names the class: its name and a fingerprint of the files that define it and its
        base classes, so that changed code is another attention.
    """
    entries = {}
    for name in names:
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for what the module imports
        module_name, _, class_name = name.rpartition(".")
        module = import_module_in(module_name, folder)
        found = getattr(module, class_name, None)
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            place = getattr(module, "__file__", module_name)
            raise InputError(
                f"attention: {name}: {place} has no such class derived from torch.nn.Module; name another."
            )
        own = [base for base in found.__mro__ if base.__module__.partition(".")[0] not in LIBRARIES]
        files = sorted({inspect.getfile(base) for base in own})
        entries[name] = f"{name}@{fingerprint_of(*(content_hash_of(Path(file)) for file in files))[:8]}"
        ATTENTION_CLASSES[entries[name]] = found
    return entries


def import_module_in(name: str, folder: Path) -> ModuleType:
    """A module from its file in `folder`, run anew as the file may have changed; otherwise from the Python path."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    try:
        if not file.is_file():
            return import_module(name)
        spec = spec_from_file_location(name, file)
        assert spec is not None  # as the suffix is .py
        module = sys.modules[name] = module_from_spec(spec)
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))  # never what Python has cached of it
        return module
    except Exception as error:  # of any kind, as it is the user's code
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"attention: there is no module {name} in {folder} or on the Python path; give it as module.Class."
            ) from error
        raise InputError(
            f"attention: the module {name} cannot be imported ({type(error).__name__}: {reason_of(error)}); mend it."
        ) from error


@torch.no_grad()
def try_attention(config: FixedHeadBertConfig, length: int, has_source: bool):
    """
    Build a layer's attention, and attend to a few rows of `length` tokens in the ways that models do.

    Args:
        has_source: whether keys and values can be of other tokens than the queries.

    Raises:
        Exception: of any kind, from the class; a ValueError where it does not give what a model needs.
    """
    config._attn_implementation = "eager"  # as in a model
    with torch.random.fork_rng(devices=[]):
        attention = self_attention(config, is_causal=config.is_decoder, layer_idx=0).eval()
        lost = {name for name, _ in attention.named_buffers()} - attention.state_dict().keys()
        if lost:
            raise ValueError(f"the buffer {min(lost)} is not persistent, and would be lost when a model is loaded")
        tokens, others = torch.randn(2, ROWS, length, config.hidden_size)
        changed = torch.cat([tokens[:, :-1], 9 * others[:, -1:]], dim=1)  # the last token
        hidden = torch.full((length, length), torch.finfo(torch.float32).min)
        # A decoder's tokens do not see the next ones; others are not to see the last, as if it were padding.
        mask = hidden.triu(diagonal=1) if config.is_decoder else torch.cat([0 * hidden[:, :-1], hidden[:, -1:]], dim=1)

        def attend(tokens: torch.Tensor, **arguments: torch.Tensor | None) -> torch.Tensor:
            output, _ = attention(tokens, **arguments)
            shape = (*tokens.shape[:-1], attention.all_head_size)
            if output.shape != shape:
                raise ValueError(f"its output has the shape {tuple(output.shape)} where {shape} is needed")
            return output

        attend(tokens, encoder_hidden_states=None, attention_mask=None, past_key_values=None)
        before, after = (attend(x, attention_mask=mask[None, None])[:, :-1] for x in (tokens, changed))
        if not torch.allclose(before, after, atol=1e-5):
            raise ValueError("tokens see what attention_mask hides from them")
        if has_source:
            queries = tokens[:, :QUERIES]
            if torch.equal(*(attend(queries, encoder_hidden_states=x) for x in (tokens, others))):
                raise ValueError("its output does not depend on encoder_hidden_states")
