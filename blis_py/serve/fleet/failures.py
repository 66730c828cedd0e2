"""Injected failures: refusals, errors in the middle of an answer, and slow beginnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from blis_py.errors import InputError
from blis_py.serve.errors import ApiError

KINDS: Mapping[str, tuple[int, str]] = {
    "rate_limit": (429, "injected: rate limit reached"),
    "invalid_api_key": (401, "injected: invalid API key"),
    "context_length": (400, "injected: the context length is exceeded"),
    "server_error": (500, "injected: server error"),
    "server_overloaded": (503, "injected: the server is overloaded"),
    "invalid_request": (400, "injected: invalid request"),
    "model_not_found": (404, "injected: the model does not exist"),
}
_MOST_KINDS = 1000
"""One may be listed several times, to be drawn more often."""
HEADER = "x-return-error"
"""Request header that asks for a failure: a kind, or an HTTP status."""


@dataclass(frozen=True, slots=True)
class FailureSettings:
    """Shares of requests, 0 to 1, and which failures they get."""

    refused: float = 0.0
    """Share refused at once, with one of `kinds`."""
    broken: float = 0.0
    """Share that fails after some of its tokens."""
    kinds: Sequence[str] = ("server_error",)

    def changed(self, values: Mapping[str, Any]) -> FailureSettings:
        """A copy with other values.

        Raises:
            InputError: unknown names or kinds, or shares out of range.
        """
        known = asdict(self)
        for name, value in values.items():
            if name not in known:
                raise InputError("unknown setting", key=name, fix=f"use one of {', '.join(known)}")
            if name != "kinds" and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise InputError("must be a number", key=name, value=value)
            if name != "kinds" and not 0 <= value <= 1:
                raise InputError("must be a share from 0 to 1", key=name, value=value)
        kinds = values.get("kinds", self.kinds)
        if isinstance(kinds, list | tuple) and len(kinds) > _MOST_KINDS:
            raise InputError(f"more than {_MOST_KINDS} kinds", key="kinds", value=len(kinds))
        known_kinds = isinstance(kinds, list | tuple) and all(
            isinstance(kind, str) and kind in KINDS for kind in kinds
        )
        if not known_kinds or not kinds:
            fix = f"use some of {', '.join(KINDS)}"
            raise InputError("unknown kinds of failures", key="kinds", value=kinds, fix=fix)
        return replace(self, **{**values, "kinds": tuple(kinds)})


class Failures:
    """Random failures from a seed."""

    def __init__(self, settings: FailureSettings, seed: int) -> None:
        self.settings, self._random = settings, Random(seed)

    def refuse(self, headers: Mapping[str, str]) -> None:
        """
        Raises:
            ApiError: the injected failure.
        """
        header = headers.get(HEADER)
        if header:
            raise _error(header)
        if self.settings.refused and self._random.random() < self.settings.refused:
            raise _error(self._random.choice(list(self.settings.kinds)))

    def breaks_after(self, tokens: int) -> int:
        """Number of tokens after which an answer fails; 0 = it does not."""
        if not self.settings.broken or self._random.random() >= self.settings.broken:
            return 0
        return self._random.randint(1, max(tokens - 1, 1))


def _error(kind: str) -> ApiError:
    if kind in KINDS:
        status, message = KINDS[kind]
        return ApiError(status, message, retry_after_s=1 if status in (429, 503) else None)
    if kind.isascii() and kind.isdecimal() and 400 <= int(kind) < 600:
        return ApiError(int(kind), f"injected: status {kind}")
    known = ", ".join(KINDS)
    return ApiError(400, f"unknown failure {kind!r}: use {known}, or a status", "X-Return-Error")
