"""Request tables and files of traces for tests of their readers and writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blis_py.requests.table import RequestTable
from blis_py.traces.reading import Reading
from blis_py.traces.tracev2 import read


def requests(rows: int = 3, **columns: Any) -> RequestTable:
    return RequestTable.build(np.arange(rows) * 10, np.full(rows, 5), np.full(rows, 2), **columns)


HEADER = "request_id,arrival_time_us,input_tokens,output_tokens"


def v2(tmp_path: Path, header: str, *rows: str, reading: Reading | None = None) -> RequestTable:
    (tmp_path / "x.csv").write_text("\n".join([f"{HEADER},{header}", *rows]) + "\n")
    (tmp_path / "x.yaml").write_text(
        "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
    )
    return read(tmp_path / "x.csv", reading or Reading())
