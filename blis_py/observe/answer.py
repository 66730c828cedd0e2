"""A response of the OpenAI API as it streams: the time of each token, counts, and its end."""

from __future__ import annotations

import json
from typing import Any

from blis_py.errors import plain
from blis_py.traces.tracev2_write import End


class ObservedAnswer:
    """Receiver of one response, streamed or not.

    Frames end in LF or CR LF; comments are skipped. A first event that only names the role is no token, an
    event with an empty text is one.

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

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self._streams = headers.get("content-type", "").startswith("text/event-stream")

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
        except ValueError:
            self.error = self.error or "an event is not JSON"
            return
        if "error" in event:
            self.error = _message(event["error"])
            return
        self._usage(event.get("usage"))
        for choice in event.get("choices") or ():
            self._choice(choice, time_ns)

    def _choice(self, choice: dict[str, Any], time_ns: int) -> None:
        delta = choice.get("delta")
        if delta is None:
            text = choice.get("text")
        else:
            text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
            if text is None and delta.get("content") == "" and "role" not in delta:
                text = ""
        finish = choice.get("finish_reason")
        if text or (text == "" and not finish):
            self.times_ns.append(time_ns)
            self.text.append(text)
        if finish:
            self.finish_reason = finish

    def _usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = int(usage.get("prompt_tokens", -1))
            self.completion_tokens = int(usage.get("completion_tokens", -1))

    def ended(self, time_ns: int) -> None:
        """The response is complete."""
        if self._streams:
            if not self._complete and not self.error:
                self.error = "the stream ended without [DONE]"
            return
        try:
            body = json.loads(self._rest)
        except ValueError:
            body = None
        if not isinstance(body, dict) or self.status != 200:
            text = body.get("error", body) if isinstance(body, dict) else self._rest.decode(errors="replace")
            self.error = f"status {self.status}: {_message(text)}"
            return
        self._usage(body.get("usage"))
        for choice in body.get("choices") or ():
            self.text.append(str((choice.get("message") or {}).get("content") or choice.get("text") or ""))
            self.finish_reason = choice.get("finish_reason") or ""
        self.times_ns.append(time_ns)

    @property
    def end(self) -> End:
        if self.error or self.status != 200:
            return "error", plain(self.error or f"status {self.status}"), ""
        return "ok", "", self.finish_reason


def _message(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return plain(str(message))
