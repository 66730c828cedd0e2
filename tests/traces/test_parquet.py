"""Traces in Parquet."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_py.traces import read_trace
from blis_py.traces.reading import Reading


def test_failed_rows_of_parquet_are_left_out_and_counted(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    cells = {"timestamp": [0.0, 1.5, 2.0], "input_tokens": [3, 4, 5], "output_tokens": [1, 0, 2]}
    pyarrow.parquet.write_table(pa.table(cells), path)
    reading = Reading(columns={"arrival": "timestamp", "input": "input_tokens", "output": "output_tokens"})
    table = read_trace(path, reading=reading)
    assert table.arrival_ns.tolist() == [0, 2 * 10**9]
    assert table.prompt_tokens.tolist() == [3, 5]
    assert any(note.startswith("1 request was left out: ") for note in reading.notes)
