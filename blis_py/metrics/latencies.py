"""Latencies of every request, as columns in ns; NaN if not reached."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import Ints

Floats = NDArray[np.float64]

PER_REQUEST = ("ttft", "tpot", "itl_mean", "e2e", "scheduling_delay")


class Latencies(NamedTuple):
    """One row per request; definitions in docs/metrics.md."""

    completed: NDArray[np.bool_]
    """Completed by itself or capped at max_model_len."""
    ttft_ns: Floats
    """First token - arrival, for all requests with a first token, including those that timed out later."""
    tpot_ns: Floats
    """(E2E - TTFT) / (tokens - 1), completed requests with at least two tokens."""
    itl_mean_ns: Floats
    """(last token - first token) / (tokens - 1): TPOT without the delay at the end. For block diffusion (last
    block - first block) / (blocks - 1)."""
    e2e_ns: Floats
    """Finish - arrival, completed requests."""
    scheduling_delay_ns: Floats
    """First time scheduled - arrival, for all requests that were scheduled."""

    def column(self, metric: str) -> Floats:
        """`ttft`, `tpot`, `itl` or `itl_mean` (the request's own mean), `e2e`, `scheduling_delay`."""
        column: Floats = getattr(self, f"{'itl_mean' if metric == 'itl' else metric}_ns")
        return column


def latencies(record: RunRecord) -> Latencies:
    """The latency columns of a run."""
    arrival = record.table.arrival_ns
    completed = completed_mask(record)
    several, apart = completed & (record.emitted_tokens > 1), completed & (record.outputs > 1)
    gaps = record.emitted_tokens - 1
    return Latencies(
        completed=completed,
        ttft_ns=_where(record.first_token_ns >= 0, record.first_token_ns - arrival),
        tpot_ns=_where(several, record.finish_ns - record.first_token_ns, gaps),
        itl_mean_ns=_where(apart, record.last_token_ns - record.first_token_ns, record.outputs - 1),
        e2e_ns=_where(completed, record.finish_ns - arrival),
        scheduling_delay_ns=_where(record.scheduled_ns >= 0, record.scheduled_ns - arrival),
    )


def completed_mask(record: RunRecord) -> NDArray[np.bool_]:
    """Requests with a complete answer, or with all that max_model_len permits."""
    return np.isin(record.outcome, (Outcome.COMPLETED, Outcome.LENGTH_CAPPED))


def _where(defined: NDArray[np.bool_], value: Ints, divisor: Ints | None = None) -> Floats:
    result = np.full(len(value), np.nan)
    if divisor is None:
        result[defined] = value[defined]
    else:
        result[defined] = value[defined] / divisor[defined]
    return result
