"""Supported model families: their configurations and parameter names, and a function that builds a model."""

import copy
import re
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel

from ..model.configuration_fixed_head_bert import HEAD_SIZE_NAMES, HEADS, FixedHeadBertConfig
from ..support.errors import InputError

Model = TypeVar("Model", bound=PreTrainedModel)

# Class name prefix for each model type.
FAMILIES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "fixed_head_bert": "FixedHeadBert",
}
ROBERTAS = ("roberta", "xlm-roberta", "camembert")
# In these models, position ids start at pad_token_id + 1, so real tokens do not use the first position embeddings.
OFFSET_POSITIONS = (
    *ROBERTAS, "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta-prelayernorm", "xlm-roberta-xl",
    "xmod",
)  # fmt: skip
DISTILBERT_FIELDS = {  # names of configuration fields in BERT and DistilBERT
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
# Fields that a converted model does not keep: they describe the original's class, code, weights and attention.
DROPPED_FIELDS = {
    *HEAD_SIZE_NAMES, "architectures", "auto_map", "dtype", "model_type", "num_key_value_heads",
    "position_embedding_type", "pruned_heads", "quantization_config", "torch_dtype", "_name_or_path",
    # Of Google's checkpoints, read by no library.
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type",
}  # fmt: skip
# Patterns for parameter names in RoBERTa, DistilBERT and ELECTRA, and their replacements in BERT. The first layer of
# these models' classification heads corresponds to BERT's pooler.
BERT_NAMES = (
    (r"^(roberta|distilbert|electra)\.", "bert."),
    (r"^lm_head\.(bias|decoder)", r"cls.predictions.\1"),
    (r"^lm_head\.dense", "cls.predictions.transform.dense"),
    (r"^lm_head\.layer_norm", "cls.predictions.transform.LayerNorm"),
    (r"^classifier\.dense", "bert.pooler.dense"),
    (r"^classifier\.out_proj", "classifier"),
    (r"transformer\.layer\.", "encoder.layer."),
    (r"attention\.q_lin", "attention.self.query"),
    (r"attention\.k_lin", "attention.self.key"),
    (r"attention\.v_lin", "attention.self.value"),
    (r"attention\.out_lin", "attention.output.dense"),
    (r"sa_layer_norm", "attention.output.LayerNorm"),
    (r"ffn\.lin1", "intermediate.dense"),
    (r"ffn\.lin2", "output.dense"),
    (r"output_layer_norm", "output.LayerNorm"),
    (r"^(vocab_transform|generator_predictions\.dense)", "cls.predictions.transform.dense"),
    (r"^(vocab_layer_norm|generator_predictions\.LayerNorm)", "cls.predictions.transform.LayerNorm"),
    (r"^(vocab_projector|generator_lm_head)\.weight", "cls.predictions.decoder.weight"),
    (r"^(vocab_projector|generator_lm_head)\.bias", "cls.predictions.bias"),
    (r"^pre_classifier", "bert.pooler.dense"),
)


def task_head(architecture: str, model_type: str) -> str:
    """
    Returns the task head in a class name, such as "ForMaskedLM" for "BertForMaskedLM". It is one of HEADS.

    Classes of other model types than those in FAMILIES may begin with any prefix.
    """
    match = re.fullmatch(FAMILIES.get(model_type, r"\w*?") + r"(Model|LMHeadModel|For[A-Z]\w+)", architecture)
    head = match[1].replace("ForCausalLM", "LMHeadModel") if match else ""
    if head not in HEADS:
        names = ", ".join(FAMILIES.get(model_type, "*") + head for head in HEADS)
        remedy = "correct config.json, or pass `architecture` to fixedbert convert"
        raise InputError(f"the class {architecture} is not one of {names}; {remedy}.")
    return head


def shared_fields(config: PreTrainedConfig) -> dict:
    """
    Returns the fields that `config` shares with BertConfig, and those of other libraries, which transformers does not
    know. The fields that describe the weights and the code on disk are left out.
    """
    known, own = {*BertConfig.__dataclass_fields__}, {*type(config).__dataclass_fields__}
    dropped = (known ^ own) | ({*FixedHeadBertConfig.__dataclass_fields__} - known) | DROPPED_FIELDS
    return {name: value for name, value in config.to_dict().items() if name not in dropped}


def fixed_head_config(config: PreTrainedConfig, architecture: str | None = None) -> FixedHeadBertConfig:
    """
    Returns a FixedHeadBert configuration that can represent every model with the configuration `config`.

    Args:
        architecture: Class name of the model. If it is passed, its task head is also checked.

    Raises:
        InputError: If the model type is not in FAMILIES, the model has relative positions, its width is not a multiple
            of its number of attention heads, or BERT has no equivalent task head.
    """
    if config.model_type not in FAMILIES:
        names = ", ".join(FAMILIES)
        raise InputError(f"only models of type {names} can be converted to a FixedHeadBert, not {config.model_type}.")
    check_config(config)
    head = task_head(architecture, config.model_type) if architecture else None
    if config.model_type == "fixed_head_bert":
        return FixedHeadBertConfig.from_dict(config.to_dict(), architectures=None)
    fields = shared_fields(config)
    fields["max_position_embeddings"] = max_tokens(config)
    if config.model_type == "distilbert":
        fields |= {name: getattr(config, distilbert_name) for name, distilbert_name in DISTILBERT_FIELDS.items()}
        fields["pooler_hidden_act"] = "relu"
        if head in ("ForSequenceClassification", "ForMultipleChoice"):
            fields["classifier_dropout"] = config.seq_classif_dropout
    elif config.model_type == "electra":
        fields["pooler_hidden_act"] = "gelu"
        check_electra(config, head)
    is_language_model = head in ("ForMaskedLM", "LMHeadModel")
    if is_language_model and config.model_type in (*ROBERTAS, "electra") and config.hidden_act != "gelu":
        raise InputError(
            f"a language model of type {config.model_type} with hidden_act {config.hidden_act} cannot be converted, "
            f"because its prediction head always uses gelu, and BERT's would use {config.hidden_act}."
        )
    return FixedHeadBertConfig(**fields, attention_head_size=config.hidden_size // config.num_attention_heads)


def check_electra(config: PreTrainedConfig, head: str | None):
    """Raises InputError if BERT cannot represent the ELECTRA model."""
    if head and config.embedding_size != config.hidden_size:
        raise InputError("embedding_size and hidden_size differ; use a base or large ELECTRA.")
    if head in ("ForPreTraining", "ForMultipleChoice"):
        raise InputError(
            f"BERT has no equivalent of Electra{head}; set `architecture` to ElectraModel to convert only the encoder."
        )


def check_config(config: PreTrainedConfig):
    """
    Raises InputError if transformers 5 would ignore relative positions, a size is not a positive number, or BERT's
    heads do not divide its width.
    """
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    supported = "position_embedding_type" in getattr(type(config), "__dataclass_fields__", ())
    if kind != "absolute" and not supported:
        raise InputError(f"position_embedding_type {kind!r} is no longer supported by transformers 5.")
    if config.model_type not in FAMILIES or config.model_type == "fixed_head_bert":  # which checks its own sizes
        return
    for name in SIZES:
        size = getattr(config, name, 1)
        if not isinstance(size, int) or size < 1:
            raise InputError(f"config.json has {name} {size!r}, but it must be a whole number of at least 1.")
    if config.hidden_size % config.num_attention_heads:
        needed = f"{config.model_type} models need a multiple of num_attention_heads ({config.num_attention_heads})"
        raise InputError(f"config.json has hidden_size {config.hidden_size}, but {needed}.")


def max_tokens(config: PreTrainedConfig) -> int:
    """
    Returns the maximum sequence length that the position embeddings allow.

    Raises:
        InputError: If the model numbers positions from `pad_token_id`, as RoBERTa does, but config.json has none.
    """
    if config.model_type not in OFFSET_POSITIONS:
        return config.max_position_embeddings
    if config.pad_token_id is None:
        raise InputError(f"config.json has no pad_token_id, from which {config.model_type} numbers positions; add it.")
    return config.max_position_embeddings - config.pad_token_id - 1


def check_length(max_seq_length: int, config: PreTrainedConfig):
    """Raises InputError if the model cannot read this many tokens."""
    if max_seq_length > (longest := max_tokens(config)):
        raise InputError(
            f"{max_seq_length}: the model reads at most {longest} tokens; for a new model, increase "
            "max_position_embeddings with `config_overrides`.",
            "max_seq_length",
        )


def build_model(
    model_class: type[Model], config: PreTrainedConfig, tensors: dict[str, Tensor], like: PreTrainedModel
) -> Model:
    """
    Builds a model from tensors. Copies dtype, device, attention implementation and generation settings from `like`.

    Raises:
        InputError: If the tensors do not match the parameters of the model class.
    """
    options: dict[str, Any] = {"dtype": like.dtype, "attn_implementation": like.config._attn_implementation}
    if not any("pooler" in name for name in tensors) and model_class.__name__.endswith("BertModel"):
        options["add_pooling_layer"] = False
    options |= {"config": config, "state_dict": tensors, "output_loading_info": True}
    result: Any = model_class.from_pretrained(None, **options)  # its annotation ignores output_loading_info
    model: Model
    model, info = result
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise InputError(f"the tensors do not match the parameters of {model_class.__name__}: {info}")
    if like.can_generate():
        model.generation_config = copy.deepcopy(like.generation_config)
    return model.to(like.device)  # type: ignore[arg-type]  # transformers' decorator hides the signature


def bert_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the parameters of `model` as a dictionary with BERT's parameter names."""
    tensors = model.state_dict()
    if model.config.model_type in ("bert", "fixed_head_bert"):
        return tensors
    for pattern, name in BERT_NAMES:
        tensors = {re.sub(pattern, name, old): tensor for old, tensor in tensors.items()}
    positions = next(name for name in tensors if name.endswith("position_embeddings.weight"))
    if model.config.model_type == "distilbert":  # has no token types, but BERT's tokenizers return them
        tensors[positions.replace("position", "token_type")] = torch.zeros_like(tensors[positions][:2])
    if model.config.model_type in ROBERTAS:
        tensors[positions] = tensors[positions][model.config.pad_token_id + 1 :]
    return tensors
