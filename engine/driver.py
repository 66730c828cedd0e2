"""Service of a workload: requests arrive by the engine's clock, as others end, or all at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from blis_py.core.request import NEVER_NS
from blis_py.core.slo import instance_priorities
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces.observed import ObservedColumns
from blis_py.traces.tracev2_write import End
from engine.grammar.params import StructuredOutputsParams
from engine.kinds import Engine, EngineInBlocks, Output
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence as Running

Progress = Callable[[int, int], None]


def serve(
    engine: Engine,
    table: RequestTable,
    prompts: Sequence[list[int]],
    *,
    structured: Sequence[StructuredOutputsParams | None] | None = None,
    at_once: bool = False,
    concurrency: int | None = None,
    observer: ObservedColumns | None = None,
    progress: Progress | None = None,
) -> list[Running | InputError]:
    """Serve every request of the table, each with as many output tokens as the table gives.

    Requests come at the times of the table whatever the engine does (an open loop), and are handed to it
    at the next step boundary. That work is part of the step, as it is in an engine that talks to clients.
    One whose answers come in blocks also gets them between two rounds of a batch, where requests may join.
    The engine must be as new (`reset`).

    Args:
        prompts: token ids, one list per request.
        structured: the form of each request's output; None = unconstrained. An output ends early where its
        grammar does.
        at_once: all requests arrive at 0.
        concurrency: number of requests in progress; the next is sent when one of them ends (a closed loop),
        regardless of the times in the table.
        observer: receives the client-side events, by the engine's clock.

    Returns:
        The outcome of each request; an InputError for one that could never be served.
    """
    clock = engine.clock
    client = _Client(engine, table, prompts, structured, observer or ObservedColumns(table))
    if at_once:
        client.send_at([0] * len(table))
    elif concurrency is not None:
        client.send_at([0] * concurrency, next_when_one_ends=True)
    if isinstance(engine, EngineInBlocks):
        engine.poll = lambda: client.send(clock.now_ns())
    try:
        while client.unsent or engine.has_unfinished:
            now_ns = clock.now_ns()
            client.send(now_ns)
            if engine.has_unfinished:
                output, seen_ns = engine.step(now_ns), clock.now_ns()
                with clock.elsewhere():
                    client.received(output, seen_ns)
                    if progress is not None:
                        progress(client.ended, len(table))
            elif client.unsent:
                clock.wait_until(client.next_ns)
    finally:
        if isinstance(engine, EngineInBlocks):
            engine.poll = None
    return client.outcomes


class _Client:
    """Client that sends the requests of a table in order and records the responses."""

    def __init__(
        self,
        engine: Engine,
        table: RequestTable,
        prompts: Sequence[list[int]],
        structured: Sequence[StructuredOutputsParams | None] | None,
        observer: ObservedColumns,
    ) -> None:
        self.outcomes: list[Running | InputError] = []
        self.ended = 0
        self._engine, self._table, self._prompts, self._observer = engine, table, prompts, observer
        self._structured = structured
        self._priorities = instance_priorities()
        self._times: deque[int] = deque(table.arrival_ns.tolist())
        self._replaces = False
        self._rows: dict[str, int] = {}

    def send_at(self, times_ns: list[int], *, next_when_one_ends: bool = False) -> None:
        """Override the table's sending times."""
        self._times, self._replaces = deque(times_ns), next_when_one_ends

    @property
    def unsent(self) -> int:
        return len(self._table) - len(self.outcomes)

    @property
    def next_ns(self) -> int:
        """Time of the next request, in ns."""
        return self._times[0] if self._times and self.unsent else NEVER_NS

    def send(self, now_ns: int) -> None:
        """Send the requests that are due."""
        while self.next_ns <= now_ns:
            self._send(self._times.popleft())

    def _send(self, time_ns: int) -> None:
        table, row = self._table, len(self.outcomes)
        deadline_ns = int(table.deadline_ns[row])
        if deadline_ns >= 0:
            deadline_ns += time_ns - int(table.arrival_ns[row])
        self._observer.sent(row, time_ns)
        self._rows[table.id_of(row)] = row
        try:
            outcome: Running | InputError = self._engine.add_request(
                self._prompts[row],
                SamplingParams(
                    temperature=0.0,
                    max_tokens=int(table.output_tokens[row]),
                    ignore_eos=True,
                    detokenize=False,
                    structured_outputs=self._structured[row] if self._structured is not None else None,
                ),
                request_id=table.id_of(row),
                arrival_ns=time_ns,
                priority=self._priorities.get(table.slo_class[row], self._priorities[""]),
                deadline_ns=deadline_ns,
            )
        except InputError as refusal:
            outcome = refusal
            self._end(row, time_ns, ("error", _line(f"refused: {refusal}"), ""))
        self.outcomes.append(outcome)

    def received(self, output: Output, now_ns: int) -> None:
        """Record the return of a step."""
        for sequence in output.sequences:
            self._observer.token(self._rows[sequence.request.id], now_ns)
        for sequence in output.finished:
            self._end(self._rows[sequence.request.id], now_ns, _end(sequence))

    def _end(self, row: int, time_ns: int, end: End) -> None:
        self.ended += 1
        self._observer.ended(row, time_ns, end)
        if self._replaces:
            self._times.append(time_ns)


def _end(sequence: Running) -> End:
    if sequence.finish_reason in ("stop", "length"):
        return "ok", "", sequence.finish_reason
    if sequence.finish_reason == "timeout":
        return "timeout", "", ""
    if sequence.finish_reason == "abort":
        return "error", "aborted", ""
    return "error", _line(f"failed: {sequence.error}"), ""


def _line(text: str) -> str:
    return " ".join(text.split())
