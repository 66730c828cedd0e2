"""Overlap of host and device work in a recorded run, from its step log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.traces.steplog import StepLog
from blis_py.traces.steplog_columns import SEGMENTS

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Times of every step `[steps]`, in ns by the engine's clock."""

    launched_ns: Times
    """Hand-over by the host."""
    begin_ns: Times
    """Start of its forward on the device."""
    end_ns: Times
    """End of the forward, sampling included."""
    busy: NDArray[np.bool_]
    """For every step but the first, whether requests were present without a gap since the previous step
    ended."""

    @property
    def bubble(self) -> float:
        """Share of the time with requests present in which the device had no forward to run.

        The idle time between forwards over the time from one beginning to the next.
        """
        idle = np.maximum(self.begin_ns[1:] - self.end_ns[:-1], 0)[self.busy]
        periods = np.diff(self.begin_ns)[self.busy]
        return float(idle.sum() / periods.sum()) if periods.sum() else 0.0

    @property
    def launch_lead_ns(self) -> Times:
        """Time from hand-over of each step to the end of the previous forward; negative = later."""
        leads_ns: Times = (self.end_ns[:-1] - self.launched_ns[1:])[self.busy]
        return leads_ns

    @property
    def run_ahead(self) -> float:
        """Share of steps handed over before the previous forward ended."""
        leads_ns = self.launch_lead_ns
        return float((leads_ns > 0).mean()) if len(leads_ns) else 0.0


def pipeline(log: StepLog) -> Pipeline:
    """Pipeline of a completed run, synchronous or overlapped."""
    ready = log.column("start_ns") + log.column("schedule_ns") + log.column("prepare_ns")
    launched = ready + log.column("launch_ns")
    if "forward_start_ns" in log.steps:
        begin, end = log.column("forward_start_ns"), log.column("forward_end_ns")
    elif log.meta.get("device") == "cpu":  # the host executes its own launches
        begin, end, launched = ready, ready + log.column("gpu_ns"), ready
    else:
        end = launched + log.column("sample_ns")
        begin = end - log.column("gpu_ns")
    return Pipeline(launched, begin, end, _any_unfinished(log))


def _any_unfinished(log: StepLog) -> NDArray[np.bool_]:
    arrivals = np.sort(np.array(log.requests["enqueue_ns"], dtype=np.int64))
    departures = np.array(log.requests["finish_ns"], dtype=np.int64)
    over = log.column("end_ns")[:-1]
    unfinished = np.searchsorted(arrivals, over, side="right") - np.searchsorted(
        np.sort(departures[departures >= 0]), over, side="right"
    )
    there: NDArray[np.bool_] = unfinished > 0
    return there


def summary(log: StepLog) -> dict[str, float]:
    """Readable figures: bubble, launch lead, and host time per step by segment."""
    figures = pipeline(log)
    leads_ns = figures.launch_lead_ns
    segments = {f"{name.removesuffix('_ns')}_us": float(log.column(name).mean()) / 1000 for name in SEGMENTS}
    periods = np.diff(figures.begin_ns)[figures.busy]
    return {
        "steps": len(log),
        "step_period_us": float(periods.mean()) / 1000 if len(periods) else 0.0,
        "forward_us": float((figures.end_ns - figures.begin_ns).mean()) / 1000,
        "bubble": figures.bubble,
        "launch_lead_us": float(np.median(leads_ns)) / 1000 if len(leads_ns) else 0.0,
        "run_ahead": figures.run_ahead,
        **segments,
    }
