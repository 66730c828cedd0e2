"""The output of one streamed delta, of every kind that servers send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "text")
_CALLS = ("tool_calls", "function_call")


def output_of(delta: Mapping[str, Any]) -> str | None:
    """Text of a delta: content, reasoning, refusals, calls of tools; None = it has no field of these.

    An empty text is the output of a token whose characters are still incomplete.
    """
    texts = [text for text in (_text(delta.get(name)) for name in _TEXTS) if text is not None]
    texts += [text for text in (_call(delta.get(name)) for name in _CALLS) if text]
    if isinstance(audio := delta.get("audio"), Mapping) and audio:
        texts.append(str(audio.get("transcript") or " "))
    return "".join(texts) if texts else None


def _text(value: Any) -> str | None:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        parts = [part for part in value if isinstance(part, Mapping)]
        texts = [_text(part.get("text") or part.get("thinking")) or "" for part in parts]
        return "".join(texts) if parts else None
    return value if isinstance(value, str) else None


def _call(value: Any) -> str:
    """Names and arguments of calls; a call without either (its id alone) is an output, too."""
    calls = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping)]
    texts = []
    for call in calls:
        function = call.get("function", call)
        fields = function if isinstance(function, Mapping) else {}
        texts += [str(fields.get("name") or ""), str(fields.get("arguments") or "")]
    return "".join(texts) or (" " if calls else "")
