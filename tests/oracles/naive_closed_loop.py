"""Naive closed loops: when each request is sent, given when each client saw the end of the others.

A loop has a number of permits; a request takes the one that is free first, never before it is due, and
returns it a pause after its end. A turn follows the answer before it after its think time. Nothing is
simulated: one list of free times per loop, one request after the other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NaiveLoop:
    """Requests `begin` to `end`, excluding; `permits` 0 = an open loop, which is paced."""

    begin: int
    end: int
    permits: int
    pause: int = 0
    paced: bool = True


def sending_times(loops: list[NaiveLoop], due: list[int], seen: list[int]) -> list[int]:
    """When the requests of all loops are sent.

    Args:
        due: by request; without meaning in a loop that is not paced.
        seen: by request, when its client saw its end.
    """
    sent = [-1] * len(due)
    for loop in loops:
        free = [0] * loop.permits
        earliest = 0  # requests of a loop are sent in order
        for request in range(loop.begin, loop.end):
            wanted = due[request] if loop.paced else 0
            if loop.permits:
                free.sort()
                wanted = max(wanted, free.pop(0))
            sent[request] = earliest = max(wanted, earliest)
            if loop.permits:
                free.append(seen[request] + loop.pause)
    return sent


def turn_time(seen: int, answered: bool, think: int) -> int | None:
    """When the next turn of a session is sent; None = never."""
    return seen + think if answered else None
