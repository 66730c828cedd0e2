"""What a reader notes: requests left out, a run chosen by its number, the limit of a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.traces.reading import Reading


@pytest.mark.parametrize(
    ("concurrency", "kept"), [(1, 1), (8, 8), (0, None), (-1, None), (True, None), (2.0, None), ("8", None)]
)
def test_a_limit_of_a_benchmark_is_a_positive_number(concurrency: Any, kept: int | None) -> None:
    reading = Reading()
    reading.kept_in_flight(concurrency, paced=True)
    assert (reading.concurrency, reading.paced) == (kept, kept is not None)


def test_what_is_left_out_is_noted() -> None:
    reading = Reading()
    for count in (0, 1, 2000):
        reading.left_out(count, "why")
    assert reading.notes == ["1 request was left out: why", "2,000 requests were left out: why"]
    reading.bad.skip = True
    reading.bad.refuse(InputError("x"), 1)
    assert reading.stated()[-1] == "one bad row of the trace was skipped: x"


def test_a_run_in_a_file_is_chosen_by_its_number() -> None:
    file = Path("a.json")
    assert Reading().chosen([7], file, "runs") == 7
    assert Reading(part=1).chosen([7, 8], file, "runs") == 8
    with pytest.raises(InputError, match=r"holds 2 runs.*a.json#0 to a.json#1"):
        Reading().chosen([7, 8], file, "runs")
    with pytest.raises(InputError, match=r"#2.*holds 2 runs.*count from 0"):
        Reading(part=2).chosen([7, 8], file, "runs")
