"""Lines of the table of a run by kind of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blis_py.core.kinds import modules

LINES: dict[str, Callable[[Mapping[str, Any]], Iterable[str]]] = {
    name: module.lines for name, module in modules("blis_py.report").items()
}
"""Facts of the part of the summary that has the name of the kind."""
