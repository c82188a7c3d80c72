"""
extremes: a smooth function of D features, each of which is the maximum over the tokens.

Tokens are uniform in [0, 1]^D. For D orthonormal directions a_i, drawn by the seed, z_i is the maximum of <a_i, x>
over the tokens x, and the target is the sum of (1 + z_i)(1 + z_(i + D/2)) over the first half, with z standardized.
Tokens go through an MLP, a class token attends to them in one layer, and a second MLP reads the heads. They are
shifted and scaled so that the maxima have a mean of zero and, on average, a deviation of one. The number of heads
varies at a fixed product with their size, so that models differ in little else.

Prediction: a transition at heads = D (Yu, Jiang, Bao, Yu and Li, "The Effect of Attention Head Count on Transformer
Approximation", 2025, arXiv 2510.06662). Checked in the abstract: with enough heads the approximation is efficient,
with too few the number of parameters must grow at least as (1 / error)^(c T), for some constant c and T tokens; one
head with an embedding of the order of T memorizes them all, so that few tokens can hide the transition. Summaries of
the paper say that D heads suffice, with a number of parameters that does not depend on T. Here more heads help, not
larger ones. Their example has T of 8 to 128 (caption of its figure); its outer function could not be checked, this one
is ours.

If the 4 features were independent, a missing one would cost a third of the variance, and so would missing products. A
head that mixes two features can cost far less: in single runs of 3,000 steps with 8 and 32 tokens, 3 heads reached
0.03 and 4 heads 0.003; the goal is therefore 0.01. On the way there is a plateau at about a third, as if features were
learned but not their products. With 128 tokens, 3 and 4 heads did not leave it in 3,000 steps. Without shift and
scale, neither did those with 32 tokens: the maxima of many tokens differ little.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig

from .training import SyntheticTask

FEED_FORWARD = 64  # width of both MLPs
SAMPLED = 20_000  # examples for means and variances of features and target


class Extremes(SyntheticTask):
    """
    Args:
        config: configuration of the attention.
        length: T, tokens of an example.
        features: D, even.
    """

    goal: ClassVar[float] = 0.01
    directions: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, features: int = 4):
        super().__init__(config)
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
            nn.init.normal_(projection.weight)  # heads start with different patterns
        heads = self.attention.all_head_size
        self.output = nn.Sequential(nn.Linear(heads, FEED_FORWARD), nn.GELU(), nn.Linear(FEED_FORWARD, 1))

    def maxima(self, tokens: Tensor) -> Tensor:
        """Returns z (B, D) for tokens (B, T, D)."""
        return (tokens @ self.directions).amax(dim=1)

    def outer(self, z: Tensor) -> Tensor:
        """Returns the target before centering, (B, D) -> (B, 1)."""
        first, second = (1 + (z - self.mean) / self.deviation).chunk(2, dim=-1)
        return (first * second).sum(dim=-1, keepdim=True)

    def heads(self, tokens: Tensor) -> Tensor:
        """Returns the heads of the class token, (B, T, D) -> (B, H V)."""
        query, tokens = self.class_token.expand(len(tokens), 1, -1), (tokens - self.middle) / self.scale
        return self.attention(query, encoder_hidden_states=self.encoder(tokens))[0][:, 0]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.heads(tokens))

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        tokens = torch.rand(rows, self.length, self.features, generator=generator)
        return (tokens,), self.outer(self.maxima(tokens)) - self.centre
