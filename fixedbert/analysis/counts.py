"""Parameters and floating-point operations of a BERT or FixedHeadBert, exactly, from its configuration."""

import torch
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, PreTrainedConfig


def head_sizes(config: PreTrainedConfig) -> list[int]:
    """The size of an attention head in each layer, of FixedHeadBert as of the models that tie it to the width."""
    if hasattr(config, "head_sizes"):
        return config.head_sizes
    return [config.hidden_size // config.num_attention_heads] * config.num_hidden_layers


def size_text(sizes: list[int]) -> str:
    """Head sizes by layer in words: one number where they are the same."""
    return str(sizes[0]) if len(set(sizes)) == 1 else ", ".join(map(str, sizes))


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
    D, F, H = config.hidden_size, config.intermediate_size, config.num_attention_heads
    projections = 1 if getattr(config, "head_embedding", None) else H
    products = sum(3 * D * projections * P + H * P * D + 2 * length * H * P + 2 * D * F for P in head_sizes(config))
    return 2 * products
