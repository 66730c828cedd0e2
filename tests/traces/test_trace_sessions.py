"""Which session a request belongs to survives being written, read and put together with others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.compose import merged
from blis_py.traces.tracev2_write import write


def conversations(session: list[int]) -> RequestTable:
    count = len(session)
    table = RequestTable.build(np.arange(count) * 10**9, np.full(count, 8), np.full(count, 4))
    return replace(table, session=np.array(session))


def groups(table: RequestTable) -> list[list[int]]:
    """Rows of each session, and of none."""
    assert table.session is not None
    return [np.flatnonzero(table.session == number).tolist() for number in np.unique(table.session)]


def test_a_written_trace_brings_its_sessions_back(tmp_path: Path) -> None:
    table = conversations([4, -1, 2, 4, 2])
    write(table, tmp_path / "trace.yaml", tmp_path / "trace.csv", mode="generated")
    assert sorted(groups(read_trace(tmp_path / "trace.csv"))) == sorted(groups(table))


def test_a_trace_without_sessions_has_none(tmp_path: Path) -> None:
    write(conversations([-1, -1]), tmp_path / "trace.yaml", tmp_path / "trace.csv", mode="generated")
    assert read_trace(tmp_path / "trace.csv").session is None


def test_sessions_of_composed_sources_stay_apart() -> None:
    one, other = conversations([0, 0, 1]), replace(conversations([-1, -1]), session=None)
    together = merged([one, other, one], ["a", "b", "c"])
    assert together.session is not None
    owner = {id: int(n) for id, n in zip(together.ids(), together.session, strict=True)}
    assert owner["a/request_0"] == owner["a/request_1"] != owner["a/request_2"]
    assert len({owner["a/request_0"], owner["a/request_2"], owner["c/request_0"], owner["c/request_2"]}) == 4
    assert owner["b/request_0"] == owner["b/request_1"] == -1
