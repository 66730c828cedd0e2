"""Sessions of several turns, each prompt repeating the conversation so far.

Closed loop: a turn is sent when the answer before it is there and the client has thought. Which turns there
are is fixed in advance, and so is what they say; when they come is not. Open loop: a turn is sent at a time
fixed in advance, which allows the answer before it a planned duration, whether or not it is there by then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blis_py.requests.table import Ints
from blis_py.workload.lengths import Lengths, sample

MOST_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class Sessions:
    """How the requests of a client follow each other in sessions.

    Attributes:
        rounds: turns of a session; more than `max_rounds` count as `max_rounds`.
        think_ms: the client's pause after an answer, in ms; None = always `think_ns`.
        closed_loop: turns wait for the answer before them.
        planned_itl_ns: in an open loop, what is allowed for each token of the answer before the pause begins.
        accumulate: a prompt begins with all prompts and answers before it in the session.
        single: the client has one session only, which starts with its first arrival.
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
    def mean_rounds(self) -> float:
        """Requests per session, to plan how many sessions it takes; a sample's mean."""
        return float(self.draw_rounds(np.random.default_rng(0), 1000).mean())

    def draw_rounds(self, rng: np.random.Generator, count: int) -> Ints:
        return np.minimum(sample(self.rounds, rng, count), self.max_rounds)
