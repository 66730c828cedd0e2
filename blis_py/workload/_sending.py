"""Arrivals and turns of clients, drawn far enough for the requested number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import LAST_NS
from blis_py.requests.streams import stream
from blis_py.requests.table import Ints
from blis_py.workload.arrivals import arrivals_until
from blis_py.workload.client import Client

if TYPE_CHECKING:
    from blis_py.workload._turns import Turns

    Sent = Ints | Turns
    """Arrival times of a client's requests, or its turns."""


_PLANNED = 2
"""Turns that BLIS plans of a closed-loop client, over the number of requests."""


def sent_by(
    clients: Sequence[Client], seed: int, num_requests: int | None, horizon_ns: int | None, as_blis: bool
) -> list[Sent]:
    """Arrivals of each client, together at least the requested number unless the horizon comes first.

    Empty for clients without arrivals.
    """
    if not any(client.arrivals for client in clients):
        return [np.zeros(0, dtype=np.int64) for _ in clients]
    end_ns = LAST_NS if horizon_ns is None else min(horizon_ns, LAST_NS)
    if all(client.sessions is None for client in clients):
        end_ns = min(end_ns, last_ns(clients))
    until_ns = end_ns
    if num_requests is not None:
        expected_s = (num_requests + 4 * math.sqrt(num_requests)) / _peak_rate(clients)
        until_ns = math.ceil(min(end_ns, 1.05e9 * expected_s + 1e6))
    while True:
        sent = [_sent_until(client, seed, until_ns, num_requests, as_blis) for client in clients]
        enough = sum(map(count_of, sent)) >= (num_requests or 0)
        whole = num_requests is not None and as_blis
        if whole:
            enough = enough and all(
                count_of(part) >= _PLANNED * (num_requests or 0) or not _in_whole_sessions(client)
                for part, client in zip(sent, clients, strict=True)
            )
        if until_ns >= end_ns or enough:
            return [
                _planned(part, client, num_requests) if whole else part
                for part, client in zip(sent, clients, strict=True)
            ]
        until_ns = min(2 * until_ns, end_ns)


def _in_whole_sessions(client: Client) -> bool:
    """Whether BLIS runs all turns of every session that begins among the planned ones."""
    sessions = client.sessions
    return sessions is not None and sessions.closed_loop and not sessions.single


def _planned(part: Sent, client: Client, num_requests: int | None) -> Sent:
    """The turns that BLIS plans before it cuts: the first sessions with about twice the number wanted."""
    if isinstance(part, np.ndarray) or not _in_whole_sessions(client):
        return part
    turns = np.bincount(part.session)
    sessions = int(np.searchsorted(np.cumsum(turns), _PLANNED * (num_requests or 0))) + 1
    return part.take(part.session < sessions)


def _sent_until(client: Client, seed: int, until_ns: int, at_most: int | None, as_blis: bool) -> Sent:
    """Arrival times of a client's requests, or its turns."""
    if client.arrivals is None:
        return np.zeros(0, dtype=np.int64)
    if client.sessions is not None:
        from blis_py.workload._turns import turns_until

        return turns_until(client, seed, until_ns, at_most=at_most, as_blis=as_blis)
    rng = stream(seed, "client", client.draws, "arrivals")
    return arrivals_until(client.arrivals, rng, until_ns, at_most=at_most)


def first_of(
    sent: Sequence[Sent], clients: Sequence[Client], num_requests: int | None, as_blis: bool
) -> list[Sent]:
    """The first `num_requests` of all clients; with BLIS semantics, plus the rest of closed-loop sessions."""
    if num_requests is None or sum(map(count_of, sent)) <= num_requests:
        return list(sent)
    first: list[Sent] = []
    for part, client, count in zip(sent, clients, _counts(sent, num_requests), strict=True):
        if isinstance(part, np.ndarray):
            first.append(part[:count])
        elif as_blis and client.sessions is not None and client.sessions.closed_loop:
            first.append(_whole_sessions(part, count))
        else:
            first.append(part.take(slice(0, count)))
    return first


def _counts(sent: Sequence[Sent], num_requests: int) -> list[int]:
    """Number of each client's requests among the first ones; at equal times earlier clients go first."""
    arrivals = [part if isinstance(part, np.ndarray) else part.arrival_ns for part in sent]
    last_ns = np.partition(np.concatenate(arrivals), num_requests - 1)[num_requests - 1]
    counts = [int(np.searchsorted(each, last_ns)) for each in arrivals]
    left = num_requests - sum(counts)
    for index, each in enumerate(arrivals):
        then = min(int(np.searchsorted(each, last_ns, side="right")) - counts[index], left)
        counts[index] += then
        left -= then
    return counts


def _whole_sessions(turns: Turns, count: int) -> Turns:
    """All turns of the sessions that begin among the first `count` turns."""
    begun = turns.session[:count][turns.round_index[:count] == 0]
    return turns.take(np.isin(turns.session, begun))


def joined(sent: Sequence[Sent]) -> tuple[Ints, NDArray[np.int32]]:
    """Arrivals of all clients, concatenated, and the client index of each."""
    which = np.repeat(np.arange(len(sent), dtype=np.int32), list(map(count_of, sent)))
    return np.concatenate([part if isinstance(part, np.ndarray) else part.arrival_ns for part in sent]), which


def count_of(sent: Sent) -> int:
    return len(sent) if isinstance(sent, np.ndarray) else len(sent.arrival_ns)


def expected_requests(clients: Sequence[Client], until_ns: int) -> float:
    """Expected number of requests of all clients before that time."""
    return sum(_per_arrival(c) * c.arrivals.expected(until_ns) for c in clients if c.arrivals is not None)


def back_to_back(client: Client, seed: int, num_requests: int) -> Sent:
    """The requests of a client without arrivals: those that are sent if it sends all of them."""
    if client.sessions is None:
        return np.zeros(num_requests, dtype=np.int64)
    from blis_py.workload._turns import back_to_back

    return back_to_back(client, seed, num_requests)


def most_rows(client: Client, num_requests: int) -> float:
    """Expected number of rows from `back_to_back`: each session may end with its first turn."""
    return num_requests * _per_arrival(client)


def _peak_rate(clients: Sequence[Client]) -> float:
    """Peak rate of all clients with a rate together, in requests per second."""
    return sum(_per_arrival(c) * 1e6 / c.arrivals.mean_gap_us for c in clients if c.arrivals is not None)


def _per_arrival(client: Client) -> float:
    return 1.0 if client.sessions is None or client.sessions.single else client.sessions.mean_rounds


def last_ns(clients: Sequence[Client]) -> int:
    """Time just after the last start of the clients with a rate, in ns."""
    ends_us = [client.arrivals.end_us for client in clients if client.arrivals is not None]
    return math.ceil(min(1e3 * max(ends_us, default=math.inf) + 1e3, float(LAST_NS)))
