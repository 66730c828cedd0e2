"""Functions for a killable process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from blis_py.errors import InputError


def spin(seconds: float) -> None:
    """Work for some CPU time."""
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


def functions() -> Callable[[str, Any], Any]:
    """A function that does what it is called for."""

    def do(what: str, value: Any) -> Any:
        if what == "refuse":
            raise InputError("is refused", key=value)
        return {"len": len, "sleep": time.sleep, "spin": spin, "bytes": bytearray, "exit": os._exit}[what](
            value
        )

    return do
