"""
Exact numbers of parameters and floating-point operations (FLOPs) for a BERT or FixedHeadBert.

Symbols: width d, L layers, h heads of size p, feed-forward width F, sequence length n.
FLOPs count matrix products only, with two FLOPs per multiply-accumulate (MAC).
"""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, PreTrainedConfig


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer. v is the value size. `shared_projection` is True if all heads share one projection."""

    d: int
    h: int
    p: int
    v: int
    F: int
    shared_projection: bool = False

    @property
    def weights(self) -> int:
        """Number of weights in the attention projections and in the feed-forward network, without biases."""
        projections = 1 if self.shared_projection else self.h
        return self.d * (projections * (2 * self.p + self.v) + self.h * self.v + 2 * self.F)

    def macs_per_token(self, length: int) -> int:
        """Returns the MACs per token: one per weight, and `length` * h * (p + v) for attention."""
        return self.weights + length * self.h * (self.p + self.v)


def size_text(sizes: list[int]) -> str:
    """Formats one size per layer, or a single number if all are equal."""
    return str(sizes[0]) if len(set(sizes)) == 1 else ", ".join(map(str, sizes))


def layer_shapes(config: PreTrainedConfig) -> list[LayerShape]:
    """Returns the shape of each layer. Also supports models whose head size is width / number of heads."""
    d, L, shared = config.hidden_size, config.num_hidden_layers, bool(getattr(config, "head_embedding", None))
    heads = getattr(config, "head_counts", [config.num_attention_heads] * L)
    sizes = getattr(config, "head_sizes", [d // config.num_attention_heads] * L)
    value_sizes = getattr(config, "value_head_sizes", sizes)
    neurons = getattr(config, "neuron_counts", [config.intermediate_size] * L)
    return [LayerShape(d, *x, shared and x[0] > 0) for x in zip(heads, sizes, value_sizes, neurons, strict=True)]


def forward_flops(config: PreTrainedConfig, length: int) -> int:
    """Returns the layers' forward FLOPs per token in a sequence of `length` tokens."""
    return 2 * sum(layer.macs_per_token(length) for layer in layer_shapes(config))


def training_flops(config: PreTrainedConfig, length: int, predicted: float) -> float:
    """
    Returns the forward and backward FLOPs of BERT's pretraining model, with its pooler and both heads.

    Args:
        length: Number of tokens in the row.
        predicted: Number of tokens that enter the masked-LM head.
    """
    width = config.hidden_size
    heads = 2 * (predicted * (width**2 + width * config.vocab_size) + width**2 + 2 * width)
    return 3 * (length * forward_flops(config, length) + heads)


def parameters(config: PreTrainedConfig) -> tuple[int, int]:
    """
    Returns the number of parameters in the complete model and in its layers.

    The complete model has BERT's pretraining heads, as in Bhojanapalli et al. (2020), or a decoder's LM head.
    """
    auto_class = AutoModelForCausalLM if config.is_decoder else AutoModelForPreTraining
    with torch.device("meta"):
        model = auto_class.from_config(config)
    layers = model.base_model.encoder.layer
    return model.num_parameters(), sum(parameter.numel() for parameter in layers.parameters())
