from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.errors import InputError
from blis_py.traces.samples import (
    COLUMNS,
    StepSamples,
    joined,
    medians,
    read_samples,
    samples_from,
    samples_of,
    total_ns,
    write_samples,
)
from blis_py.traces.steplog import StepLog
from blis_py.traces.steplog_columns import REQUEST_KINDS, STEP_KINDS

Times = list[tuple[int, int]]


def log_of(steps: Times, requests: Times, **columns: list[Any]) -> StepLog:
    """Steps by start and end, requests by arrival and finish (-1 = unfinished)."""
    blank = {"text": "eager", "ints": (), "int": 0, "float": 0.0}
    table = {name: [blank[kind]] * len(steps) for name, kind in STEP_KINDS.items()} | columns
    table["step"] = list(range(len(steps)))
    table["start_ns"], table["end_ns"] = [a for a, _ in steps], [b for _, b in steps]
    rows = {name: [blank[kind]] * len(requests) for name, kind in REQUEST_KINDS.items()}
    rows["arrival_ns"], rows["finish_ns"] = [a for a, _ in requests], [b for _, b in requests]
    meta = {"schema": 1, "device": "cpu", "clock": "cpu", "scheduler": {"block_size": 16, "seed": 0}}
    return StepLog(meta, table, rows)


def test_a_busy_step_lasts_until_the_next_begins() -> None:
    log = log_of([(0, 10), (13, 20), (24, 30)], [(0, 30)])
    assert total_ns(log).tolist() == [13, 11, 6]


def test_idle_time_belongs_to_no_step() -> None:
    log = log_of([(0, 10), (50, 60)], [(0, 10), (50, 60)])
    assert total_ns(log).tolist() == [10, 10]


def test_a_request_that_arrived_during_a_step_keeps_the_engine_busy() -> None:
    log = log_of([(0, 10), (12, 20)], [(0, 10), (9, 20)])
    assert total_ns(log).tolist() == [12, 8]


def test_time_after_the_only_request_timed_out_is_idle() -> None:
    """The one that was left timed out at 11; the next came at 40."""
    log = log_of([(0, 10), (40, 50)], [(0, 10), (0, 11), (40, 50)])
    assert total_ns(log).tolist() == [10, 10]


def test_a_request_that_leaves_at_the_boundary_at_which_the_next_step_begins_was_there() -> None:
    log = log_of([(0, 10), (12, 20)], [(0, 10), (0, 12), (12, 20)])
    assert total_ns(log).tolist() == [12, 8]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 90), st.integers(-1, 90)), max_size=6),
)
def test_totals_agree_with_the_definition_read_aloud(spans: Times, lives: Times) -> None:
    steps, now = [], 0
    for length, gap in spans:
        steps.append((now, now + length))
        now += length + gap
    requests = [(a, -1 if b < 0 else max(a, b)) for a, b in lives]
    expected = []
    for index, (start, end) in enumerate(steps):
        total = end - start
        if index + 1 < len(steps):
            following = steps[index + 1][0]
            if any(a <= end and (b < 0 or b >= following) for a, b in requests):
                total = following - start
        expected.append(total)
    assert total_ns(log_of(steps, requests)).tolist() == expected


def test_samples_of_a_log_leave_out_failed_steps_and_keep_the_others_features() -> None:
    log = log_of(
        [(0, 10), (12, 20), (21, 40)],
        [(0, 40)],
        failed=[0, 1, 0],
        gpu_ns=[6, 0, 15],
        decode_seqs=[1, 2, 3],
        active_experts=[-1, -1, 7],
        prefill_prompt_pairs=[0.5, 0.0, 2.5],
        regime=["graph", "eager", "eager"],
        bucket=[4, 0, 0],
    )
    samples = samples_of(log, "a run")
    assert len(samples) == 2
    assert samples["decode_seqs"].tolist() == [1, 3]
    assert samples["shape"].tolist() == [0, 2]
    assert samples["total_ns"].tolist() == [12, 19]
    assert samples["host_ns"].tolist() == [6, 4]
    assert samples["prefill_prompt_pairs"].tolist() == [0.5, 2.5]
    assert samples["regime"].tolist() == ["graph", "eager"]
    assert samples["active_experts"].tolist() == [-1, 7]
    assert set(samples["source"].tolist()) == {"a run"}
    assert samples.meta == {
        "schema": 1, "device": "cpu", "device_kind": "cpu", "clock": "cpu", "block_size": 16,
    }  # fmt: skip


def test_a_log_of_diffusion_rounds_keeps_their_features() -> None:
    log = log_of([(0, 10), (10, 20)], [(0, 20)])
    for name, values in (("denoise_blocks", [3, 2]), ("commit_blocks", [0, 1]), ("prefill_blocks", [4, 0])):
        assert samples_of(log, "x")[name].tolist() == [0, 0]
        log.steps[name] = values
        assert samples_of(log, "x")[name].tolist() == values


def rounds_of_batches(**columns: list[Any]) -> StepLog:
    """Three batches of 3, 1 and 2 rounds of 10 ns, with 4 ns of finishing and 2 to the next batch."""
    steps = [(0, 10), (11, 21), (21, 35), (37, 51), (53, 63), (63, 77)]
    each = {"launch_ns": [10] * 6, "gpu_ns": [9] * 6, "finish_ns": [0, 0, 4, 4, 0, 4]}
    return log_of(steps, [(0, 80)], batch=[0, 0, 0, 1, 2, 2], **each | columns)


def test_what_ends_a_batch_of_diffusion_rounds_counts_with_what_begins_it() -> None:
    """So that a price for the first round of a batch has all that is done once per batch."""
    log = rounds_of_batches()
    samples = samples_of(log, "x")
    assert total_ns(log).tolist() == [11, 10, 16, 16, 10, 14]
    assert samples["total_ns"].tolist() == [11 + 6, 10, 10, 16, 10 + 4, 10]
    assert (samples["total_ns"] - samples["host_ns"]).tolist() == [9] * 6


def test_what_a_failure_took_does_not_count_with_the_beginning_of_its_batch() -> None:
    samples = samples_of(rounds_of_batches(failed=[0, 0, 1, 0, 0, 0]), "x")
    assert samples["total_ns"].tolist() == [11, 10, 16, 10 + 4, 10]


def test_an_empty_log_gives_no_samples() -> None:
    assert len(samples_of(log_of([], []), "nothing")) == 0


def some(rows: int = 6) -> StepSamples:
    return samples_from(
        {"device": "cpu", "counts": {"decode": 3}},
        {
            "source": ["decode"] * 3 + ["mixed"] * (rows - 3),
            "shape": [0, 0, 0] + [1] * (rows - 3),
            "repetition": list(range(rows)),
            "regime": ["eager"] * rows,
            "decode_seqs": [2] * rows,
            "prefill_prompt_pairs": [0.1 * i for i in range(rows)],
            "gpu_ns": [10, 30, 20] + [7] * (rows - 3),
            "total_ns": [100, 90, 200] + [9] * (rows - 3),
        },
        rows,
    )


@pytest.mark.parametrize("name", ["samples.csv.gz", "samples.csv"])
def test_samples_survive_a_file(tmp_path: Path, name: str) -> None:
    samples = some()
    write_samples(samples, tmp_path / name)
    back = read_samples(tmp_path / name)
    assert back.meta == {**samples.meta, "schema": 1}
    for column in COLUMNS:
        assert back[column].dtype.kind == samples[column].dtype.kind
        assert back[column].tolist() == samples[column].tolist()


def test_no_samples_survive_a_file(tmp_path: Path) -> None:
    write_samples(joined([]), tmp_path / "samples.csv")
    assert len(read_samples(tmp_path / "samples.csv")) == 0


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_samples(some(), tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_medians_have_one_row_per_shape_whose_parts_sum_to_the_whole() -> None:
    middle = medians(some())
    assert middle["source"].tolist() == ["decode", "mixed"]
    assert middle["repetition"].tolist() == [3, 3]
    assert middle["gpu_ns"].tolist() == [20, 7]
    assert middle["total_ns"].tolist() == [100, 9]
    assert middle["host_ns"].tolist() == [80, 2]
    assert middle["prefill_prompt_pairs"].tolist() == pytest.approx([0.1, 0.4])


def test_one_shape_number_in_two_sources_or_regimes_is_two_shapes() -> None:
    samples = some()
    table = samples.table | {"shape": np.zeros(6, dtype=np.int64)}
    assert len(medians(replace(samples, table=table))) == 2
    table = table | {"regime": np.array(["eager", "graph"] * 3)}
    assert len(medians(replace(samples, table=table))) == 4


def test_rows_can_be_chosen_and_joined_again() -> None:
    samples = some()
    parts = [samples.where(samples["source"] == name) for name in ("decode", "mixed")]
    whole = joined(parts)
    assert [whole[name].tolist() for name in COLUMNS] == [samples[name].tolist() for name in COLUMNS]


def _damaged(path: Path, old: str, new: str) -> None:
    write_samples(some(), path)
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema": 1', '"schema": 99', "schema"),
        ("# blis-py samples", "# something", "not a file of samples"),
        ("bucket,", "basket,", "bucket"),
        ("decode,0,0", "decode,zero,0", "zero"),
        ("decode,0,0", "decode,0", "cells"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "samples.csv"
    _damaged(path, old, new)
    with pytest.raises(InputError, match=message):
        read_samples(path)


def test_a_step_log_or_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_samples(tmp_path / "absent.csv.gz")
    with gzip.open(tmp_path / "log.csv.gz", "wt") as file:
        file.write("# blis-py step log {}\n")
    with pytest.raises(InputError, match="not a file of samples"):
        read_samples(tmp_path / "log.csv.gz")


def test_a_missing_column_is_noticed_at_once() -> None:
    with pytest.raises(ValueError, match="shape"):
        StepSamples({}, {"source": np.zeros(0)})
