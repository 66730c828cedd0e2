"""The lines of a ledger: each nanosecond of a request's life is on exactly one of them."""

from __future__ import annotations

from enum import Enum


class LedgerLine(Enum):
    """The purpose on which time was spent, in the order of display. The value is its label."""

    ADMISSION = "admission and routing"
    GATEWAY = "waiting at the gateway"
    FRONT_END_BEFORE = "front end, before the engine"
    RUNNING_STEP = "waiting for the running step to end"
    COMPOSED_STEP = "waiting for a step planned before its arrival"
    NO_SLOT = "queued: max_num_seqs requests are running"
    NO_KV = "queued: too few free KV blocks"
    NO_BUDGET = "queued: the token budget is used up by running requests"
    NO_PROMPTS = "queued: only every so-many-th step computes prompts"
    BEHIND_SLOT = "queued behind requests that take the last slots"
    BEHIND_KV = "queued behind requests that lack KV blocks"
    BEHIND_BUDGET = "queued behind requests that take the token budget"
    HELD_BACK = "held back until another request has computed its prefix"
    OWN_PREFILL = "own prefill"
    OTHERS_PREFILL = "others' prefill in its steps"
    OTHERS_DECODE = "others' decode beside its prefill"
    DECODE = "decode"
    RIDING = "waiting for the other blocks of its batch"
    STALLED = "running, but left out of the step"
    PREEMPTED = "preempted, waiting to be resumed"
    RECOMPUTE = "recomputation after a preemption"
    HOST = "host: gaps between steps, host time in them"
    RESERVATION = "hand-over: waiting for blocks of the decode instance"
    LINK_QUEUE = "hand-over: other transfers on the link"
    WIRE = "hand-over: its KV on the link"
    EXTRA_STEP = "hand-over: computing the last prompt token again"
    HAND_OVER = "on the way between two instances"
    TOKENISATION = "front end, splitting the prompt into tokens"
    FRONT_END_AFTER = "front end, behind the engine"
    UNFINISHED = "in a step cut off by the end of the run"


QUEUEING = (
    LedgerLine.RUNNING_STEP,
    LedgerLine.COMPOSED_STEP,
    LedgerLine.NO_SLOT,
    LedgerLine.NO_KV,
    LedgerLine.NO_BUDGET,
    LedgerLine.NO_PROMPTS,
    LedgerLine.BEHIND_SLOT,
    LedgerLine.BEHIND_KV,
    LedgerLine.BEHIND_BUDGET,
    LedgerLine.HELD_BACK,
)
"""Lines before a request is scheduled for the first time."""
BEFORE_SCHEDULING = (
    LedgerLine.ADMISSION,
    LedgerLine.GATEWAY,
    LedgerLine.FRONT_END_BEFORE,
    *QUEUEING,
)
"""Lines of the scheduling delay."""
FOR_TOKENS = (LedgerLine.NO_BUDGET, LedgerLine.BEHIND_BUDGET)
"""Other requests compute their prompts instead."""
FOR_A_PLACE = (
    *(line for line in QUEUEING[2:] if line not in FOR_TOKENS),
    LedgerLine.STALLED,
    LedgerLine.PREEMPTED,
)
"""Other requests hold the slot or the KV blocks that it needs."""

Times = dict[LedgerLine, int]
"""Nanoseconds by line; lines of zero are absent."""


def add(times: Times, more: Times) -> None:
    """Add `more` to `times`, line by line."""
    for line, ns in more.items():
        times[line] = times.get(line, 0) + ns


def split(total: int, weights: list[int]) -> list[int]:
    """Split an integer in parts proportional to non-negative `weights`; the parts add up to it.

    Each running sum is rounded down, so no part is off by a whole unit.
    """
    whole, upto, given = sum(weights), 0, 0
    parts = []
    for weight in weights:
        upto += weight
        reached = total * upto // whole if whole else 0
        parts.append(reached - given)
        given = reached
    if not whole and parts:
        parts[-1] = total
    return parts
