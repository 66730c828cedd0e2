"""Functions for a killable process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from blis_py.errors import InputError


def functions() -> Callable[[str, Any], Any]:
    """A function that does what it is called for."""

    def do(what: str, value: Any) -> Any:
        if what == "refuse":
            raise InputError("is refused", key=value)
        return {"len": len, "sleep": time.sleep, "bytes": bytearray, "exit": os._exit}[what](value)

    return do
