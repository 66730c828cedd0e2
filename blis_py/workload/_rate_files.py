"""Rates over time from a CSV file."""

from __future__ import annotations

import math
from pathlib import Path

from blis_py.core.bounds import LAST_NS, MAX_ARRIVALS_PER_S, SECOND_NS
from blis_py.errors import InputError
from blis_py.files.csv_files import csv_rows, stripped
from blis_py.files.opening import reading
from blis_py.workload.profile import Profile

COLUMNS = ["seconds", "rate"]


def read_rates(path: Path) -> tuple[float, Profile]:
    """The peak rate, and the course as a factor of it.

    Each row holds from its second until that of the next one; the last one indefinitely.

    Raises:
        InputError: an unreadable file, or an invalid row, with its line.
    """
    rows = _rows(path)
    if not rows:
        raise InputError("has no rows", file=path, fix="give at least one, with its second and its rate")
    peak = max(rate for _, rate in rows)
    if not peak:
        raise InputError("no rate is above 0", file=path, key="rate", fix="give requests per second")
    return peak, Profile.steps([1e6 * second for second, _ in rows], [rate / peak for _, rate in rows])


def _rows(path: Path) -> list[tuple[float, float]]:
    rows: list[tuple[float, float]] = []
    with reading(path) as text:
        lines = csv_rows(text, path)
        head = next((stripped(names) for _, names in lines), [])
        if head != COLUMNS:
            problem, fix = f"the first line must be {','.join(COLUMNS)}", "name the two columns so"
            raise InputError(problem, file=path, value=",".join(head)[:80], fix=fix)
        for line, cells in lines:
            rows.append(_row(stripped(cells), rows[-1][0] if rows else None, path, line))
    return rows


def _row(cells: list[str], before: float | None, path: Path, line: int) -> tuple[float, float]:
    def refuse(problem: str, fix: str) -> InputError:
        return InputError(problem, file=path, key=f"line {line}", value=",".join(cells)[:80], fix=fix)

    try:
        second, rate = (float(cell) for cell in cells)
    except ValueError:
        raise refuse("must be two numbers", "give seconds and requests per second") from None
    if before is None and second != 0:
        raise refuse("the first row must be at second 0", "say what the rate is at the start, or 0")
    if not (math.isfinite(second) and second <= LAST_NS / SECOND_NS and (before is None or second > before)):
        raise refuse("the seconds must rise from row to row", "sort the rows, and leave out double ones")
    if not 0 <= rate <= MAX_ARRIVALS_PER_S:
        raise refuse(f"the rate must lie in [0, {MAX_ARRIVALS_PER_S:,.0f}]", "give requests per second")
    return second, rate
