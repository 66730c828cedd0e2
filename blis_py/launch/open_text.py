"""Text with parts that are unknown until a script runs: variables that are not set, output of commands."""

from __future__ import annotations

import re

_OPEN, _CLOSE = "\ue000", "\ue001"
_PART = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")


def unknown(name: str) -> str:
    """The text of an unknown part: `$NAME`, or a command in `$(…)`."""
    return f"{_OPEN}{name.replace(_OPEN, '').replace(_CLOSE, '')}{_CLOSE}"


def is_open(text: str) -> bool:
    """Whether part of the text is unknown."""
    return _OPEN in text


def shown(text: str) -> str:
    """The text for messages, unknown parts as they are written."""
    return _PART.sub(r"\1", text)


def unset(text: str) -> list[str]:
    """Names of the variables that are not set."""
    return [name[1:] for name in _PART.findall(text) if re.fullmatch(r"\$\w+", name)]
