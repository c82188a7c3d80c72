"""`fixedbert theory`: the theorems checked in numbers, and a picture of how attention patterns need head size."""

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from ..errors import InputError
from ..training.output import new_directory
from .patterns import attention, divergence, fitted, least_head_size, random_pattern, truncated_fit, weights_for
from .separation import difference, separated, sequence

FLOOR = 1e-16  # nats; what is smaller is rounding


def theory(output_dir: str | Path, lengths: Sequence[int] = (8, 16, 32), patterns: int = 5, seed: int = 0) -> str:
    """
    Write theory.png into `output_dir`, a new directory.

    Args:
        lengths: of sequences; each has a curve.
        patterns: random ones for each length and head size, whose median is drawn.

    Returns:
        The table of checks.

    Raises:
        InputError: a length below 2, or something in `output_dir`.
    """
    if min(lengths) < 2 or patterns < 1:
        raise InputError("--lengths of 2 and more, and --patterns of 1 and more, are needed to draw anything.")
    with new_directory(output_dir) as folder:
        lines = [*checks(seed), "", "least head size of random patterns"]
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        axes = figure.subplots()
        total = patterns * sum(lengths)
        with tqdm(total=total, desc="fitting patterns", unit="fit") as progress:
            for number, length in enumerate(lengths):
                generator = torch.Generator().manual_seed(seed)
                drawn = [random_pattern(length, generator) for _ in range(patterns)]
                sizes = range(1, length + 1)
                bound, best = [], []
                for size in sizes:
                    bound.append(median(divergence(P, truncated_fit(P, size)) for P in drawn))
                    best.append(median(divergence(P, fitted(P, size)) for P in drawn))
                    progress.update(patterns)
                color = f"C{number}"
                axes.plot(sizes, best, "o-", color=color, markersize=4, label=f"{length} tokens, gradient descent")
                axes.plot(
                    sizes, bound, "--", color=color, linewidth=1, label=f"{length} tokens, largest singular values"
                )
                axes.axvline(length - 1, color=color, linestyle=":", linewidth=1)
                lines.append(f"  {length:>4} tokens: {sorted({least_head_size(P) for P in drawn})}")
        axes.set(
            xlabel="head size",
            ylabel="divergence of the best fit (nats; 1e-16 is rounding)",
            yscale="log",
            xscale="log",
            title=f"Random attention patterns, median of {patterns}; dotted: n - 1, from where all are exact",
        )
        ticks = [2**power for power in range(max(lengths).bit_length())]
        axes.set_xticks(ticks, labels=map(str, ticks), minor=False)
        axes.minorticks_off()
        axes.legend(fontsize=8)
        figure.savefig(folder / "theory.png", dpi=110)
    return "\n".join(lines)


def median(values) -> float:
    return max(FLOOR, float(torch.tensor(list(values), dtype=torch.float64).median()))


def checks(seed: int) -> list[str]:
    """What the theorems say, on small matrices, with the error that is left."""
    generator = torch.Generator().manual_seed(seed)
    n, d = 8, 12
    X, P = torch.randn(d, n, dtype=torch.float64, generator=generator), random_pattern(n, generator)
    lines = [f"Theorem 1: any pattern over {n} tokens"]
    for size in (d, n - 1):
        error = (attention(X, *weights_for(X, P, size)) - P).abs().max()
        lines.append(f"  from a head of {size}: off by {error:.1e}")
    lines.append(f"  the best head of {n - 2}: off by {(fitted(P, n - 2) - P).abs().max():.1e}")
    lines.append("Theorem 2: 6 fixed heads of 4 in width 12 beside 6 standard ones of 2")
    for case in (1, 2, 3):
        f, g = separated(case, 12, 6, 4, seed)
        X = sequence(case, f, g, 5)
        found = f(X) - g(X)
        closed = f", closed form off by {(found - difference(case, f, g, X)).abs().max():.1e}" if case < 3 else ""
        lines.append(f"  case {case}: the layers differ by {found.abs().max():.3g}{closed}")
    return lines
