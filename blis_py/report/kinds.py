"""What kinds of requests add to the table of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blis_py.report import diffusion

LINES: dict[str, Callable[[Mapping[str, Any]], Iterable[str]]] = {"diffusion": diffusion.lines}
"""Facts of the part of the summary that has the name of the kind."""
