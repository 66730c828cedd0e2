"""The lines of a ledger: each nanosecond of a request's life is on exactly one of them."""

from __future__ import annotations

from enum import Enum


class LedgerLine(Enum):
    """The purpose on which time was spent, in the order of display. The value is its label."""

    ADMISSION = "admission and routing"
    GATEWAY = "waiting at the gateway"
    FRONT_END_BEFORE = "front end, before the engine"
    RUNNING_STEP = "waiting for the running step to end"
    COMPOSED_STEP = "waiting for the step composed before it came"
    NO_SLOT = "waiting: all slots are taken"
    NO_KV = "waiting: too few free KV blocks"
    NO_BUDGET = "waiting: who runs takes the token budget"
    BEHIND_SLOT = "waiting in line: who is ahead takes the slots"
    BEHIND_KV = "waiting in line: who is ahead lacks KV blocks"
    BEHIND_BUDGET = "waiting in line: who is ahead takes the token budget"
    HELD_BACK = "held back until another has computed its prefix"
    OWN_PREFILL = "own prefill"
    OTHERS_PREFILL = "others' prefill in its steps"
    OTHERS_DECODE = "others' decode beside its prefill"
    DECODE = "decode"
    RIDING = "its block is final, its batch is not"
    STALLED = "running, and left out of the step"
    PREEMPTED = "preempted, and waiting to come back"
    RECOMPUTE = "computing again what a preemption took"
    HOST = "host: gaps between steps, host time in them"
    RESERVATION = "hand-over: waiting for blocks of the decode instance"
    LINK_QUEUE = "hand-over: other transfers on the link"
    WIRE = "hand-over: its KV on the link"
    EXTRA_STEP = "hand-over: computing the last prompt token again"
    HAND_OVER = "on the way from one instance to the next"
    FRONT_END_AFTER = "front end, behind the engine"
    UNFINISHED = "in a step that the end of the run cut"


QUEUEING = (
    LedgerLine.RUNNING_STEP,
    LedgerLine.COMPOSED_STEP,
    LedgerLine.NO_SLOT,
    LedgerLine.NO_KV,
    LedgerLine.NO_BUDGET,
    LedgerLine.BEHIND_SLOT,
    LedgerLine.BEHIND_KV,
    LedgerLine.BEHIND_BUDGET,
    LedgerLine.HELD_BACK,
)
"""Lines before a request is scheduled for the first time."""
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
