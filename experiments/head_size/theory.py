"""Checks the theorems numerically, and fits attention patterns with heads of each size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

from fixedbert.support.errors import InputError, require_package
from fixedbert.support.figures import PAGE, new_figure
from fixedbert.support.files import new_directory

from .outputs import output, values_for
from .patterns import attention, fitted, kullback_leibler, least_head_size, random_pattern, truncated_fit, weights_for
from .separation import difference, separated, sequence

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

SMALLEST_DIVERGENCE = 1e-16  # nats; anything smaller is a rounding error
AXIS_BOTTOM = 1e-4  # nats; lower end of the logarithmic axis


@dataclass(frozen=True)
class PatternFits:
    """Median KL divergences, in nats, of heads of size 1, 2, ... from random patterns over `length` tokens."""

    length: int
    uniform: float  # divergence of uniform attention
    least_head_sizes: tuple[int, ...]  # smallest exact head size for each pattern
    truncated: tuple[float, ...]  # for each head size, if only the largest singular values are kept
    fitted: tuple[float, ...]  # for each head size, after gradient descent


def theory(output_dir: str | Path, lengths: Sequence[int] = (8, 16, 32), patterns: int = 5, seed: int = 0) -> str:
    """
    Checks the theorems numerically and writes theory.png to the new directory `output_dir`.

    Args:
        lengths: Sequence lengths for the curves. Theorem 1 and the heat maps use the first one.
        patterns: Number of random patterns for each length. The curves show medians over the patterns.

    Returns:
        The results as text, with the claim that each number confirms.

    Raises:
        InputError: If a length is below 2, or `patterns` is below 1.
    """
    if min(lengths) < 2 or patterns < 1:
        raise InputError("must be at least 2 tokens, and `patterns` at least 1.", "lengths")
    require_package("matplotlib", "plots")
    with new_directory(output_dir) as directory:
        with tqdm(total=patterns * sum(lengths), desc="fitting patterns", unit="fit") as progress:
            fits = [fit_patterns(length, patterns, seed, progress) for length in lengths]
        draw(fits, random_pattern(lengths[0], torch.Generator().manual_seed(seed)), directory / "theory.png")
    checks = (check_theorem_1(seed, lengths[0]), check_theorem_2(seed), check_value_rank(seed))
    lines = [
        "Random patterns: smallest head size that expresses them, and median KL divergence of smaller heads (nats)"
    ]
    for fit in fits:
        half = fit.length // 2
        lines.append(
            f"  {fit.length:>4} tokens: {', '.join(map(str, sorted(set(fit.least_head_sizes))))}; best head of size "
            f"{half}: {fit.fitted[half - 1]:.2g}; uniform attention: {fit.uniform:.2g}"
        )
    return "\n\n".join("\n".join(part) for part in (*checks, lines))


def check_theorem_1(seed: int, n: int) -> list[str]:
    """Constructs heads for a random pattern over n tokens, in width n + 4, and fits the best smaller head."""
    generator, d = torch.Generator().manual_seed(seed), n + 4
    X, P = torch.randn(d, n, dtype=torch.float64, generator=generator), random_pattern(n, generator)
    nearest = fitted(P, n - 2) if n > 2 else truncated_fit(P, 0)  # head size 0 means uniform attention
    return [
        f"Theorem 1, extended: a head of size {n - 1} or more can express every pattern over {n} tokens; "
        "smaller heads cannot.",
        "Largest error in the probabilities of a random pattern (1e-12 or less is rounding):",
        *(f"  head size {p}: {(attention(X, *weights_for(X, P, p)) - P).abs().max():.1e}" for p in (d, n - 1)),
        f"  best head of size {n - 2}: {(nearest - P).abs().max():.1e}",
    ]


def check_theorem_2(seed: int, d: int = 12, heads: int = 6, head_size: int = 4) -> list[str]:
    """Compares fixed and standard heads in random layers of width d, on the sequences of the proof's three cases."""
    differences, errors = [], []
    for case in (1, 2, 3):
        f, g = separated(case, d, heads, head_size, seed)
        X = sequence(case, f, g, 5)
        measured = f(X) - g(X)
        differences.append(f"  case {case}: {measured.abs().max():.3g}")
        if case < 3:
            errors.append(f"{(measured - difference(case, f, g, X)).abs().max():.1e} (case {case})")
    return [
        f"Theorem 2: {heads} heads of size {head_size} in width {d} compute outputs that {heads} standard heads of "
        f"size {d // heads} cannot.",
        "Largest difference between their outputs (any number above 1e-9 confirms the theorem):",
        *differences,
        f"Largest error in the proof's formula for this difference: {', '.join(errors)}",
    ]


def check_value_rank(seed: int, n: int = 8, d: int = 12, heads: int = 2) -> list[str]:
    """Checks the rank criterion for value sizes, with a random output (d, n) and heads with random patterns."""
    generator = torch.Generator().manual_seed(seed)
    X, Y = torch.randn(2, d, n, dtype=torch.float64, generator=generator)
    patterns = torch.stack([random_pattern(n, generator) for _ in range(heads)])
    size = n // heads
    exact, nearest = (output(X, patterns, *values_for(X, patterns, Y, v)) - Y for v in (size, size - 1))
    least = torch.linalg.svdvals(Y)[heads * (size - 1) :].norm()
    return [
        f"Values: {heads} heads with values of size {size} produce any output over {n} tokens, and smaller ones do "
        "not.",
        f"  value size {size}: largest error {exact.abs().max():.1e}",
        f"  best values of size {size - 1}: error {nearest.norm():.4g} (Frobenius norm); predicted: {least:.4g}",
    ]


def fit_patterns(length: int, patterns: int, seed: int, progress: tqdm) -> PatternFits:
    generator = torch.Generator().manual_seed(seed)
    sample = [random_pattern(length, generator) for _ in range(patterns)]
    bounds, best = [], []
    for size in range(1, length + 1):
        bounds.append(median(kullback_leibler(P, truncated_fit(P, size)) for P in sample))
        best.append(median(kullback_leibler(P, fitted(P, size)) for P in sample))
        progress.update(patterns)
    uniform = median(kullback_leibler(P, torch.full_like(P, 1 / length)) for P in sample)
    return PatternFits(length, uniform, tuple(map(least_head_size, sample)), tuple(bounds), tuple(best))


def median(divergences: Iterable[float]) -> float:
    return max(SMALLEST_DIVERGENCE, float(torch.tensor(list(divergences), dtype=torch.float64).median()))


def draw(fits: Sequence[PatternFits], P: Tensor, file: Path):
    """Plots divergence against head size for each length, and heat maps of P and its best fits by smaller heads."""
    with new_figure(PAGE, 6.6, file) as figure:
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(4, 2.6))[:, 0]
        panels = upper.subplots(1, 2)
        for index, fit in enumerate(fits):
            color, sizes, label = f"C{index}", range(1, fit.length + 1), f"{fit.length} tokens"
            panels[0].axhline(fit.uniform, color=color, linestyle="-.", linewidth=1)
            panels[1].plot(sizes, fit.truncated, "--", color=color, linewidth=1)
            for panel in panels:
                panel.plot(sizes, fit.fitted, "o-", color=color, markersize=4, label=label)
                panel.axvline(fit.length - 1, color=color, linestyle=":", linewidth=1)
        styles = {
            "o-": "best head",
            "--": "truncated SVD",
            "-.": "uniform attention",
            ":": "n - 1, exact from here on",
        }
        for style, label in styles.items():
            panels[0].plot([], [], style, color="black", linewidth=1, markersize=4, label=label)
        panels[0].set(ylabel="KL divergence (nats)", ylim=(0, None))
        panels[1].set(yscale="log", ylim=(AXIS_BOTTOM, 2))
        panels[1].yaxis.set_major_formatter("{x:g}")
        ticks = [2**power for power in range(max(fit.length for fit in fits).bit_length())]
        for panel in panels:
            panel.set(xscale="log", xlabel="head size")
            panel.set_xticks(ticks, labels=list(map(str, ticks)), minor=False)
            panel.minorticks_off()
        upper.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        patterns = len(fits[0].least_head_sizes)
        upper.suptitle(f"Divergence from random patterns over n tokens (median of {patterns})")
        draw_patterns(lower, P)


def draw_patterns(figure: SubFigure, P: Tensor):
    """Draws heat maps of P, the best heads of size n - 2 and n / 4, and uniform attention on a common scale."""
    n = len(P)
    shown = {f"random pattern\nexact with head size {n - 1}": P}
    shown |= {f"best head of size {size}": fitted(P, size) for size in sorted({n - 2, n // 4} - {0}, reverse=True)}
    shown["uniform attention"] = torch.full_like(P, 1 / n)
    panels = figure.subplots(1, len(shown), sharey=True)
    for panel, (title, pattern) in zip(panels, shown.items(), strict=True):
        image = panel.imshow(pattern.numpy(), cmap="Blues", vmin=0, vmax=float(P.max()))
        divergence = "" if pattern is P else f"\nKL {kullback_leibler(P, pattern):.2g} nats"
        panel.set(title=f"{title}{divergence}", xlabel="query", xticks=[], yticks=[])
    panels[0].set_ylabel("key")
    figure.colorbar(image, ax=panels, label="attention weight")
