"""
Sizes and numbers of heads for a budget: of parameters, or of error.

What a smaller size of scores or values, or a head less, adds to the error of a layer's output is predicted from the
singular values of cut.py. Heads then become smaller step by step, each time where a parameter costs least.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..conversion.growing import Heads
from ..support.errors import InputError
from .cut import Moments, remove_inputs, score_spectrum, squares, value_spectrum


@dataclass(frozen=True)
class Curves:
    """
    Predicted squared errors of the output of a layer's attention, relative to the sum of its squares over the text.

    Those of heads are taken as independent of each other, and those of scores as proportional to the squared error of
    scores.

    Args:
        heads: what there is.
        width: hidden_size.
        scores: (H, P + 1), by the size that is kept.
        values: (H, V + 1).
        heads_removed: by the number of heads that are left out; of one number, 0, where none can be.
        removed: the heads, the first to go first.
    """

    heads: Heads
    width: int
    scores: Tensor
    values: Tensor
    heads_removed: Tensor
    removed: tuple[int, ...]

    def error(self, heads: Heads) -> float:
        """The squared error with these heads."""
        gone = self.heads.number - heads.number
        kept = [head for head in range(self.heads.number) if head not in self.removed[:gone]]
        tails = self.scores[kept, heads.size] + self.values[kept, heads.value_size]
        return float(self.heads_removed[gone] + tails.sum())

    def smaller(self, heads: Heads, multiple: int) -> Iterator[Heads]:
        """The next smaller heads: in size, in size of values, in number."""
        for size in ("size", "value_size"):
            if (less := (getattr(heads, size) - 1) // multiple * multiple) >= multiple:
                yield heads._replace(**{size: less})
        if self.heads.number - heads.number + 1 < len(self.heads_removed):
            yield heads._replace(number=heads.number - 1)

    def cheapest(self, heads: Heads, multiple: int, most: float = float("inf")) -> tuple[float, Heads] | None:
        """
        The step to smaller heads with the least error for each parameter that it saves, and that error; None if there
        is none whose error stays at `most`.
        """
        before, weights = self.error(heads), parameters(heads, self.width)
        steps = [
            ((self.error(less) - before) / (weights - parameters(less, self.width)), less)
            for less in self.smaller(heads, multiple)
            if self.error(less) <= most
        ]
        return min(steps) if steps else None


def parameters(heads: Heads, width: int) -> int:
    """Parameters of a layer's attention, without its LayerNorm."""
    number, size, value_size = heads
    return number * (2 * size + value_size) * (width + 1) + (number * value_size + 1) * width


def heads_for_parameters(curves: list[Curves], budget: float, multiple: int = 1) -> list[Heads]:
    """
    Heads of each layer with at most `budget` parameters together, made smaller step by step, each time where an error
    of the least is added for each parameter that is saved.

    Raises:
        InputError: there are no such heads.
    """
    chosen = [layer.heads for layer in curves]
    steps = [layer.cheapest(heads, multiple) for layer, heads in zip(curves, chosen, strict=True)]
    while sum(parameters(heads, layer.width) for layer, heads in zip(curves, chosen, strict=True)) > budget:
        open_steps = [(*step, number) for number, step in enumerate(steps) if step]
        if not open_steps:
            raise InputError("leaves less than one head of each layer; keep more.", "keep")
        _, heads, number = min(open_steps)
        chosen[number], steps[number] = heads, curves[number].cheapest(heads, multiple)
    return chosen


def heads_for_error(curves: Curves, error: float, multiple: int = 1) -> Heads:
    """Heads of a layer whose predicted relative error is at most `error`, made smaller in the same way."""
    heads = curves.heads
    while step := curves.cheapest(heads, multiple, most=error**2):
        heads = step[1]
    return heads


def curves_of(tensors: dict[str, Tensor], moments: Moments, sensitivity: float = 0.0) -> Curves:
    """
    Args:
        tensors: parameters of a layer's attention (see `cut_attention`).
        sensitivity: squared relative error of the output for each unit of squared error of scores, all heads together.
    """
    W_o, (H, _, V) = tensors["output.dense.weight"].double(), moments.heads
    scale = moments.z.tokens / moments.output if moments.output else 0.0
    scores = torch.stack([squares(score_spectrum(q, k)) for q, k in score_moments(moments)])
    z = [moments.z_of_head(head)[1] for head in range(H)]
    values = torch.stack([squares(value_spectrum(W, M)) for W, M in zip(W_o.split(V, dim=1), z, strict=True)])
    lost, removed = torch.zeros(1, dtype=torch.float64), []
    if moments.of_all and H > 1:
        removal = remove_inputs(W_o, moments.z.mean[0], moments.z.about_mean[0], V, 1)
        whole = float((W_o @ moments.z.about_mean[0] * W_o).sum())
        lost, removed = torch.tensor(removal.errors, dtype=torch.float64).square() * whole, removal.removed
    return Curves(moments.heads, len(W_o), scores * sensitivity, values * scale, lost * scale, tuple(removed))


def score_moments(moments: Moments) -> Iterator[tuple[Tensor, Tensor]]:
    """M_q and M_k of each head."""
    return zip(moments.queries.about_zero, moments.keys.about_zero, strict=True)


def score_errors(moments: Moments) -> Tensor:
    """(P + 1): squared error of the scores, all heads together, where each keeps 0, 1, ... P singular values."""
    return torch.stack([squares(score_spectrum(q, k)) for q, k in score_moments(moments)]).sum(dim=0)
