"""Invariants checked on every run: a violation is a bug in the simulator, never the user's error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.latencies import completed_mask
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.visits import Onward


class InternalError(RuntimeError):
    """A contradiction inside the simulator; please report it with the command that shows it."""


def check(record: RunRecord) -> None:
    """Check conservation of requests and a life cycle that only goes forward.

    Raises:
        InternalError: names the violated invariant and the first request that violates it.
    """
    if len(record.outcome) != len(record.table):
        raise InternalError(f"{len(record.table)} requests went in, {len(record.outcome)} outcomes came out")
    _check_visits(record)
    known = (record.outcome >= 0) & (record.outcome <= max(Outcome))
    _require(record, known, "a request ended in no known outcome")
    _check_rejections(record)
    _check_lifecycle(record)
    _check_tokens(record)
    by_instance = sum(instance.preemptions for instance in record.instances)
    if by_instance != record.preemptions.sum():
        raise InternalError(f"instances preempted {by_instance} times, requests {record.preemptions.sum()}")


def _check_visits(record: RunRecord) -> None:
    """Check that all visits of a request but its last continue elsewhere, and none begins before the previous
    one ended."""
    visits = record.visits
    if visits.single:
        return
    order, counts = visits.of(np.arange(len(record.table)))
    lasts = np.cumsum(counts) - 1
    goes_on = visits.outcome[order] >= Onward.HANDED_OVER
    _require(record, ~goes_on[lasts], "a request went on elsewhere and began no visit")
    goes_on[lasts] = True
    _require(record, goes_on, "a request began a visit while another lasted", visits.request[order])
    before, after = np.delete(order, lasts), np.delete(order, np.cumsum(counts) - counts)
    left_ns = visits.finish_ns[before]
    for name, moment in (("enqueued", visits.enqueue_ns), ("scheduled", visits.scheduled_ns)):
        fact = f"a visit is {name} before the one before it ended"
        _require(record, (moment[after] < 0) | (moment[after] >= left_ns), fact, visits.request[after])
        fact = f"a visit is {name} after its end"
        _require(record, moment[before] <= left_ns, fact, visits.request[before])


def _check_rejections(record: RunRecord) -> None:
    """Check that rejected requests were never dispatched, evicted ones were, and only these have a reason."""
    rejected, evicted = record.outcome == Outcome.REJECTED, record.outcome == Outcome.EVICTED
    _require(record, ~rejected | (record.instance < 0), "a rejected request was dispatched")
    _require(record, ~evicted | (record.instance >= 0), "an evicted request was never dispatched")
    rejected |= evicted
    if record.rejection is None:
        _require(record, ~rejected, "a request was rejected without a reason")
    else:
        has_reason = np.array([bool(name) for name in record.rejection.names])[record.rejection.codes]
        _require(record, rejected == has_reason, "a rejection and its reason disagree")


def _check_lifecycle(record: RunRecord) -> None:
    """Check arrival <= enqueue <= scheduled <= first token <= last token <= finish, as far as reached."""
    latest_ns = record.table.arrival_ns
    for name in ("enqueue", "scheduled", "first_token", "last_token"):
        moment = getattr(record, f"{name}_ns")
        _require(
            record, (moment < 0) | (moment >= latest_ns), f"{name} lies before the event that precedes it"
        )
        latest_ns = np.maximum(latest_ns, moment)
    done = completed_mask(record)
    _require(record, ~done | (record.finish_ns >= latest_ns), "a request finished before its last token")
    _require(record, ~done | (record.first_token_ns >= 0), "a completed request has no first token")


def _check_tokens(record: RunRecord) -> None:
    """Check that each visit emits in every step from its first to its last, with the exceptions in
    `Emission`."""
    visits, emission = record.visits, record.visits.emission
    over = (visits.outcome <= Outcome.LENGTH_CAPPED) | (visits.outcome >= Onward.HANDED_OVER)
    agree = ~over | (visits.emitted_tokens == emission.tokens())
    _require(record, agree, "tokens emitted and steps taken disagree", visits.request)
    visit, _, tokens = emission.others.T
    fine = (tokens >= 1) & (~np.bool_(emission.as_blocks) | (tokens <= emission.tokens_per_step))
    _require(record, fine | ~over[visit], "a step emitted an impossible number", visits.request[visit])


def _require(
    record: RunRecord, holds: NDArray[np.bool_], fact: str, requests: NDArray[np.int64] | None = None
) -> None:
    """Require that a condition holds for every entry.

    Args:
        requests: the request of each entry; without it, the requests in order.

    Raises:
        InternalError: it does not.
    """
    if not holds.all():
        place = int(np.argmin(holds))
        row = place if requests is None else int(requests[place])
        raise InternalError(f"{fact} ({record.table.id_of(row)}, row {row})")
