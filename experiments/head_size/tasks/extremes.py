"""
extremes: a smooth function of D features, each of them the largest that any token has.

Tokens are uniform in [0, 1]^D. Of D orthonormal directions a_i, drawn by the seed, z_i is the maximum over the tokens
x of <a_i, x>, and the target is the sum of (1 + z_i)(1 + z_(i + D/2)) over the first half, with z standardised.
Tokens, shifted and scaled so that maxima have means of zero and, on average, a deviation of one, go through an MLP, a
class token attends to them in one layer, and an MLP reads the heads. The number of heads varies at a fixed product
with their size, so that models differ in little else.

Prediction: a transition at heads = D (Yu, Jiang, Bao, Yu and Li, "The Effect of Attention Head Count on Transformer
Approximation", 2025, arXiv 2510.06662). Checked in the abstract: with sufficiently many heads the approximation is
efficient, with too few the parameters must grow at least as (1 / error)^(c T), for some constant c and T tokens; one
head with an embedding of the order of T memorises them all, so that few tokens can hide the transition. That D are
enough, with a number of parameters that does not depend on T, is in summaries of the paper. More heads win here, not
larger ones. Their own example has T of 8 to 128 (caption of its figure); its outer function could not be checked, this
one is ours.

Were 4 features independent, one that is not seen would cost a third of the variance, and so would products that are
not seen. A head that mixes two features can cost far less: in single runs of 3,000 steps with 8 and 32 tokens 3 heads
came to 0.03, and 4 to 0.003, so that the goal is 0.01. On the way there is a plateau at about a third, as if features
were learned and their products were not. With 128 tokens 3 and 4 heads did not leave it in 3,000 steps. Without the
shift and the scale, those of 32 tokens did not either: the maxima of many tokens differ little.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.support.errors import InputError

from .training import SyntheticTask

FEED_FORWARD = 64  # width of both MLPs
SAMPLED = 20_000  # examples for the mean and variance of features and target


class Extremes(SyntheticTask):
    """
    Args:
        config: of the attention.
        length: tokens of an example, T.
        features: D, even.
    """

    goal: ClassVar[float] = 0.01
    directions: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, features: int = 4):
        super().__init__(config)
        if features < 2 or features % 2:
            raise InputError(f"extremes: features {features}: an even number, at least 2.")
        self.length, self.features, self.threshold = length, features, float(features)
        self.register_buffer("directions", torch.linalg.qr(torch.randn(features, features)).Q.contiguous())
        z = self.maxima(torch.rand(SAMPLED, length, features))
        self.mean, self.deviation = z.mean(dim=0), z.std(dim=0)
        self.middle, self.scale = self.directions @ self.mean, self.deviation.mean()
        target = self.outer(z)
        self.centre, self.variance = target.mean(), target.var().item()

        width = config.hidden_size
        self.encoder = nn.Sequential(nn.Linear(features, FEED_FORWARD), nn.ReLU(), nn.Linear(FEED_FORWARD, width))
        self.class_token = nn.Parameter(torch.randn(width) / width**0.5)
        self.attention = FixedHeadBertVariantSelfAttention(config)
        for projection in (self.attention.query, self.attention.key):
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
        query, tokens = self.class_token.expand(len(tokens), 1, -1), (tokens - self.middle) / self.scale
        return self.attention(query, encoder_hidden_states=self.encoder(tokens))[0][:, 0]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.heads(tokens))

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        tokens = torch.rand(rows, self.length, self.features, generator=generator)
        return (tokens,), self.outer(self.maxima(tokens)) - self.centre
