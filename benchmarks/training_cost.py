"""Floating-point operations (FLOPs) of a training step."""

from transformers import PreTrainedConfig

from fixedbert.counts import forward_flops


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
