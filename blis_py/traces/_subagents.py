"""Sub-agents of a recorded conversation: an agent that another calls, with calls of the model of its own.

Each is a session of its own, which begins at its recorded time; the turn after it in the conversation that
called it comes as long after the answer before as it was recorded, however long the sub-agent takes here.
Times of a sub-agent count from its own begin (kv-cache-tester) or from that of the conversation
(SemiAnalysis's datasets), the same throughout a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from blis_py.errors import InputError
from blis_py.requests.table import Content
from blis_py.traces.reading import Reading

_SLACK_S = 0.001
"""Times are rounded to ms."""
_NOT_WAITED_FOR = "async_launched"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A request as recorded: lengths in tokens, the pause before it in ns."""

    where: str
    start_s: Any
    prompt: Any
    output: Any
    runs: Content
    think_ns: int
    model: Any


@dataclass(slots=True)
class AgentTurns:
    """The calls of one agent, and the agents that it called, with when (s)."""

    session: Any
    number: int
    """Number of the line of the conversation."""
    calls: list[RecordedCall] = field(default_factory=list)
    agents: list[tuple[float, AgentTurns]] = field(default_factory=list)
    _waited: bool = False
    _answered_s: float | None = None

    def add(self, request: dict[str, Any], where: str, runs: Content, think_ns: int) -> None:
        """Add a request. After a sub-agent, its pause is the recorded time since the answer before it."""
        start, model = request.get("t", "nothing"), request.get("model")
        prompt, output = (request.get(key, "nothing") for key in ("in", "out"))
        if self._waited and self._answered_s is not None and _is_time(start):
            think_ns = max(think_ns, round((start - self._answered_s) * 1e9))
        self.calls.append(RecordedCall(where, start, prompt, output, runs, think_ns, model))
        took = request.get("api_time")
        self._waited = False
        self._answered_s = start + took if _is_time(start) and _is_time(took) else None

    def called(self, agent: AgentTurns, entry: dict[str, Any], where: str) -> None:
        """Note a sub-agent.

        Raises:
            InputError: it has no time.
        """
        start = entry.get("t", 0)
        if "t" not in entry or not _is_time(start):
            raise InputError("not a time", file=where, key="t", value=entry.get("t"))
        self._waited |= entry.get("status") != _NOT_WAITED_FOR
        self.agents.append((start, agent))


class Subagents:
    """The sub-agents of all conversations of a file."""

    def __init__(self) -> None:
        self._of: list[AgentTurns] = []
        self.count = 0

    def add(self, conversation: AgentTurns) -> None:
        """Keep the sub-agents of a conversation: only all together show from when their times count."""
        if conversation.agents:
            self._of.append(conversation)

    def turns(self) -> Iterator[tuple[AgentTurns, float]]:
        """Each with the time from which its own count, in s."""
        relative = any(
            _is_time(call.start_s) and call.start_s < start - _SLACK_S
            for conversation in self._of
            for start, agent in _all(conversation)
            for call in agent.calls[:1]
        )

        def with_origin(parent: AgentTurns, origin_s: float) -> Iterator[tuple[AgentTurns, float]]:
            for start, agent in parent.agents:
                own_s = origin_s + start if relative else 0.0
                self.count += 1
                yield agent, own_s
                yield from with_origin(agent, own_s)

        for conversation in self._of:
            yield from with_origin(conversation, 0.0)

    def note(self, reading: Reading) -> None:
        """Say how they are played."""
        if self.count:
            agents = f"{self.count:,} sub-agent{'s' if self.count > 1 else ''}"
            reading.note(
                f"{agents}: sessions of their own from their recorded times on; the turn after them waits as "
                "long as it did, not for them"
            )


def _all(conversation: AgentTurns) -> Iterator[tuple[float, AgentTurns]]:
    for start, agent in conversation.agents:
        yield start, agent
        yield from _all(agent)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1e12
