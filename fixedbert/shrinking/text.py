"""What `fixedbert shrink` prints: errors predicted by size, and those measured where the model was cut."""

from .shrink import Shrinking


def shrinking_text(shrinking: Shrinking) -> str:
    """Predicted errors by size, and where the model was cut its heads and the measured errors."""
    layers = shrinking.layers
    lines = [
        f"{shrinking.model}: {len(layers)} layers; {shrinking.tokens:,} tokens in sequences of "
        f"{shrinking.max_seq_length}",
        "relative errors predicted from the singular values on the uncut model, by size:",
    ]
    for name in ("scores", "values", "heads"):
        curves = [getattr(layer, name) for layer in layers]
        places = sorted({round(share * (len(curve) - 1) / 8) for curve in curves for share in range(9)})
        if places == [0]:
            continue
        unit = "left out" if name == "heads" else "size"
        lines.append(f"{name:<8} {unit:>8} " + " ".join(f"{place:>6}" for place in places))
        for number, curve in enumerate(curves):
            shown = (f"{curve[place]:>6.3f}" if place < len(curve) else " " * 6 for place in places)
            lines.append(f"{'layer':>12} {number:>4} " + " ".join(shown))
    if shrinking.cut:
        lines += ["", "cut, with relative errors of the attention's output measured on the text:"]
        for number, layer in enumerate(layers):
            measured = f"{layer.error:.3f} on the same inputs, {layer.from_original:.3f} from the original"
            if shrinking.repaired:
                measured += f", {shrinking.repaired[number]:.3f} after training"
            if layer.feed_forward_error:
                measured += f"; of the feed-forward network's {layer.feed_forward_error:.3f}"
            lines.append(f"  layer {number}: {layer.before} -> {layer.after}: {measured}")
        before, after = shrinking.parameters
        lines.append(f"parameters of the model: {before:,} -> {after:,}, {1 - after / before:.1%} less")
        if shrinking.repaired:
            lines.append(f"{shrinking.distil_steps:,} steps of training: {shrinking.outcome}")
    if shrinking.limit:
        lines.append(f"{shrinking.limit} Give --max_seq_length as long as your inputs.")
    return "\n".join(lines)
