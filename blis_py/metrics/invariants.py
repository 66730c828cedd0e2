"""Facts that hold for every run, checked on every run: a violation is our bug, never the user's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.latencies import completed_mask
from blis_py.metrics.record import Outcome, RunRecord


class InternalError(RuntimeError):
    """The simulator contradicts itself; please report it with the command that shows it."""


def check(record: RunRecord) -> None:
    """Conservation of requests and a lifecycle that only goes forward.

    Raises:
        InternalError: naming the fact that does not hold and the first request that shows it.
    """
    if len(record.outcome) != len(record.table):
        raise InternalError(f"{len(record.table)} requests went in, {len(record.outcome)} outcomes came out")
    known = (record.outcome >= 0) & (record.outcome <= max(Outcome))
    _require(record, known, "a request ended in no known outcome")
    _check_rejections(record)
    _check_lifecycle(record)
    _check_tokens(record)
    by_instance = sum(instance.preemptions for instance in record.instances)
    if by_instance != record.preemptions.sum():
        raise InternalError(f"instances preempted {by_instance} times, requests {record.preemptions.sum()}")


def _check_rejections(record: RunRecord) -> None:
    """Who is rejected was never dispatched, who is evicted was; both have a reason, and nobody else."""
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
    """arrival <= enqueue <= scheduled <= first token <= last token <= finish, as far as each request got."""
    latest = record.table.arrival_ns
    for name in ("enqueue", "scheduled", "first_token", "last_token"):
        moment = getattr(record, f"{name}_ns")
        _require(record, (moment < 0) | (moment >= latest), f"{name} lies before the event that precedes it")
        latest = np.maximum(latest, moment)
    done = completed_mask(record)
    _require(record, ~done | (record.finish_ns >= latest), "a request finished before its last token")
    _require(record, ~done | (record.first_token_ns >= 0), "a completed request has no first token")


def _check_tokens(record: RunRecord) -> None:
    """Every step between the first and the last emitted one token, but for the breaks."""
    done = completed_mask(record)
    request, before, after = record.breaks.T
    missed = np.bincount(request, weights=after - before - 1, minlength=len(done))
    emitted = record.last_step - record.first_step + 1 - missed
    _require(record, ~done | (record.outputs == emitted), "tokens emitted and steps taken disagree")


def _require(record: RunRecord, holds: NDArray[np.bool_], fact: str) -> None:
    if not holds.all():
        row = int(np.argmin(holds))
        raise InternalError(f"{fact} ({record.table.id_of(row)}, row {row})")
