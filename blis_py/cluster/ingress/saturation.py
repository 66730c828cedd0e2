"""Saturation detectors: whether the cluster is overloaded, so that the gateway holds requests back.

A detector is a class and a line in `SATURATION_DETECTORS`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.saturation_detectors"]
    by-heat = "my_package:ByHeat"
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from blis_py.cluster.extensions import named
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.routing.signals import Signals


class SaturationDetector(Protocol):
    """Saturation of the cluster; at 1 and above no request is dispatched.

    Without a ready instance the detectors here return 0: the dispatcher then holds or rejects requests.
    """

    counts_in_flight: bool
    """Whether the answer depends on requests in flight, so that the end of one changes it."""
    reads_reports: bool
    """Whether it depends on the reports of instances, so that a report changes it."""

    def __call__(self, in_flight: int) -> float:
        """The saturation, at least 0. `Signals` are as currently known to the gateway.

        Args:
            in_flight: requests on the way to instances or at them, minus those being evicted.
        """
        ...


MakeDetector = Callable[[FlowSettings, Signals], SaturationDetector]


class NeverSaturated:
    """Never saturated."""

    counts_in_flight = reads_reports = False

    def __init__(self, settings: FlowSettings, signals: Signals) -> None: ...

    def __call__(self, in_flight: int) -> float:
        return 0.0


class Utilization:
    """The mean over ready instances of queued requests or KV use relative to their thresholds, whichever is
    larger."""

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
    """Requests in flight relative to the target of all instances together."""

    counts_in_flight, reads_reports = True, False

    def __init__(self, settings: FlowSettings, signals: Signals) -> None:
        self._ready, self._most_of_one = signals.ready, settings.max_concurrency_per_instance

    def __call__(self, in_flight: int) -> float:
        most = len(self._ready) * self._most_of_one
        return in_flight / most if most else 0.0


SATURATION_DETECTORS: dict[str, MakeDetector] = {
    "never": NeverSaturated,
    "utilization": Utilization,
    "concurrency": Concurrency,
}
"""Name -> factory of the detector. Packages can add more."""

DETECTOR_GROUP = "blis_py.saturation_detectors"
"""Entry point group of saturation detectors."""


def detector(name: str) -> MakeDetector:
    """The saturation detector of that name."""
    return named(SATURATION_DETECTORS, DETECTOR_GROUP, name, "saturation detector")
