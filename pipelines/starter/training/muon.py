"""Muon: momentum whose update of a matrix is made orthogonal, so that every direction learns at the same pace.

Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024), with the step size of Moonlight (2025),
which lets it share AdamW's learning rates. torch's own takes matrices only and multiplies them in bfloat16, which most
CPUs do slowly; here a convolution is the matrix of its output channels, and the arithmetic is float32.
"""

import math
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

QUINTIC: Final = (3.4445, -4.7750, 2.0315)  # of the post: drives all singular values to about 1 in few rounds
ROUNDS: Final = 5
LIKE_ADAM: Final = 0.2  # root mean square of AdamW's updates, over the learning rate (Moonlight)


class Muon(Optimizer):
    """For the weights of hidden layers, matrices and convolutions alike."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, weight: nn.Parameter, rate: float, momentum: float, decay: float) -> None:
        gradient: Tensor = weight.grad  # type: ignore[assignment]
        state = self.state[weight]
        if not state:
            state["mean"] = torch.zeros_like(weight)
        mean = state["mean"].lerp_(gradient, 1 - momentum)
        ahead = gradient.lerp(mean, momentum).flatten(1)
        size = LIKE_ADAM * math.sqrt(max(ahead.shape))
        weight.mul_(1 - rate * decay).sub_(orthogonal(ahead).view_as(weight), alpha=rate * size)


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest matrix of orthonormal rows, or columns if these are fewer, by Newton's and Schulz's rounds."""
    a, b, c = QUINTIC
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
