"""Times of a trace stay within the clock, however it is written and stretched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blis_py.core.bounds import LAST_NS
from blis_py.errors import InputError
from blis_py.traces import read_trace
from blis_py.workload import RequestTable

PLAIN = "arrival_s,input_tokens,output_tokens\n"
CLOCK = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_a_date_that_64_bits_cannot_hold_is_refused_and_does_not_come_first(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CLOCK + "2023-11-16 18:15:46,1,1\n9999-12-31 00:00:00,2,2\n")
    with pytest.raises(InputError, match=r"a\.csv:3: TIMESTAMP: not a date from 1970 to 2200 \(found '9999"):
        read_trace(tmp_path / "a.csv")


def test_a_trace_of_more_than_a_century_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CLOCK + "1971-01-01 00:00:00,1,1\n2180-12-31 00:00:00,2,2\n")
    with pytest.raises(InputError, match=r"a\.csv:3: TIMESTAMP: is more than a century after the first"):
        read_trace(tmp_path / "a.csv")


@pytest.mark.parametrize("time", ["3.2e9", "1e300", "inf", "nan"])
def test_seconds_beyond_a_century_are_refused(tmp_path: Path, time: str) -> None:
    (tmp_path / "a.csv").write_text(f"{PLAIN}0,1,1\n{time},2,2\n")
    with pytest.raises(InputError, match=r"a\.csv:3: arrival_s: must be a time in s, .*within a century"):
        read_trace(tmp_path / "a.csv")


@pytest.mark.parametrize("factor", [1e12, 1e300])
def test_a_trace_is_not_stretched_beyond_the_clock(tmp_path: Path, factor: float) -> None:
    (tmp_path / "a.csv").write_text(f"{PLAIN}0,1,1\n5000,2,2\n")
    with pytest.raises(InputError, match=r"a\.csv: --time-scale: .*more than a century \(found 1"):
        read_trace(tmp_path / "a.csv", time_scale=factor)


def table(arrival_ns: list[int], deadline_ns: list[int]) -> RequestTable:
    ones = np.ones(len(arrival_ns), dtype=np.int64)
    arrivals, deadlines = (np.array(times, dtype=np.int64) for times in (arrival_ns, deadline_ns))
    return RequestTable.build(arrivals, ones, ones, deadline_ns=deadlines)


def test_patience_survives_stretching_and_never_begins_anew() -> None:
    stretched = table([0, 10, 100], [5, -1, 40]).scaled(0.5)
    assert stretched.deadline_ns.tolist() == [5, -1, 50]  # who was late before, is late
    far = table([LAST_NS // 2], [LAST_NS // 2 + LAST_NS - 1]).scaled(1.5)
    assert far.deadline_ns.tolist() == [-1]  # beyond the clock is never
