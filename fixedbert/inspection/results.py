"""
What the heads of a checkpoint do with real text, and how evenly they use their size.

For each layer and head, in means over sequences of n tokens, with queries Q and keys K (n, p) of a head of size p:

    rank           numerical rank of the scores S = Q K^T / sqrt(p), singular values above 1e-6 of the largest
    pattern_rank   the same of C log P, which is S less the mean over the keys of each query: what the softmax sees
    effective_rank, effective_pattern_rank
                   exp of the entropy of the singular values as shares of their sum (Roy and Vetterli, 2007)
    ceiling        effective_pattern_rank as a share of min(p, n - 1), the most there can be; it says how evenly the
                   head uses its size, and not what it could not express
    entropy        of the attention of a query (nats; ln n is uniform)
    distance       between a query and what it attends to (tokens)
    similarity     cosine of the head's pattern, less uniform attention, to the most similar head's in its layer
    importance     how far the last hidden states move when the head gives zeros, relative to their size
    singular_values
                   of C log P, largest first
    likeness       to each head of its layer: the cosine; `similarity` takes the largest in each sequence

and for each layer the condition number of the heads' concatenated output (n, h p), whose mean is geometric: with
directions that the output projection ignores, and at most 1 / eps of float32.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..counts import size_text
from ..support.notebook import as_html

EVEN_SHARE = 0.8  # of the ceiling, from which a larger head is worth a try: a convention
# Of an inspection, with the headings of their columns.
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
UNIFORM = 0.95  # of the entropy of uniform attention, from which on a layer has hardly learned
PANELS = {  # the measures that are drawn, with what they say
    "ceiling": "evenness of the head's dimensions (1: all alike)",
    "entropy": "entropy of attention (nats)",
    "distance": "distance of attention (tokens)",
    "similarity": "likeness to the nearest head of the layer (cosine)",
    "importance": "change of the output without the head (relative)",
}


@dataclass(frozen=True, eq=False)
class Example:
    """
    What the heads do with one sentence of n tokens, the special ones included.

    Attributes:
        attention: of each layer (heads, n, n), a row for each query.
        changes: of each layer (heads, n): how far the last hidden state of each token moves when the head gives zeros,
            relative to its size.
    """

    sentence: str
    tokens: list[str]
    attention: list[Tensor]
    changes: list[Tensor]


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no one truth value
class Inspection:
    """
    What `inspect` finds: the measures above, each (layers, heads), and `condition`, (layers,). Where a layer has fewer
    heads than another, the rest of its row is NaN; where it has none, `condition` is too. `singular_values` and
    `likeness` are lists by layer.

    Attributes:
        can_grow: whether `fixedbert convert` gives a model like this one larger heads.
        importance_sequences: how many of the `sequences` were measured for `importance`.
        compared: the other checkpoint's inspection, where two are compared.
    """

    model: str
    layers: int
    heads: int  # the most that a layer has
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
    folder: str = ""  # with the page and the picture

    def __repr__(self) -> str:
        return f"Inspection({self.model}: {self.summary}; in {self.folder})"

    def __str__(self) -> str:
        return inspection_text(self)

    def _repr_html_(self) -> str:
        return as_html(f"{self.model}: {self.summary}", Path(self.folder, "inspection.png"))

    @property
    def summary(self) -> str:
        """The shape, and how much was looked at, in a line."""
        return (
            f"{self.layers} layers of width {self.width}, {size_text(self.head_counts)} heads of "
            f"{size_text(self.head_sizes)}; {self.sequences:,} sequences of {self.max_seq_length} tokens"
        )

    @property
    def uniform(self) -> str:
        """What uniform attention would measure, in a sentence."""
        n = self.max_seq_length
        return (
            f"Uniform attention would have an entropy of {math.log(n):.2f} nats and a distance of "
            f"{(n * n - 1) / 3 / n:.1f} tokens."
        )

    @property
    def even_layers(self) -> list[int]:
        """Layers that use their heads' size evenly, and whose heads have less than room for every pattern."""
        used = self.ceiling.nanmean(dim=1)
        room = self.max_seq_length - 1
        return [layer for layer, size in enumerate(self.head_sizes) if used[layer] >= EVEN_SHARE and size < room]

    @property
    def nearest(self) -> list[list[int | None]]:
        """By layer and head, the most similar head of the layer; None for the only one."""
        return [nearest_heads(cosines) for cosines in self.likeness]


def nearest_heads(cosines: Tensor) -> list[int | None]:
    """For each head of `cosines` (heads, heads) the other head with the largest cosine."""
    if len(cosines) < 2:
        return [None] * len(cosines)
    return cosines.clone().fill_diagonal_(-math.inf).argmax(dim=1).tolist()


def limits(name: str, inspections: list[Inspection]) -> tuple[float, float]:
    """The ends of the scale on which a measure of PANELS is drawn, the same for all `inspections`."""
    bounds = {"ceiling": 1.0, "similarity": 1.0, "entropy": math.log(inspections[0].max_seq_length)}
    if name in bounds:
        return 0.0, bounds[name]
    return 0.0, max(float(getattr(inspection, name).nan_to_num().max()) for inspection in inspections)


def json_of(inspection: Inspection) -> dict[str, object]:
    """
    The fields of inspection.json, some of them under longer names, with only the heads that are there, and without the
    examples.
    """
    names = {
        "head_counts": "heads by layer",
        "head_sizes": "head sizes",
        "can_grow": "can grow",
        "max_seq_length": "tokens in a sequence",
        "importance_sequences": "sequences for importance",
        "singular_values": "singular values",
    }

    def listed_values(value: object) -> object:
        if isinstance(value, list):
            return [one.tolist() if isinstance(one, Tensor) else one for one in value]
        if not isinstance(value, Tensor):
            return value
        rows = value.tolist()
        if value.ndim == 1:
            return [row if count else None for row, count in zip(rows, inspection.head_counts, strict=True)]
        return [row[:n] for row, n in zip(rows, inspection.head_counts, strict=True)]

    fields = {
        name: value for name, value in vars(inspection).items() if name not in ("examples", "compared", "folder")
    }
    return {names.get(name, name): listed_values(value) for name, value in fields.items()}


def inspection_text(inspection: Inspection) -> str:
    """A row for every head, and where larger heads are worth a try; then the same of the model compared with."""
    lines = [
        f"{inspection.model}: {inspection.summary}",
        "layer head " + " ".join(f"{heading:>11}" for heading in MEASURES.values()),
    ]
    measures = [getattr(inspection, name) for name in MEASURES]
    for layer in range(inspection.layers):
        for head in range(inspection.head_counts[layer]):
            values = " ".join(f"{float(measure[layer, head]):>11.3g}" for measure in measures)
            lines.append(f"{layer:>5} {head:>4} {values}")
        condition = f"condition number of all heads' output: {float(inspection.condition[layer]):.3g}"
        lines.append(f"{layer:>5}      {condition if inspection.head_counts[layer] else 'no heads'}")
    lines += ["", suggestion(inspection)]
    if inspection.compared is not None:
        lines += ["", inspection_text(inspection.compared)]
    return "\n".join(lines)


def suggestion(inspection: Inspection) -> str:
    """Which layers use their heads' size most evenly, and the command that enlarges the heads of just those."""
    n, sizes, share = inspection.max_seq_length, inspection.head_sizes, f"{EVEN_SHARE:.0%}"
    if min(sizes) >= n - 1:
        return f"Heads of {size_text(sizes)} have room for every pattern over {n} tokens: larger add nothing here."
    even = inspection.even_layers
    if not even:
        return (
            f"In no layer is the mean effective rank {share} of the most there can be: the heads do not use what they "
            "have. That larger ones would learn more is neither shown nor ruled out."
        )
    uniform = [layer for layer in even if inspection.entropy[layer].nanmean() >= UNIFORM * math.log(n)]
    if uniform:
        return (
            f"In layers {', '.join(map(str, uniform))} attention is nearly uniform: the model has hardly learned to "
            "attend, and the ranks are those of chance. They say nothing of the size that its heads need."
        )
    layers = ", ".join(map(str, even))
    finding = f"In layers {layers} the mean effective rank is {share} or more of the most there can be."
    if not inspection.can_grow:
        return finding
    larger = " ".join(str(2 * size if layer in even else size) for layer, size in enumerate(sizes))
    command = f"fixedbert convert {inspection.model} --output_dir OUTPUT --attention_head_size {larger}"
    return f"{finding} More room just there: `{command}`; whether it helps, training shows."
