"""How many kernels this process has had to wait for, and how long.

A kernel is compiled, or found compiled in a cache, at its first launch in each variant. An engine does that
before it serves; what is counted after that is a request that waited.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Compilations:
    """Kernels made ready to run."""

    compiled: int = 0
    """Triton kernels compiled; the library of CUDA C++ kernels counts as one."""
    loaded: int = 0
    """The same, found in a cache."""
    seconds: float = 0.0
    """Spent on either."""

    @property
    def kernels(self) -> int:
        """All of them."""
        return self.compiled + self.loaded

    def __add__(self, other: Compilations) -> Compilations:
        return Compilations(
            self.compiled + other.compiled, self.loaded + other.loaded, self.seconds + other.seconds
        )

    def __sub__(self, other: Compilations) -> Compilations:
        return Compilations(
            self.compiled - other.compiled, self.loaded - other.loaded, self.seconds - other.seconds
        )


_so_far = Compilations()
_watching: Any = None


def so_far() -> Compilations:
    """Since `watch` was first called."""
    return _so_far


def note(compilations: Compilations) -> None:
    """Count some more."""
    global _so_far
    _so_far += compilations


def watch() -> None:
    """Count what Triton compiles from now on; warns where this Triton does not tell."""
    global _watching
    try:
        from triton.knobs import compilation

        before = compilation.listener
    except (ImportError, AttributeError):
        problem = "this version of Triton does not tell what it compiles: compiled kernels are not counted"
        warnings.warn(problem, RuntimeWarning, stacklevel=2)
        return
    if before is None or before is not _watching:
        _watching = compilation.listener = _listener(before)


def _listener(before: Any) -> Any:
    def listen(**event: Any) -> None:
        hit = bool(event["cache_hit"])
        note(Compilations(int(not hit), int(hit), event["times"].total / 1e6))
        if before is not None:
            before(**event)

    return listen


class Watch:
    """What was compiled for an engine until it was ready, and what since."""

    def __init__(self) -> None:
        self._began = self._ready = so_far()

    def ready(self) -> None:
        """The engine begins to serve."""
        self._ready = so_far()

    @property
    def before_serving(self) -> Compilations:
        return self._ready - self._began

    @property
    def while_serving(self) -> Compilations:
        """Should be none: each is a request that waited."""
        return so_far() - self._ready
