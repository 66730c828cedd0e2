"""Feed-forward layers: one gated MLP, or a routed choice of many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.kernels.activation import geglu, swiglu
from engine.kernels.moe import route_grouped_sigmoid, route_softmax
from engine.layers.linear import ExpertLinears, MergedLinear, Projection
from engine.layers.parameter import weight


class GatedMlp(nn.Module):
    """`down(silu(gate(x)) * up(x))`, or with GELU, with gate and up as one matrix (gate rows first)."""

    def __init__(self, *, hidden: int, intermediate: int, gelu: bool = False, dtype: torch.dtype) -> None:
        super().__init__()
        self.activation = geglu if gelu else swiglu
        self.gate_up = MergedLinear(hidden, intermediate, intermediate, dtype=dtype)
        self.down = Projection(intermediate, hidden, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`[T, hidden] -> [T, hidden]`."""
        return self.down(self.activation(self.gate_up(x)))


@dataclass(frozen=True, slots=True)
class ExpertRouter:
    """Expert selection of an MoE layer."""

    top_k: int
    renormalize: bool
    """Make the chosen weights sum to one."""
    sigmoid: bool = False
    """Sigmoid scores with a bias that counts for the choice only, groups first, in float32 (Ling,
    LLaDA2); otherwise softmax over all experts."""
    num_groups: int = 1
    top_k_groups: int = 1
    scale: float = 1.0
    """Multiplies the weights of the chosen experts."""
    bias: bool = False
    """A bias in the projection to scores, apart from that which counts for the choice only."""


class SparseMlp(nn.Module):
    """Routed experts, and optional shared experts for all tokens; `swiglu_limit` as in `ExpertLinears`."""

    def __init__(
        self,
        *,
        hidden: int,
        experts: int,
        intermediate: int,
        shared_intermediate: int,
        router: ExpertRouter,
        swiglu_limit: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.router = router
        wide = torch.float32 if router.sigmoid else dtype
        self.gate = Projection(hidden, experts, bias=router.bias, dtype=wide)
        self.expert_bias = weight(experts, dtype=torch.float32) if router.sigmoid else None
        self.experts = ExpertLinears(
            hidden=hidden,
            experts=experts,
            intermediate=intermediate,
            swiglu_limit=swiglu_limit,
            dtype=dtype,
        )
        self.shared: GatedMlp | None = None
        if shared_intermediate:
            self.shared = GatedMlp(hidden=hidden, intermediate=shared_intermediate, dtype=dtype)
        self.load: Tensor | None = None
        """`[experts]` int64, when set: cumulative number of rows computed by each expert."""

    def forward(self, x: Tensor) -> Tensor:
        """`[T, hidden] -> [T, hidden]`."""
        weights, ids = self.route(x)
        if self.load is not None:
            rows = ids.reshape(-1).long()
            self.load.scatter_add_(0, rows, torch.ones_like(rows))
        out = self.experts(x, weights, ids)
        return out if self.shared is None else out + self.shared(x)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights float32 and experts int32 of each token, both `[T, top_k]`."""
        router = self.router
        if self.expert_bias is None:
            return route_softmax(self.gate(x), router.top_k, router.renormalize)
        return route_grouped_sigmoid(
            self.gate(x.float()),
            self.expert_bias,
            router.top_k,
            router.num_groups,
            router.top_k_groups,
            router.renormalize,
            router.scale,
        )
