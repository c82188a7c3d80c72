"""Parameters and floating-point operations of a BERT or FixedHeadBert, exactly, from its configuration."""

import torch
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, PreTrainedConfig


def head_size(config: PreTrainedConfig) -> int:
    """The size of an attention head, of FixedHeadBert as of the models that tie it to the width."""
    return getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)


def parameters(config: PreTrainedConfig) -> tuple[int, int]:
    """
    Parameters with the heads of pretraining, and those of the layers alone.

    The first is what the paper's tables count: embeddings, layers, pooler, masked-LM and next-sentence heads; of a
    decoder, embeddings, layers and the language-model head.
    """
    auto_class = AutoModelForCausalLM if config.is_decoder else AutoModelForPreTraining
    with torch.device("meta"):
        model = auto_class.from_config(config)
    layers = model.base_model.encoder.layer
    return model.num_parameters(), sum(parameter.numel() for parameter in layers.parameters())


def forward_flops(config: PreTrainedConfig, length: int) -> int:
    """
    Floating-point operations of the layers for each token of a sequence of `length`, in matrix products: two for each
    multiplication and addition. A training step takes three times as many.

    Width, heads, head size and feed-forward width are D, H, P and F: D H P for each of the four projections (D P for
    queries, keys and values that all heads share), 2 length H P for scores and mixing, 2 D F for the feed-forward
    network. What depends on H P here depends on the width in BERT, where it is the same.
    """
    D, F = config.hidden_size, config.intermediate_size
    inner = config.num_attention_heads * head_size(config)
    projected = head_size(config) if getattr(config, "head_embedding", None) else inner
    layer = 3 * D * projected + inner * D + 2 * length * inner + 2 * D * F
    return 2 * config.num_hidden_layers * layer
