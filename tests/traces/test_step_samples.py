"""Samples of an engine's steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from step_logs import log_of

from blis_py.traces.samples import StepSamples, _busy, joined, medians, samples_from, samples_of, total_ns


@pytest.mark.parametrize(
    ("life", "busy"),
    [
        ((0, 100), [True, True]),
        ((0, 25), [True, False]),
        ((0, 20), [True, False]),
        ((0, 19), [False, False]),
        ((10, 40), [True, True]),  # it came at the end of the first step
        ((11, 40), [False, True]),
        ((30, 40), [False, True]),
        ((31, 90), [False, False]),
        ((5, -1), [True, True]),
        ((5, 0), [False, False]),
        ((41, 99), [False, False]),
    ],
)
def test_a_gap_is_busy_if_a_request_was_there_throughout(life: tuple[int, int], busy: list[bool]) -> None:
    """Steps from 0 to 10, 20 to 30 and 40 to 50."""
    log = log_of([(0, 10), (20, 30), (40, 50)], [life])
    starts, ends = np.array([20, 40]), np.array([10, 30])
    assert _busy(log, ends, starts).tolist() == busy
    assert total_ns(log).tolist() == [20 if busy[0] else 10, 20 if busy[1] else 10, 10]


def test_two_requests_that_relieve_each_other_leave_a_gap() -> None:
    log = log_of([(0, 10), (20, 30)], [(0, 15), (15, 30)])
    assert total_ns(log).tolist() == [10, 10]
    both = log_of([(0, 10), (20, 30), (40, 50)], [(0, 25), (5, 45)])
    assert total_ns(both).tolist() == [20, 20, 10]


def test_a_single_step_and_none_are_samples() -> None:
    assert total_ns(log_of([(3, 10)])).tolist() == [7]
    assert len(samples_of(log_of([]), "x")) == 0
    assert samples_of(log_of([(3, 10)]), "x")["total_ns"].tolist() == [7]


def test_samples_leave_out_failed_steps_and_have_numbers_of_their_own() -> None:
    log = log_of([(0, 10), (10, 30), (30, 60)], gpu_ns=[4, 5, 6], failed=[0, 1, 0])
    found = samples_of(log, "run")
    assert found["shape"].tolist() == [0, 2]
    assert found["total_ns"].tolist() == [10, 30]
    assert found["host_ns"].tolist() == [6, 24]
    assert found["source"].tolist() == ["run", "run"]
    assert found.meta == {"schema": 1, "device": "cuda:0", "device_kind": "cuda"}


def test_the_meta_of_samples_is_what_is_known_of_the_engine() -> None:
    log = log_of([(0, 1)])
    log.meta.update(device="cpu", torch="2", seed=3, scheduler={"block_size": 16, "max_num_seqs": 4})
    assert samples_of(log, "x").meta == {
        **{"schema": 1, "device": "cpu", "device_kind": "cpu", "torch": "2", "block_size": 16}
    }
    del log.meta["device"]
    assert "device_kind" not in samples_of(log, "x").meta


def test_what_masks_added_is_taken_out() -> None:
    log = log_of([(0, 10), (10, 30)], gpu_ns=[8, 9], mask_exposed_ns=[3, 0])
    log.steps.update(launching_ns=[5, 6], constrained_rows=[1, 0])
    found = samples_of(log, "x")
    assert found["gpu_ns"].tolist() == [5, 9]
    assert found["total_ns"].tolist() == [7, 20]
    assert found["launching_ns"].tolist() == [0, 6]


def test_overlapping_steps_count_the_work_of_the_host_and_the_longer_of_device_and_launches() -> None:
    """Of the second, planned together with the first, the schedule, preparation and launch of that one are
    taken out; the third began 5 ns behind the end of the first, while a request was there."""
    log = log_of([(0, 100), (0, 200), (105, 300)], seen_ns=[0, 0, 0], gpu_ns=[50, 60, 7])
    log.steps.update(schedule_ns=[1, 9, 3], prepare_ns=[2, 9, 3], launch_ns=[4, 9, 30], finish_ns=[8, 9, 3])
    assert samples_of(log, "x")["total_ns"].tolist() == [
        (1 + 2 + 4 + 8) + 50,
        (9 + 9 + 9 + 9) - (1 + 2 + 4) + 60,
        (3 + 3 + 30 + 3) + 5 + 7,
    ]
    log.steps["launching_ns"] = [3, 100, 20]
    assert samples_of(log, "x")["total_ns"].tolist() == [
        (1 + 2 + 1 + 8) + 50,
        (9 + 9 + 0 + 9) - (1 + 2 + 4) + 60,
        (3 + 3 + 10 + 3) + 5 + 20,
    ]
    log.requests["finish_ns"] = [90]
    assert samples_of(log, "x")["total_ns"].tolist()[2] == (3 + 3 + 10 + 3) + 20


def test_what_follows_the_last_round_of_a_batch_counts_in_the_first() -> None:
    log = log_of([(0, 10), (10, 20), (20, 50), (50, 60), (60, 90), (90, 100)], batch=[1, 1, 1, 2, 3, 3])
    log.steps.update(schedule_ns=[1] * 6, launch_ns=[9] * 6, finish_ns=[5] * 6, failed=[0, 0, 0, 0, 0, 1])
    found = samples_of(log, "x")
    assert found["total_ns"].tolist() == [10 + 20, 10, 30 - 20, 10, 30]
    assert found["begins_batch"].tolist() == [1, 0, 0, 1, 1]


def test_medians_are_of_the_repetitions_of_a_composition() -> None:
    columns: dict[str, Any] = {
        "source": ["a", "a", "a", "b", "a"],
        "shape": [1, 1, 1, 1, 2],
        "regime": ["eager"] * 4 + ["graph"],
        "total_ns": [10, 21, 50, 7, 8],
        "gpu_ns": [5, 6, 40, 3, 4],
        "active_experts": [1, 2, 2, 0, 0],
        "decode_seqs": [3, 3, 4, 1, 1],
    }
    found = medians(samples_from({"m": 1}, columns, 5))
    assert found["repetition"].tolist() == [3, 1, 1]
    assert found["total_ns"].tolist() == [21, 7, 8]
    assert found["gpu_ns"].tolist() == [6, 3, 4]
    assert found["host_ns"].tolist() == [15, 4, 4]
    assert found["source"].tolist() == ["a", "b", "a"]
    assert found["regime"].tolist() == ["eager", "eager", "graph"]
    even = medians(samples_from({}, {"source": ["a"] * 2, "total_ns": [1, 4], "gpu_ns": [1, 2]}, 2))
    assert even["total_ns"].tolist() == [2]  # of 2.5
    assert even["gpu_ns"].tolist() == [2]


def test_parts_of_samples_are_joined_and_columns_that_are_missing_are_unknown() -> None:
    one, other = samples_from({"a": 1}, {"shape": [5]}, 1), samples_from({"a": 2}, {"shape": [6, 7]}, 2)
    assert joined([one, other])["shape"].tolist() == [5, 6, 7]
    assert joined([one, other]).meta == {"a": 1}
    assert joined([one, other], {}).meta == {}
    assert len(joined([], {"a": 3})) == 0
    assert joined([], {"a": 3}).meta == {"a": 3}
    assert (one["active_experts"].tolist(), one["source"].tolist(), one["sm_mhz"].tolist()) == (
        [-1],
        [""],
        [0],
    )


def test_samples_have_every_column_and_all_of_one_length() -> None:
    whole = samples_from({}, {}, 2)
    with pytest.raises(ValueError, match="without the column"):
        StepSamples({}, {name: column for name, column in whole.table.items() if name != "power_w"})
    with pytest.raises(ValueError, match="equal length"):
        StepSamples({}, whole.table | {"power_w": np.zeros(3)})
