"""Sessions of several turns, each prompt repeating the conversation so far.

Open loop: a turn is sent at a time fixed in advance, which allows the answer before it a planned duration,
whether or not the answer is there by then. Turns that wait for the answer need feedback from the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_py.errors import InputError
from blis_py.workload.arrivals import arrivals_until
from blis_py.workload.lengths import Lengths, sample
from blis_py.workload.streams import stream
from blis_py.workload.table import Ints

if TYPE_CHECKING:
    from blis_py.workload.generate import Client

MOST_ROUNDS = 1000
LONGEST_PAUSE_NS = 30 * 86_400 * 10**9
"""A month between two turns; beyond, sums of many of them could overflow."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """How the requests of a client follow each other in sessions.

    Attributes:
        rounds: turns of a session; more than `max_rounds` count as `max_rounds`.
        think_ms: the client's pause after an answer, in ms; None = always `think_ns`.
        planned_itl_ns: what is allowed for each token of the answer before the pause begins.
        accumulate: a prompt begins with all prompts and answers before it in the session.
        single: the client has one session only, which starts with its first arrival.
    """

    rounds: Lengths
    max_rounds: int
    think_ns: int = 0
    think_ms: Lengths | None = None
    planned_itl_ns: int = 0
    accumulate: bool = True
    single: bool = False

    @property
    def mean_rounds(self) -> float:
        """Requests per session, to plan how many sessions it takes; a sample's mean."""
        return float(self.draw_rounds(np.random.default_rng(0), 1000).mean())

    def draw_rounds(self, rng: np.random.Generator, count: int) -> Ints:
        return np.minimum(sample(self.rounds, rng, count), self.max_rounds)


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of many sessions as columns, in order of arrival."""

    arrival_ns: Ints
    session: Ints
    history_tokens: Ints
    """Prompts and answers of the session before this turn, where they accumulate."""
    new_tokens: Ints
    """What the client adds to it."""
    output_tokens: Ints

    def take(self, rows: slice | np.ndarray) -> Turns:
        return Turns(
            self.arrival_ns[rows],
            self.session[rows],
            self.history_tokens[rows],
            self.new_tokens[rows],
            self.output_tokens[rows],
        )


def turns_until(client: Client, seed: int, until_ns: int, *, at_most: int | None = None) -> Turns:
    """All turns that come before `until_ns`, of at most so many sessions.

    A longer `until_ns` adds sessions and later turns, and leaves those of the shorter one as they are.

    Raises:
        InputError: a pause of more than a month.
    """
    plan = client.sessions
    assert plan is not None

    def rng(name: str) -> np.random.Generator:
        return stream(seed, "client", client.name, name)

    starts = arrivals_until(client.arrivals, rng("arrivals"), until_ns, at_most=1 if plan.single else at_most)
    rounds = plan.draw_rounds(rng("rounds"), len(starts))
    count = int(rounds.sum())
    session = np.repeat(np.arange(len(starts)), rounds)
    first = np.repeat(np.cumsum(rounds) - rounds, rounds)
    """Row of the session's first turn."""
    new = sample(client.input, rng("input"), count)
    output = sample(client.output, rng("output"), count)
    pause_ns = _pauses(client, plan, rng("think"), output)
    turns = Turns(
        arrival_ns=starts[session] + _before(pause_ns, first),
        session=session,
        history_tokens=_before(new + output, first) if plan.accumulate else np.zeros(count, dtype=np.int64),
        new_tokens=new,
        output_tokens=output,
    )
    turns = turns.take(turns.arrival_ns < until_ns)
    return turns.take(np.argsort(turns.arrival_ns, kind="stable"))


def _pauses(client: Client, plan: Sessions, rng: np.random.Generator, output: Ints) -> Ints:
    """From sending a turn to sending the next one."""
    think_ns = plan.think_ns if plan.think_ms is None else sample(plan.think_ms, rng, len(output)) * 1_000_000
    longest = float(np.max(think_ns, initial=0)) + float(output.max(initial=0)) * plan.planned_itl_ns
    if longest > LONGEST_PAUSE_NS:
        raise InputError(
            "more than a month between two turns",
            key=f"client {client.name!r}: reasoning.multi_turn",
            fix="think for a shorter time, or plan less for the answer",
        )
    return think_ns + output * plan.planned_itl_ns


def _before(amounts: Ints, first: Ints) -> Ints:
    """For every turn the sum over the turns before it in its session."""
    cumulated = np.cumsum(amounts) - amounts
    return cumulated - cumulated[first]
