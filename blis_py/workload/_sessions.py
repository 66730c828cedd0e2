"""Sessions of several turns, each prompt repeating the conversation so far.

Closed loop: a turn is sent a think time after the previous answer. The turns and their contents are fixed in
advance, their times are not. Open loop: a turn is sent at a time fixed in advance, which allows a planned
duration for the previous answer, whether or not it has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blis_py.requests.table import Ints
from blis_py.workload.lengths import Lengths, sample

MAX_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class Sessions:
    """Session structure of a client's requests.

    Attributes:
        rounds: turns of a session; more than `max_rounds` count as `max_rounds`.
        think_ms: distribution of the pause after an answer, in ms; None = always `think_ns`.
        closed_loop: whether turns wait for the previous answer.
        planned_itl_ns: in an open loop, planned time per token of an answer before the pause begins.
        accumulate: whether a prompt begins with all earlier prompts and answers of the session.
        single: whether the client has only one session, which starts with its first arrival.
    """

    rounds: Lengths
    max_rounds: int
    think_ns: int = 0
    think_ms: Lengths | None = None
    planned_itl_ns: int = 0
    closed_loop: bool = False
    accumulate: bool = True
    single: bool = False

    @property
    def thinks(self) -> bool:
        """Whether it has pauses of its own."""
        return self.think_ns > 0 or self.think_ms is not None

    @property
    def mean_rounds(self) -> float:
        """Estimated mean of requests per session, to plan the number of sessions."""
        return float(self.draw_rounds(np.random.default_rng(0), 1000).mean())

    def draw_rounds(self, rng: np.random.Generator, count: int) -> Ints:
        return np.minimum(sample(self.rounds, rng, count), self.max_rounds)
