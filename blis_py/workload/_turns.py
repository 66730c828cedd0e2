"""Turns of sessions, drawn with their times and contents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blis_py.errors import InputError
from blis_py.requests.streams import stream
from blis_py.requests.table import Ints
from blis_py.workload._modalities import own_tokens
from blis_py.workload._sessions import Sessions
from blis_py.workload.arrivals import arrivals_until
from blis_py.workload.client import Client
from blis_py.workload.lengths import sample

LONGEST_PAUSE_NS = 30 * 86_400 * 10**9
"""Longest pause between two turns, one month; sums of many longer ones could overflow."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of many sessions as columns, in order of arrival."""

    arrival_ns: Ints
    """Sending time in ns; in a closed loop, the earliest possible one."""
    session: Ints
    round_index: Ints
    think_ns: Ints
    """Pause before each turn in ns; -1 in an open loop, which fixes its arrival."""
    history_tokens: Ints
    """Tokens of earlier prompts and answers of the session, if they accumulate."""
    new_tokens: Ints
    """Tokens added by the client."""
    output_tokens: Ints
    modality_tokens: Ints | None
    """Composition of the added tokens, see `RequestTable`."""

    def take(self, rows: slice | np.ndarray) -> Turns:
        return Turns(
            self.arrival_ns[rows],
            self.session[rows],
            self.round_index[rows],
            self.think_ns[rows],
            self.history_tokens[rows],
            self.new_tokens[rows],
            self.output_tokens[rows],
            None if self.modality_tokens is None else self.modality_tokens[rows],
        )


def turns_until(
    client: Client, seed: int, until_ns: int, *, at_most: int | None = None, as_blis: bool = False
) -> Turns:
    """All turns before `until_ns`, of at most `at_most` sessions.

    A longer `until_ns` adds sessions and later turns, and leaves the earlier ones unchanged.

    Args:
        as_blis: BLIS semantics of closed loops: 1 us is planned for each token of an answer, all turns of a
        session that begins in time count, and conversations omit the last token of every answer.

    Raises:
        InputError: a pause of more than a month.
    """
    plan = client.sessions
    assert plan is not None
    assert client.arrivals is not None

    arrivals = stream(seed, "client", client.draws, "arrivals")
    starts = arrivals_until(client.arrivals, arrivals, until_ns, at_most=1 if plan.single else at_most)
    turns = _turns_of(client, plan, seed, starts, as_blis and plan.closed_loop)
    begins_ns = starts[turns.session] if as_blis and plan.closed_loop else turns.arrival_ns
    turns = turns.take(begins_ns < until_ns)
    return turns.take(np.argsort(turns.arrival_ns, kind="stable"))


def back_to_back(client: Client, seed: int, count: int) -> Turns:
    """The turns of `count` sessions without starting times, session by session."""
    assert client.sessions is not None
    return _turns_of(client, client.sessions, seed, np.zeros(count, dtype=np.int64), as_blis=False)


def _turns_of(client: Client, plan: Sessions, seed: int, starts: Ints, as_blis: bool) -> Turns:
    """All turns of the sessions that begin at `starts`, session by session."""

    def rng(name: str) -> np.random.Generator:
        return stream(seed, "client", client.draws, name)

    rounds = plan.draw_rounds(rng("rounds"), len(starts))
    count = int(rounds.sum())
    session = np.repeat(np.arange(len(starts)), rounds)
    first = np.repeat(np.cumsum(rounds) - rounds, rounds)
    """Row of the session's first turn."""
    new, modalities = own_tokens(client.draws, client.input, client.multimodal, seed, count)
    output = sample(client.output, rng("output"), count)
    think_ns = _thinking(client, plan, rng("think"), output)
    pause_ns = think_ns + output * (1000 if as_blis else plan.planned_itl_ns)
    kept = output - 1 if as_blis else output
    return Turns(
        arrival_ns=starts[session] + _before(pause_ns, first),
        session=session,
        round_index=np.arange(count) - first,
        think_ns=_before_turn(think_ns, first) if plan.closed_loop else np.full(count, -1),
        history_tokens=_before(new + kept, first) if plan.accumulate else np.zeros(count, dtype=np.int64),
        new_tokens=new,
        output_tokens=output,
        modality_tokens=modalities,
    )


def _thinking(client: Client, plan: Sessions, rng: np.random.Generator, output_tokens: Ints) -> Ints:
    """Pause after every turn."""
    think_ns = (
        np.full(len(output_tokens), plan.think_ns)
        if plan.think_ms is None
        else sample(plan.think_ms, rng, len(output_tokens)) * 1_000_000
    )
    longest = float(np.max(think_ns, initial=0)) + float(output_tokens.max(initial=0)) * plan.planned_itl_ns
    if longest > LONGEST_PAUSE_NS:
        raise InputError(
            "more than a month between two turns",
            key=f"client {client.name!r}: reasoning.multi_turn",
            fix="think for a shorter time, or plan less for the answer",
        )
    return think_ns


def _before_turn(pause_ns: Ints, first: Ints) -> Ints:
    """Pause before every turn, given the pauses after them; 0 before the first of a session."""
    rows = np.arange(len(pause_ns))
    return np.where(rows == first, 0, pause_ns[np.maximum(rows - 1, 0)])


def _before(amounts: Ints, first: Ints) -> Ints:
    """For every turn the sum over the earlier turns of its session."""
    cumulated = np.cumsum(amounts) - amounts
    return cumulated - cumulated[first]
