"""
nearest: every query has to give the one of n points that is nearest to it.

Points and queries are unit vectors, drawn uniformly in d dimensions; of the points the nearest to a query has an inner
product with it that is larger by at least 0.1 than any other's. (Among the points themselves there would be
nothing to find: the inner product of a unit vector with itself is the largest.) The model is attention alone, without
residual, feed-forward network or LayerNorm. In its last layer queries see the points alone; in one before it also
themselves, as without a residual nothing else keeps them, and points see the points.

The null line, 1, is the best constant; the mean of the points is hardly better (0.97 of 16 in 16 dimensions).

Prediction: one head of size d suffices, for any number of points: W_q, W_k proportional to the identity, W_v and W_o
the identity, with an error of at most 4 (n - 1)^2 e^(-2 gap t) for scores t <x, y>. Heads of a smaller size cannot
do it in one layer unless there are exponentially many of them; depth helps for few points (Amsel, Yehudai and Bruna,
"On the Benefits of Rank in Attention Layers", 2024, arXiv 2407.16153; at ICLR 2025 as "Quality over Quantity in
Attention Layers: When Adding More Heads Hurts"). Checked in the abstract: this statement, without constants. By the
paper's contents the exponential number is proved for a biased form of the function; for the function itself a summary
names a power of d / r that grows with the accuracy. How many heads and layers depth needs could not be checked;
here are two. That its values are of full rank, as here by `value_head_size`, is recalled, and so is that their
construction by depth changes the positions.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import InputError

from .training import SyntheticTask

GAP = 0.1
CANDIDATES = 4  # drawn for each query
DRAWS = 100  # if none has enough queries with a gap, it is too rare


class Nearest(SyntheticTask):
    """
    Args:
        config: of the attention; its width has room for a vector and for whether it is a query.
        length: tokens, half of them points, half of them queries.
        dimension: d.
    """

    seen: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, dimension: int = 16):
        super().__init__(config)
        if config.hidden_size <= dimension:
            raise InputError(f"nearest: hidden_size {config.hidden_size}: more than the dimension, {dimension}.")
        if length < 4 or dimension < 2:
            raise InputError(f"nearest: {length} tokens in {dimension} dimensions: at least 4, and 2.")
        self.points, self.dimension = length // 2, dimension
        layers = [
            FixedHeadBertVariantSelfAttention(config, layer_idx=layer) for layer in range(config.num_hidden_layers)
        ]
        outputs = [nn.Linear(layer.all_head_size, config.hidden_size) for layer in layers]
        for attention, output in zip(layers, outputs, strict=True):
            for projection in (attention.query, attention.key):
                # scores of a unit vector begin with a variance of one
                nn.init.normal_(projection.weight)
            for projection in (attention.value, output):
                # without a residual, what is passed on keeps its length
                nn.init.orthogonal_(projection.weight)
        self.attention, self.output = nn.ModuleList(layers), nn.ModuleList(outputs)
        self.threshold = float(dimension) if len(layers) == 1 else None
        is_point = torch.arange(2 * self.points) < self.points
        hidden = ~(is_point[None, :] | torch.eye(2 * self.points, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None])

    def forward(self, points: Tensor, queries: Tensor) -> Tensor:
        """Points (B, n, d) and queries (B, n, d) -> (B, n, d)."""
        tokens = torch.cat([pad(points, (0, 1)), pad(queries, (0, 1), value=1)], dim=1)
        tokens = pad(tokens, (0, self.config.hidden_size - self.dimension - 1))  # (B, 2 n, D)
        for attention, output in zip(self.attention[:-1], self.output, strict=False):
            tokens = output(attention(tokens, attention_mask=self.seen)[0])
        points, queries = tokens.split(self.points, dim=1)
        heads, _ = self.attention[-1](queries, encoder_hidden_states=points)
        return self.output[-1](heads)[..., : self.dimension]

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """Rows that have enough queries with a gap; others are drawn again."""
        shape, found, missing, draws = (self.dimension,), [], rows, 0
        while missing > 0:
            if draws == DRAWS and missing == rows:
                raise InputError(
                    f"nearest: {self.points} points in {self.dimension} dimensions: too few queries have a gap of "
                    f"{GAP}; take fewer points or more dimensions."
                )
            draws += 1
            points = normalize(torch.randn(missing, self.points, *shape, generator=generator), dim=-1)
            queries = torch.randn(missing, CANDIDATES * self.points, *shape, generator=generator)
            queries = normalize(queries, dim=-1)
            best = (queries @ points.mT).topk(2, dim=-1)
            has_gap = best.values[..., 0] - best.values[..., 1] >= GAP  # (rows, candidates)
            first = has_gap.int().argsort(dim=1, descending=True, stable=True)[:, : self.points]
            nearest = best.indices[..., 0].gather(1, first)
            enough = has_gap.sum(dim=1) >= self.points
            found.append([part[enough] for part in (points, take(queries, first), take(points, nearest))])
            missing -= int(enough.sum())
        points, queries, target = (torch.cat(parts) for parts in zip(*found, strict=True))
        return (points, queries), target


def take(vectors: Tensor, places: Tensor) -> Tensor:
    """Vectors (B, n, d) at places (B, m): (B, m, d)."""
    return vectors.gather(1, places[..., None].expand(-1, -1, vectors.shape[-1]))
