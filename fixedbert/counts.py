"""
What a BERT or FixedHeadBert costs: parameters, floating-point operations, memory. The only formulas of it.

In the papers' symbols: width d, L layers, h heads of size p, feed-forward width F, sequences of n tokens. Operations
are matrix products, two for each multiplication and addition. What depends on h p here depends on the width
in BERT, where it is the same.
"""

import math
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, PreTrainedConfig

from .model.configuration_fixed_head_bert import FixedHeadBertConfig

PREDICTED = 0.15  # of the tokens, by BERT's recipe
PAPER_TOKENS = {128: 1024 * 128 * 450_000, 512: 1024 * 512 * 50_000}  # by length: Bhojanapalli et al., appendix C


@dataclass(frozen=True)
class LayerShape:
    """
    The sizes of one layer, v for values. With a shared projection all heads have the same queries, keys and values
    (MHE).
    """

    d: int
    h: int
    p: int
    v: int
    F: int
    shared_projection: bool = False

    @property
    def weights(self) -> int:
        """Number of weights in the layer's matrices, without biases: Q, K and V, W_o, and the feed-forward network."""
        projections = 1 if self.shared_projection else self.h
        return self.d * (projections * (2 * self.p + self.v) + self.h * self.v + 2 * self.F)

    def products(self, length: int) -> int:
        """Products for each token of a sequence of `length`: one per weight, and n h (p + v) for scores and mixing."""
        return self.weights + length * self.h * (self.p + self.v)

    @property
    def equivalent_width(self) -> float:
        """The width of a standard layer (12 d^2: heads of d in all, feed-forward 4 d) with as many weights."""
        return math.sqrt(self.weights / 12)


@dataclass(frozen=True)
class Shape:
    """The sizes of BERT's pretraining model: embeddings, layers, pooler, masked-LM and next-sentence heads."""

    d: int
    L: int
    h: int
    p: int
    F: int
    vocabulary: int = 30522
    positions: int = 512

    @property
    def layer(self) -> LayerShape:
        return LayerShape(self.d, self.h, self.p, self.p, self.F)

    @property
    def inner(self) -> int:
        return self.h * self.p

    @property
    def parameters(self) -> int:
        """Parameters, exactly as many as FixedHeadBertForPreTraining has."""
        layer = self.layer.weights + 3 * self.inner + self.F + 6 * self.d  # biases and LayerNorms
        embeddings = (self.vocabulary + self.positions + 2) * self.d + 2 * self.d
        pooler = self.d**2 + self.d
        predictions = self.d**2 + self.d + 2 * self.d + self.vocabulary  # the decoder is the embeddings' table
        return embeddings + self.L * layer + pooler + predictions + 2 * self.d + 2

    def forward_flops(self, length: int, predicted: float) -> float:
        """Forward FLOPs of one row of `length` tokens, `predicted` of them through the masked-LM head."""
        layers = 2 * self.L * self.layer.products(length) * length
        return layers + heads_flops(self.d, self.vocabulary, predicted)

    def training_flops(self, length: int, predicted: float) -> float:
        """FLOPs of forward and backward: a gradient for each of the two factors of every product."""
        return 3 * self.forward_flops(length, predicted)

    def memory(self, length: int, batch: int = 32) -> tuple[float, float]:
        """
        Bytes for training (float32 weights, gradients and Adam's two moments, activations of a batch, eager attention)
        and for inference (weights, one layer's activations). Estimates: what a framework keeps beside is left out.
        """
        floats = 6 * self.d + 4 * self.inner + 2 * self.h * length + 2 * self.F  # kept for each token by each layer
        head = PREDICTED * 2 * self.vocabulary
        tokens = batch * length
        return 16 * self.parameters + 4 * tokens * (self.L * floats + head), 4 * (self.parameters + tokens * floats)

    def paper_hours(self, flops_per_second: float) -> float:
        """Hours of the paper's recipe, both stages."""
        flops = sum(
            tokens / length * self.training_flops(length, PREDICTED * length)
            for length, tokens in PAPER_TOKENS.items()
        )
        return flops / flops_per_second / 3600

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


def head_sizes(config: PreTrainedConfig) -> list[int]:
    """The size of an attention head in each layer, of FixedHeadBert as of the models that tie it to the width."""
    if hasattr(config, "head_sizes"):
        return config.head_sizes
    return [config.hidden_size // config.num_attention_heads] * config.num_hidden_layers


def value_head_sizes(config: PreTrainedConfig) -> list[int]:
    """The size of a head's values in each layer."""
    return getattr(config, "value_head_sizes", None) or head_sizes(config)


def head_counts(config: PreTrainedConfig) -> list[int]:
    """The number of heads in each layer."""
    return getattr(config, "head_counts", None) or [config.num_attention_heads] * config.num_hidden_layers


def neuron_counts(config: PreTrainedConfig) -> list[int]:
    """The number of feed-forward neurons in each layer."""
    return getattr(config, "neuron_counts", None) or [config.intermediate_size] * config.num_hidden_layers


def size_text(sizes: list[int]) -> str:
    """Sizes by layer in words: one number where they are the same."""
    return str(sizes[0]) if len(set(sizes)) == 1 else ", ".join(map(str, sizes))


def layer_shapes(config: PreTrainedConfig) -> list[LayerShape]:
    d, shared = config.hidden_size, bool(getattr(config, "head_embedding", None))
    sizes = zip(head_counts(config), head_sizes(config), value_head_sizes(config), neuron_counts(config), strict=True)
    return [LayerShape(d, h, p, v, F, shared and h > 0) for h, p, v, F in sizes]


def forward_flops(config: PreTrainedConfig, length: int) -> int:
    """
    Floating-point operations of the layers for each token of a sequence of `length`. A training step takes three times
    as many.
    """
    return 2 * sum(layer.products(length) for layer in layer_shapes(config))


def heads_flops(width: int, vocabulary: int, predicted: float) -> float:
    """Forward FLOPs of pooler, masked-LM and next-sentence head for a row with `predicted` tokens to predict."""
    return 2 * (predicted * (width**2 + width * vocabulary) + width**2 + 2 * width)


def training_flops(config: PreTrainedConfig, length: int, predicted: float) -> float:
    """
    Training FLOPs, forward and backward, of BERT's pretraining model for one row of `length` tokens, `predicted` of
    them through the masked-LM head.
    """
    heads = heads_flops(config.hidden_size, config.vocab_size, predicted)
    return 3 * (length * forward_flops(config, length) + heads)


def parameters(config: PreTrainedConfig) -> tuple[int, int]:
    """
    Parameters with the heads of pretraining, and of the layers alone, counted on the model without allocating it.

    The first is what the paper's tables count: embeddings, layers, pooler, masked-LM and next-sentence heads; of a
    decoder, embeddings, layers and the language-model head.
    """
    auto_class = AutoModelForCausalLM if config.is_decoder else AutoModelForPreTraining
    with torch.device("meta"):
        model = auto_class.from_config(config)
    layers = model.base_model.encoder.layer
    return model.num_parameters(), sum(parameter.numel() for parameter in layers.parameters())
