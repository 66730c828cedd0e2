"""The choice of a rank for a new request, of several with queues of their own.

A policy is a function and a line in `RANK_CHOICES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blis_py.core.request import Request

_MASK = 2**64 - 1
"""64-bit mask of SplitMix64, the generator of those numbers."""


class RankLoad:
    """State of a rank as a policy reads it."""

    def __init__(self) -> None:
        self.waiting = 0
        """Requests in its queue."""
        self.running = 0
        self.prompt_tokens = 0
        """Prompts of both."""
        self.kv_use = 0.0
        """Share of the KV blocks in use, if requests are waiting."""

    @property
    def requests(self) -> int:
        return self.waiting + self.running


def round_robin(loads: Sequence[RankLoad], request: Request, turn: int) -> int:
    """In turn (SGLang's default)."""
    return turn % len(loads)


def follow_bootstrap_room(loads: Sequence[RankLoad], request: Request, turn: int) -> int:
    """At random: by the number that a router draws for the hand-over of a request (SGLang's prefill)."""
    room = (request.row + 1) * 0x9E3779B97F4A7C15 & _MASK
    room = (room ^ room >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    room = (room ^ room >> 27) * 0x94D049BB133111EB & _MASK
    return (room ^ room >> 31) % len(loads)


def least_queued(loads: Sequence[RankLoad], request: Request, turn: int) -> int:
    """Smallest `4 * waiting + running` (vLLM's internal load balancing)."""
    return _least([(4 * load.waiting + load.running,) for load in loads])


def least_queued_in_turn(loads: Sequence[RankLoad], request: Request, turn: int) -> int:
    """The same; of equal ranks, in turn (vLLM 0.25 and 0.26)."""
    return _least_from(turn, [float(4 * load.waiting + load.running) for load in loads])


def least_loaded(loads: Sequence[RankLoad], request: Request, turn: int) -> int:
    """Fewest requests, those waiting counted up to four times as the KV blocks run out; of equal ranks, in
    turn (vLLM from 0.27)."""
    scores = [load.requests + 6 * load.waiting * max(load.kv_use - 0.5, 0.0) for load in loads]
    return _least_from(turn, scores)


def total_requests(loads: Sequence[RankLoad], request: Request, turn: int) -> int:
    """Fewest requests (SGLang)."""
    return _least([(load.requests,) for load in loads])


def total_tokens(loads: Sequence[RankLoad], request: Request, turn: int) -> int:
    """Fewest prompt tokens, then requests (SGLang)."""
    return _least([(load.prompt_tokens, load.requests) for load in loads])


def balanced_tokens(loads: Sequence[RankLoad], request: Request, turn: int) -> int:
    """Fewest prompt tokens among the ranks with room for an equal share of the requests: all but those with
    the most, or all where all have as many (TensorRT-LLM)."""
    fewest = most = loads[0].requests
    for load in loads:
        fewest, most = min(fewest, load.requests), max(most, load.requests)
    share = most if fewest < most else most + 1
    return _least([(load.requests >= share, load.prompt_tokens, load.requests) for load in loads])


def _least_from(turn: int, scores: Sequence[float]) -> int:
    """Index of the first of the smallest, counted from the one whose turn it is."""
    first = turn % len(scores)
    turned = [(score,) for score in (*scores[first:], *scores[:first])]
    return (first + _least(turned)) % len(scores)


def _least(scores: Sequence[tuple[float, ...]]) -> int:
    """Index of the first of the smallest."""
    least, index = scores[0], 0
    for number, score in enumerate(scores):
        if score < least:
            least, index = score, number
    return index


RankChoice = Callable[[Sequence[RankLoad], Request, int], int]
"""From the ranks' loads, a request and the number of requests before it to the index of a rank."""
RANK_CHOICES: dict[str, RankChoice] = {
    "round-robin": round_robin,
    "follow-bootstrap-room": follow_bootstrap_room,
    "least-queued": least_queued,
    "least-queued-in-turn": least_queued_in_turn,
    "least-loaded": least_loaded,
    "total-requests": total_requests,
    "total-tokens": total_tokens,
    "balanced-tokens": balanced_tokens,
}
