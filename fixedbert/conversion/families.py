"""The families of models that are BERT but for names and positions: their classes, and a model of given tensors."""

import copy
from typing import Any, TypeVar

import torch
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel

from ..model.configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from ..support.errors import InputError

Model = TypeVar("Model", bound=PreTrainedModel)

# Model types, and what the names of their classes begin with.
FAMILIES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "fixed_head_bert": "FixedHeadBert",
}


def head_of(architecture: str, model_type: str) -> str:
    """One of HEADS, what follows the family's name in the name of a model's class; another class is refused."""
    head = architecture.removeprefix(FAMILIES[model_type])
    head = "LMHeadModel" if head == "ForCausalLM" else head
    if head not in HEADS or head == architecture:
        raise InputError(
            f"{architecture} cannot be converted, only {FAMILIES[model_type]} with one of {', '.join(HEADS)}."
        )
    return head


def shared_fields(config: PreTrainedConfig) -> dict:
    """The fields of `config` that any BERT's can have, without the names of classes and versions."""
    shared = {*BertConfig.__dataclass_fields__, "labels_are_names"}
    own = ("architectures", "model_type", "transformers_version", "dtype")
    return {name: value for name, value in config.to_dict().items() if name in shared and name not in own}


def fixed_head_config(config: PreTrainedConfig) -> FixedHeadBertConfig:
    """
    The configuration of the FixedHeadBert with the function of a model with `config`.

    Raises:
        InputError: it is of none of FAMILIES, is quantized, or has relative positions.
    """
    if config.model_type not in FAMILIES:
        raise InputError(
            f"model_type {config.model_type!r} is not a BERT; {', '.join(FAMILIES)} and Google's TensorFlow "
            "checkpoints can be converted."
        )
    check_positions(config)
    if getattr(config, "quantization_config", None):
        raise InputError("quantization_config: quantized weights cannot be converted; give those it was made from.")
    if config.model_type == "fixed_head_bert":
        return FixedHeadBertConfig.from_dict(config.to_dict(), architectures=None)
    fields = shared_fields(config)
    if config.model_type != "bert":
        if config.pad_token_id is None:
            raise InputError("config.json has no pad_token_id, after which RoBERTa's positions begin; add it.")
        fields["max_position_embeddings"] -= config.pad_token_id + 1
    return FixedHeadBertConfig(**fields, attention_head_size=config.hidden_size // config.num_attention_heads)


def check_positions(config: PreTrainedConfig):
    """Refuse relative positions where transformers 5 has them no more, and would ignore the field."""
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    known = "position_embedding_type" in getattr(type(config), "__dataclass_fields__", ())
    if kind != "absolute" and not known:
        raise InputError(
            f"position_embedding_type {kind!r}: a {config.model_type} of transformers 5 has absolute positions alone, "
            "and would drop the weights of others; give a model with those."
        )


def build(
    model_class: type[Model],
    config: PreTrainedConfig,
    tensors: dict[str, torch.Tensor],
    like: PreTrainedModel | None = None,
) -> Model:
    """
    A model with exactly these tensors. Dtype, device, attention and settings of generation are as in `like`.

    Raises:
        InputError: the tensors are not the parameters of such a model.
    """
    options: dict[str, Any] = {}
    if like is not None:
        options = {"dtype": like.dtype, "attn_implementation": like.config._attn_implementation}
        if not any("pooler" in name for name in tensors) and model_class.__name__.endswith("BertModel"):
            options["add_pooling_layer"] = False
    options |= {"config": config, "state_dict": tensors, "output_loading_info": True}
    result: Any = model_class.from_pretrained(None, **options)  # its declared type is without output_loading_info
    model: Model
    model, loaded = result
    if loaded["missing_keys"] or loaded["unexpected_keys"] or loaded["mismatched_keys"]:
        raise InputError(f"the parameters do not belong to a {model_class.__name__}: {loaded}")
    if like is None:
        return model
    if like.can_generate():
        model.generation_config = copy.deepcopy(like.generation_config)
    return model.to(like.device)  # type: ignore[arg-type]  # transformers' decorator loses the method's signature
