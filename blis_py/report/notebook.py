"""Progress bar of a running notebook cell."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from types import TracebackType
from typing import Any

_PATIENCE_S, _REFRESH_S = 1.0, 0.2


def in_notebook() -> bool:
    """Whether this is a Jupyter cell, rather than a terminal, script or test."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return False
    shell: Any = sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class CellProgress:
    """A bar below the cell, shown after one second and removed at the end of the run."""

    def __init__(self, what: str = "requests") -> None:
        self._what = what
        self._start_s = time.monotonic()
        self._next_s = self._start_s + _PATIENCE_S
        self._shown: Any = None

    def __enter__(self) -> CellProgress:
        return self

    def __call__(self, ended: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _REFRESH_S
        text = f"{ended:,} of {total:,} {self._what}, {now_s - self._start_s:.0f} s"
        self._show(f'<progress value="{ended}" max="{max(total, 1)}"></progress> {text}')

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._show("")

    def _show(self, html: str) -> None:
        shell: Any = import_module("IPython.display")
        if self._shown is None:
            self._shown = shell.display(shell.HTML(html), display_id=True)
        else:
            self._shown.update(shell.HTML(html))
