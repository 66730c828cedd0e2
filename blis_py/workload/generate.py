"""Generation of a request table from client descriptions, entirely in numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import LAST_NS, MAX_REQUESTS, in_seconds
from blis_py.errors import InputError
from blis_py.requests.sessions import later_turns_last, waits
from blis_py.requests.streams import stream
from blis_py.requests.table import MODALITIES, Content, Ints, Labels, RequestTable, deadlines_ns
from blis_py.workload._modalities import own_tokens
from blis_py.workload._sending import (
    back_to_back,
    count_of,
    expected_requests,
    first_of,
    joined,
    last_ns,
    most_rows,
    sent_by,
)
from blis_py.workload.client import Client
from blis_py.workload.lengths import sample

if TYPE_CHECKING:
    from blis_py.requests.loops import Loop, Loops
    from blis_py.workload._turns import Turns
    from blis_py.workload.spec import WorkloadSpec

DEFAULT_SEED = 42
Made = tuple[Ints, Ints, Ints, Ints | None]
"""Prompt, output, content and modalities of requests, in columns."""


def generate(
    spec: WorkloadSpec,
    *,
    seed: int | None = None,
    rate: float | None = None,
    num_requests: int | None = None,
    horizon_ns: int | None = None,
) -> RequestTable:
    """The requests of a workload spec.

    Args:
        spec: from `blis_py.workload.spec.load_spec`.
        seed, rate, num_requests, horizon_ns: override the spec's `seed`, `aggregate_rate` (requests per
            second), `num_requests` and `horizon`. The seed is 42 where neither gives one.

    Returns:
        Requests of all clients in order of arrival, up to the number or the horizon, whichever ends first.

    Raises:
        InputError: an inconsistent spec, an unbounded workload, or one that depends on its run: clients with
        `concurrency`, turns that wait for answers.
    """
    table, loops = generate_loops(
        spec, seed=seed, rate=rate, num_requests=num_requests, horizon_ns=horizon_ns
    )
    if loops is not None:
        problem, fix = "what this client sends depends on its answers", "simulate it, with `blis run`"
        raise InputError(problem, file=spec.file, key=_listening(spec), fix=fix)
    return table


def _listening(spec: WorkloadSpec) -> str:
    """The key that makes a client wait for answers."""
    from blis_py.workload._spec_sources import sources_of

    for source in sources_of(spec.all_clients, spec.cohorts):
        if source.spec.concurrency:
            return f"{source.key}.concurrency"
        plan = source.spec.reasoning
        if plan is not None and plan.multi_turn is not None and source.spec.closed_loop is not False:
            return f"{source.key}.closed_loop"
    raise ValueError("no request waits")


def generate_loops(
    spec: WorkloadSpec,
    *,
    seed: int | None = None,
    rate: float | None = None,
    num_requests: int | None = None,
    horizon_ns: int | None = None,
    as_blis: bool = False,
) -> tuple[RequestTable, Loops | None]:
    """Variant of `generate` that allows clients with `concurrency`, and turns that wait for answers.

    Args:
        as_blis: BLIS semantics of closed loops (see `Loops` and `turns_until`), without sessions of clients
            with `concurrency`.

    Returns:
        The requests and None; or, with such clients, all requests that may be sent, loop by loop, then
        waiting turns, and the loops.
    """
    if horizon_ns is None and spec.horizon:
        horizon_ns = spec.horizon * 1000
    if num_requests is None and spec.num_requests:
        num_requests = spec.num_requests
    if seed is None:
        seed = DEFAULT_SEED if spec.seed is None else spec.seed
    clients = spec.resolved(rate=rate)
    if as_blis:
        clients = [client._replace(sessions=None) if client.permits else client for client in clients]
    table = merge(
        clients,
        seed=seed,
        num_requests=num_requests,
        horizon_ns=horizon_ns,
        file=spec.file,
        as_blis=as_blis,
    )
    limited, later = any(client.permits is not None for client in clients), int(waits(table).sum())
    if not limited and not later:
        return table, None
    from blis_py.requests.loops import Loops

    table = later_turns_last(table) if later else table
    loops = _loops(clients, table, len(table) - later)
    return table, Loops(loops, num_requests if limited else None, later > 0, as_blis)


def _loops(clients: Sequence[Client], table: RequestTable, end: int) -> list[Loop]:
    """The loop of each client in the first rows of a table, after those of clients without a loop."""
    from blis_py.requests.loops import Loop

    names, codes = table.client.names, table.client.codes[:end]
    rows = dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True))
    closed = [client for client in clients if client.permits is not None]
    begin = end - sum(rows[client.name] for client in closed)
    loops = [Loop(slice(0, begin))] if begin else []
    for client in closed:
        end = begin + rows[client.name]
        loops.append(Loop(slice(begin, end), client.permits, client.think_ns, client.arrivals is not None))
        begin = end
    return loops


def merge(
    clients: Sequence[Client],
    *,
    seed: int,
    num_requests: int | None = None,
    horizon_ns: int | None = None,
    rate_key: str = "aggregate_rate",
    file: Path | None = None,
    as_blis: bool = False,
) -> RequestTable:
    """The requests of all clients, merged by arrival (ties: order of the clients).

    They are followed, client by client, by all requests that clients with permits may send.

    Every client draws from its own streams, so adding one changes nothing but the interleaving, and
    asking for more requests continues the same sequence.

    Args:
        rate_key, file: source of the rate, for messages.
        as_blis: BLIS semantics of closed loops.

    Raises:
        InputError: neither `num_requests` nor `horizon_ns`, or an impossible one; names `file`.
    """
    _check_extent(clients, num_requests, horizon_ns, file)
    sent = sent_by(clients, seed, num_requests, horizon_ns, as_blis)
    if any(client.arrivals for client in clients):
        endless = not any(client.sessions and client.sessions.single for client in clients)
        endless &= last_ns(clients) >= LAST_NS
        least = num_requests if endless or num_requests is None else 1
        _check_found(sum(map(count_of, sent)), least, horizon_ns, rate_key, file)
    sent = first_of(sent, clients, num_requests, as_blis)
    arrival_ns, which = joined(sent)
    order = np.argsort(arrival_ns, kind="stable")
    arrival_ns, which = arrival_ns[order], which[order]
    if num_requests is not None:
        sent = [
            part if client.arrivals else back_to_back(client, seed, num_requests)
            for part, client in zip(sent, clients, strict=True)
        ]
    arrival_ns, which = _with_loops(clients, sent, arrival_ns, which)
    return _drawn(clients, sent, seed, arrival_ns, which)


def _drawn(
    clients: Sequence[Client],
    sent: Sequence[Ints | Turns],
    seed: int,
    arrival_ns: Ints,
    which: NDArray[np.int32],
) -> RequestTable:
    """Requests at given times of given clients, with drawn lengths, contents and sessions."""
    prompt, output, content = (np.empty(len(which), dtype=np.int64) for _ in range(3))
    session = np.full(len(which), -1, dtype=np.int64)
    talks = len(which) if any(client.sessions for client in clients) else 0
    rounds, think_ns = np.zeros(talks, dtype=np.int64), np.full(talks, -1, dtype=np.int64)
    several = any(client.multimodal for client in clients)
    modalities = np.zeros((len(which), len(MODALITIES)) if several else (0, 0), dtype=np.int64)
    texts: dict[Content, int] = {}
    by_client = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[by_client], np.arange(len(clients)), side="right").tolist()
    for client, part, begin, end in zip(clients, sent, [0, *ends], ends, strict=False):
        rows = by_client[begin:end]
        made = (
            _requests(client, seed, len(rows), texts)
            if isinstance(part, np.ndarray)
            else _turns(client, seed, part, texts)
        )
        prompt[rows], output[rows], content[rows], own = made
        if own is not None:
            modalities[rows] = own
        if not isinstance(part, np.ndarray):
            session[rows] = session.max(initial=-1) + 1 + part.session
            rounds[rows], think_ns[rows] = part.round_index, part.think_ns
    table = _table(clients, which, arrival_ns, prompt, output, content, tuple(texts))
    if several:
        table = replace(table, modality_tokens=modalities)
    if session.max(initial=-1) < 0:
        return table
    thinks = bool(think_ns.max(initial=-1) >= 0)
    return replace(table, session=session, round_index=rounds, think_ns=think_ns if thinks else None)


def _with_loops(
    clients: Sequence[Client], sent: Sequence[Ints | Turns], arrival_ns: Ints, which: NDArray[np.int32]
) -> tuple[Ints, NDArray[np.int32]]:
    """The requests with arrivals followed by those of clients with permits.

    Args:
        arrival_ns, which: in order of arrival, without those of clients without arrivals.
    """
    closed = np.array([index if client.permits else -1 for index, client in enumerate(clients)])
    if (closed < 0).all():
        return arrival_ns, which
    order = np.argsort(closed[which], kind="stable")
    arrival_ns, which = arrival_ns[order], which[order]
    for index in [index for index, client in enumerate(clients) if client.arrivals is None]:
        place, (due_ns, _) = int(np.searchsorted(closed[which], index)), joined([sent[index]])
        which = np.insert(which, place, np.full(len(due_ns), index, dtype=np.int32))
        arrival_ns = np.insert(arrival_ns, place, due_ns)
    return arrival_ns, which


def _requests(client: Client, seed: int, count: int, texts: dict[Content, int]) -> Made:
    """Requests that share at most their prefix."""
    prompt, own = own_tokens(client.draws, client.input, client.multimodal, seed, count)
    output = sample(client.output, stream(seed, "client", client.draws, "output"), count)
    begins, which = _beginnings(client, seed, count)
    numbers = [texts.setdefault(runs, len(texts)) if runs else -1 for runs in begins]
    return prompt + _tokens(begins)[which], output, np.array(numbers, dtype=np.int64)[which], own


def _turns(client: Client, seed: int, turns: Turns, texts: dict[Content, int]) -> Made:
    """Turns: the session's prefix, then the conversation so far.

    The content extends over the answer, which is part of the next turn's prompt, except its last token: no
    forward processes that token, so it is in no cache.
    """
    assert client.sessions is not None
    begins, of_session = _beginnings(client, seed, int(turns.session.max(initial=-1)) + 1)
    which = of_session[turns.session]
    text_tokens = turns.history_tokens + turns.new_tokens
    prompt_tokens = _tokens(begins)[which] + text_tokens
    content = np.empty(len(which), dtype=np.int64)
    through = (text_tokens + turns.output_tokens - 1).tolist()
    for row, (begin, session) in enumerate(zip(which.tolist(), turns.session.tolist(), strict=True)):
        runs = begins[begin]
        if client.sessions.accumulate:
            runs = (*runs, (f"{client.draws} session {session}", through[row]))
        content[row] = texts.setdefault(runs, len(texts)) if runs else -1
    return prompt_tokens, turns.output_tokens, content, turns.modality_tokens


def _beginnings(client: Client, seed: int, count: int) -> tuple[list[Content], NDArray[np.intp]]:
    """Distinct prompt prefixes of a client, and the index of each of `count` requests' prefix."""
    if client.prefixes:
        from blis_py.workload._prefixes import beginnings

        return beginnings(client.prefixes, client.draws, seed, count)
    group = ((client.prefix_group, client.prefix_tokens),) if client.prefix_tokens else ()
    return [group], np.zeros(count, dtype=np.intp)


def _tokens(contents: Sequence[Content]) -> Ints:
    return np.array([sum(tokens for _, tokens in runs) for runs in contents], dtype=np.int64)


def _check_extent(
    clients: Sequence[Client], num_requests: int | None, horizon_ns: int | None, file: Path | None
) -> None:
    unpaced = [client for client in clients if client.arrivals is None]
    ends = last_ns(clients) < LAST_NS
    if num_requests is None and ((horizon_ns is None and not ends) or unpaced):
        problem = "nothing says where the workload ends"
        fix = "give num_requests" + ("" if unpaced else " or horizon")
        if unpaced and horizon_ns is not None:
            problem = "nothing says how many requests clients with concurrency and no rate send, at most"
        raise InputError(problem, file=file, key="num_requests", fix=fix)
    if num_requests is not None and num_requests < 1:
        raise InputError("must be at least 1", key="num_requests", value=num_requests)
    if horizon_ns is not None and horizon_ns < 1:
        raise InputError("must be positive", key="horizon", value=horizon_ns)
    until_ns = min(LAST_NS if horizon_ns is None else horizon_ns, last_ns(clients))
    by_time = math.inf if horizon_ns is None and not ends else expected_requests(clients, until_ns)
    expected = min(num_requests or math.inf, by_time)
    expected += sum(most_rows(client, num_requests or 0) for client in unpaced)
    if expected > MAX_REQUESTS:
        problem, fix = f"about {expected:.2g} requests are too many", f"stay below {MAX_REQUESTS:,}"
        key = "num_requests" if horizon_ns is None else "horizon"
        raise InputError(problem, file=file, key=key, fix=fix)
    _check_windows(clients, until_ns, file)


def _check_windows(clients: Sequence[Client], until_ns: int, file: Path | None) -> None:
    """Refuse windows that begin too far into a process, whose earlier arrivals must be drawn as well."""
    for client in clients:
        if client.arrivals is not None and client.arrivals.profile is not None:
            drawn = client.arrivals.drawn(until_ns)
            if drawn > MAX_REQUESTS and client.arrivals.profile.runs_on:
                problem = f"about {drawn:.2g} requests are drawn from the start to the end of its windows"
                fix = f"stay below {MAX_REQUESTS:,}: begin earlier, or give the windows a trace_rate"
                raise InputError(problem, file=file, key=f"client {client.name!r}", fix=fix)


def _check_found(
    count: int, num_requests: int | None, horizon_ns: int | None, rate_key: str, file: Path | None
) -> None:
    if horizon_ns is None and num_requests is None and count == 0:
        problem, fix = "no request comes while clients send", "lengthen that, or raise the rate"
        raise InputError(problem, file=file, key=rate_key, fix=fix)
    if horizon_ns is not None and count == 0:
        problem = f"no request comes before the horizon of {in_seconds(horizon_ns)}"
        fix = "lengthen it (a plain number is in µs; write 60s for seconds) or raise the rate"
        raise InputError(problem, file=file, key="horizon", fix=fix)
    if horizon_ns is None and num_requests is not None and count < num_requests:
        problem, fix = "so slow that the requests take more than a century", "raise it"
        raise InputError(problem, file=file, key=rate_key, fix=fix)


def _table(
    clients: Sequence[Client],
    which: NDArray[np.int32],
    arrival_ns: Ints,
    prompt_tokens: Ints,
    output_tokens: Ints,
    content: Ints,
    contents: tuple[Content, ...],
) -> RequestTable:
    def column(values: Sequence[int]) -> Ints:
        return np.take(np.array(values, dtype=np.int64), which)

    def labels(values: Sequence[str]) -> Labels:
        return Labels.of(values).take(which.astype(np.intp))

    far = [(client.rtt_ns, client.token_wire_ns) for client in clients]
    timeout_ns = column([-1 if client.timeout_ns is None else client.timeout_ns for client in clients])
    return RequestTable.build(
        arrival_ns,
        prompt_tokens,
        output_tokens,
        deadline_ns=deadlines_ns(arrival_ns, timeout_ns),
        slo_class=labels([client.slo_class for client in clients]),
        tenant=labels([client.tenant for client in clients]),
        client=labels([client.name for client in clients]),
        model=labels([client.model for client in clients]),
        prefix_group=labels([client.prefix_group for client in clients]),
        prefix_tokens=column([client.prefix_tokens for client in clients]),
        content=content,
        contents=contents,
        streaming=np.array([client.streaming for client in clients], dtype=np.bool_)[which],
        slo_target_ns=column([client.slo_target_ns for client in clients]),
        network_ns=np.array(far)[which] if np.any(far) else None,
    )
