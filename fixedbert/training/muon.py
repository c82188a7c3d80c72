"""Muon for matrices (Jordan et al., 2024), AdamW for all other parameters, as one optimizer."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

MOMENTUM = 0.95
A, B, C = 3.4445, -4.7750, 2.0315  # of the iteration X <- A X + B (X X^T) X + C (X X^T)^2 X
ITERATIONS = 5


class MuonWithAdamW(torch.optim.AdamW):
    """
    Muon for the groups with a `momentum`, whose parameters are matrices; AdamW for the others.

    It does what torch.optim.Muon does with adjust_lr_fn="match_rms_adamw", so that learning rates are of AdamW's size.
    That one is for matrices alone, while Trainer has one optimizer, and it multiplies in bf16, which is slow on most
    CPUs.
    """

    def _init_group(self, group, *lists):
        return False if "momentum" in group else super()._init_group(group, *lists)  # AdamW finds none of Muon's

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            if "momentum" in group:
                for matrix in group["params"]:
                    if matrix.grad is not None:
                        self.update(matrix, group)
        return loss

    def update(self, matrix: Tensor, group: dict):
        """One step of Muon with Nesterov's momentum and decoupled weight decay."""
        state, gradient = self.state[matrix], matrix.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros(())  # AdamW wants it of every parameter when a checkpoint is loaded
            state["average"] = torch.zeros_like(matrix)
        state["step"] += 1
        average = state["average"].lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalized(gradient.lerp(average, group["momentum"]))
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.add_(direction, alpha=-0.2 * group["lr"] * math.sqrt(max(matrix.shape)))


def orthogonalized(matrix: Tensor) -> Tensor:
    """Near U V^T for a matrix U S V^T: Newton-Schulz iterations bring its singular values to between 0.5 and 1.5."""
    x = matrix if matrix.device.type == "cpu" else matrix.bfloat16()
    is_tall = x.shape[0] > x.shape[1]
    x = x.mT if is_tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if is_tall else x


def with_muon(optimizer: torch.optim.AdamW, matrices: Iterable[Tensor], learning_rate: float) -> MuonWithAdamW:
    """The same groups with the same settings, but Muon at `learning_rate` for `matrices`."""
    chosen, groups = set(matrices), []
    for group in optimizer.param_groups:
        of_muon = [parameter for parameter in group["params"] if parameter in chosen]
        of_adamw = [parameter for parameter in group["params"] if parameter not in chosen]
        groups.append({**group, "params": of_adamw})
        if of_muon:
            groups.append({**group, "params": of_muon, "lr": learning_rate, "momentum": MOMENTUM})
    return MuonWithAdamW(groups)
