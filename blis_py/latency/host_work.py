"""Host work that occurs in some steps only.

    masks = step_ns + row_ns * constrained rows        where there are any (structured outputs)
    scans = scan_ns * scanned requests                 a policy looks the waiting requests up in the cache

In a synchronous engine both add to the step; masks may be computed beside the forward pass, on a GPU, but a
step has to be planned before it is launched. With asynchronous scheduling both run beside the forward pass of
another step, and only the excess shows; if the model hides host time too, all of it has to fit there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import LatencyModel, StepTime, overlapped
from blis_py.latency.step_run import StepRun, run_of, step_by_step


@dataclass(frozen=True, slots=True)
class MaskPrices:
    """Host time for the masks of a step, in ns."""

    row_ns: float
    """Per constrained row."""
    step_ns: float = 0.0
    """Per step with any constrained rows."""

    def of(self, rows: int) -> int:
        """Time for a number of rows."""
        return int(self.step_ns + self.row_ns * rows + 0.5) if rows else 0


NO_MASKS = MaskPrices(0.0)


class WithHostWork:
    """A latency model with additional host work in some steps; see `LatencyModel`.

    Args:
        base: prices the rest of the step.
        masks: host time for masks.
        scan_ns: host time for each request that a policy looks up in the cache.
        masks_beside: masks are computed while the forward pass of their step runs.
        behind: price steps behind others, in which the host works on the next one.
    """

    def __init__(
        self,
        base: LatencyModel,
        masks: MaskPrices = NO_MASKS,
        scan_ns: float = 0.0,
        masks_beside: bool = False,
        behind: bool = False,
    ) -> None:
        self.name, self.provenance = base.name, base.provenance
        self.frontend, self.uses_max_context = base.frontend, base.uses_max_context
        self.outside = getattr(base, "outside", None)
        self._base, self._masks, self._scan_ns = base, masks, scan_ns
        self._masks_beside, self._behind = masks_beside, behind
        self._bare = overlapped(base) if behind else base
        self._hides = behind and self._bare is not base

    def overlapped(self) -> LatencyModel:
        """The model for back-to-back steps."""
        return WithHostWork(self._base, self._masks, self._scan_ns, masks_beside=True, behind=True)

    def step(self, features: StepFeatures) -> StepTime:
        """The step with the visible part of the work as host time."""
        time = self._base.step(features)
        beside_ns, added_ns = self._work_ns(features)
        if not self._hides:
            beside_ns = max(beside_ns - time.gpu_ns, 0)
        return StepTime(time.gpu_ns, time.host_ns + added_ns + beside_ns)

    def step_ns(self, features: StepFeatures) -> int:
        if not self._has_work(features):
            return self._bare.step_ns(features)
        time = self.step(features)
        return time.overlapped_ns if self._hides else time.synchronous_ns

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        if not self._has_work(features) or self._stays_hidden(features):
            return self._bare.decode_run(features, steps, start_ns, until_ns)
        beside_ns, added_ns = self._work_ns(features)
        if not beside_ns:  # so the faster run without it contains all steps that are needed
            ends_ns = self._bare.decode_run(features, steps, start_ns, until_ns).ends_ns()
            durations_ns = np.diff(ends_ns, prepend=start_ns) + added_ns
            return run_of(durations_ns, start_ns, until_ns)
        return step_by_step(self.step_ns, features, steps, start_ns, until_ns)

    def _stays_hidden(self, features: StepFeatures) -> bool:
        """Whether none of the work shows in any step of a run: no later step is half as long."""
        beside_ns, added_ns = self._work_ns(features)
        if added_ns or not beside_ns:
            return not added_ns
        time = self._base.step(features)
        return 2 * (beside_ns + (time.host_ns if self._hides else 0)) <= time.gpu_ns

    def _has_work(self, features: StepFeatures) -> bool:
        return features.constrained_rows > 0 or features.scanned_requests > 0

    def _work_ns(self, features: StepFeatures) -> tuple[int, int]:
        """Time of work beside a forward pass, and of work that adds to the step."""
        mask_ns = self._masks.of(features.constrained_rows)
        scan_ns = int(self._scan_ns * features.scanned_requests + 0.5)
        if self._behind:
            return mask_ns + scan_ns, 0
        return (mask_ns, scan_ns) if self._masks_beside else (0, mask_ns + scan_ns)


class RedrawnHostWork(WithHostWork):
    """The same for a model with several sets of coefficients."""

    def redrawn(self, index: int) -> RedrawnHostWork:
        """The model with another set of them."""
        redrawn = self._base.redrawn(index)  # type: ignore[attr-defined]
        return RedrawnHostWork(redrawn, self._masks, self._scan_ns, self._masks_beside, self._behind)


def with_host_work(
    base: LatencyModel, masks: MaskPrices | None, scan_ns: float, masks_beside: bool
) -> LatencyModel:
    """The model, extended by the host work that has a price."""
    if masks is None and not scan_ns:
        return base
    kind = RedrawnHostWork if hasattr(base, "redrawn") else WithHostWork
    return kind(base, masks or NO_MASKS, scan_ns, masks_beside)
