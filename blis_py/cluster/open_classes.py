"""Marks compiled classes from which packages of one's own may derive, as mypyc reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**attributes: Any) -> Any:
        """No effect on the interpreted class."""
        return lambda kind: kind
