"""
recall: multi-query associative recall. A row lists pairs of a key and a value, and then repeats every key. At each
repeated key, the model must output its value.

Keys and values are drawn without replacement from two vocabularies, and the keys are repeated in random order. The
input is the sum of the embeddings of a token and the preceding token, so a value knows its key. There are no position
embeddings. The model has two causal layers and a linear classifier over the values. Studies vary the query and key
size and keep the value size constant.

Prediction: a few dimensions suffice, and more add no capacity. A head of size 2 suffices with keys on a circle: the
scores c cos(a_i - a_j) are largest for the key itself, by a margin of c (1 - cos(2 pi / symbols)). With size
log2(symbols), keys can be vectors of signs, and the margin is 2 c for any number of symbols, so larger heads can use
smaller scores. The tests check both constructions with weights set by hand. We conjecture that larger heads also train
faster. The abstract of Maselko, "Separate, Project, and Amplify: Attention's Geometry of Retrieval", 2026 (zenodo
19422845, a preprint) reports that sizes above 2 add no capacity and that heads of single-digit sizes learn perfect
recall.

The task comes from Arora et al., 2023 ("Zoology", arXiv 2312.04927). Their vocabulary size and query spacing are not
reproduced. The null value is the accuracy of guessing among the values in the row.
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
    The task and the Transformer layers that are trained on it.

    Args:
        config: Configuration of the layers.
        length: Number of tokens. Each pair needs three.
        symbols: Size of the vocabulary of keys, and of the vocabulary of values.
    """

    measure: ClassVar[str] = "recalled"
    goal: ClassVar[float] = 0.99
    mask: Tensor

    def __init__(self, config: FixedHeadBertConfig, length: int, symbols: int = 64):
        super().__init__(config)
        if not 2 <= length // 3 <= symbols:
            raise InputError(f"recall: {length} tokens hold {length // 3} pairs, but must hold 2 to {symbols}.")
        self.pairs, self.symbols, self.threshold = length // 3, symbols, 2.0
        self.null = 1 / self.pairs
        self.token = nn.Embedding(2 * symbols, config.hidden_size)
        self.previous = nn.Embedding(2 * symbols + 1, config.hidden_size)  # the last index means no preceding token
        self.layers = nn.ModuleList(FixedHeadBertLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.classifier = nn.Linear(config.hidden_size, symbols)
        tokens = 3 * self.pairs
        self.register_buffer("mask", torch.full((1, 1, tokens, tokens), -torch.inf).triu(diagonal=1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns logits (B, n, symbols) for the values at the repeated keys, for tokens (B, 3 n)."""
        hidden_states = self.token(tokens) + self.previous(pad(tokens[:, :-1], (1, 0), value=2 * self.symbols))
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask=self.mask)
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
