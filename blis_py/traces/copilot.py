"""Traces of GitHub Copilot's coding agents: a session per line, with calls of models in turns of its user.

A call, `turns[].llm_calls[]`, has a `timestamp` (date), `duration_ms`, `model`, and `tokens` of `prompt` and
`completion`. Calls of a session follow each other; those of another model, and those that another call
overlaps, are sessions of their own: they have prompts of their own.
Source: github.com/Azure/AzurePublicDataset, GitHubCopilotCodingAgentDataset2026.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces._gathered import Gathered
from blis_py.traces._gathered_turns import check_session
from blis_py.traces._json_rows import items, json_rows, within
from blis_py.traces._units import date_ns
from blis_py.traces.reading import Reading

_LONGEST_MS = 1e9


class _CopilotCall(NamedTuple):
    """A call as recorded."""

    begin_ns: int
    end_ns: int
    where: str
    model: str
    prompt: Any
    output: Any


def read(path: Path, reading: Reading) -> RequestTable:
    """The calls of all sessions at their times.

    Raises:
        InputError: with line, call, key and value.
    """
    gathered, unsent = Gathered(path, reading), 0
    for number, where, row in json_rows(path, reading):
        try:
            name = row.get("session_id")
            check_session(name, where)
            calls = sorted(_calls(row, where))
        except InputError as error:
            reading.bad.refuse(error, number)
            continue
        lanes = _SessionLanes(str(name))
        for call in calls:
            if call.prompt in (None, 0):
                unsent += 1
                continue
            gathered.add(
                call.where,
                number,
                call.begin_ns,
                call.prompt,
                call.output,
                model=call.model,
                conversation=lanes.of(call),
                answered_ns=call.end_ns,
            )
    reading.left_out(unsent, "a call without a prompt")
    return gathered.table()


def _calls(row: dict[str, Any], where: str) -> Iterator[_CopilotCall]:
    for turn_number, turn in enumerate(items(row.get("turns"))):
        for number, call in enumerate(items(within(turn, "llm_calls"))):
            place = f"{where}: turns[{turn_number}].llm_calls[{number}]"
            begin_ns = _begin_ns(within(call, "timestamp"), place)
            lasts_ms = within(call, "duration_ms") or 0
            if type(lasts_ms) not in (int, float) or not 0 <= lasts_ms <= _LONGEST_MS:
                raise InputError("not a duration", file=place, key="duration_ms", value=lasts_ms)
            prompt, output = (within(call, "tokens", side) for side in ("prompt", "completion"))
            model = str(within(call, "model") or "")
            yield _CopilotCall(begin_ns, begin_ns + round(lasts_ms * 1e6), place, model, prompt, output)


def _begin_ns(date: Any, where: str) -> int:
    try:
        return date_ns(str(date))
    except (ValueError, OverflowError):
        raise InputError("not a date", file=where, key="timestamp", value=date) from None


class _SessionLanes:
    """Calls of a session in lanes: a call follows the one of its model that ended last before it began."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._ends_ns: dict[str, list[int]] = {}

    def of(self, call: _CopilotCall) -> str:
        """The name of the call's lane; the first one has that of the session."""
        ends_ns = self._ends_ns.setdefault(call.model, [])
        free = [lane for lane, end_ns in enumerate(ends_ns) if end_ns <= call.begin_ns]
        lane = max(free, key=ends_ns.__getitem__, default=len(ends_ns))
        ends_ns[lane : lane + 1] = [call.end_ns]
        models = "" if next(iter(self._ends_ns)) == call.model else f"/{call.model}"
        return f"{self._session}{models}" + (f"/{lane}" if lane else "")
