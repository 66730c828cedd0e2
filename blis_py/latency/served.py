"""`trained` prices of a model as one engine serves it: by the formula of `trained` or by operators, within
the bounds that neighbours set (`neighbours`).

Of two prices in the wrong order, that which servers of the model were measured for holds, and the other is
raised or lowered to it. Of two measured or two unmeasured ones the higher is lowered: tables are wrong where
a kernel was not tuned. What is unmeasured is raised before it bounds others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import GpuSpec
from blis_py.hardware.layout import Layout
from blis_py.latency import surfaces
from blis_py.latency.engine_terms import measured_servers
from blis_py.latency.graph_sizes import GraphSizes
from blis_py.latency.learned import kind_of
from blis_py.latency.neighbours import Neighbour, neighbours
from blis_py.latency.trained import Trained, bundled_training, learned_experts
from blis_py.models.model_shape import ModelShape

if TYPE_CHECKING:
    from blis_py.latency.bounded import Bounded
    from blis_py.latency.expert_load import ExpertLoad
    from blis_py.latency.operators import Operators
    from blis_py.latency.trained import ServerTerms

_OWN_EXPERTS = ("auto", "triton")
"""Kernels of experts in 16 bits that vLLM runs on the GPUs that the formula of `trained` was learned on."""


class Served(NamedTuple):
    """Settings that determine the step times of `trained`; see `latency.build`."""

    shape: ModelShape
    gpu: GpuSpec
    layout: Layout
    kernels: str = "vllm"
    moe_backend: str = "auto"
    fused_norms: bool = False
    graphs: GraphSizes | None = None
    load: ExpertLoad | None = None

    def model(self, server: ServerTerms | None = None) -> Operators | Trained:
        """The price without bounds.

        Raises:
            InputError: the engine does not divide the model so.
        """
        shape, gpu, layout = self.shape, self.gpu, self.layout
        if not self._by_operators:
            return Trained(shape, gpu, layout.gpus, server=server)
        from blis_py.latency import operator_list, operators

        options = operator_list.KernelOptions(self.moe_backend, self.fused_norms, self.graphs, self.load)
        return operators.Operators(shape, gpu, layout, self.kernels, server=server, options=options)

    @property
    def measured(self) -> bool:
        """Whether its price was learned on servers or whole steps of this model, or kind of model."""
        if self._by_operators:
            return measured_servers(self.kernels, self.gpu, self.shape, self.layout)
        return self.gpu.name in bundled_training().learned.tp.get(kind_of(self.shape), {})

    @property
    def _by_operators(self) -> bool:
        set_experts = self.load is not None or self.moe_backend not in _OWN_EXPERTS
        return self._needs_operators or bool(set_experts and self.shape.moe_layers)

    @property
    def _needs_operators(self) -> bool:
        """Whether `trained` prices operator by operator: everything except plain models without windows under
        vLLM, on whose kernels and servers its formula was learned. These are dense models in 16 bits, and in
        8 before Blackwell, where servers are closer to operators, and experts in 16 bits on the GPUs that
        they were measured on: the terms of operators were learned on servers of other formats."""
        shape, gpu, layout = self.shape, self.gpu, self.layout
        plain = shape.is_plain and not shape.windowed_layers
        if not plain or self.kernels != "vllm" or layout != Layout(layout.gpus):
            return True
        if shape.moe_layers:
            return not learned_experts(shape, gpu)
        if shape.weights.dense >= 2 or shape.weights.arithmetic == "int8":
            return False
        eight_bits = shape.weights.arithmetic == "fp8"
        return not eight_bits or (gpu.fp4_flops > 0 and surfaces.surface_file(gpu.name, "vllm").is_file())


class PricePlan(NamedTuple):
    """A price, and the prices that bound it: from above, then from below."""

    served: Served
    upper: tuple[PriceLink, ...] = ()
    lower: tuple[PriceLink, ...] = ()

    def model(self, server: ServerTerms | None = None) -> Operators | Trained | Bounded:
        """The latency model."""
        own = self.served.model(server)
        if not (self.upper or self.lower):
            return own
        from blis_py.latency.bounded import Bound, Bounded

        links = (*self.upper, *self.lower)
        return Bounded(own, [Bound(link.plan.model(server), *link.neighbour[2:]) for link in links])


class PriceLink(NamedTuple):
    """A bound of a price."""

    plan: PricePlan
    neighbour: Neighbour


class _Planned(NamedTuple):
    plan: PricePlan
    typical_ns: NDArray[np.float64]
    """Times of typical steps."""


@lru_cache(maxsize=1024)
def bounded_price(served: Served) -> PricePlan:
    """A price within all bounds that it exceeds in some typical step."""
    return _within(served, lower=not served.measured, upper=True).plan


@lru_cache(maxsize=4096)
def _within(served: Served, lower: bool, upper: bool) -> _Planned:
    """A price within bounds.

    Args:
        lower: raise it to those that were measured.
        upper: lower it to others: of a measured one, to measured ones.
    """
    ns, measured = _own_ns(served), served.measured
    around = list(neighbours(served.shape, served.gpu))
    above: tuple[PriceLink, ...] = ()
    below: tuple[PriceLink, ...] = ()
    if upper:
        ns, above = _bound(served, ns, (n for n in around if n.above), measured)
    if lower:
        ns, below = _bound(served, ns, (n for n in around if not n.above), measured=True)
    return _Planned(PricePlan(served, above, below), ns)


def _bound(
    served: Served, ns: NDArray[np.float64], by: Iterator[Neighbour], measured: bool
) -> tuple[NDArray[np.float64], tuple[PriceLink, ...]]:
    """Prices within bounds, and those of them that are the nearest in some step.

    Args:
        measured: by measured prices alone.
    """
    nearest: list[PriceLink | None] = [None] * len(ns)
    for neighbour in by:
        other = served._replace(shape=neighbour.shape, gpu=neighbour.gpu)
        if measured and not other.measured:
            continue
        try:
            planned = _within(other, lower=not other.measured, upper=not neighbour.above)
        except InputError:  # the engine does not divide it so
            continue
        bounds = planned.typical_ns * neighbour.factor
        beyond = bounds < ns if neighbour.above else bounds > ns
        link = PriceLink(planned.plan, neighbour)
        nearest = [link if is_beyond else n for is_beyond, n in zip(beyond, nearest, strict=True)]
        ns = np.where(beyond, bounds, ns)
    return ns, tuple(dict.fromkeys(link for link in nearest if link is not None))


@lru_cache(maxsize=4096)
def _own_ns(served: Served) -> NDArray[np.float64]:
    model = served.model()
    return np.array([model.step_ns(step) for step in _typical()], dtype=float)


_DECODES = 1, 4, 8, 32, 128, 512
_CONTEXTS = 128, 16_384
_PROMPTS = 16, 64, 256, 1024, 2048, 4096, 8192
_BESIDE = (0, 0), (0, 32_768), (32, 0), (256, 0)
"""Decodes beside a prompt, and cached tokens of it."""


def _typical() -> Iterator[StepFeatures]:
    """Steps of decodes, of a prompt, and of both, from few tokens to many."""
    for seqs in _DECODES:
        for context in _CONTEXTS:
            yield StepFeatures(
                decode_seqs=seqs, decode_kv_tokens=seqs * context, max_context=context, emitted_rows=seqs
            )
    for tokens in _PROMPTS:
        for seqs, past in _BESIDE:
            pairs = tokens * past + tokens * (tokens + 1) // 2
            yield StepFeatures(
                prefill_seqs=1,
                prefill_tokens=tokens,
                prefill_pairs=pairs,
                prefill_kv_tokens=past,
                prefill_prompt_pairs=pairs,
                decode_seqs=seqs,
                decode_kv_tokens=seqs * _CONTEXTS[0],
                max_context=max(past, _CONTEXTS[0] if seqs else 0),
                emitted_rows=seqs + 1,
            )
