"""Forced expert selection, which makes the number of active experts a column of the grid."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from engine.executor import Model
from engine.layers.mlp import SparseMlp

Tensor = torch.Tensor
Route = Callable[[Tensor], tuple[Tensor, Tensor]]


class ForcedExperts:
    """Override of the experts chosen by a model's routers, which still run.

    All sparse layers read the same ids from one tensor, written between steps, so captured graphs see the
    change and no kernel is added.

    Args:
        model: a model whose graphs are not captured yet.
        max_rows: upper bound of the rows of a step.
    """

    def __init__(self, model: Model, max_rows: int, seed: int = 0) -> None:
        assert isinstance(model, torch.nn.Module)
        layers = [layer for layer in model.modules() if isinstance(layer, SparseMlp)]
        self.layers = len(layers)
        self.experts, self.top_k = len(layers[0].experts.w13), layers[0].router.top_k
        self._random = np.random.default_rng(seed)
        self._ids = np.zeros((max_rows, self.top_k), dtype=np.int32)
        self._on_device = torch.zeros(self._ids.shape, dtype=torch.int32, device=layers[0].experts.w13.device)
        for layer in layers:
            object.__setattr__(layer, "route", partial(self._route, layer.route))
        self._forced = -1
        self.force(0)

    def force(self, active: int) -> None:
        """Distribute tokens evenly over `active` experts from now on; 0 = random experts for each token."""
        if active == self._forced:
            return
        self._forced = active
        rows = len(self._ids)
        if active:
            chosen = self._random.permutation(self.experts)[:active]
            self._ids[:] = chosen[np.arange(rows * self.top_k) % active].reshape(rows, self.top_k)
        else:
            order = self._random.random((rows, self.experts), dtype=np.float32).argsort(axis=1)
            self._ids[:] = order[:, : self.top_k]
        self._on_device.copy_(torch.from_numpy(self._ids))

    def active(self, rows: int) -> int:
        """Number of experts that `rows` rows use, summed over all sparse layers."""
        return len(np.unique(self._ids[:rows])) * self.layers

    def _route(self, route: Route, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, _ = route(x)
        return weights, self._on_device[: len(x)]


def has_experts(model: Model) -> bool:
    """Whether a model routes tokens to experts."""
    return isinstance(model, torch.nn.Module) and any(isinstance(m, SparseMlp) for m in model.modules())
