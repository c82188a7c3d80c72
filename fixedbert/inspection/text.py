"""What `fixedbert inspect` prints: a row for each head, and where larger heads are worth a try."""

from ..counts import size_text
from .results import EVEN_SHARE, Inspection

MEASURES = {  # of an inspection, with the headings of their columns
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
        return f"In no layer has the mean effective rank {share} of the most there can be; no bottleneck is ruled out."
    layers = ", ".join(map(str, even))
    finding = f"In layers {layers} the mean effective rank is {share} or more of the most there can be."
    if not inspection.can_grow:
        return finding
    larger = " ".join(str(2 * size if layer in even else size) for layer, size in enumerate(sizes))
    command = f"fixedbert convert {inspection.model} --output_dir OUTPUT --attention_head_size {larger}"
    return f"{finding} More room just there: `{command}`; whether it helps, training shows."
