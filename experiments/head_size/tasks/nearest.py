"""
nearest: every query has to output the nearest of n points.

Points and queries are unit vectors, drawn uniformly in d dimensions; the inner product of a query with its nearest
point is larger than with any other by at least 0.1. (Among the points themselves there would be nothing to find: a
unit vector has the largest inner product with itself.) The model is only attention, without residual connections,
feed-forward networks or LayerNorm. In its last layer queries see only the points; in an earlier layer they also see
themselves, because nothing else keeps them without a residual, and points see the points.

The null line, 1, is the best constant; the mean of the points is hardly better (0.97 for 16 in 16 dimensions).

Prediction: one head of size d suffices for any number of points: W_q and W_k proportional to the identity, W_v and W_o
the identity, with an error of at most 4 (n - 1)^2 e^(-2 gap t) for scores t <x, y>. Smaller heads cannot do it in one
layer unless there are exponentially many; depth helps for few points (Amsel, Yehudai and Bruna, "On the Benefits of
Rank in Attention Layers", 2024, arXiv 2407.16153; at ICLR 2025 as "Quality over Quantity in Attention Layers: When
Adding More Heads Hurts"). Checked in the abstract: this statement, without constants. According to the paper's
contents the exponential number is proved for a biased form of the function; for the function itself a summary names a
power of d / r that grows with the accuracy. How many heads and layers depth needs could not be checked; here there are
two layers. It is recalled that the values have full rank, as here with `value_head_size`, and that their construction
with depth changes the positions.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import InputError

from .training import SyntheticTask

GAP = 0.1
CANDIDATES = 4  # queries drawn for each one that is needed


class Nearest(SyntheticTask):
    """
    Args:
        config: configuration of the attention; its width must exceed `dimension`.
        length: number of tokens, half of them points and half of them queries.
        dimension: d.
    """

    seen: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, dimension: int = 16):
        super().__init__(config)
        if config.hidden_size <= dimension:
            raise InputError(f"nearest: hidden_size must exceed the dimension, {dimension}.")
        self.points, self.dimension = length // 2, dimension
        layers = [
            FixedHeadBertVariantSelfAttention(config, layer_idx=layer) for layer in range(config.num_hidden_layers)
        ]
        outputs = [nn.Linear(layer.all_head_size, config.hidden_size) for layer in layers]
        for attention, output in zip(layers, outputs, strict=True):
            for projection in (attention.query, attention.key):
                nn.init.normal_(projection.weight)  # scores start with a variance of one
            for projection in (attention.value, output):
                nn.init.orthogonal_(projection.weight)  # keeps lengths without a residual
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
        """Draws rows until enough of them have enough queries with a gap."""
        shape, found, missing = (self.dimension,), [], rows
        while missing > 0:
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


def take(vectors: Tensor, indices: Tensor) -> Tensor:
    """Selects vectors (B, n, d) at indices (B, m): (B, m, d)."""
    return vectors.gather(1, indices[..., None].expand(-1, -1, vectors.shape[-1]))
