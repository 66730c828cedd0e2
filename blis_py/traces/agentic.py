"""Conversations of agents: calls of a model with tools between them.

    conversations     Weka's: a conversation per line: `id`, `block_size`, and `requests` with `t` (s), `in`,
                      `out`, `hash_ids`, `api_time` and `think_time` (s); a subagent has requests itself
    Dynamo            its request trace (`dynamo.request.trace.v1`), where `request_end` is a request
    Agentic Mooncake  (`dynamo.agentic_mooncake`) requests with the ones they wait for
    Applied Compute   a conversation per line as lengths of prompt, answers and tool outputs, without times

Sources of the formats: github.com/ai-dynamo/dynamo and github.com/ai-dynamo/aiperf, Apache-2.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.requests.table import Content, RequestTable
from blis_py.traces._gathered import Gathered, milliseconds, seconds
from blis_py.traces._gathered_turns import GatheredTurns, check_session
from blis_py.traces._hash_blocks import check_ids, runs_of_ids
from blis_py.traces._json_rows import first_of, items, json_rows, within
from blis_py.traces._sessions import CLOSED
from blis_py.traces._subagents import AgentTurns, Subagents
from blis_py.traces.reading import Reading

_MAX_TURNS, _MAX_DEPTH = 100_000, 32


class _Calls:
    """Calls so far, each a turn of a session with the runs of its prompt."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._reading = reading
        self._gathered, self._turns = Gathered(path, reading), GatheredTurns()
        self._contents: dict[Content, int] = {}
        self._content: list[int] = []

    def add(
        self,
        where: str,
        number: int,
        session: Any,
        start_ns: Any,
        think_ns: int,
        prompt: Any,
        output: Any,
        runs: Content = (),
        *,
        model: Any = "",
    ) -> bool:
        """Add a call; return whether it was accepted. `session` None = no session."""
        if not self._gathered.add(where, number, start_ns, prompt, output, model=model):
            return False
        self._turns.begins(session, round(start_ns))
        self._turns.add(session, think_ns, has_time=True)
        self._content.append(self._contents.setdefault(runs, len(self._contents)) if runs else -1)
        return True

    def table(self) -> RequestTable:
        table = replace(
            self._gathered.table(),
            content=np.array(self._content, dtype=np.int64),
            contents=tuple(self._contents),
        )
        return self._turns.of(table, self._reading)


def _runs(
    ids: Any, tokens: Any, size: Any, scope: str, reading: Reading, where: str, *, leading_only: bool = False
) -> Content:
    """The runs of a prompt by its hash ids, which are those of a conversation unless `scope` is empty."""
    if ids is None or not isinstance(tokens, int):
        return ()
    size = reading.hash_block_size or size
    if type(size) is not int or size < 1:
        raise InputError("not a number of tokens", file=where, key="block_size", value=size)
    check_ids(ids, tokens, size, where, whole_only=True, leading_only=leading_only)
    return runs_of_ids([f"{scope}/{id}" for id in ids] if scope else ids, tokens, size)


def _plays_closed(reading: Reading) -> None:
    """Play turns after the answers before them, unless a mode of sessions is given."""
    if reading.session_mode is None:
        reading.session_mode = CLOSED
        reading.note("turns come after the answers before them; at their times with --session-mode fixed")


def read_conversations(path: Path, reading: Reading) -> RequestTable:
    """The requests of all conversations."""
    return _conversations(path, reading, json_rows(path, reading))


def read_conversation(path: Path, reading: Reading, document: dict[str, Any]) -> RequestTable:
    """The requests of a file with one conversation."""
    return _conversations(path, reading, [(1, str(path), document)])


def _conversations(
    path: Path, reading: Reading, rows: Iterable[tuple[int, str, dict[str, Any]]]
) -> RequestTable:
    calls, agents, begins = _Calls(path, reading), Subagents(), set()
    for number, where, row in rows:
        try:
            begins.add(_add_conversation(row, where, number, calls, agents, reading))
        except InputError as error:
            reading.bad.refuse(error, number)
    for turns, begin_s in agents.turns():
        _add_turns(turns, calls, begin_s)
    reading.has_times = begins != {0} or agents.count > 0
    _plays_closed(reading)
    agents.note(reading)
    return calls.table()


def _add_conversation(
    row: dict[str, Any], where: str, number: int, calls: _Calls, agents: Subagents, reading: Reading
) -> Any:
    """Add the turns of a conversation, and note its sub-agents; return when it begins, in s."""
    name = row.get("id")
    check_session(name, where)
    scope = "" if row.get("hash_id_scope") == "global" else str(name)

    def turns_of(session: Any, entry: dict[str, Any], place: str, depth: int) -> AgentTurns:
        requests = items(entry.get("requests"))
        if depth > _MAX_DEPTH or not requests or not all(isinstance(each, dict) for each in requests):
            raise InputError("must be a list of requests", file=place, key="requests")
        turns, names = AgentTurns(session, number), Counter[str]()
        for at, each in enumerate(requests):
            inner = f"{place}: requests[{at}]"
            if "requests" in each:
                agent_name = str(each.get("agent_id", at))
                names[agent_name] += 1
                again = f" {names[agent_name]}" if names[agent_name] > 1 else ""
                agent = turns_of(f"{session}/{agent_name}{again}", each, inner, depth + 1)
                turns.called(agent, each, inner)
                continue
            ids, tokens, size = each.get("hash_ids"), each.get("in"), row.get("block_size")
            runs = _runs(ids, tokens, size, scope, reading, inner, leading_only=True)
            turns.add(each, inner, runs, _pause_ns(each.get("think_time") or 0, inner, "think_time"))
        return turns

    turns = turns_of(name, row, where, 0)
    if not turns.calls:
        raise InputError("has no request of its own", file=where, key="requests")
    agents.add(turns)
    _add_turns(turns, calls, 0.0)
    return turns.calls[0].start_s


def _add_turns(turns: AgentTurns, calls: _Calls, begin_s: float) -> None:
    """Add the calls of one agent, whose times count from `begin_s`."""
    for call in turns.calls:
        start_s = call.start_s + begin_s if isinstance(call.start_s, int | float) else call.start_s
        calls.add(
            call.where,
            turns.number,
            turns.session,
            seconds(start_s),
            call.think_ns,
            call.prompt,
            call.output,
            call.runs,
            model=call.model,
        )


def _pause_ns(pause_s: Any, where: str, key: str, unit_ns: float = 1e9) -> int:
    if not isinstance(pause_s, int | float) or isinstance(pause_s, bool) or not 0 <= pause_s <= 1e9:
        raise InputError("not a pause", file=where, key=key, value=pause_s)
    return round(pause_s * unit_ns)


def read_dynamo(path: Path, reading: Reading) -> RequestTable:
    """The requests of a trace of Dynamo, at the times they were received."""
    calls = _Calls(path, reading)
    for number, where, row in json_rows(path, reading):
        if row.get("event_type") != "request_end":
            continue
        try:
            request, replay = row.get("request"), within(row, "request", "replay")
            start = milliseconds(within(request, "request_received_ms"))
            prompt = first_of(request, (("replay", "input_length"), ("input_tokens",)))
            ids, size = within(replay, "input_sequence_hashes"), within(replay, "trace_block_size")
            runs = _runs(ids, prompt, size, "", reading, where)
            session = within(row, "agent_context", "session_id")
            check_session(session, where)
        except InputError as error:
            reading.bad.refuse(error, number)
            continue
        output, start = first_of(request, (("output_tokens",),)), "nothing" if start is None else start
        calls.add(where, number, session, start, 0, prompt, output, runs, model=within(request, "model"))
    return calls.table()


def read_mooncake(path: Path, reading: Reading) -> RequestTable:
    """The requests of an Agentic Mooncake trace whose turns wait for the turn before them alone.

    Raises:
        InputError: a request that waits for those of other sessions.
    """
    calls, header, last = _Calls(path, reading), dict[str, Any](), dict[str, Any]()
    for number, where, row in json_rows(path, reading):
        if "schema" in row:
            header = row
            continue
        session, prompt = row.get("session_id"), row.get("input_length", "nothing")
        check_session(session, where)
        waits_for = _only_dependency(row, last.get(str(session)), where)
        last[str(session)] = row.get("request_id")
        scope = "" if header.get("hash_id_scope") == "global" else str(row.get("play_id", ""))
        runs = _runs(row.get("hash_ids"), prompt, header.get("block_size"), scope, reading, where)
        start_ns = milliseconds(row.get("not_before_ms", 0))
        think_ns = _pause_ns(waits_for.get("delay_ms", 0), where, "delay_ms", 1e6)
        output = row.get("output_length", "nothing")
        calls.add(where, number, session, start_ns, think_ns, prompt, output, runs)
    _plays_closed(reading)
    return calls.table()


def _only_dependency(row: Mapping[str, Any], before: Any, where: str) -> Mapping[str, Any]:
    """The only dependency of a request, on the turn before it; empty for a first turn."""
    waits_for = items(row.get("dependencies"))
    expected = [] if before is None else [(before, "completion")]
    if [(within(one, "request_id"), within(one, "trigger")) for one in waits_for] != expected:
        raise InputError(
            "waits for others than the answer before it in its session, which is not supported",
            file=where,
            key="dependencies",
            fix="give a trace in which each request waits for the one before it in its session, or Dynamo's "
            "request trace of the same load, whose requests have times",
        )
    return waits_for[0] if waits_for else {}


def read_applied_compute(path: Path, reading: Reading) -> RequestTable:
    """The conversations of a workload; each prompt is the conversation so far."""
    calls = _Calls(path, reading)
    for number, where, row in json_rows(path, reading):
        try:
            turns = _turns_of(row, where)
        except InputError as error:
            reading.bad.refuse(error, number)
            continue
        runs: Content = ()
        for turn, (added, output, think_ns) in enumerate(turns):
            runs = (*runs, (f"line {number}, turn {turn}", added))
            prompt = sum(tokens for _, tokens in runs)
            runs = (*runs, (f"line {number}, answer {turn}", output))
            calls.add(where, number, f"line {number}", 0, think_ns, prompt, output, runs)
    reading.has_times = False
    reading.session_mode = reading.session_mode or CLOSED
    return calls.table()


def _turns_of(row: dict[str, Any], where: str) -> list[tuple[int, int, int]]:
    """Tokens added to the prompt, tokens of the answer, and the pause in ns before it, of every turn."""
    keys = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
    answers, tools, latencies_s = (items(row.get(key)) for key in keys)
    if not len(answers) == len(tools) == len(latencies_s) <= _MAX_TURNS:
        raise InputError("lists of different lengths", file=where, key=", ".join(keys))
    added = [row.get("input_prompt_length"), *tools]
    outputs = [*answers, row.get("final_assistant_response_length")]
    pauses_ns = [0, *(_pause_ns(pause_s, where, keys[2]) for pause_s in latencies_s)]
    for key, counts in (("input_prompt_length", added), (keys[0], outputs)):
        for count in counts:
            if type(count) is not int or not 1 <= count <= 2**31:
                raise InputError("not a number of tokens", file=where, key=key, value=count)
    return list(zip(added, outputs, pauses_ns, strict=True))
