"""
average: each token names q tokens and must output the average of their vectors.

Each of the n tokens has a position, a vector z of standard normal numbers, and a set S of q positions drawn uniformly.
Its target is the average of z over S. The input concatenates the one-hot position, S as n zeros and ones, and z. The
model is one attention layer with W_o. With `mlp` > 0, an MLP of that width is added to the input, x + MLP(x), so that
queries can be any function of S. Studies vary the query and key size. The value size equals the size of z.

Prediction with the MLP: size 2 q suffices for any n. The keys lie on the curve (cos t, sin t, ..., cos q t, sin q t),
t = 2 pi i / n, on which any q points are the vertices of a face (cyclic polytopes). The scores -c prod_{s in S} (1 -
cos(t - t_s)) are 0 on S and negative elsewhere, so the error is the tail of a softmax (tested in float64). A size of
order q is necessary. Without the MLP, queries are linear in S, and theory claims only that a size of order q log n
suffices, or a size of n with one-hot keys. The constant is unknown, so figures show the smaller of q log2 n and n, and
only the scaling with q can be tested.

Sources: Sanford, Hsu and Telgarsky, 2023 (arXiv 2306.02896), q-sparse averaging. Its abstract confirms that sizes grow
only with the logarithm of n, and that a large embedding is necessary. The bounds above are quoted from memory. Wang et
al., 2026 (arXiv 2601.20844). Its abstract confirms that scores that retrieve every set of at most k of m vectors need
a dimension of order k for any m; its title states that 2 k suffices. Neither paper claims that training reaches such
weights. For them, c must be several times the inverse of the smallest product, which is 5e-9 for q = 8 and 32
positions. With such a large c, rounding in float32 changes the scores on S by far more than one.
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
    The task and an attention layer that is trained on it.

    Args:
        config: Configuration of the attention layer. Its width must be at least the size of the input.
        length: Number of tokens n.
        subset: Number of positions q in each set.
        mlp: Width of the MLP, or 0 for no MLP.
    """

    positions: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, subset: int, mlp: int = 0):
        super().__init__(config)
        self.length, self.subset, self.size = length, subset, config.value_head_sizes[0]
        if config.hidden_size < 2 * length + self.size:
            raise InputError(f"average: hidden_size must be at least {2 * length + self.size}.")
        self.variance, self.null = self.size / subset, 1 - subset / length  # null: predicting the overall average
        self.threshold, self.order = (2.0 * subset, None) if mlp else (None, min(subset * math.log2(length), length))
        width = config.hidden_size
        self.mlp: nn.Sequential | None = None
        if mlp:
            last = nn.Linear(mlp, width)
            nn.init.zeros_(last.weight)  # x + MLP(x) starts as the identity
            self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.ReLU(), last)
        self.attention = FixedHeadBertVariantSelfAttention(config)
        for projection in (self.attention.query, self.attention.key):
            nn.init.normal_(projection.weight[:, : 2 * length], std=0.2)  # larger initial weights trained worse
            nn.init.zeros_(projection.weight[:, 2 * length :])  # scores initially ignore the vectors
        self.output = nn.Linear(self.attention.all_head_size, self.size)
        self.register_buffer("positions", torch.eye(length))

    def forward(self, sets: Tensor, vectors: Tensor) -> Tensor:
        """Returns predicted averages (B, n, V) for sets (B, n, n) of zeros and ones and vectors (B, n, V)."""
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
