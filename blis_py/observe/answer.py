"""A response of the OpenAI API as it streams: the time of each token, counts, and its end."""

from __future__ import annotations

import json
from typing import Any

from blis_py.errors import plain
from blis_py.observe._delta import output_of
from blis_py.traces.tracev2_write import End


class ObservedAnswer:
    """Receiver of one response, streamed or not.

    Frames end in LF or CR LF; comments are skipped. Content, reasoning, refusals and calls of tools are all
    tokens, and so is an event with an empty text. A first event that only names the role is none, nor is the
    last one with the usage alone.

    Attributes:
        times_ns: when tokens came, one entry for every event with some.
        prompt_tokens, completion_tokens: as the server counts them; -1 = it does not say.
    """

    def __init__(self) -> None:
        self.status = 0
        self.times_ns: list[int] = []
        self.text: list[str] = []
        self.prompt_tokens = self.completion_tokens = -1
        self.finish_reason = ""
        self.error = ""
        self._streams = False
        self._rest = b""
        self._complete = False
        self._begun: set[int] = set()
        """Choices of which an event has come."""

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self._streams = headers.get("content-type", "").lower().startswith("text/event-stream")

    def data(self, part: bytes, time_ns: int) -> None:
        if not self._streams:
            self._rest += part
            return
        lines = (self._rest + part if self._rest else part).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), time_ns)

    def _event(self, data: bytes, time_ns: int) -> None:
        if data == b"[DONE]":
            self._complete = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            self.error = self.error or "an event is not JSON"
            return
        if not isinstance(event, dict):
            self.error = self.error or "an event is no object"
            return
        if event.get("error"):
            self.error = _message(event["error"])
            return
        before = self.completion_tokens
        self._usage(event.get("usage"))
        counts = self.completion_tokens != before or not isinstance(event.get("usage"), dict)
        for choice in _choices(event):
            self._choice(choice, time_ns, counts)

    def _choice(self, choice: dict[str, Any], time_ns: int, counts: bool) -> None:
        """
        Args:
            counts: the event has no usage, or one that has grown.
        """
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else choice
        text, finish, index = output_of(delta), choice.get("finish_reason"), choice.get("index", 0)
        is_role = "role" in delta and index not in self._begun
        self._begun.add(index if isinstance(index, int) else 0)
        if text or (text == "" and counts and not finish and not is_role):
            self.times_ns.append(time_ns)
            self.text.append(text)
        if finish:
            self.finish_reason = str(finish)

    def _usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"))
            self.completion_tokens = _count(usage.get("completion_tokens"))

    def ended(self, time_ns: int) -> None:
        """The response is complete."""
        if self._streams:
            self.data(b"\n", time_ns)  # a last line without its end
            if not self._complete and not self.error:
                self.error = "the stream ended without [DONE]"
            return
        try:
            body = json.loads(self._rest)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or self.status != 200:
            text = body.get("error", body) if isinstance(body, dict) else self._rest.decode(errors="replace")
            self.error = f"status {self.status}: {_message(text)}"
            return
        self._usage(body.get("usage"))
        for choice in _choices(body):
            message = choice.get("message")
            self.text.append(output_of(message if isinstance(message, dict) else choice) or "")
            self.finish_reason = str(choice.get("finish_reason") or "")
        self.times_ns.append(time_ns)

    @property
    def end(self) -> End:
        if self.error or self.status != 200:
            return "error", plain(self.error or f"status {self.status}"), ""
        return "ok", "", self.finish_reason


def _choices(body: dict[str, Any]) -> list[dict[str, Any]]:
    choices = body.get("choices")
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else -1


def _message(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return plain(str(message))
