"""The Muon optimizer: momentum whose singular values are all set to about one.

It needs far fewer steps than AdamW for the weight matrices inside a transformer (K. Jordan et al., "Muon: an
optimizer for hidden layers in neural networks"). torch's own iterates in bf16, which most CPUs emulate;
here it is float32, and matrices of one shape go through the iteration together.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonalize(matrices: Tensor, iterations: int = 5) -> Tensor:
    """[N, a, b]: the nearest semi-orthogonal matrices, roughly (singular values between 0.7 and 1.2).

    A quintic Newton-Schulz iteration with the coefficients of the original.
    """
    wide = matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices
    x = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if matrices.shape[-2] > matrices.shape[-1] else x


class Muon:
    """Nesterov momentum, orthogonalized; updates have an RMS of 0.2 × the learning rate, like AdamW's."""

    def __init__(self, weights: Iterable[Tensor], momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.groups: dict[torch.Size, list[Tensor]] = {}
        for weight in weights:
            self.groups.setdefault(weight.shape, []).append(weight)
        self.velocity = {shape: torch.zeros(len(same), *shape) for shape, same in self.groups.items()}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for shape, weights in self.groups.items():
            gradient = torch.stack([weight.grad for weight in weights if weight.grad is not None])
            velocity = self.velocity[shape].lerp_(gradient, 1 - self.momentum)
            update = orthogonalize(gradient.lerp(velocity, self.momentum))
            for weight, direction in zip(weights, update, strict=True):
                weight.mul_(1 - learning_rate * self.weight_decay)
                weight.sub_(direction, alpha=0.2 * learning_rate * max(shape) ** 0.5)
