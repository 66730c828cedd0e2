"""Step times of a model within those that neighbours imply (`neighbours`): of the model in another format, or
on another GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import LatencyModel, StepTime
from blis_py.latency.notes import domain_notes, forget
from blis_py.latency.operators import Operators
from blis_py.latency.step_run import Ints, StepRun, run_of
from blis_py.latency.trained import ServerTerms, Trained


class Bound(NamedTuple):
    """An upper or lower bound of a step: `factor` times a neighbour's price."""

    model: Operators | Trained | Bounded
    above: bool
    factor: float
    text: str
    """The neighbour, for notes."""

    def step_ns(self, features: StepFeatures) -> int:
        """The bound of a step."""
        return int(self.model.step_ns(features) * self.factor)

    def each_ns(self, features: StepFeatures, steps: int) -> Ints:
        """The same of consecutive decode steps."""
        bounds: Ints = (_each_ns(self.model, features, steps) * self.factor).astype(np.int64)
        return bounds


class Bounded:
    """A model's own price, lowered to the upper bounds, then raised to the lower ones; see `LatencyModel`.

    Args:
        own: the model without bounds.
        bounds: at least one, upper ones first, by models of the same server.
    """

    name = "trained"
    uses_max_context = False

    def __init__(self, own: Operators | Trained, bounds: Sequence[Bound]) -> None:
        self.own = own
        self._bounds = bounds
        self.provenance = own.provenance
        self.frontend = own.frontend
        self.outside = BoundSteps(own, bounds)

    def beyond(self, longest_tokens: int = 0) -> str:
        """See `own`."""
        return self.own.beyond(longest_tokens)

    def on_server(self, server: ServerTerms) -> Bounded:
        """The same model for another server."""
        bounds = [bound._replace(model=bound.model.on_server(server)) for bound in self._bounds]
        return Bounded(self.own.on_server(server), bounds)

    # --- the interface -----------------------------------------------------------------------------

    def step_ns(self, features: StepFeatures) -> int:
        ns, by = self.own.step_ns(features), -1
        for number, bound in enumerate(self._bounds):
            bound_ns = bound.step_ns(features)
            if bound_ns != ns and (bound_ns < ns) == bound.above:
                ns, by = bound_ns, number
        self.outside.record(by, 1)
        return max(ns, 1)

    def step(self, features: StepFeatures) -> StepTime:
        ns, own = self.step_ns(features), self.own.step(features)
        host_ns = min(own.host_ns, ns - 1)
        return StepTime(ns - host_ns, host_ns)

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        ns = _each_ns(self.own, features, steps)
        by = np.full(len(ns), -1)
        for number, bound in enumerate(self._bounds):
            bounds_ns = bound.each_ns(features, len(ns))
            ns, by = ns[: len(bounds_ns)], by[: len(bounds_ns)]
            beyond = bounds_ns < ns if bound.above else bounds_ns > ns
            by, ns = np.where(beyond, number, by), np.where(beyond, bounds_ns, ns)
        run = run_of(np.maximum(ns, 1), start_ns, until_ns)
        for number in range(-1, len(self._bounds)):
            self.outside.record(number, int(np.count_nonzero(by[: run.steps] == number)))
        return run


def _each_ns(model: LatencyModel, features: StepFeatures, steps: int) -> Ints:
    """Time of each of consecutive decode steps, up to the end of the clock."""
    return np.diff(model.decode_run(features, steps).ends_ns(), prepend=0)


class BoundSteps:
    """Steps that each bound priced; see `notes.Outside`."""

    def __init__(self, own: Operators | Trained, bounds: Sequence[Bound]) -> None:
        self._own, self._bounds = own, bounds
        self._steps = [0] * (len(bounds) + 1)

    def record(self, bound: int, steps: int) -> None:
        """Count steps by the number of their bound; -1 = none."""
        self._steps[bound] += steps

    def clear(self) -> None:
        """Reset the counters."""
        self._steps = [0] * len(self._steps)
        for each in (self._own, *(bound.model for bound in self._bounds)):
            forget(each)

    def notes(self) -> list[str]:
        """Notes of the model itself, and on bounds that priced steps."""
        priced = max(sum(self._steps), 1)
        acted = [
            (bound.text, steps) for bound, steps in zip(self._bounds, self._steps, strict=False) if steps
        ]
        if not acted:
            return list(domain_notes(self._own))
        stated = ", ".join(f"{100 * steps / priced:.3g} % {text}" for text, steps in acted)
        line = f"steps whose own prices are in no sensible order take those of a neighbour: {stated}"
        return [*domain_notes(self._own), line]
