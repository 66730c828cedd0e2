"""Bounds of the clock and the counters, and the checks for values converted to them.

Beyond these bounds 64-bit numbers would overflow, or memory would run out: a number out of bounds is rejected
with the name of its file and key.
"""

from __future__ import annotations

import math
from pathlib import Path

from blis_py.errors import InputError

SECOND_NS = 10**9
LAST_NS = 100 * 36525 * 864 * SECOND_NS
"""A century. The clock extends half a century further (`NEVER_NS`), and two such times can be added."""
MAX_TOKENS = 2**31 - 1
"""Per request: beyond any model's context, below any overflow of sums and products."""
MAX_REQUESTS = 100_000_000
"""At about 150 bytes per request this fills the memory of a large machine."""
MAX_ARRIVALS_PER_S = 1_000_000.0
"""Generated arrivals are whole microseconds apart."""
MAX_INSTANCES = 100_000
MAX_KV_BLOCKS = 100_000_000
"""Per instance. Identical instances share 36 bytes for each block; a used one takes 8 more."""
MAX_BLOCK_ROUNDS = 1_000_000
"""Most rounds of a block that is denoised; those measured take up to twice its positions."""
MAX_RERUNS = MAX_REDRAWS = 10_000
"""Repetitions of a simulation, or of a fit, for intervals; a hundred suffice."""
MAX_SEED = 2**63 - 1


def clock_ns(
    value: float,
    unit_ns: int,
    *,
    key: str,
    file: str | Path | None = None,
    least_ns: int = 0,
    fix: str | None = None,
) -> int:
    """A time in units of `unit_ns`, to the nearest nanosecond.

    Raises:
        InputError: no number, less than `least_ns`, or more than a century.
    """
    ns = value * unit_ns if isinstance(value, int) else _rounded(value, unit_ns)
    if ns is None:
        raise InputError("must be a finite time", file=file, key=key, value=value, fix=fix)
    if ns < least_ns:
        problem = "must be a positive duration" if least_ns > 0 else "must not be negative"
        raise InputError(problem, file=file, key=key, value=value, fix=fix)
    if ns > LAST_NS:
        raise InputError("is more than a century", file=file, key=key, value=value, fix=fix)
    return ns


def _rounded(value: float, unit_ns: int) -> int | None:
    ns = value * unit_ns
    return round(ns) if math.isfinite(ns) else None


def check_count(
    value: int, *, least: int, most: int, key: str, file: str | Path | None = None, fix: str | None = None
) -> int:
    """A count within its bounds.

    Raises:
        InputError: the count is out of bounds.
    """
    if value < least:
        raise InputError(f"must be at least {least:,}", file=file, key=key, value=value, fix=fix)
    if value > most:
        raise InputError(f"must be at most {most:,}", file=file, key=key, value=value, fix=fix)
    return value


def in_seconds(time_ns: int) -> str:
    """`0.00006 s`, `90 s`: all digits, no exponent."""
    whole, rest = divmod(time_ns, SECOND_NS)
    return f"{whole:,}.{rest:09}".rstrip("0").rstrip(".") + " s"
