"""Units of arrival times: the format's, the user's, or evident from the size of times since 1970."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import LAST_NS, SECOND_NS
from blis_py.errors import InputError
from blis_py.requests.sessions import waits
from blis_py.requests.table import Ints, RequestTable
from blis_py.traces.kinds import BadCells
from blis_py.traces.reading import Reading

UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
FLAG = "--time-unit"
_SINCE_1970_S = (1e9, 1e11)
"""Seconds since 1970 from the year 2001 on; in a finer unit these numbers are larger."""
_YEAR_NS = 366 * 86_400 * SECOND_NS
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|([+-]\d\d:\d\d))?", re.ASCII)
_SHORTEST_GAP_S, _LONGEST_GAP_S = 2e-3, 100.0
"""Mean gaps between requests outside of which the unit is questioned."""


def unit_ns(unit: str) -> float:
    """
    Raises:
        InputError: an unknown unit.
    """
    if unit not in UNITS_NS:
        raise InputError("unknown unit of time", key=FLAG, value=unit, fix=f"use {', '.join(UNITS_NS)}")
    return UNITS_NS[unit]


class TraceClock:
    """Conversion of a recording's numeric times to ns."""

    def __init__(self, reading: Reading, unit: str) -> None:
        """`unit` is that of the format; the one in `reading` takes precedence."""
        self._reading, self._unit = reading, reading.time_unit or unit
        self._seen = reading.time_unit is not None
        unit_ns(self._unit)

    def unit_ns(self, first: float) -> float:
        """Length of the unit in ns; the first time of the recording decides between units since 1970."""
        if not self._seen:
            self._seen = True
            evident = since_1970(first)
            if evident not in (None, self._unit):
                self._unit = str(evident)
                self._reading.note(f"its times are in {evident} since 1970, as their size shows")
            self._reading.assumed_unit = None if evident else self._unit
        return UNITS_NS[self._unit]

    def check_dates(self) -> None:
        """
        Raises:
            InputError: a unit is given, which dates do not have.
        """
        if self._reading.time_unit is not None:
            raise InputError("dates have no unit", key=FLAG, value=self._reading.time_unit, fix="drop it")

    def ns(self, numbers: NDArray[np.float64]) -> Ints:
        """Times in ns.

        Raises:
            BadCells: negative times, or beyond a century.
        """
        unit_ns = self.unit_ns(float(numbers[0]))
        with np.errstate(over="ignore"):
            times = numbers * unit_ns
        bad = ~((times >= 0) & (times <= LAST_NS))
        if bad.any():
            fix = f"give its unit with {FLAG}"
            problem = f"must be a time in {self._unit}, not negative and within a century"
            raise BadCells(problem, bad, fix)
        return np.rint(times).astype(np.int64)


def since_1970(number: float) -> str | None:
    """The unit in which a number is a time since 1970, from 2001 on; None for smaller numbers."""
    low, high = _SINCE_1970_S
    for unit, ns in UNITS_NS.items():
        scale = SECOND_NS / ns
        if low * scale <= number < high * scale:
            return unit
    return None


def since_the_first(table: RequestTable, reading: Reading) -> RequestTable:
    """The table with calendar times relative to the earliest; others unchanged."""
    earliest = int(table.arrival_ns.min(initial=LAST_NS))
    if earliest < _YEAR_NS:
        return table
    moment = datetime.fromtimestamp(earliest / 1e9, UTC).isoformat(timespec="seconds")
    reading.note(f"times count from the first request, {moment}")
    if reading.answered_ns is not None:
        reading.answered_ns = np.where(reading.answered_ns > 0, reading.answered_ns - earliest, 0)
    deadline_ns = np.where(table.deadline_ns < 0, -1, np.maximum(table.deadline_ns - earliest, 0))
    return replace(table, arrival_ns=table.arrival_ns - earliest, deadline_ns=deadline_ns)


def question_unit(table: RequestTable, reading: Reading) -> None:
    """Note arrivals whose rate is implausible in the unit assumed, and plausible in another one."""
    assumed = reading.assumed_unit
    arrival_ns = table.arrival_ns[~waits(table)]
    if assumed is None or len(arrival_ns) < 3:
        return
    span_ns = int(np.ptp(arrival_ns))
    gap_s = span_ns / SECOND_NS / (len(arrival_ns) - 1)
    if span_ns == 0 or _SHORTEST_GAP_S <= gap_s <= _LONGEST_GAP_S:
        return
    other = next((unit for unit in UNITS_NS if _plausible(gap_s, assumed, unit)), None)
    if other is not None:
        reading.note(
            f"its times are taken for {assumed}: {len(arrival_ns):,} requests in "
            f"{span_ns / SECOND_NS:,.4g} s; if they are in {other}, give {FLAG} {other}"
        )


def _plausible(gap_s: float, assumed: str, unit: str) -> bool:
    return _SHORTEST_GAP_S <= gap_s * UNITS_NS[unit] / UNITS_NS[assumed] <= _LONGEST_GAP_S


def date_ns(text: str) -> int:
    """A date in ns since 1970, with or without a UTC offset.

    Raises:
        ValueError: not a date.
    """
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    moment = datetime.fromisoformat(match[1] + (match[3] or "+00:00"))
    return int(moment.timestamp()) * 10**9 + int((match[2] or "").ljust(9, "0")[:9])
