"""Lines of Mooncake's traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.traces import mooncake
from blis_py.traces.reading import Reading


def lines(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(at_ms: float, output: int = 2, **more: Any) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": 5, "output_length": output, **more}


def test_failed_requests_of_mooncake_are_left_out_and_counted(tmp_path: Path) -> None:
    reading = Reading()
    table = mooncake.read(lines(tmp_path, row(0), row(3, 0), row(1.5), row(9, 0)), reading)
    assert table.arrival_ns.tolist() == [0, 1_500_000]
    assert reading.notes[0].startswith("2 requests were left out: ")
    with pytest.raises(InputError, match="no requests in the trace"):
        mooncake.read(lines(tmp_path, row(0, 0)), Reading())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": -1}, "timestamp"),
        ({"timestamp": LAST_NS // 10**6 + 1}, "timestamp"),
        ({"input_length": 0}, "input_length"),
        ({"input_length": MAX_TOKENS + 1}, "input_length"),
        ({"input_length": 5.5}, "input_length"),
        ({"output_length": -1}, "output_length"),
        ({"hash_ids": ["a"]}, "hash_ids"),
        ({"hash_ids": [2**63]}, "hash_ids"),
    ],
)
def test_lines_of_mooncake_are_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mooncake.read(lines(tmp_path, row(0) | change), Reading())


def test_lines_of_mooncake_may_have_the_largest_numbers(tmp_path: Path) -> None:
    rows = (row(LAST_NS // 10**6), row(0) | {"input_length": MAX_TOKENS}, row(0) | {"hash_ids": [2**63 - 1]})
    assert len(mooncake.read(lines(tmp_path, *rows), Reading())) == 3
    named = [row(0, request_id="a"), row(0)]
    with pytest.raises(InputError, match="some lines have it and others do not"):
        mooncake.read(lines(tmp_path, *named), Reading())
