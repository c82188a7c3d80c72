"""
Results of `inspect`: the measures of attention heads on real text.

The following measures are averaged over sequences of n tokens. Q and K (n, p) are the queries and keys of a head of
size p, and P (n, n) is its attention pattern, a matrix of probabilities. C log P are the centered scores: the
scores Q K^T / sqrt(p), minus each query's mean over the keys. They determine the pattern.

    rank              numerical rank of C log P, with a relative tolerance of 1e-6. At most min(p, n - 1)
    effective_rank    exponential of the entropy of the normalized singular values (Roy and Vetterli, 2007)
    utilization       effective_rank as a fraction of its maximum, min(p, n - 1). Shows how evenly the head uses its
                      dimensions, but not which patterns it is unable to express
    entropy           entropy of a query's attention weights (in nats; ln n for uniform attention)
    distance          expected distance between a query and the tokens that it attends to (in tokens)
    max_similarity    cosine similarity between the head's pattern and the most similar pattern in the layer, after
                      subtracting uniform attention from both
    importance        relative change in the last hidden states when the head is ablated (its output is set to zero)
    singular_values   singular values of C log P, largest first
    similarities      cosine similarity between the head's pattern and each pattern in the layer; `max_similarity` is
                      the average of the largest value in each sequence
    condition_number  geometric mean of the condition number of the layer's concatenated heads, a matrix with one row
                      per token. Includes directions that the output projection ignores. At most 1 / eps for float32
"""

import math
from dataclasses import dataclass

from torch import Tensor

from ..counts import size_text

# Maps each measure of a head to its column heading in the printed table and its description.
MEASURES = {
    "rank": ("rank", "numerical rank of the centered attention scores, at most min(head size, n - 1)"),
    "effective_rank": ("eff.rank", "effective rank of the attention scores"),
    "utilization": ("utilization", "effective rank / maximum rank"),
    "entropy": ("entropy", "attention entropy (nats)"),
    "distance": ("distance", "attention distance (tokens)"),
    "max_similarity": ("similarity", "cosine similarity to the most similar head in the layer"),
    "importance": ("importance", "relative change in the output without the head"),
}
MAPS = {name: description for name, (_, description) in MEASURES.items() if "rank" not in name}  # plotted measures


@dataclass(frozen=True, eq=False)
class Example:
    """
    A sentence of n tokens, including special tokens, and the attention of all heads on it.

    Attributes:
        attention: For each layer, the attention patterns (heads, n, n). Rows are queries.
        changes: For each layer, a tensor (heads, n) with the relative change in each token's last hidden state when
            the head is ablated.
    """

    sentence: str
    tokens: list[str]
    attention: list[Tensor]
    changes: list[Tensor]


@dataclass(frozen=True, eq=False, repr=False)  # tensors cannot be compared with ==
class Inspection:
    """
    Result of `inspect`, with the measures defined at the top of this file.

    Measures are tensors (layers, heads), padded with NaN for layers with fewer heads. `condition_number` is a
    tensor (layers,) with NaN for layers without heads. `singular_values` and `similarities` are lists with one tensor
    per layer.

    Attributes:
        importance_sequences: Number of `sequences` that were used for `importance`.
    """

    model: str
    layers: int
    heads: int  # the largest number of heads in a layer
    head_counts: list[int]  # for each layer
    head_sizes: list[int]
    width: int
    max_seq_length: int
    sequences: int
    importance_sequences: int
    rank: Tensor
    effective_rank: Tensor
    entropy: Tensor
    distance: Tensor
    max_similarity: Tensor
    utilization: Tensor
    condition_number: Tensor
    importance: Tensor
    singular_values: list[Tensor]  # (heads, min(head size, tokens))
    similarities: list[Tensor]  # (heads, heads)
    examples: list[Example]
    directory: str = ""  # contains the page and the plots

    def __repr__(self) -> str:
        return f"Inspection({self.model}: {self.summary}; in {self.directory})"

    def __str__(self) -> str:
        """A table with a row for each head."""
        headings = " ".join(f"{heading:>11}" for heading, _ in MEASURES.values())
        lines = [f"{self.model}: {self.summary}", f"layer head {headings}"]
        measures = [getattr(self, name) for name in MEASURES]
        for layer, count in enumerate(self.head_counts):
            for head in range(count):
                values = " ".join(f"{float(measure[layer, head]):>11.3g}" for measure in measures)
                lines.append(f"{layer:>5} {head:>4} {values}")
        numbers = zip(self.head_counts, self.condition_number, strict=True)
        condition = ", ".join(f"{float(number):.3g}" if count else "no heads" for count, number in numbers)
        lines += [f"condition number of the concatenated heads in each layer: {condition}", ""]
        lines += [f"{heading}: {description}" for heading, description in MEASURES.values()]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """Describes the model's shape and the amount of text in one line."""
        return (
            f"{self.layers} layers of width {self.width}, {size_text(self.head_counts)} heads of size "
            f"{size_text(self.head_sizes)}; {self.sequences:,} sequences of {self.max_seq_length} tokens"
        )


def limits(name: str, inspection: Inspection) -> tuple[float, float]:
    """Returns the limits of the color scale for the measure `name` in MAPS."""
    bounds = {"utilization": 1.0, "max_similarity": 1.0, "entropy": math.log(inspection.max_seq_length)}
    return 0.0, bounds.get(name) or float(getattr(inspection, name).nan_to_num().max())


def json_fields(inspection: Inspection) -> dict[str, object]:
    """Returns the contents of inspection.json. Measures are lists without missing heads. Examples are omitted."""

    def to_lists(value: object) -> object:
        if isinstance(value, list):
            return [one.tolist() if isinstance(one, Tensor) else one for one in value]
        if not isinstance(value, Tensor):
            return value
        rows = zip(value.tolist(), inspection.head_counts, strict=True)
        return [(row if count else None) if value.ndim == 1 else row[:count] for row, count in rows]

    left_out = ("examples", "directory")
    return {name: to_lists(value) for name, value in vars(inspection).items() if name not in left_out}
