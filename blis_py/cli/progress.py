"""A progress bar for people: on a terminal only, and only when there is something to wait for."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

_PATIENCE_S = 1.0
_REFRESH_S = 0.1
_WIDTH = 30


class Progress:
    """Call it with (ended, all) requests as often as you like."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on = stream.isatty()
        self._start_s = time.monotonic()
        self._next_s = self._start_s + _PATIENCE_S
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __call__(self, ended: int, total: int) -> None:
        if not self._on or time.monotonic() < self._next_s:
            return
        now_s = time.monotonic()
        self._next_s, self._drawn = now_s + _REFRESH_S, True
        filled = _WIDTH * ended // max(total, 1)
        bar = "█" * filled + "░" * (_WIDTH - filled)
        self._draw(f"{bar} {ended:,} of {total:,} requests, {now_s - self._start_s:.0f} s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._draw("")

    def _draw(self, text: str) -> None:
        self._stream.write(f"\r\x1b[2K{text}")
        self._stream.flush()
