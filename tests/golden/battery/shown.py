"""Objects as texts: all that they hold, floats in nine digits."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def text_of(value: Any, depth: int = 0) -> str:
    """All that an object holds, in an order of its own."""
    if isinstance(value, float | np.floating):
        return f"{float(value) * (1 + 3e-11):.9g}"
    if isinstance(value, np.ndarray):
        return text_of(value.tolist(), depth)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(inner, depth + 1)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text_of(inner, depth + 1) for inner in value) + "]"
    if isinstance(value, str | int | bool | bytes | np.integer) or value is None:
        return str(value)
    if is_dataclass(value) and depth < 9:
        shown = (f"{each.name}={text_of(getattr(value, each.name), depth + 1)}" for each in fields(value))
        return f"{type(value).__name__}({', '.join(shown)})"
    names = sorted(name for name in getattr(value, "__dict__", {}) if not name.startswith("__"))
    if depth > 9 or not names or callable(value):
        return type(value).__name__
    inside = (f"{name}={text_of(getattr(value, name), depth + 1)}" for name in names)
    return f"{type(value).__name__}({', '.join(inside)})"
