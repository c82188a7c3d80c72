"""The number and sizes of the attention heads in each layer."""

from typing import NamedTuple

from ..model.configuration_fixed_head_bert import FixedHeadBertConfig


class Heads(NamedTuple):
    """Attention heads in one layer: their number, the size of their queries and keys, and the size of their values."""

    num_heads: int
    size: int
    value_size: int

    def __str__(self) -> str:
        values = "" if self.value_size == self.size else f" with values of size {self.value_size}"
        return f"{self.num_heads} {'head' if self.num_heads == 1 else 'heads'} of size {self.size}{values}"


def heads_of(config: FixedHeadBertConfig) -> list[Heads]:
    """Returns the number and sizes of the attention heads in each layer."""
    return [*map(Heads, config.head_counts, config.head_sizes, config.value_head_sizes)]


def int_or_list(sizes: list[int]) -> int | list[int]:
    """Returns a single number if all layers have the same size, otherwise the list. Both are valid in the config."""
    return sizes[0] if len(set(sizes)) == 1 else sizes


def set_heads(config: FixedHeadBertConfig, heads: list[Heads]):
    """Sets the number and sizes of the attention heads in each layer of a configuration."""
    counts, sizes, value_sizes = (list(numbers) for numbers in zip(*heads, strict=True))
    config.num_attention_heads = max(1, *counts)  # the field must be positive even if no layer has heads
    config.layer_attention_heads = counts if set(counts) != {config.num_attention_heads} else None
    config.attention_head_size = int_or_list(sizes)
    config.value_head_size = None if value_sizes == sizes else int_or_list(value_sizes)
