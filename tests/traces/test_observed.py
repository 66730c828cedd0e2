"""What a client has seen of a server, kept as a folder that is a trace."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import yaml

from blis_py.calibrate.read_times import read_token_times
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces import read_trace
from blis_py.traces.observed import ObservedColumns

MS = 1_000_000


@pytest.fixture
def observer() -> ObservedColumns:
    """Four requests: answered, given up on, refused, never sent."""
    table = RequestTable.build(
        np.arange(4, dtype=np.int64) * 10 * MS,
        np.full(4, 30, dtype=np.int64),
        np.full(4, 3, dtype=np.int64),
        deadline_ns=np.array([-1, 12 * MS, -1, 40 * MS]),
        slo_class=Labels.of(["critical", "batch", "batch", "batch"]),
        prefix_group=Labels.constant("system", 4),
        prefix_tokens=np.full(4, 16, dtype=np.int64),
        content=np.zeros(4, dtype=np.int64),
        contents=((("system", 16),),),
    )
    observer = ObservedColumns(table)
    observer.sent(0, 1 * MS)
    observer.sent(1, 11 * MS)
    observer.token(0, 12 * MS)
    observer.token(1, 12 * MS)
    observer.token(0, 13 * MS + 700)
    observer.ended(1, 13 * MS, ("timeout", "", ""))
    observer.token(0, 16 * MS)
    observer.ended(0, 16 * MS, ("ok", "", "length"))
    observer.sent(2, 21 * MS)
    observer.ended(2, 21 * MS, ("error", "refused: too long, it says", ""))
    return observer


def test_the_trace_holds_what_was_seen(observer: ObservedColumns, tmp_path: Path) -> None:
    observer.write(tmp_path, {"clock": "wall", "buckets": (1, 2)}, seed=7, workload="chat")
    with (tmp_path / "trace.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["status"], row["finish_reason"]) for row in rows] == [
        ("ok", "length"),
        ("timeout", ""),
        ("error", ""),
        ("error", ""),
    ]
    assert [row["error_message"] for row in rows[2:]] == ["refused: too long, it says", "not sent"]
    assert [(r["first_chunk_time_us"], r["last_chunk_time_us"], r["num_chunks"]) for r in rows[:2]] == [
        ("12000", "16000", "3"),
        ("12000", "12000", "1"),
    ]
    header = yaml.safe_load((tmp_path / "trace.yaml").read_text())
    assert (header["mode"], header["workload_seed"], header["workload_spec"]) == ("real", 7, "chat")
    assert yaml.safe_load((tmp_path / "run.yaml").read_text()) == {"clock": "wall", "buckets": [1, 2]}
    assert (tmp_path / "itl.csv").read_text().splitlines() == [
        "request_id,chunk_index,timestamp_us",
        "0,0,12000",
        "0,1,13000",
        "0,2,16000",
        "1,0,12000",
    ]


def test_every_request_is_in_one_count(observer: ObservedColumns) -> None:
    assert observer.counts() == {"injected": 4, "not sent": 1, "ok": 1, "refused": 1, "timeout": 1}


def test_a_replay_sends_when_it_was_sent_and_shares_what_was_shared(
    observer: ObservedColumns, tmp_path: Path
) -> None:
    observer.write(tmp_path, {})
    table = read_trace(tmp_path / "trace.csv")
    assert (table.arrival_ns // MS).tolist() == [1, 11, 21, 30]
    assert (table.deadline_ns // MS).tolist() == [-1, 13, -1, 40], "patience begins with the sending"
    assert table.prompt_tokens.tolist() == [30] * 4
    assert [table.contents[i] for i in table.content] == [(("system", 16),)] * 4


def test_the_folder_can_be_calibrated_against(observer: ObservedColumns, tmp_path: Path) -> None:
    observer.write(tmp_path, {})
    times = read_token_times(tmp_path)
    assert times.request_id.tolist() == [0]
    assert times.ttft_s.tolist() == [0.011]
    assert times.gaps is not None
    assert times.gaps.values.tolist() == pytest.approx([0.001, 0.003])
    assert times.incomplete == 3


def test_requests_are_sent_when_they_were_and_keep_their_patience_be_it_at_time_zero() -> None:
    due, tokens = np.array([5, 5, 0]), np.full(3, 4)
    observer = ObservedColumns(RequestTable.build(due, tokens, tokens, deadline_ns=np.array([8, -1, 0])))
    observer.sent(0, 0)
    observer.sent(1, 7)
    table = observer.sent_table()
    assert table.arrival_ns.tolist() == [0, 7, 0]
    assert table.deadline_ns.tolist() == [3, -1, 0]
