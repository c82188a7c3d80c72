"""
Measures of the heads of a checkpoint on real text, and how evenly heads use their size.

For each layer and head, averaged over sequences of n tokens, with queries Q and keys K (n, p) of a head of size p:

    rank           numerical rank of the scores S = Q K^T / sqrt(p): singular values above 1e-6 of the largest
    pattern_rank   numerical rank of C log P, which is S minus its mean over the keys of each query and determines the
                   attention pattern P
    effective_rank, effective_pattern_rank
                   exponential of the entropy of the normalized singular values (Roy and Vetterli, 2007)
    ceiling        effective_pattern_rank as a share of its maximum, min(p, n - 1); tells how evenly the head uses its
                   size, not what it cannot express
    entropy        entropy of the attention of a query (nats; ln n if uniform)
    distance       distance between a query and the tokens that it attends to (tokens)
    similarity     cosine between the head's pattern and that of the most similar head in its layer, after subtracting
                   uniform attention
    importance     relative change of the last hidden states when the head is ablated (outputs zeros)
    singular_values
                   singular values of C log P, largest first
    likeness       the cosine for each head of the layer; `similarity` is the mean of the largest in each sequence

and for each layer the condition number of the concatenated heads (n, h p), a geometric mean, which includes directions
that the output projection ignores and is at most 1 / eps of float32.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from ..counts import size_text

EVEN_SHARE = 0.8  # ceiling above which a larger head is worth trying, a convention
# Measures in the printed table, with their column headings.
MEASURES = {
    "rank": "rank",
    "pattern_rank": "pattern",
    "effective_rank": "eff.rank",
    "effective_pattern_rank": "eff.pattern",
    "ceiling": "ceiling",
    "entropy": "entropy",
    "distance": "distance",
    "similarity": "similar",
    "importance": "importance",
}
UNIFORM = 0.95  # share of the entropy of uniform attention above which a layer has hardly learned
MAPS = {  # measures that are plotted, with their titles
    "ceiling": "evenness of the head's dimensions (1: all equal)",
    "entropy": "entropy of attention (nats)",
    "distance": "distance of attention (tokens)",
    "similarity": "similarity to the nearest head of the layer (cosine)",
    "importance": "relative change of the output without the head",
}


@dataclass(frozen=True, eq=False)
class Example:
    """
    The heads on one sentence of n tokens, including special tokens.

    Attributes:
        attention: by layer (heads, n, n), a row for each query.
        changes: by layer (heads, n), the relative change of each token's last hidden state when the head is ablated.
    """

    sentence: str
    tokens: list[str]
    attention: list[Tensor]
    changes: list[Tensor]


@dataclass(frozen=True, eq=False, repr=False)  # tensors cannot be compared with ==
class Inspection:
    """
    The result of `inspect`: the measures above, each (layers, heads), and `condition`, (layers,). Missing heads of
    smaller layers, and the condition of a layer without heads, are NaN. `singular_values` and `likeness` are lists by
    layer.

    Attributes:
        can_grow: True if `fixedbert convert` can enlarge the heads of this model.
        importance_sequences: number of the `sequences` that were used for `importance`.
        compared: the inspection of the second checkpoint, if any.
    """

    model: str
    layers: int
    heads: int  # largest number in a layer
    head_counts: list[int]  # by layer
    head_sizes: list[int]
    can_grow: bool
    width: int
    max_seq_length: int
    sequences: int
    importance_sequences: int
    rank: Tensor
    effective_rank: Tensor
    pattern_rank: Tensor
    effective_pattern_rank: Tensor
    entropy: Tensor
    distance: Tensor
    similarity: Tensor
    ceiling: Tensor
    condition: Tensor
    importance: Tensor
    singular_values: list[Tensor]  # (heads, min(head size, tokens))
    likeness: list[Tensor]  # (heads, heads)
    examples: list[Example]
    compared: "Inspection | None"
    directory: str = ""  # with the page and the plots

    def __repr__(self) -> str:
        return f"Inspection({self.model}: {self.summary}; in {self.directory})"

    def __str__(self) -> str:
        return inspection_text(self)

    @property
    def summary(self) -> str:
        """Describes the shape and the amount of text."""
        return (
            f"{self.layers} layers of width {self.width}, {size_text(self.head_counts)} heads of "
            f"{size_text(self.head_sizes)}; {self.sequences:,} sequences of {self.max_seq_length} tokens"
        )

    @property
    def uniform(self) -> str:
        """Describes the measures of uniform attention."""
        n = self.max_seq_length
        return (
            f"Uniform attention would have an entropy of {math.log(n):.2f} nats and a distance of "
            f"{(n * n - 1) / 3 / n:.1f} tokens."
        )

    @property
    def even_layers(self) -> list[int]:
        """Layers that use their head size evenly, and whose heads cannot express every pattern."""
        used = self.ceiling.nanmean(dim=1)
        sufficient = self.max_seq_length - 1
        return [i for i, size in enumerate(self.head_sizes) if used[i] >= EVEN_SHARE and size < sufficient]

    @property
    def nearest(self) -> list[list[int | None]]:
        """The most similar head of the layer, by layer and head; None for the only head."""
        return [nearest_heads(cosines) for cosines in self.likeness]


def nearest_heads(cosines: Tensor) -> list[int | None]:
    """Returns for each head of `cosines` (heads, heads) the other head with the largest cosine."""
    if len(cosines) < 2:
        return [None] * len(cosines)
    return cosines.clone().fill_diagonal_(-math.inf).argmax(dim=1).tolist()


def limits(name: str, inspections: list[Inspection]) -> tuple[float, float]:
    """Returns the limits of the color scale for a measure in MAPS, shared by all `inspections`."""
    bounds = {"ceiling": 1.0, "similarity": 1.0, "entropy": math.log(inspections[0].max_seq_length)}
    if name in bounds:
        return 0.0, bounds[name]
    return 0.0, max(float(getattr(inspection, name).nan_to_num().max()) for inspection in inspections)


def json_fields(inspection: Inspection) -> dict[str, object]:
    """Returns the fields of inspection.json, without missing heads and without the examples."""

    def to_lists(value: object) -> object:
        if isinstance(value, list):
            return [one.tolist() if isinstance(one, Tensor) else one for one in value]
        if not isinstance(value, Tensor):
            return value
        rows = zip(value.tolist(), inspection.head_counts, strict=True)
        return [(row if count else None) if value.ndim == 1 else row[:count] for row, count in rows]

    left_out = ("examples", "compared", "directory")
    return {name: to_lists(value) for name, value in vars(inspection).items() if name not in left_out}


def inspection_text(inspection: Inspection) -> str:
    """Formats a row for each head and a suggestion for larger heads, then the same for the second checkpoint."""
    lines = [
        f"{inspection.model}: {inspection.summary}",
        "layer head " + " ".join(f"{heading:>11}" for heading in MEASURES.values()),
    ]
    measures = [getattr(inspection, name) for name in MEASURES]
    for layer in range(inspection.layers):
        for head in range(inspection.head_counts[layer]):
            values = " ".join(f"{float(measure[layer, head]):>11.3g}" for measure in measures)
            lines.append(f"{layer:>5} {head:>4} {values}")
        condition = f"condition number of the concatenated heads: {float(inspection.condition[layer]):.3g}"
        lines.append(f"{layer:>5}      {condition if inspection.head_counts[layer] else 'no heads'}")
    lines += ["", suggestion(inspection)]
    if inspection.compared is not None:
        lines += ["", inspection_text(inspection.compared)]
    return "\n".join(lines)


def suggestion(inspection: Inspection) -> str:
    """Names the layers that use their head size most evenly, and the command that enlarges only their heads."""
    n, sizes, share = inspection.max_seq_length, inspection.head_sizes, f"{EVEN_SHARE:.0%}"
    if min(sizes) >= n - 1:
        return f"Heads of {size_text(sizes)} can express every pattern over {n} tokens: larger heads add nothing here."
    even = inspection.even_layers
    if not even:
        return (
            f"In no layer does the mean effective rank reach {share} of its maximum, so heads leave part of their "
            "size unused. Whether larger heads would learn more is open."
        )
    uniform = [layer for layer in even if inspection.entropy[layer].nanmean() >= UNIFORM * math.log(n)]
    if uniform:
        return (
            f"In layers {', '.join(map(str, uniform))} attention is nearly uniform: the model has hardly learned to "
            "attend, and its ranks are random. They do not tell which size its heads need."
        )
    layers = ", ".join(map(str, even))
    finding = f"In layers {layers} the mean effective rank is at least {share} of its maximum."
    if not inspection.can_grow:
        return finding
    larger = " ".join(str(2 * size if layer in even else size) for layer, size in enumerate(sizes))
    command = f"fixedbert convert {inspection.model} --output_dir OUTPUT --attention_head_size {larger}"
    return f"{finding} To enlarge only their heads: `{command}`; training shows whether this helps."
