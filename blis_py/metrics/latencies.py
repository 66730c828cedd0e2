"""Latencies of every request, as columns in ns; NaN if not reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS, Floats, completed_mask

__all__ = ["Floats", "Latencies", "completed_mask", "latencies"]


class Latencies(NamedTuple):
    """One row per request; definitions in docs/metrics.md."""

    completed: NDArray[np.bool_]
    """Completed by itself or capped at max_model_len."""
    ttft_ns: Floats
    """First token - arrival, for all requests with a first token, including those that timed out later."""
    tpot_ns: Floats
    """(E2E - TTFT) / (tokens - 1), completed requests with at least two tokens."""
    itl_mean_ns: Floats
    """(last token - first token) / (tokens - 1): TPOT without the delay at the end. Where answers
    come in blocks, (last block - first block) / (blocks - 1)."""
    e2e_ns: Floats
    """Finish - arrival, completed requests."""
    scheduling_delay_ns: Floats
    """First time scheduled - arrival, for all requests that were scheduled."""

    more: Mapping[str, Floats] = {}
    """Values of metrics from outside of the package."""

    def column(self, metric: str) -> Floats:
        """The values of a metric or of a column; of `itl` each request's own mean."""
        if metric in self.more:
            return self.more[metric]
        column: Floats = getattr(self, f"{METRICS[metric].column if metric in METRICS else metric}_ns")
        return column


def latencies(record: RunRecord) -> Latencies:
    """The latency columns of a run."""
    columns = {f"{metric.column}_ns": metric.of(record) for metric in METRICS.values()}
    own = {name: columns.pop(name) for name in Latencies._fields if name in columns}
    more = {name.removesuffix("_ns"): values for name, values in columns.items()}
    return Latencies(completed=completed_mask(record), **own, more=more)
