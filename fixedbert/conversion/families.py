"""The families of models that are BERT but for names and positions: their classes, and a model of given tensors."""

import copy
from typing import Any, TypeVar

import torch
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel

from ..model.configuration_fixed_head_bert import HEADS, FixedHeadBertConfig
from ..support.errors import InputError
from .weights import LOADING

Model = TypeVar("Model", bound=PreTrainedModel)

# Model types, and what the names of their classes begin with.
FAMILIES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "fixed_head_bert": "FixedHeadBert",
}
ROBERTAS = ("roberta", "xlm-roberta", "camembert")  # whose positions begin after pad_token_id
DISTILBERT_FIELDS = {  # by BERT's names
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
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


def fixed_head_config(config: PreTrainedConfig, architecture: str | None = None) -> FixedHeadBertConfig:
    """
    The configuration of the FixedHeadBert with the function of a model with `config`.

    Args:
        architecture: the name of the model's class, where it is known.

    Raises:
        InputError: it is of none of FAMILIES, is quantized, or has relative positions; or the class is none that can
            be converted.
    """
    if config.model_type not in FAMILIES:
        raise InputError(
            f"model_type {config.model_type!r} is not a BERT; {', '.join(FAMILIES)} and Google's TensorFlow "
            "checkpoints can be converted."
        )
    check_positions(config)
    if getattr(config, "quantization_config", None):
        raise InputError("quantization_config: quantized weights cannot be converted; give those it was made from.")
    head = head_of(architecture, config.model_type) if architecture else None
    if config.model_type == "fixed_head_bert":
        return FixedHeadBertConfig.from_dict(config.to_dict(), architectures=None)
    fields = shared_fields(config)
    if config.model_type in ROBERTAS:
        if config.pad_token_id is None:
            raise InputError("config.json has no pad_token_id, after which RoBERTa's positions begin; add it.")
        fields["max_position_embeddings"] -= config.pad_token_id + 1
    elif config.model_type == "distilbert":
        fields |= {name: getattr(config, own) for name, own in DISTILBERT_FIELDS.items()}
        fields["pooler_hidden_act"] = "relu"
        if head in ("ForSequenceClassification", "ForMultipleChoice"):
            fields["classifier_dropout"] = config.seq_classif_dropout
    elif config.model_type == "electra":
        fields["pooler_hidden_act"] = "gelu"
        check_electra(config, head)
    return FixedHeadBertConfig(**fields, attention_head_size=config.hidden_size // config.num_attention_heads)


def check_electra(config: PreTrainedConfig, head: str | None):
    """Refuse an ELECTRA with a head whose function no BERT has."""
    if head and config.embedding_size != config.hidden_size:
        raise InputError(
            f"embedding_size {config.embedding_size}: a BERT has embeddings of its hidden_size, {config.hidden_size}; "
            "give an ELECTRA with such, of the size base or large."
        )
    if head in ("ForPreTraining", "ForMultipleChoice"):
        raise InputError(
            f"Electra{head}: no BERT has this head; give ElectraModel as `architecture` of fixedbert convert."
        )
    if head in ("ForMaskedLM", "LMHeadModel") and config.hidden_act != "gelu":
        raise InputError(
            f"hidden_act {config.hidden_act!r}: ELECTRA's prediction head has gelu, and BERT's has that of the layers."
        )


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
    with LOADING:
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
