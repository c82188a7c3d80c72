"""
average: every token names q tokens, and has to output the mean of their vectors.

Each of n tokens has a position, a vector z of standard normal numbers, and a set S of q positions drawn uniformly; its
output is the mean of z over S. The input is the one-hot position, S as n zeros and ones, and z. The model is one
attention layer with W_o; with `mlp` > 0 an MLP of that width is added to its input, x + MLP(x), so that queries can be
any function of S. The size of queries and keys varies, values have the size of z.

Prediction with the MLP: size 2 q suffices for any n, with keys on the moment curve, because any q vertices of a cyclic
polytope in 2 q dimensions are a face of it. With (cos t, sin t, ..., cos q t, sin q t), t = 2 pi i / n, and scores -c
prod_{s in S} (1 - cos(t - t_s)), which are 0 on S and negative elsewhere, the error is the tail of a softmax (proved
by the product, and tested in float64). An order of q is necessary. Without the MLP queries are linear in S, and only
an order of q log n is claimed to suffice, or n with one-hot keys. The constant is unknown: the line is at the smaller
of q log2 n and n, and only the scaling with q can be tested.

Sources: Sanford, Hsu and Telgarsky, 2023 (arXiv 2306.02896), q-sparse averaging. Checked in the abstract: sizes grow
only with the logarithm of n, and a large embedding is necessary. The bounds above are recalled. Wang et al., 2026
(arXiv 2601.20844). Checked in the abstract: the least dimension in which scores find every set of at most k of m
vectors is of order k for any m, by cyclic polytopes; that 2 k suffices is its title. Neither claims that training
finds such weights. They need c to be several times one over the least product, which is 5e-9 for q = 8 of 32
positions: in float32, rounding then changes the scores on S by far more than one.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import InputError

from .training import SyntheticTask


class Average(SyntheticTask):
    """
    Args:
        config: configuration of the attention; its width must hold positions, sets and vectors.
        length: n.
        subset: q.
        mlp: width of the MLP; 0 for none.
    """

    positions: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, subset: int, mlp: int = 0):
        super().__init__(config)
        self.length, self.subset, self.size = length, subset, config.value_head_sizes[0]
        if config.hidden_size < 2 * length + self.size:
            raise InputError(f"average: hidden_size must be at least {2 * length + self.size}.")
        self.variance, self.null = self.size / subset, 1 - subset / length  # the mean of all vectors
        self.threshold, self.order = (2.0 * subset, None) if mlp else (None, min(subset * math.log2(length), length))
        width = config.hidden_size
        self.mlp: nn.Sequential | None = None
        if mlp:
            last = nn.Linear(mlp, width)
            nn.init.zeros_(last.weight)  # the input map starts as the identity
            self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.ReLU(), last)
        self.attention = FixedHeadBertVariantSelfAttention(config)
        for projection in (self.attention.query, self.attention.key):
            nn.init.normal_(projection.weight[:, : 2 * length], std=0.2)  # larger weights learned less in trials
            nn.init.zeros_(projection.weight[:, 2 * length :])  # attention starts without the vectors
        self.output = nn.Linear(self.attention.all_head_size, self.size)
        self.register_buffer("positions", torch.eye(length))

    def forward(self, sets: Tensor, vectors: Tensor) -> Tensor:
        """Sets (B, n, n) of zeros and ones and vectors (B, n, V) -> (B, n, V)."""
        x = torch.cat([self.positions.expand(len(sets), -1, -1), sets, vectors], dim=-1)
        x = pad(x, (0, self.config.hidden_size - x.shape[-1]))
        if self.mlp is not None:
            x = x + self.mlp(x)
        return self.output(self.attention(x)[0])

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        order = torch.rand(rows, self.length, self.length, generator=generator).argsort(dim=-1)
        sets = one_hot(order[..., : self.subset], self.length).sum(dim=-2).float()  # (B, n, n)
        vectors = torch.randn(rows, self.length, self.size, generator=generator)
        return (sets, vectors), sets @ vectors / self.subset
