"""
extremes: a smooth function of D features, each of which is a maximum over the tokens.

Tokens are uniform in [0, 1]^D. For D orthonormal directions a_i drawn from the seed, z_i is the maximum of <a_i, x>
over the tokens x. The target is the sum of (1 + z_i)(1 + z_(i + D/2)) over the first half of the features, with
standardized z. Tokens pass through an MLP, a class token attends to them in one layer, and a second MLP reads the
heads. Tokens are shifted and scaled so that the maxima have mean zero and, on average, a standard deviation of one.
Studies vary the number of heads and keep its product with the head size constant, so that models differ in little
else.

Prediction: a transition at D heads (Yu, Jiang, Bao, Yu and Li, "The Effect of Attention Head Count on Transformer
Approximation", 2025, arXiv 2510.06662). The abstract confirms that the approximation is efficient with enough heads,
whereas with too few, the number of parameters must grow at least like (1 / error)^(c T), for some constant c and T
tokens. One head with an embedding size of order T memorizes all tokens, so the transition can be invisible for few
tokens. According to summaries of the paper, D heads suffice with a number of parameters that does not depend on T. In
this task, more heads help, but larger heads do not. The paper's example has T between 8 and 128. We could not check
its outer function; the one here is our own.

A head that mixes two features can come close to the target: in single runs with 8 and 32 tokens, 3 heads reached an
error of 0.03 and 4 heads 0.003. The goal is therefore 0.01. Without shift and scale, the error in runs with 32 tokens
stayed above a third of the variance, because the maxima of many tokens differ little.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from fixedbert.model.attention_fixed_head_bert import FixedHeadBertVariantSelfAttention
from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig

from .training import SyntheticTask

FEED_FORWARD = 64  # width of both MLPs
SAMPLE_SIZE = 20_000  # examples used to estimate averages and variances of features and targets


class Extremes(SyntheticTask):
    """
    The task, with the models that are trained on it: an attention layer and MLPs.

    Args:
        config: Configuration of the attention layer.
        length: Number of tokens T per example.
        features: Number of features D, which must be even.
    """

    goal: ClassVar[float] = 0.01
    directions: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, features: int = 4):
        super().__init__(config)
        self.length, self.features, self.threshold = length, features, float(features)
        self.register_buffer("directions", torch.linalg.qr(torch.randn(features, features)).Q.contiguous())
        z = self.maxima(torch.rand(SAMPLE_SIZE, length, features))
        self.mean, self.deviation = z.mean(dim=0), z.std(dim=0)
        self.middle, self.scale = self.directions @ self.mean, self.deviation.mean()
        target = self.outer(z)
        self.centre, self.variance = target.mean(), target.var().item()

        width = config.hidden_size
        self.encoder = nn.Sequential(nn.Linear(features, FEED_FORWARD), nn.ReLU(), nn.Linear(FEED_FORWARD, width))
        self.class_token = nn.Parameter(torch.randn(width) / width**0.5)
        self.attention = FixedHeadBertVariantSelfAttention(config)
        for projection in (self.attention.query, self.attention.key):
            nn.init.normal_(projection.weight)  # heads start with clearly different patterns
        heads = self.attention.all_head_size
        self.output = nn.Sequential(nn.Linear(heads, FEED_FORWARD), nn.GELU(), nn.Linear(FEED_FORWARD, 1))

    def maxima(self, tokens: Tensor) -> Tensor:
        """Returns the features z (B, D) for tokens (B, T, D)."""
        return (tokens @ self.directions).amax(dim=1)

    def outer(self, z: Tensor) -> Tensor:
        """Returns the target (B, 1) before centering, for z (B, D)."""
        first, second = (1 + (z - self.mean) / self.deviation).chunk(2, dim=-1)
        return (first * second).sum(dim=-1, keepdim=True)

    def heads(self, tokens: Tensor) -> Tensor:
        """Returns the outputs (B, H V) of the attention heads at the class token, for tokens (B, T, D)."""
        query, tokens = self.class_token.expand(len(tokens), 1, -1), (tokens - self.middle) / self.scale
        return self.attention(query, encoder_hidden_states=self.encoder(tokens))[0][:, 0]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.heads(tokens))

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        tokens = torch.rand(rows, self.length, self.features, generator=generator)
        return (tokens,), self.outer(self.maxima(tokens)) - self.centre
