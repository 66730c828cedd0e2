from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from record_builders import instance, random_record, record, table

from blis_py.report.plots import latency_cdf, overview, save_plots, state_over_time
from blis_py.report.timeline import timeline


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_pictures_are_1200_pixels_wide_and_the_same_every_time(tmp_path: Path) -> None:
    run = random_record(5, requests=50, instances=3)
    first, second = save_plots(run, tmp_path / "a"), save_plots(run, tmp_path / "b")
    assert [path.name for path in first] == ["overview.png", "latency_cdf.png", "timeline.png"]
    assert all(png_size(path)[0] == 1200 for path in first)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_run_without_recorded_steps_has_no_timeline(tmp_path: Path) -> None:
    run = record(table([0]), [instance([5_000_000, 6_000_000])], [(0, [0, 1])])
    assert state_over_time(run) is None
    assert [path.name for path in save_plots(run, tmp_path)] == ["overview.png", "latency_cdf.png"]


def test_a_run_without_a_single_token_can_be_drawn() -> None:
    run = record(table([0]), [instance([])], [None])
    assert len(latency_cdf(run).axes) == 4
    assert len(overview(run).axes) == 2


def test_every_class_has_its_curve() -> None:
    run = random_record(5, requests=100)
    labels = latency_cdf(run).axes[0].get_legend_handles_labels()[1]
    assert labels == ["all requests", "critical", "standard", "batch", "vip"]


def test_nothing_drawn_over_time_leaves_its_axes() -> None:
    run = random_record(6, requests=60, instances=2, steps=300)
    state = timeline(run)
    assert state is not None
    requests = overview(run).axes[2]
    assert requests.get_ylim()[1] >= max(state.running.sum(axis=0).max(), state.waiting.sum(axis=0).max())
    for ax, rows in zip(state_over_time(run).axes, (state.running, state.waiting), strict=False):
        assert ax.get_ylim()[1] >= rows.sum(axis=0).max()


def test_the_state_over_time_is_averaged_over_each_slice_and_zero_when_idle() -> None:
    """2 running from 0 to 10, none to 20, 4 running to 40: slices of 10 have 2, 0, 4 and 4."""
    runs = {name: np.array([2, 4]) for name in ("running", "waiting", "kv_blocks")}
    runs |= {"start_ns": np.array([0, 20]), "end_ns": np.array([10, 40])}
    run = record(table([]), [instance([10, 30, 40], runs=runs), instance([40])], [])
    state = timeline(run, slices=4)
    assert state is not None
    assert state.running.tolist() == [[2, 0, 4, 4]]
    assert state.kv_pct.tolist() == [[2, 0, 4, 4]]
    halves = timeline(run, slices=2)
    assert halves is not None
    assert halves.running.tolist() == [[pytest.approx(1), pytest.approx(4)]]
