"""What structured outputs cost: the host computes a mask of the vocabulary for every constrained row.

    masks = step_ns + row_ns * constrained rows        where there are any

With asynchronous scheduling they are computed beside the forward, and only what takes longer than that shows;
where the model hides host time too, both have to fit there. An engine that takes turns computes them before
or behind the forward, and they add to the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import LatencyModel, StepTime, overlapped
from blis_py.latency.step_run import PricedRun, StepRun


@dataclass(frozen=True, slots=True)
class MaskPrices:
    """Host time for the masks of a step, in ns."""

    row_ns: float
    """A constrained row."""
    step_ns: float = 0.0
    """A step that has any."""

    def of(self, rows: int) -> int:
        """For so many rows."""
        return int(self.step_ns + self.row_ns * rows + 0.5) if rows else 0


class WithMasks:
    """A latency model for requests of which some are constrained; see `LatencyModel`.

    Args:
        base: prices the rest of the step.
        beside_forward: the masks of a step are computed while its forward runs.
        hides_host: price steps behind others, where the rest of the host's work is hidden as well.
    """

    def __init__(
        self, base: LatencyModel, prices: MaskPrices, beside_forward: bool, hides_host: bool = False
    ) -> None:
        self.name, self.provenance = base.name, base.provenance
        self.frontend, self.uses_max_context = base.frontend, base.uses_max_context
        self.outside = getattr(base, "outside", None)
        self.prices = prices
        self._base, self._beside, self._hides = base, beside_forward, hides_host
        self._unmasked = overlapped(base) if hides_host else base

    def overlapped(self) -> LatencyModel:
        """For steps that follow each other without a break."""
        hides = overlapped(self._base) is not self._base
        return WithMasks(self._base, self.prices, beside_forward=True, hides_host=hides)

    def redrawn(self, index: int) -> WithMasks:
        """With another set of the coefficients of a model that has several."""
        redrawn = self._base.redrawn(index)  # type: ignore[attr-defined]
        return WithMasks(redrawn, self.prices, self._beside, self._hides)

    def step(self, features: StepFeatures) -> StepTime:
        """With what shows of the masks as host time."""
        time, mask_ns = self._base.step(features), self.prices.of(features.constrained_rows)
        if self._beside and not self._hides:
            mask_ns = max(mask_ns - time.gpu_ns, 0)
        return StepTime(time.gpu_ns, time.host_ns + mask_ns)

    def step_ns(self, features: StepFeatures) -> int:
        if not features.constrained_rows:
            return self._unmasked.step_ns(features)
        time = self.step(features)
        return time.overlapped_ns if self._hides else time.synchronous_ns

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        if not features.constrained_rows:
            return self._unmasked.decode_run(features, steps, start_ns, until_ns)
        ends, end_ns = [], start_ns
        for done in range(steps):
            end_ns += self.step_ns(features.after(done))
            ends.append(end_ns)
            if end_ns >= until_ns:
                break
        return PricedRun(ends)


def with_masks(model: LatencyModel, prices: MaskPrices | None, *, beside_forward: bool) -> LatencyModel:
    """The model, with masks where somebody knows what they cost."""
    return model if prices is None else WithMasks(model, prices, beside_forward)
