"""
recall: multi-query associative recall. Pairs of a key and a value, then every key again, which has to output its
value.

Keys and values are drawn without replacement from two vocabularies; the queries are all keys of the row in a different
order. The embeddings of a token and of the one before it are added, so that a value knows its key; there are no
positions. Two causal layers of the model, with a linear classifier over the values. The size of queries and keys
varies, the size of values is fixed.

Prediction: no capacity threshold beyond a few dimensions. A head of size 2 suffices, with keys on a circle: scores
c cos(a_i - a_j) are largest for the key itself, by c (1 - cos(2 pi / symbols)). With a size of log2 symbols, keys are
vectors of signs, and the largest leads by 2 c for any number of symbols. Both are tested with weights set by hand.
Larger heads thus need smaller scores; that this makes them faster to train is our conjecture. Sizes above 2 add no
capacity, and heads of single-digit sizes learn to recall perfectly: checked in the abstract of Maselko, "Separate,
Project, and Amplify: Attention's Geometry of Retrieval", 2026, zenodo 19422845, a preprint without review.

The task is that of Arora et al., 2023 ("Zoology", arXiv 2312.04927); their vocabulary and spacing of queries, which
are recalled, are not kept. The null line is a guess among the values of the row.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from fixedbert.model.configuration_fixed_head_bert import FixedHeadBertConfig
from fixedbert.model.modeling_fixed_head_bert import FixedHeadBertLayer
from fixedbert.support.errors import InputError

from .training import SyntheticTask


class Recall(SyntheticTask):
    """
    Args:
        config: configuration of the layers.
        length: number of tokens, three for each pair.
        symbols: number of keys, and of values.
    """

    measure: ClassVar[str] = "recalled"
    goal: ClassVar[float] = 0.99
    seen: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, symbols: int = 64):
        super().__init__(config)
        if not 2 <= length // 3 <= symbols:
            raise InputError(f"recall: {length // 3} pairs in {length} tokens: needs 2 to {symbols} pairs.")
        self.pairs, self.symbols, self.threshold = length // 3, symbols, 2.0
        self.null = 1 / self.pairs
        self.token = nn.Embedding(2 * symbols, config.hidden_size)
        self.previous = nn.Embedding(2 * symbols + 1, config.hidden_size)  # the last one precedes the first token
        self.layers = nn.ModuleList(FixedHeadBertLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.classifier = nn.Linear(config.hidden_size, symbols)
        tokens = 3 * self.pairs
        self.register_buffer("seen", torch.full((1, 1, tokens, tokens), -torch.inf).triu(diagonal=1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits of the values at the queries, (B, 3 n) -> (B, n, symbols)."""
        hidden_states = self.token(tokens) + self.previous(pad(tokens[:, :-1], (1, 0), value=2 * self.symbols))
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask=self.seen)
        return self.classifier(hidden_states[:, -self.pairs :])

    def examples(self, rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        keys, values, order = (
            torch.rand(rows, size, generator=generator).argsort(dim=1)[:, : self.pairs]
            for size in (self.symbols, self.symbols, self.pairs)
        )
        pairs = torch.stack([keys, values + self.symbols], dim=-1).flatten(1)
        return (torch.cat([pairs, keys.gather(1, order)], dim=1),), values.gather(1, order)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output.flatten(0, 1), target.flatten())

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(dim=-1) == target).float().mean()
