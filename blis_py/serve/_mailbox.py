"""Results on their way from a backend to a response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from blis_py.serve.backend import Piece

Arrival = tuple[int, Piece, float]
"""Index of the choice, its piece, and when it came by the backend's clock."""


class Mailbox:
    """Buffer of pieces, delivered together at the end of a turn of the event loop.

    Unbounded, so that a slow reader delays no other response; its size is that of the answers.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._arrivals: list[Arrival] = []
        self._receive: Callable[[list[Arrival]], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._now_s = now_s

    def slot(self, choice: int) -> Callable[[Piece], None]:
        """Receiver of the pieces of one choice."""
        return partial(self._put, choice)

    def open(self, receive: Callable[[list[Arrival]], None]) -> None:
        """Hand over all pieces so far, and then each new one; an end is joined to the tokens before it."""
        self._receive = receive
        if self._arrivals:
            self._loop.call_soon(self._hand_over)

    def _put(self, choice: int, piece: Piece) -> None:
        if not self._arrivals and self._receive is not None:
            self._loop.call_soon(self._hand_over)
        self._arrivals.append((choice, piece, self._now_s()))

    def _hand_over(self) -> None:
        assert self._receive is not None
        arrivals, self._arrivals = self._arrivals, []
        self._receive(arrivals if len(arrivals) == 1 else _joined(arrivals))


def _joined(arrivals: list[Arrival]) -> list[Arrival]:
    latest: dict[int, Piece] = {}
    joined = []
    for arrival in arrivals:
        choice, piece, _ = arrival
        before = latest.get(choice)
        if before is not None and piece.finish_reason in ("stop", "length") and not piece.token_ids:
            before.text += piece.text
            before.finish_reason, before.stop_reason = piece.finish_reason, piece.stop_reason
            before.timing = piece.timing
            continue
        latest[choice] = piece
        joined.append(arrival)
    return joined
