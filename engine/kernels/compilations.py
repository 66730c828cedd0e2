"""Number and duration of the kernel compilations in this process.

A kernel is compiled, or loaded from a cache, at the first launch of each variant. An engine does this before
it serves; any compilation after that delays a request.
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
    """Triton kernels loaded from a cache."""
    seconds: float = 0.0
    """Time spent on both, in s."""

    @property
    def kernels(self) -> int:
        """Compiled and loaded kernels together."""
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
    """Compilations since `watch` was first called."""
    return _so_far


def note(compilations: Compilations) -> None:
    """Add to the counts."""
    global _so_far
    _so_far += compilations


def watch() -> None:
    """Count Triton's compilations from now on; warn if this Triton version does not report them."""
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
    """Compilations before and while an engine serves."""

    def __init__(self) -> None:
        self._began = self._ready = so_far()

    def ready(self) -> None:
        """Mark the start of serving."""
        self._ready = so_far()

    @property
    def before_serving(self) -> Compilations:
        return self._ready - self._began

    @property
    def while_serving(self) -> Compilations:
        """Compilations while serving, each of which delayed a request; none are expected."""
        return so_far() - self._ready
