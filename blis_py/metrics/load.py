"""Whether a cluster keeps up with its offered load: the verdict on every run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import Ints

SATURATED, OVERLOADED, STABLE = "saturated", "overloaded at times", "stable"
TOO_SHORT, CLOSED, AT_ONCE = "too short to tell", "closed loop", "all at once"
LATE_NS = 10**9
"""Waiting time for the first step above which a request indicates an overloaded cluster."""
MIN = 50
"""Minimum number of requests in the second half of the arrivals for a verdict."""
SERVICES = 5
"""Minimum length of the second half in mean service times: until the first requests end, the backlog grows in
any case."""
MAX_UNSERVED = 0.01
"""Share of client timeouts at which a cluster does not keep up, regardless of the other requests' waits."""
BEHIND = 0.2
"""Share of the time of arrivals that requests must wait in the end for a short run to be saturated."""
_SLOWER = 1.05
_MARGIN = 1.5
"""Requests named as sufficient, over those by this run: service times grow while a batch fills."""
_MOST_NAMED = 10_000_000
"""Beyond so many, requests come so close together that their rate is none to go on with."""
_BLOCKS, _TOGETHER, _DRAWS, _GROWTH = 40, 5, 1000, 0.01


def load(record: RunRecord) -> dict[str, Any]:
    """Offered and served requests per second in the second half of the arrivals, and the verdict.

    *All at once*: no request arrives after another (a single one, too), so that there is no rate to keep up
    with.

    *Saturated*: the backlog, the requests that have arrived and not ended, grows through the second half of
    the arrivals; the drain after the last arrival does not count. It grows if the mean growth per block of
    time is positive with 95 % probability (block bootstrap, 5 of 40 blocks drawn together) and at least 1 %
    of the offered load, unless it merely follows a rising rate: no request waits for more than a second, and
    requests are not 5 % longer in the cluster per output token at the end; or if more than 1 % of the clients
    time out; or, in a run too short for that, if waiting grows throughout and reaches a fifth of the time of
    arrivals, or if most requests are still queued when the run ends. *Overloaded at times*: some requests
    wait for more than a second, but the backlog drains.
    `overloaded_s` is the length of time during which any request has waited that long.

    Requests of closed loops wait for each other and have no backlog: if there are others, the verdict, with
    its rates, is on those, and `closed_loop_requests` counts the rest; if not, it is *closed loop*. If they
    have a rate as well and clients send late, that rate is the offered one, and `client_wait_ms` their mean
    wait.
    """
    due_ns = record.table.due_ns
    if due_ns is not None:
        if (due_ns >= 0).all():
            return _load_of_loops(record, due_ns)
        is_open = due_ns < 0
        if not is_open.all():
            return load(record.take(np.flatnonzero(is_open))) | {
                "closed_loop_requests": int((~is_open).sum())
            }
    table = record.table
    rows = len(table)
    first_ns, last_ns = (int(table.arrival_ns[0]), int(table.arrival_ns[-1])) if rows else (0, 0)
    middle_ns = (first_ns + last_ns) // 2
    late_s = _overloaded_s(record)
    if rows and first_ns == last_ns:
        return _load_summary(AT_ONCE, _rates(record, first_ns, _end_ns(record)), None, late_s)
    rates = _rates(record, middle_ns, last_ns)
    served = record.outcome <= Outcome.LENGTH_CAPPED
    second = table.arrival_ns >= middle_ns
    behind = _falls_behind(record, last_ns - first_ns) or _leaves_most_queued(record)
    if behind and served.any():  # few or none may end before the last arrival
        rates = rates[0], _rates(record, first_ns, _end_ns(record))[1]
    few = not served.any() or second.sum() < MIN
    if not few and _unserved(record.outcome[second]) > MAX_UNSERVED:
        return _load_summary(SATURATED, rates, None, late_s)
    brief = _brevity(record, served, last_ns - middle_ns)
    if few or brief > 1:
        short = max(2 * MIN / max(rows, 1), brief)
        verdict, more = (SATURATED, {}) if behind else (TOO_SHORT, _needed(rows, short))
        return _load_summary(verdict, rates, None, late_s) | more
    edges = np.linspace(middle_ns, last_ns, _BLOCKS + 1)
    growth = np.diff(_backlog(record, edges)) / ((last_ns - middle_ns) / _BLOCKS / 1e9)
    mean = float(growth.mean())
    grows = mean >= _GROWTH * rates[0] and _low(growth) > 0
    if grows and (late_s or _slowdown(record, middle_ns, last_ns) > _SLOWER):
        return _load_summary(SATURATED, rates, mean, late_s)
    return _load_summary(OVERLOADED if late_s else STABLE, rates, mean, late_s)


def _load_of_loops(record: RunRecord, due_ns: Ints) -> dict[str, Any]:
    """The load of closed loops alone."""
    offered, served = _rates(record, 0, _end_ns(record))
    span_s = float(due_ns.max(initial=0) - due_ns.min(initial=0)) / 1e9
    wait_ns = record.table.arrival_ns - due_ns
    if not span_s or not wait_ns.any():
        return _load_summary(CLOSED, (offered, served), None, 0.0)
    rates = (len(due_ns) - 1) / span_s, served
    return _load_summary(CLOSED, rates, None, 0.0) | {"client_wait_ms": float(wait_ns.mean()) / 1e6}


def _unserved(outcome: NDArray[np.int8]) -> float:
    """Share of the requests that were refused or given up."""
    lost = np.isin(outcome, (Outcome.TIMED_OUT, Outcome.REJECTED, Outcome.EVICTED))
    return float(lost.mean())


def _slowdown(record: RunRecord, begin_ns: int, end_ns: int) -> float:
    """Time in the cluster per output token of the second half of these arrivals, over that of the first."""
    arrival_ns = record.table.arrival_ns
    since_ns = np.where(record.finish_ns < 0, record.end_ns, record.finish_ns) - arrival_ns
    late = arrival_ns >= (begin_ns + end_ns) // 2
    early = (arrival_ns >= begin_ns) & ~late
    tokens = record.table.output_tokens
    per_token = [float(since_ns[rows].sum() / max(tokens[rows].sum(), 1)) for rows in (early, late)]
    return per_token[1] / max(per_token[0], 1.0)


def _brevity(record: RunRecord, served: NDArray[np.bool_], half_ns: int) -> float:
    """Factor by which half of the arrivals must be longer for a verdict; 0 if no request is served."""
    if not served.any():
        return 0.0
    in_service_ns = float(np.median(record.finish_ns[served] - record.scheduled_ns[served]))
    return SERVICES * in_service_ns / max(half_ns, 1)


def _falls_behind(record: RunRecord, span_ns: int) -> bool:
    """Whether waiting for the first step grows from third to third of the arrivals, in the end to more than a
    fifth of their time: then the backlog shows it, however short the run is."""
    if not span_ns or len(record.table) < 2 * MIN:
        return False
    arrival_ns = record.table.arrival_ns
    until_ns = np.where(record.scheduled_ns < 0, record.finish_ns, record.scheduled_ns)
    waited_ns = np.where(until_ns < 0, _expected_ns(record, until_ns), until_ns) - arrival_ns
    thirds = np.minimum((arrival_ns - arrival_ns[0]) * 3 // span_ns, 2)
    if len(np.unique(thirds)) < 3:
        return False
    first, second, third = (float(np.median(waited_ns[thirds == each])) for each in range(3))
    return first < second < third and third > max(BEHIND * span_ns, 5 * LATE_NS)


def _leaves_most_queued(record: RunRecord) -> bool:
    """Whether more than half of the requests still wait for their first step at the end of the run."""
    queued = int((record.outcome == Outcome.QUEUED).sum())
    return queued >= 2 * MIN and queued > len(record.table) / 2


def _expected_ns(record: RunRecord, until_ns: Ints) -> Ints:
    """Times at which requests that still wait at the end of a run would be scheduled, in order of arrival and
    at the rate of the second half of the run."""
    middle_ns = (int(record.table.arrival_ns[0]) + record.end_ns) // 2
    scheduled = max(int((record.scheduled_ns >= middle_ns).sum()), 1)
    ahead = np.cumsum(until_ns < 0)
    return record.end_ns + ahead * (record.end_ns - middle_ns) // scheduled


def _needed(rows: int, factor: float) -> dict[str, int]:
    """About how many requests suffice for a verdict, in two significant digits; empty if no run has so
    many."""
    needed = rows * factor * _MARGIN
    if needed > _MOST_NAMED:
        return {}
    digits = max(math.floor(math.log10(max(needed, 1.0))) - 1, 0)
    return {"requests_for_verdict": math.ceil(needed / 10**digits) * 10**digits}


def _load_summary(
    verdict: str, rates: tuple[float, float], growth: float | None, overloaded_s: float
) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "offered_per_s": rates[0],
        "served_per_s": rates[1],
        "backlog_growth_per_s": growth,
        "overloaded_s": overloaded_s,
    }


def _end_ns(record: RunRecord) -> int:
    return int(record.finish_ns.max(initial=0))


def _rates(record: RunRecord, begin_ns: int, end_ns: int) -> tuple[float, float]:
    """Arrived and completed requests per second between these times."""
    span_s = (end_ns - begin_ns) / 1e9
    if span_s <= 0:
        return 0.0, 0.0
    arrived_ns = record.table.arrival_ns
    done_ns = record.finish_ns[record.outcome <= Outcome.LENGTH_CAPPED]
    return (
        float(((arrived_ns > begin_ns) & (arrived_ns <= end_ns)).sum() / span_s),
        float(((done_ns > begin_ns) & (done_ns <= end_ns)).sum() / span_s),
    )


def _backlog(record: RunRecord, times_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Requests that have arrived and not ended, at each of these times."""
    ended_ns = np.sort(record.finish_ns[record.finish_ns >= 0])
    arrived = np.searchsorted(record.table.arrival_ns, times_ns, side="right")
    return (arrived - np.searchsorted(ended_ns, times_ns, side="right")).astype(float)


def _low(growth: NDArray[np.float64]) -> float:
    """Lower 95 % bound of the mean; neighbours, which are correlated, are drawn together."""
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(growth) - _TOGETHER + 1, (_DRAWS, len(growth) // _TOGETHER))
    drawn = growth[starts[:, :, None] + np.arange(_TOGETHER)]
    return float(np.percentile(drawn.mean(axis=(1, 2)), 5))


def _overloaded_s(record: RunRecord) -> float:
    """Total time during which any request has waited too long for its first step, the gateway included."""
    queued = record.enqueue_ns >= 0
    since_ns = record.enqueue_ns[queued] + LATE_NS
    if record.gateway_ns is not None:
        since_ns -= np.maximum(record.gateway_ns[queued], 0)
    until_ns: Ints = np.where(record.scheduled_ns < 0, record.finish_ns, record.scheduled_ns)[queued]
    until_ns = np.where(until_ns < 0, record.end_ns, until_ns)
    late = until_ns > since_ns
    order = np.argsort(since_ns[late], kind="stable")
    since_ns, until_ns = since_ns[late][order], until_ns[late][order]
    if not len(since_ns):
        return 0.0
    reached_ns = np.maximum.accumulate(until_ns)
    before_ns = np.concatenate(([since_ns[0]], reached_ns[:-1]))
    return float(np.maximum(reached_ns - np.maximum(since_ns, before_ns), 0).sum() / 1e9)
