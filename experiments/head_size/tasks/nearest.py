"""
nearest: every query must output the nearest of n points.

Points and queries are unit vectors drawn uniformly in d dimensions. The inner product of a query with its nearest
point exceeds all its other inner products by at least 0.1. (Queries are separate vectors, because a point would be its
own nearest point.) The model consists only of attention, without residual connections, feed-forward networks or
LayerNorm. In the last layer, queries attend only to points. In earlier layers, points attend to points, and queries
attend to points and to themselves, because without a residual connection, nothing else preserves the queries.

The null value, 1, is the error of the best constant. Predicting the average point is hardly better (0.97 for 16 points
in 16 dimensions).

Prediction: one head of size d suffices for any number of points. Its W_q and W_k are multiples of the identity, its
W_v and W_o are the identity, and its error is at most 4 (n - 1)^2 e^(-2 gap t) for scores t <x, y>. Smaller heads
cannot solve the task in one layer unless there are exponentially many, and depth helps for few points (Amsel, Yehudai
and Bruna, "On the Benefits of Rank in Attention Layers", 2024, arXiv 2407.16153; at ICLR 2025 as "Quality over
Quantity in Attention Layers: When Adding More Heads Hurts"). The abstract confirms this statement, without constants.
According to the table of contents, the exponential number is proved for a biased version of the function. For the
function itself, a summary states a power of d / r that grows with the accuracy. We could not check how many heads and
layers a deep model needs; studies use two layers. Two details are quoted from memory: values have full rank, as here
with `value_head_size`, and the construction with two layers changes the positions.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import InputError

from .training import SyntheticTask

GAP = 0.1
CANDIDATES = 4  # queries drawn for each query that is kept


class Nearest(SyntheticTask):
    """
    The task and the attention layers that are trained on it.

    Args:
        config: Configuration of the attention layers. Its width must exceed `dimension`.
        length: Number of tokens. Half of them are points, the other half queries.
        dimension: Dimension d of points and queries.
    """

    mask: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, dimension: int = 16):
        super().__init__(config)
        if config.hidden_size <= dimension:
            raise InputError(f"nearest: hidden_size must exceed the dimension {dimension}.")
        self.points, self.dimension = length // 2, dimension
        layers = [
            FixedHeadBertVariantSelfAttention(config, layer_idx=layer) for layer in range(config.num_hidden_layers)
        ]
        outputs = [nn.Linear(layer.all_head_size, config.hidden_size) for layer in layers]
        for attention, output in zip(layers, outputs, strict=True):
            for projection in (attention.query, attention.key):
                nn.init.normal_(projection.weight)  # scores start with variance one
            for projection in (attention.value, output):
                nn.init.orthogonal_(projection.weight)  # preserves norms without a residual connection
        self.attention, self.output = nn.ModuleList(layers), nn.ModuleList(outputs)
        self.threshold = float(dimension) if len(layers) == 1 else None
        is_point = torch.arange(2 * self.points) < self.points
        hidden = ~(is_point[None, :] | torch.eye(2 * self.points, dtype=torch.bool))
        self.register_buffer("mask", torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)[None, None])

    def forward(self, points: Tensor, queries: Tensor) -> Tensor:
        """Returns the predicted nearest points (B, n, d) for points (B, n, d) and queries (B, n, d)."""
        tokens = torch.cat([pad(points, (0, 1)), pad(queries, (0, 1), value=1)], dim=1)
        tokens = pad(tokens, (0, self.config.hidden_size - self.dimension - 1))  # (B, 2 n, D)
        for attention, output in zip(self.attention[:-1], self.output, strict=False):
            tokens = output(attention(tokens, attention_mask=self.mask)[0])
        points, queries = tokens.split(self.points, dim=1)
        heads, _ = self.attention[-1](queries, encoder_hidden_states=points)
        return self.output[-1](heads)[..., : self.dimension]

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        """Draws batches and keeps rows in which enough queries satisfy the gap, until there are `rows` rows."""
        batches, missing = [], rows
        while missing > 0:
            points = torch.randn(missing, self.points, self.dimension, generator=generator)
            queries = torch.randn(missing, CANDIDATES * self.points, self.dimension, generator=generator)
            points, queries = normalize(points, dim=-1), normalize(queries, dim=-1)
            best = (queries @ points.mT).topk(2, dim=-1)
            has_gap = best.values[..., 0] - best.values[..., 1] >= GAP  # (rows, candidates)
            selected = has_gap.int().argsort(dim=1, descending=True, stable=True)[:, : self.points]
            nearest = best.indices[..., 0].gather(1, selected)
            enough = has_gap.sum(dim=1) >= self.points
            target = points.take_along_dim(nearest[..., None], dim=1)
            queries = queries.take_along_dim(selected[..., None], dim=1)
            batches.append([tensor[enough] for tensor in (points, queries, target)])
            missing -= int(enough.sum())
        points, queries, target = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
        return (points, queries), target
