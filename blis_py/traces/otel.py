"""Sessions from OpenTelemetry GenAI spans, and from agent traces with the same attributes.

A span that calls a model is a request. Requests of a conversation (or else of a trace) that follow each other
are the turns of a session: what lies between, such as a tool call, is think time. A request that begins while
another of its conversation is in progress begins a session of its own beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.opening import read_text
from blis_py.requests.table import Content, Labels, RequestTable
from blis_py.traces._units import date_ns
from blis_py.traces.tokens import CHARACTERS_PER_TOKEN

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_SESSION = ("gen_ai.conversation.id", "session.id", "conversation_id", "exgentic.session.id")
_MODEL = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
_LIMIT = ("gen_ai.request.max_tokens",)
_INPUT_TEXTS = ("gen_ai.input.messages", "gen_ai.prompt", "input.value")
_OUTPUT_TEXTS = ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.completion", "output.value")
_TEXT_KEYS = ("content", "text", "arguments", "result", "response")
"""Keys of a message that hold its text."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a model."""

    begin_ns: int
    end_ns: int
    session: str
    input_tokens: int
    output_tokens: int
    model: str
    max_tokens: int


@dataclass(slots=True)
class _Session:
    """Turns that follow each other."""

    name: str
    calls: list[_Call] = field(default_factory=list)

    @property
    def end_ns(self) -> int:
        return self.calls[-1].end_ns


def read_spans(path: Path) -> tuple[RequestTable, list[str]]:
    """The calls of a file: OTLP or Jaeger JSON, or spans one per line; and what was assumed.

    Raises:
        InputError: not spans, or none that calls a model.
    """
    spans = list(_spans(path, read_text(path)))
    texts = _Texts()
    found = (call for span in spans if (call := _call(path, span, texts)))
    calls = sorted(found, key=lambda call: call.begin_ns)
    if not calls:
        fix = f"record {_INPUT[0]} and {_OUTPUT[0]}"
        raise InputError(f"{len(spans):,} spans, none of which calls a model", file=path, fix=fix)
    sessions = _sessions(calls)
    names = len({call.session for call in calls})
    counts = f"{len(sessions):,} sessions of {names:,} conversations"
    notes = [
        f"{len(calls):,} calls of {len(spans):,} spans, in {counts}",
        "a turn's prompt begins with the prompt and the answer before it, as far as it is long enough",
        "time between two turns, tools included, is think time",
    ]
    if texts.counted:
        guess = f"guessed from their texts, at {CHARACTERS_PER_TOKEN} characters a token"
        notes.append(f"lengths of {texts.counted:,} calls without token counts are {guess}")
    return _table(sessions, calls[0].begin_ns), notes


def _spans(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    """All spans of a document, or of one document per line."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    try:
        documents = [parse_json(text, path)]
    except InputError:
        if len(lines) < 2:
            raise
        documents = [parse_json(line, f"{path}, line {number}") for number, line in lines]
    for document in documents:
        yield from _within(document)


def _within(node: Any) -> Iterator[Mapping[str, Any]]:
    """Spans within nested lists and mappings."""
    pending = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, list):
            pending += reversed(one)
        elif isinstance(one, Mapping):
            if "attributes" in one and ("startTimeUnixNano" in one or "start_time" in one):
                yield one
            elif "operationName" in one and "startTime" in one:
                yield _of_jaeger(one)
            else:
                pending += reversed(list(one.values()))


def _of_jaeger(span: Mapping[str, Any]) -> Mapping[str, Any]:
    """A span of Jaeger's JSON, which has times in microseconds and tags, in the names of OTLP."""
    begin_us, lasts_us, tags = span["startTime"], span.get("duration", 0), span.get("tags")
    known = type(begin_us) is int and type(lasts_us) is int
    return {
        "attributes": [
            {"key": tag.get("key"), "value": {"": tag.get("value")}}
            for tag in (tags if isinstance(tags, list) else ())
            if isinstance(tag, Mapping)
        ],
        "startTimeUnixNano": begin_us * 1000 if known else str(begin_us),
        "endTimeUnixNano": (begin_us + lasts_us) * 1000 if known else str(lasts_us),
        "traceId": span.get("traceID"),
        "spanId": span.get("spanID"),
    }


class _Texts:
    """Token counts of messages, for calls without counts."""

    def __init__(self) -> None:
        self.counted = 0

    def counts(self, attributes: Mapping[str, Any], *known: int | None) -> tuple[int | None, ...]:
        """Known tokens of prompt and answer, the missing ones guessed; None where there is no text either."""
        sides = zip(known, (_INPUT_TEXTS, _OUTPUT_TEXTS), strict=True)
        counts = tuple(_guessed(attributes, texts) if count is None else count for count, texts in sides)
        self.counted += None not in counts
        return counts


def _guessed(attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    characters = _characters(attributes, names)
    return None if characters is None else -(-characters // CHARACTERS_PER_TOKEN)


def _characters(attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Characters of the texts of messages, which are JSON or plain text."""
    given = next((attributes[name] for name in names if attributes.get(name)), None)
    if isinstance(given, str):
        with contextlib.suppress(InputError):
            given = parse_json(given)
    if given is None:
        return None
    if isinstance(given, str):
        return len(given)
    pending, characters = [given], 0
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, Mapping):
            pending += [value for key, value in node.items() if key in _TEXT_KEYS or isinstance(value, list)]
        elif isinstance(node, str):
            characters += len(node)
    return characters


def _call(path: Path, span: Mapping[str, Any], texts: _Texts) -> _Call | None:
    """The call of a model that a span is; None for other spans."""
    attributes = _attributes(span["attributes"])
    prompt, output = _count(path, attributes, _INPUT), _count(path, attributes, _OUTPUT)
    if prompt is None or output is None:
        prompt, output = texts.counts(attributes, prompt, output)
    if prompt is None or output is None:
        return None
    begin_ns, end_ns = (_time_ns(path, span, side) for side in ("start", "end"))
    context = span.get("context")
    trace = span.get("traceId") or span.get("trace_id") or (context or {}).get("trace_id") or ""
    session = next((str(attributes[name]) for name in _SESSION if attributes.get(name)), str(trace))
    model = next((str(attributes[name]) for name in _MODEL if attributes.get(name)), "")
    limit = _count(path, attributes, _LIMIT) or 0
    if end_ns < begin_ns:
        raise InputError("a span ends before it begins", file=path, key=str(span.get("spanId", "")))
    return _Call(begin_ns, end_ns, session, max(prompt, 1), max(output, 1), model, max(limit, 0))


def _attributes(given: Any) -> dict[str, Any]:
    """Attributes by name, from either form."""
    if isinstance(given, Mapping):
        return dict(given)
    attributes = {}
    for one in given if isinstance(given, list) else ():
        if isinstance(one, Mapping) and isinstance(one.get("value"), Mapping):
            attributes[str(one.get("key"))] = next(iter(one["value"].values()), None)
    return attributes


def _count(path: Path, attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = attributes.get(name)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                count = int(float(value))
            except (ValueError, OverflowError):
                continue
            if count > MAX_TOKENS:
                raise InputError(f"more than {MAX_TOKENS:,} tokens", file=path, key=name, value=value)
            return count
    return None


def _time_ns(path: Path, span: Mapping[str, Any], side: str) -> int:
    value = span.get(f"{side}TimeUnixNano", span.get(f"{side}_time"))
    try:
        is_date = isinstance(value, str) and not (value.isascii() and value.isdecimal())
        time_ns = date_ns(value) if is_date else int(value)
        if abs(time_ns) > LAST_NS:
            raise ValueError
        return time_ns
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"no {side} time", file=path, key=str(span.get("spanId", "")), value=value) from None


def _sessions(calls: list[_Call]) -> list[_Session]:
    """Calls dealt out: each follows the session of its conversation that ended last before it began."""
    by_name: dict[str, list[_Session]] = {}
    every: list[_Session] = []
    for call in calls:
        own = by_name.setdefault(call.session, [])
        free = [session for session in own if session.end_ns <= call.begin_ns]
        if free:
            max(free, key=lambda session: session.end_ns).calls.append(call)
        else:
            name = call.session if not own else f"{call.session}/{len(own)}"
            own.append(_Session(name, [call]))
            every.append(own[-1])
    return every


def _table(sessions: list[_Session], origin_ns: int) -> RequestTable:
    rows = [
        (call, number, turn, _think_ns(session, turn))
        for number, session in enumerate(sessions)
        for turn, call in enumerate(session.calls)
    ]
    rows.sort(key=lambda row: row[0].begin_ns)
    contents = [_content(sessions[number], turn) for _, number, turn, _ in rows]

    def column(values: list[int]) -> Any:
        return np.array(values, dtype=np.int64)

    return RequestTable.build(
        column([call.begin_ns - origin_ns for call, *_ in rows]),
        column([call.input_tokens for call, *_ in rows]),
        column([call.output_tokens for call, *_ in rows]),
        max_tokens=column([call.max_tokens or call.output_tokens for call, *_ in rows]),
        model=Labels.of(call.model for call, *_ in rows),
        content=np.arange(len(rows), dtype=np.int64),
        contents=contents,
        session=column([number for _, number, _, _ in rows]),
        session_names=[session.name for session in sessions],
        round_index=column([turn for _, _, turn, _ in rows]),
        think_ns=column([think for *_, think in rows]),
    )


def _think_ns(session: _Session, turn: int) -> int:
    """Pause before a turn; -1 for the first one."""
    return -1 if not turn else session.calls[turn].begin_ns - session.calls[turn - 1].end_ns


def _content(session: _Session, turn: int) -> Content:
    """The runs of a turn: the texts of the turns before it, and its own."""
    runs: list[tuple[str | int, int]] = []
    for number, call in enumerate(session.calls[: turn + 1]):
        text_tokens = sum(tokens for _, tokens in runs)
        if call.input_tokens < text_tokens:  # a context that was cut or summarised begins anew
            runs, text_tokens = [], 0
        runs.append((f"{session.name}#{number}", call.input_tokens + call.output_tokens - text_tokens))
    return tuple(runs)
