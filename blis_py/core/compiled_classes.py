"""Marks of compiled classes, as mypyc reads them.

`allow_interpreted_subclasses`: packages of one's own may derive from the class. `acyclic`: no reference
cycle contains its instances, so that the garbage collector need not know them. `free_list_len=1`: the memory
of a deleted instance is kept for the next one, where every step creates some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**attributes: Any) -> Any:
        """No effect on the interpreted class."""
        return lambda kind: kind
