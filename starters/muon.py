"""Muon (Jordan et al. 2024): momentum that is orthogonalised before it is applied.

`torch.optim.Muon` takes matrices alone and iterates in bfloat16, one by one. On a CPU without bfloat16 that is a
quarter of a small model's step; in float32, with matrices of one shape batched, it is a twentieth. Here a convolution
is a matrix with one row for each output channel.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

ITERATION: Final = (3.4445, -4.7750, 2.0315)  # coefficients of the Newton-Schulz iteration
ITERATIONS: Final = 5
MOMENTUM: Final = 0.95
ADAM_SCALE: Final = 0.2  # makes a step as large as AdamW's at the same learning rate


class Muon(torch.optim.Optimizer):
    """For the weights of layers inside a network, [rows, ...] each."""

    def __init__(self, weights: Iterable[Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Parameter]] = defaultdict(list)
            for weight in group["params"]:
                shapes[weight.flatten(1).shape].append(weight)
            for shape, weights in shapes.items():
                updates = orthogonalize(torch.stack([self._direction(weight).flatten(1) for weight in weights]))
                size = group["lr"] * ADAM_SCALE * max(shape) ** 0.5
                for weight, update in zip(weights, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update.reshape(weight.shape), alpha=size)

    def _direction(self, weight: Parameter) -> Tensor:
        """The gradient with Nesterov momentum."""
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        momentum: Tensor = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
        momentum.lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(momentum, MOMENTUM)


def orthogonalize(matrices: Tensor) -> Tensor:
    """The nearest matrices whose singular values are all about one, [count, rows, columns]."""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = ITERATION
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x
