"""Times in other units than the format's, and blocks of other sizes: noticed, or as the user says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.reading import Reading

EPOCH_S = 1_700_000_000


def mooncake(folder: Path, *times: float, **more: Any) -> Path:
    path = folder / "m.jsonl"
    rows = ({"timestamp": at, "input_length": 600, "output_length": 2} | more for at in times)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table_of(folder: Path, *times: Any, head: str = "arrival_s,input_tokens,output_tokens") -> Path:
    (folder / "t.csv").write_text("\n".join([head, *(f"{at},10,2" for at in times)]) + "\n")
    return folder / "t.csv"


def read(path: Path, **settings: Any) -> tuple[RequestTable, Reading]:
    reading = Reading(**settings)
    return read_trace(path, reading=reading), reading


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("kind", ["mooncake", "azure", "burstgpt", "splitwise"])
def test_a_unit_that_is_given_holds_for_every_format_without_one(
    tmp_path: Path, kind: str, unit: str, factor: int
) -> None:
    times = [0, factor, 3 * factor]
    heads = {
        "azure": "arrival_s,input_tokens,output_tokens",
        "burstgpt": "Timestamp,Request tokens,Response tokens,Model",
        "splitwise": "arrival_timestamp,prompt_size,token_size,request_id",
    }
    if kind == "mooncake":
        path = mooncake(tmp_path, *times)
    else:
        path = table_of(tmp_path, *times, head=heads[kind])
        if kind != "azure":
            lines = path.read_text().splitlines()
            path.write_text("\n".join([lines[0], *(f"{row},{n}" for n, row in enumerate(lines[1:]))]) + "\n")
    table, reading = read(path, time_unit=unit)
    assert table.arrival_ns.tolist() == [0, 10**9, 3 * 10**9]
    assert not any("--time-unit" in note for note in reading.notes)


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_since_1970_reveal_their_unit(tmp_path: Path, unit: str, factor: int) -> None:
    times = [(EPOCH_S + at) * factor for at in (0, 1, 3)]
    for path in (mooncake(tmp_path, *times), table_of(tmp_path, *times)):
        table, reading = read(path)
        assert table.arrival_ns.tolist() == pytest.approx([0, 10**9, 3 * 10**9], abs=512)
        assert any(f"in {unit} since 1970" in note for note in reading.notes) == (
            unit != ("ms" if path.name == "m.jsonl" else "s")
        )


@pytest.mark.parametrize(
    ("times", "other"), [((0.1, 0.9, 2.5), "s"), ((0, 10**6, 3 * 10**6), "us"), ((1, 10**9, 2 * 10**9), "ns")]
)
def test_an_implausible_rate_is_noticed(tmp_path: Path, times: tuple[float, ...], other: str) -> None:
    notes = read(mooncake(tmp_path, *times))[1].notes
    assert any(
        "taken for ms: 3 requests in" in note and note.endswith(f"--time-unit {other}") for note in notes
    )


def test_milliseconds_in_a_column_of_seconds_are_noticed(tmp_path: Path) -> None:
    assert any("give --time-unit ms" in note for note in read(table_of(tmp_path, 0, 500, 1200))[1].notes)


@pytest.mark.parametrize("times", [(0, 0, 0), (0, 5, 40), (0, 1000, 90000)])
def test_a_plausible_rate_is_not_questioned(tmp_path: Path, times: tuple[float, ...]) -> None:
    assert read(mooncake(tmp_path, *times))[1].notes == []


def test_a_unit_for_times_that_have_their_own_is_refused(tmp_path: Path) -> None:
    result = {"input_lens": [1], "output_lens": [1], "start_times": [0]}
    (tmp_path / "v.json").write_text(json.dumps(result))
    with pytest.raises(InputError, match=r"--time-unit.*leave it out"):
        read(tmp_path / "v.json", time_unit="ms")
    path = table_of(tmp_path, "2024-01-01T00:00:00", head="ts,in,out")
    with pytest.raises(InputError, match="--time-unit: dates have no unit"):
        read(path, time_unit="ms", columns={"arrival": "ts", "input": "in", "output": "out"})


def test_hash_ids_of_other_blocks_are_refused_with_the_size_that_fits_or_read_with_the_one_given(
    tmp_path: Path,
) -> None:
    path = mooncake(tmp_path, 0, 50, hash_ids=list(range(10)))
    with pytest.raises(InputError, match=r"10 ids for 600 tokens.*--hash-block-size 64"):
        read(path)
    table, _ = read(path, hash_block_size=64)
    assert table.contents[table.content[1]][-1] == (9, 600 - 9 * 64)
    with pytest.raises(InputError, match="10 ids for 600 tokens"):
        read(path, hash_block_size=32)


def test_a_last_block_that_is_not_full_may_have_no_id_where_the_size_is_given(tmp_path: Path) -> None:
    path = mooncake(tmp_path, 0, 50, hash_ids=list(range(9)))
    table, _ = read(path, hash_block_size=64)
    assert sum(tokens for _, tokens in table.contents[0]) == 9 * 64


def test_a_block_size_for_prompts_without_hash_ids_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--hash-block-size.*leave it out"):
        read(table_of(tmp_path, 0), hash_block_size=16)


HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: real\nwarm_up_requests: 0\n"


@pytest.mark.parametrize("deadline_us", [300_000_000, EPOCH_S * 10**6 + 300_090_000])
def test_epoch_times_of_sending_keep_deadlines_after_arrivals(tmp_path: Path, deadline_us: int) -> None:
    (tmp_path / "x.yaml").write_text(HEADER)
    rows = "".join(
        f"{n},10,2,{n * 500_000},{EPOCH_S * 10**6 + n * 500_000 + 90_000},{deadline_us + n * 500_000}\n"
        for n in range(3)
    )
    head = "request_id,input_tokens,output_tokens,arrival_time_us,send_time_us,deadline_us\n"
    (tmp_path / "x.csv").write_text(head + rows)
    table, _ = read(tmp_path / "x.csv")
    assert table.arrival_ns.tolist() == [0, 500_000_000, 10**9]
    assert (table.deadline_ns - table.arrival_ns).tolist() == [300 * 10**9] * 3
