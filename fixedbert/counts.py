"""
Exact numbers of parameters and floating-point operations (FLOPs) for a BERT or FixedHeadBert.

Symbols: width d, L layers, h heads of size p, feed-forward width F, sequence length n.
FLOPs count matrix products only, with two FLOPs per multiply-accumulate (MAC).
"""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, PreTrainedConfig

from .model.configuration_fixed_head_bert import FixedHeadBertConfig

PREDICTED = 0.15  # fraction of tokens that BERT predicts in pretraining


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


@dataclass(frozen=True)
class Shape:
    """Sizes of BERT's pretraining model: embeddings, L identical layers, pooler, masked-LM and next-sentence heads."""

    d: int
    L: int
    h: int
    p: int
    F: int
    vocabulary: int = 30522
    positions: int = 512

    def __str__(self) -> str:
        return f"{self.L} layers of width {self.d}, {self.h} heads of size {self.p}, feed-forward {self.F}"

    @property
    def layer(self) -> LayerShape:
        return LayerShape(self.d, self.h, self.p, self.p, self.F)

    @property
    def parameters(self) -> int:
        """Number of parameters in a FixedHeadBertForPreTraining with this shape."""
        layer = self.layer.weights + 3 * self.h * self.p + self.F + 6 * self.d  # with biases and LayerNorms
        embeddings = (self.vocabulary + self.positions + 2) * self.d + 2 * self.d
        pooler = self.d**2 + self.d
        predictions = self.d**2 + self.d + 2 * self.d + self.vocabulary  # the decoder is tied to the embeddings
        return embeddings + self.L * layer + pooler + predictions + 2 * self.d + 2

    def forward_flops(self, length: int, predicted: float) -> float:
        """Returns the forward FLOPs for a row of `length` tokens, `predicted` of which enter the masked-LM head."""
        layers = 2 * self.L * self.layer.macs_per_token(length) * length
        return layers + heads_flops(self.d, self.vocabulary, predicted)

    def training_flops(self, length: int, predicted: float) -> float:
        """Returns forward and backward FLOPs. The backward pass computes gradients of both factors of each product."""
        return 3 * self.forward_flops(length, predicted)

    def config(self) -> FixedHeadBertConfig:
        return FixedHeadBertConfig(
            hidden_size=self.d,
            num_hidden_layers=self.L,
            num_attention_heads=self.h,
            attention_head_size=self.p,
            intermediate_size=self.F,
            vocab_size=self.vocabulary,
            max_position_embeddings=self.positions,
        )


def shape_of(config: FixedHeadBertConfig) -> Shape:
    """Returns the shape of a model with identical layers."""
    layer, positions = layer_shapes(config)[0], config.max_position_embeddings
    return Shape(layer.d, config.num_hidden_layers, layer.h, layer.p, layer.F, config.vocab_size, positions)


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


def heads_flops(width: int, vocabulary: int, predicted: float) -> float:
    """Returns the forward FLOPs of the pooler and both task heads for a row with `predicted` labels."""
    return 2 * (predicted * (width**2 + width * vocabulary) + width**2 + 2 * width)


def training_flops(config: PreTrainedConfig, length: int, predicted: float) -> float:
    """Returns the training FLOPs of BERT's pretraining model for a row of `length` tokens with `predicted` labels."""
    heads = heads_flops(config.hidden_size, config.vocab_size, predicted)
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
