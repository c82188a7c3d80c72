"""Model families that differ from BERT only in names and positions, and models built from tensors."""

import copy
from typing import Any, TypeVar

import torch
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel

from ..model.configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from ..support.errors import InputError
from .weights import LOADING

Model = TypeVar("Model", bound=PreTrainedModel)

# Prefix of the class names, by model type.
FAMILIES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "fixed_head_bert": "FixedHeadBert",
}
ROBERTAS = ("roberta", "xlm-roberta", "camembert")  # their positions start after pad_token_id
DISTILBERT_FIELDS = {  # by BERT's names
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}


def task_head(architecture: str, model_type: str) -> str:
    """Returns the task head in a class name, one of HEADS: "ForMaskedLM" for "BertForMaskedLM"."""
    head = architecture.removeprefix(FAMILIES[model_type])
    head = "LMHeadModel" if head == "ForCausalLM" else head
    if head not in HEADS or head == architecture:
        raise InputError(
            f"{architecture} cannot be converted; pass {FAMILIES[model_type]} followed by one of {', '.join(HEADS)} "
            "as `architecture` to fixedbert convert."
        )
    return head


def shared_fields(config: PreTrainedConfig) -> dict:
    """Returns the fields that `config` shares with BertConfig, except class names and versions."""
    shared = {*BertConfig.__dataclass_fields__} - {"architectures", "model_type", "transformers_version", "dtype"}
    return {name: value for name, value in config.to_dict().items() if name in shared}


def fixed_head_config(config: PreTrainedConfig, architecture: str | None = None) -> FixedHeadBertConfig:
    """
    Returns the configuration of the FixedHeadBert that computes the same function as a model with `config`.

    Args:
        architecture: the name of the model's class, if known.

    Raises:
        InputError: the model is in none of FAMILIES, is quantized, or has relative positions or a task head that BERT
            lacks.
    """
    if config.model_type not in FAMILIES:
        raise InputError(f"model_type {config.model_type!r} is not supported, only {', '.join(FAMILIES)}.")
    check_positions(config)
    if getattr(config, "quantization_config", None):
        raise InputError("quantized weights cannot be converted; use the original weights.")
    head = task_head(architecture, config.model_type) if architecture else None
    if config.model_type == "fixed_head_bert":
        return FixedHeadBertConfig.from_dict(config.to_dict(), architectures=None)
    fields = shared_fields(config)
    if config.model_type in ROBERTAS:
        if config.pad_token_id is None:
            raise InputError("config.json has no pad_token_id, after which RoBERTa's positions start; add it.")
        fields["max_position_embeddings"] -= config.pad_token_id + 1
    elif config.model_type == "distilbert":
        fields |= {name: getattr(config, distilbert_name) for name, distilbert_name in DISTILBERT_FIELDS.items()}
        fields["pooler_hidden_act"] = "relu"
        if head in ("ForSequenceClassification", "ForMultipleChoice"):
            fields["classifier_dropout"] = config.seq_classif_dropout
    elif config.model_type == "electra":
        fields["pooler_hidden_act"] = "gelu"
        check_electra(config, head)
    return FixedHeadBertConfig(**fields, attention_head_size=config.hidden_size // config.num_attention_heads)


def check_electra(config: PreTrainedConfig, head: str | None):
    """Raises InputError if no BERT computes the same function as this ELECTRA."""
    if head and config.embedding_size != config.hidden_size:
        raise InputError("embedding_size and hidden_size differ; use an ELECTRA of size base or large.")
    if head in ("ForPreTraining", "ForMultipleChoice"):
        raise InputError(f"BERT has no head like Electra{head}'s; convert it with `architecture` ElectraModel.")
    if head in ("ForMaskedLM", "LMHeadModel") and config.hidden_act != "gelu":
        raise InputError("the prediction head of BERT uses hidden_act, but ELECTRA's uses gelu; they must be equal.")


def check_positions(config: PreTrainedConfig):
    """Raises InputError for relative positions if transformers 5 would ignore them."""
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    supported = "position_embedding_type" in getattr(type(config), "__dataclass_fields__", ())
    if kind != "absolute" and not supported:
        raise InputError(f"position_embedding_type {kind!r} is no longer supported by transformers 5.")


def build_model(
    model_class: type[Model], config: PreTrainedConfig, tensors: dict[str, torch.Tensor], like: PreTrainedModel
) -> Model:
    """
    Builds a model from tensors. Dtype, device, attention implementation and generation settings come from `like`.

    Raises:
        InputError: the tensors are not the parameters of such a model.
    """
    options: dict[str, Any] = {"dtype": like.dtype, "attn_implementation": like.config._attn_implementation}
    if not any("pooler" in name for name in tensors) and model_class.__name__.endswith("BertModel"):
        options["add_pooling_layer"] = False
    options |= {"config": config, "state_dict": tensors, "output_loading_info": True}
    with LOADING:
        result: Any = model_class.from_pretrained(None, **options)  # annotated without output_loading_info
    model: Model
    model, info = result
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise InputError(f"the tensors are not the parameters of a {model_class.__name__}: {info}")
    if like.can_generate():
        model.generation_config = copy.deepcopy(like.generation_config)
    return model.to(like.device)  # type: ignore[arg-type]  # transformers' decorator loses the method's signature
