from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from record_builders import instance, random_record, record, table

from blis_py.metrics.record import RunRecord
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


CLASSES = ("critical", "standard", "batch", "sheddable", "background", "gold", "silver")


def run_over_decades(decades: float, classes: tuple[str, ...] = CLASSES) -> RunRecord:
    """Two instances and latencies from 13 ms to so many powers of ten more, in every class."""
    waits_ns = [int(13e6 * 10**power) for power in np.linspace(0, decades, 6)]
    ends_ns = sorted({*waits_ns, *(2 * wait for wait in waits_ns)})
    runs = {name: np.arange(len(ends_ns)) for name in ("running", "waiting", "kv_blocks")}
    runs |= {"start_ns": np.array([0, *ends_ns[:-1]]), "end_ns": np.array(ends_ns)}
    requests = table([0] * 6 * len(classes), slo_class=[name for name in classes for _ in waits_ns])
    steps = [[ends_ns.index(wait), ends_ns.index(2 * wait)] for wait in waits_ns]
    emitted = [(index % 2, steps[index % 6]) for index in range(len(requests))]
    return record(requests, [instance(ends_ns, runs=runs) for _ in range(2)], emitted)


def drawn(run: RunRecord) -> Iterator[tuple[Figure, Any]]:
    for draw in (overview, latency_cdf, state_over_time):
        figure = draw(run)
        assert figure is not None
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        yield figure, canvas.get_renderer()


@pytest.mark.parametrize("decades", [0.3, 1, 1.3, 1.6, 2, 2.4, 3, 3.5, 4.5, 6])
def test_labels_of_an_axis_keep_apart_and_inside_the_picture(decades: float) -> None:
    for figure, renderer in drawn(run_over_decades(decades)):
        for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
            shown = axis.get_view_interval()
            ticks = [tick for tick in axis.get_major_ticks() if min(shown) <= tick.get_loc() <= max(shown)]
            texts = [tick.label1 for tick in ticks if tick.label1.get_visible() and tick.label1.get_text()]
            boxes = [text.get_window_extent(renderer) for text in texts]
            assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
            if axis.axis_name == "x":
                assert not boxes or len(boxes) >= 2, "an axis with one number says nothing"
                for left, right in pairwise(boxes):
                    assert left.x1 + 8 < right.x0, [text.get_text() for text in texts]


@pytest.mark.parametrize("classes", [(), CLASSES[:2], CLASSES[:5], CLASSES])
def test_legends_lie_over_nothing(classes: tuple[str, ...]) -> None:
    for figure, renderer in drawn(run_over_decades(3, classes or ("",))):
        boxes = [ax.get_window_extent(renderer) for ax in figure.axes]
        boxes += [ax._left_title.get_window_extent(renderer) for ax in figure.axes]
        boxes += [legend.get_window_extent(renderer) for legend in figure.legends]
        boxes += [legend.get_window_extent(renderer) for ax in figure.axes if (legend := ax.get_legend())]
        if figure.get_suptitle():
            boxes.append(figure._suptitle.get_window_extent(renderer))
        for one, other in combinations(boxes, 2):
            assert not one.overlaps(other)
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
        assert all(box.y1 <= figure.bbox.y1 for box in boxes)


def test_a_queue_that_hardly_ever_was_is_not_blown_up() -> None:
    runs = {"running": np.array([1]), "waiting": np.array([0]), "kv_blocks": np.array([1])}
    runs |= {"start_ns": np.array([0]), "end_ns": np.array([10_000_000])}
    figure = state_over_time(record(table([0]), [instance([10_000_000], runs=runs)], [(0, [0])]))
    assert figure is not None
    assert figure.axes[1].get_ylim() == (0, 1)
