from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_builders import instance, random_record, record, table

from blis_py.errors import InputError
from blis_py.metrics import requests_frame, steps_frame, write_requests_csv, write_steps_csv
from blis_py.metrics.csv_bytes import fixed_point, lines, numbers, texts
from blis_py.metrics.latencies import latencies

LABELS = ["request_id", "client", "tenant", "slo_class", "model", "instance", "outcome"]
COUNTS = ["prompt_tokens", "output_tokens", "cached_tokens", "preemptions"]
LATENCIES = ["ttft_ms", "tpot_ms", "itl_mean_ms", "e2e_ms", "scheduling_delay_ms"]
COLUMNS = [*LABELS, "arrival_s", "finish_s", *COUNTS, *LATENCIES]


def test_the_requests_frame_has_one_row_per_request_with_units_in_its_names() -> None:
    run = random_record(1, requests=30)
    frame = requests_frame(run)
    assert [name for name in frame.columns if name != "rejected_because"] == COLUMNS
    turned_away = frame["outcome"].isin(["rejected", "evicted"])
    assert set(frame["rejected_because"][turned_away]) == {"no tokens left"}
    assert len(frame) == 30
    columns = latencies(run)
    assert np.allclose(frame["ttft_ms"], columns.ttft_ns / 1e6, equal_nan=True, atol=1e-6)
    assert frame["instance"].isna().sum() == (run.instance < 0).sum()
    assert set(frame["outcome"]) <= {
        "completed",
        "length_capped",
        "rejected",
        "unservable",
        "timed_out",
        "queued",
        "running",
        "evicted",
    }


def test_the_requests_csv_reads_back_as_the_frame(tmp_path: Path) -> None:
    run = random_record(2, requests=40)
    write_requests_csv(run, tmp_path / "requests.csv")
    read = pd.read_csv(tmp_path / "requests.csv", keep_default_na=False, na_values=[""])
    frame = requests_frame(run)
    assert [name for name in read.columns if name != "rejected_because"] == COLUMNS
    assert list(read.columns) == list(frame.columns)
    for name in frame:
        if name.endswith(("_ms", "_s", "_tokens")) or name in ("preemptions", "instance"):
            expected = frame[name].astype("Float64").to_numpy(np.float64, na_value=np.nan)
            assert np.allclose(read[name].to_numpy(np.float64), expected, equal_nan=True, rtol=1e-12)
        elif name != "client":
            assert read[name].fillna("").tolist() == frame[name].astype(str).tolist()


def test_a_field_with_commas_and_quotes_survives_the_csv(tmp_path: Path) -> None:
    names = ['a, "b"', "plain", "líne\nbreak"]
    run = record(table([0, 1, 2], request_id=names, tenant=names), [instance([5])], [None] * 3)
    write_requests_csv(run, tmp_path / "requests.csv")
    with (tmp_path / "requests.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["request_id"] for row in rows] == names
    assert [row["tenant"] for row in rows] == names


@given(st.lists(st.one_of(st.just(-1), st.integers(0, 2**62)), min_size=1, max_size=30), st.integers(1, 9))
def test_numbers_are_printed_in_full(values: list[int], decimals: int) -> None:
    column = np.array(values, dtype=np.int64)
    printed = lines([numbers(column), fixed_point(column, decimals)]).decode().splitlines()
    for value, line in zip(values, printed, strict=True):
        whole, decimal = line.split(",")
        assert whole == ("" if value < 0 else str(value))
        expected = f"{value // 10**decimals}.{value % 10**decimals:0{decimals}d}"
        assert decimal == ("" if value < 0 else expected)


def test_floats_are_printed_as_python_does() -> None:
    assert (
        lines([numbers(np.array([0.5, 1e20, 3.0])), texts(["a", "", "ccc"])]) == b"0.5,a\n1e+20,\n3.0,ccc\n"
    )


def test_the_steps_frame_joins_the_instances(tmp_path: Path) -> None:
    run = random_record(3, instances=3)
    frame = steps_frame(run)
    assert list(frame.columns)[:7] == [
        "instance",
        "start_ns",
        "end_ns",
        "steps",
        "waiting",
        "running",
        "kv_blocks",
    ]
    assert frame["instance"].value_counts().to_dict() == {0: 40, 1: 40, 2: 40}
    write_steps_csv(run, tmp_path / "steps.csv.gz")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "steps.csv.gz"), frame)


def test_a_compressed_file_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    run = random_record(4)
    for name in ("a.csv.gz", "b.csv.gz"):
        write_steps_csv(run, tmp_path / name)
    first = (tmp_path / "a.csv.gz").read_bytes()
    assert first == (tmp_path / "b.csv.gz").read_bytes()
    assert first[4:8] == bytes(4), "no time of writing"
    assert gzip.decompress(first).startswith(b"instance,start_ns,")


def test_a_run_without_steps_states_how_to_record_them() -> None:
    run = record(table([0]), [instance([5])], [None])
    with pytest.raises(InputError, match="record_steps"):
        steps_frame(run)


def test_a_run_without_requests_writes_only_the_header(tmp_path: Path) -> None:
    write_requests_csv(record(table([]), [instance([])], []), tmp_path / "requests.csv")
    assert (tmp_path / "requests.csv").read_text() == ",".join(COLUMNS) + "\n"
