"""Whether the cluster has more to do than it should: what holds requests back at the gateway.

A detector is a class and a line in `SATURATION_DETECTORS`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.saturation_detectors"]
    by-heat = "my_package:ByHeat"
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from blis_py.cluster.extensions import named
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.signals import Signals


class SaturationDetector(Protocol):
    """Says how saturated the cluster is; from 1 on nobody is dispatched.

    Without a ready instance the detectors here say 0: the dispatcher then holds requests or rejects them.
    """

    counts_in_flight: bool
    """Whether the answer depends on requests in flight, so that an end changes it."""
    reads_reports: bool
    """Whether it depends on what instances report, so that a report changes it."""

    def __call__(self, in_flight: int) -> float:
        """Not below 0. `Signals` are as the gateway knows them now.

        Args:
            in_flight: requests on the way to instances or there, less those that it has told to leave.
        """
        ...


MakeDetector = Callable[[FlowSettings, Signals], SaturationDetector]


class Never:
    """Nobody is held back."""

    counts_in_flight = reads_reports = False

    def __init__(self, settings: FlowSettings, signals: Signals) -> None: ...

    def __call__(self, in_flight: int) -> float:
        return 0.0


class Utilization:
    """The mean over ready instances of waiting requests or KV use over their thresholds, the larger one."""

    counts_in_flight, reads_reports = False, True

    def __init__(self, settings: FlowSettings, signals: Signals) -> None:
        signals.watch_kv()
        self._signals = signals
        self._queue, self._kv = settings.queue_depth_threshold, settings.kv_cache_util_threshold
        self._reports, self._known = -1, 0.0

    def __call__(self, in_flight: int) -> float:
        if self._signals.reports != self._reports:
            self._reports, self._known = self._signals.reports, self._mean()
        return self._known

    def _mean(self) -> float:
        signals = self._signals
        ready, queued, used = signals.ready, signals.queue_depth, signals.kv_utilization
        return sum(max(queued[i] / self._queue, used[i] / self._kv) for i in ready) / max(len(ready), 1)


class Concurrency:
    """Requests in flight over those that the instances should have, all together."""

    counts_in_flight, reads_reports = True, False

    def __init__(self, settings: FlowSettings, signals: Signals) -> None:
        self._ready, self._most_of_one = signals.ready, settings.max_concurrency_per_instance

    def __call__(self, in_flight: int) -> float:
        most = len(self._ready) * self._most_of_one
        return in_flight / most if most else 0.0


SATURATION_DETECTORS: dict[str, MakeDetector] = {
    "never": Never,
    "utilization": Utilization,
    "concurrency": Concurrency,
}
"""Name -> what makes the detector. More of them can be installed."""

DETECTOR_GROUP = "blis_py.saturation_detectors"
"""Of entry points."""


def detector(name: str) -> MakeDetector:
    """The saturation detector of that name."""
    return named(SATURATION_DETECTORS, DETECTOR_GROUP, name, "saturation detector")
