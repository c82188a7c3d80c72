"""
extremes: a smooth function of D features, each of them the largest that any token has.

Tokens are uniform in [0, 1]^D. Of D orthonormal directions a_i, drawn by the seed, z_i is the maximum over the tokens
x of <a_i, x>, and the target is the sum of (1 + z_i)(1 + z_(i + D/2)) over the first half, with z standardised.
Tokens go through an MLP, a class token attends to them in one layer, and an MLP reads the heads. The number of heads
varies at a fixed product with their size, so that models differ in little else.

Prediction: a transition at heads = D: as many heads as features approximate with a number of parameters that does not
depend on the number T of tokens; with fewer it grows as (1 / error)^(c T) (Yu, Jiang, Bao, Yu and Li, "The Effect of
Attention Head Count on Transformer Approximation", 2025, arXiv 2510.06662; abstract and reviews of it). More heads win
here, not larger ones. The constant c is not known; one head with a width of the order of T memorises all tokens
(abstract), so that few tokens can hide the transition. Their own example has T of 8 to 128; its outer function could
not be checked, this one is ours.
"""

import torch
from torch import Tensor, nn

from ...attention_fixed_head_bert import self_attention
from ...configuration_fixed_head_bert import FixedHeadBertConfig
from ...errors import InputError
from .training import SyntheticTask, input_projections

FEED_FORWARD = 64  # width of both MLPs
SAMPLED = 20_000  # examples for the mean and variance of features and target


class Extremes(SyntheticTask):
    """
    Args:
        config: of the attention.
        length: tokens of an example, T.
        features: D, even.
    """

    directions: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, features: int = 4):
        super().__init__(config)
        if features < 2 or features % 2:
            raise InputError(f"extremes: features {features}: an even number, at least 2.")
        self.length, self.features, self.threshold = length, features, float(features)
        self.register_buffer("directions", torch.linalg.qr(torch.randn(features, features)).Q.contiguous())
        z = self.maxima(torch.rand(SAMPLED, length, features))
        self.mean, self.deviation = z.mean(dim=0), z.std(dim=0)
        target = self.outer(z)
        self.centre, self.variance = target.mean(), target.var().item()

        width = config.hidden_size
        self.encoder = nn.Sequential(nn.Linear(features, FEED_FORWARD), nn.ReLU(), nn.Linear(FEED_FORWARD, width))
        self.class_token = nn.Parameter(torch.randn(width) / width**0.5)
        self.attention = self_attention(config)
        for projection in input_projections(self.attention, width, "query", "key"):
            nn.init.normal_(projection.weight)  # heads begin uneven, each in its own way
        heads = self.attention.all_head_size
        self.output = nn.Sequential(nn.Linear(heads, FEED_FORWARD), nn.GELU(), nn.Linear(FEED_FORWARD, 1))

    def maxima(self, tokens: Tensor) -> Tensor:
        """z (B, D) of tokens (B, T, D)."""
        return (tokens @ self.directions).amax(dim=1)

    def outer(self, z: Tensor) -> Tensor:
        """(B, D) -> (B, 1)"""
        first, second = (1 + (z - self.mean) / self.deviation).chunk(2, dim=-1)
        return (first * second).sum(dim=-1, keepdim=True)

    def heads(self, tokens: Tensor) -> Tensor:
        """What the class token reads: (B, T, D) -> (B, H V)."""
        query = self.class_token.expand(len(tokens), 1, -1)
        return self.attention(query, encoder_hidden_states=self.encoder(tokens))[0][:, 0]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.heads(tokens))

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        tokens = torch.rand(rows, self.length, self.features, generator=generator)
        return (tokens,), self.outer(self.maxima(tokens)) - self.centre
