from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from record_builders import instance, random_record, record, table

from blis_py.figures import RunView, batch, by_pool, instances, latency_cdf, one_latency, overview, save_plots
from blis_py.figures.facts import cluster
from blis_py.figures.over_time import state_over_time
from blis_py.figures.saving import figures
from blis_py.figures.timeline import timeline
from blis_py.metrics.record import RunRecord


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def view(run: RunRecord, **settings: Any) -> RunView:
    run.config = CONFIG | settings
    return RunView.of(run)


def of_pools(run: RunRecord) -> RunView:
    """The view of a run with two pools, of which one has served no request."""
    return replace(view(run), pools={"a": {"ttft_ms": {"p50": 1.0, "p99": 3.0}}, "b": {}})


CONFIG: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "h100",
    "num_instances": 2,
    "engine": "vllm",
    "scheduler": {"policy": "sjf"},
    "latency": {"model": "roofline"},
    "workload": {"preset": "chatbot", "rate": 5.0},
}


@pytest.mark.slow
def test_pictures_are_1200_pixels_wide_and_the_same_every_time(tmp_path: Path) -> None:
    run = of_pools(random_record(5, requests=50, instances=3))
    first = save_plots(run, tmp_path / "first", figures(), ("png", "svg"))
    second = save_plots(run, tmp_path / "second", figures(), ("svg",))
    second += save_plots(run, tmp_path / "second", ("overview", "ttft"))
    assert [path.name for path in first] == [
        f"{name}.{kind}" for name in figures() for kind in ("png", "svg")
    ]
    assert all(png_size(path)[0] == 1200 for path in first[::2])
    assert all((tmp_path / "first" / path.name).read_bytes() == path.read_bytes() for path in second)
    assert all(b"<dc:date>" not in path.read_bytes() for path in first)


@pytest.mark.slow
def test_a_saved_result_has_the_usual_three_pictures(tmp_path: Path) -> None:
    written = save_plots(view(random_record(5)), tmp_path)
    assert [path.name for path in written] == ["overview.png", "latency_cdf.png", "timeline.png"]


@pytest.mark.slow
def test_settings_of_matplotlib_that_others_have_changed_change_no_picture(tmp_path: Path) -> None:
    import matplotlib

    run = view(random_record(5))
    plain = overview(run).save(tmp_path / "plain.png")
    with matplotlib.rc_context({"font.size": 17, "axes.grid": False, "axes.facecolor": "black"}):
        changed = overview(run).save(tmp_path / "changed.png")
    assert plain.read_bytes() == changed.read_bytes()


@pytest.mark.filterwarnings("error")
def test_names_in_characters_that_the_font_lacks_are_drawn_without_a_warning(tmp_path: Path) -> None:
    run = view(random_record(5), workload={"preset": "\a\u96fb", "rate": 5.0})
    assert one_latency(run, "ttft").save(tmp_path / "ttft.png").exists()


@pytest.mark.parametrize("name", figures())
def test_every_figure_states_what_was_run(name: str) -> None:
    figure = figures()[name](of_pools(random_record(5, instances=2)))
    assert figure is not None
    (foot,) = [text.get_text() for text in figure.texts if "step times" in text.get_text()]
    assert foot == (
        "chatbot at 5 requests/s · 2 instances of qwen3-14b on H100 · scheduler sjf · engine vllm · "
        "step times roofline"
    )


@pytest.mark.slow
def test_a_run_without_recorded_steps_has_no_timeline(tmp_path: Path) -> None:
    run = view(record(table([0]), [instance([5_000_000, 6_000_000])], [(0, [0, 1])]))
    assert state_over_time(run) is instances(run) is batch(run) is None
    assert [path.name for path in save_plots(run, tmp_path)] == ["overview.png", "latency_cdf.png"]
    assert "the run did not record its steps" in words(overview(run))


def words(figure: Any) -> str:
    """All text in the axes of a figure."""
    return " ".join(" ".join(text.get_text().split()) for ax in figure.axes for text in ax.texts)


EMPTY: dict[str, tuple[RunRecord, str]] = {
    "no request at all": (record(table([]), [instance([])], []), "there were no requests"),
    "all rejected": (record(table([0, 0]), [instance([])], [None, None]), "0 of 2 requests completed"),
    "one token, so no TPOT": (
        record(table([0]), [instance([5_000_000])], [(0, [0])]),
        "1 of 1 requests completed",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", EMPTY)
def test_figures_of_runs_in_which_nothing_happened_say_so(case: str, tmp_path: Path) -> None:
    run, said = view(EMPTY[case][0]), EMPTY[case][1]
    assert said in words(latency_cdf(run))
    assert said in words(one_latency(run, "tpot"))
    save_plots(run, tmp_path, figures(), ("png", "svg"))


@pytest.mark.slow
def test_a_run_of_one_request_can_be_drawn(tmp_path: Path) -> None:
    runs = {name: np.array([1]) for name in ("steps", "running", "waiting", "kv_blocks")}
    runs |= {"start_ns": np.array([0]), "end_ns": np.array([10_000_000])}
    run = of_pools(record(table([0]), [instance([10_000_000], runs=runs)], [(0, [0])]))
    assert len(save_plots(run, tmp_path, figures())) == len(figures())
    (line,) = one_latency(run, "ttft").axes[0].get_lines()
    assert line.get_ydata().tolist() == [0, 100], "a step, and not an invisible point"


def test_limits_are_drawn_where_they_are_and_named() -> None:
    run = view(random_record(5, requests=100), slo=["ttft.p90=20ms", "critical.ttft.p99=30s"])
    (ax,) = one_latency(run, "ttft").axes
    dirty = [line for line in ax.get_lines() if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in dirty] == [(20, 90)]
    assert "TTFT p90 ≤ 20 ms" in words(ax.figure)
    assert "critical TTFT p99 ≤ 30,000 ms, far to the right" in words(ax.figure)
    assert not words(one_latency(run, "e2e"))


@pytest.mark.slow
def test_names_that_look_like_formulas_or_are_hidden_are_shown_as_they_are(tmp_path: Path) -> None:
    run = view(run_over_decades(1, (r"$\frac{", "_hidden", "standard")))
    figure = latency_cdf(run)
    figure.save(tmp_path / "p.png")
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert [label.replace("\u200b", "") for label in labels] == [
        "all requests",
        "standard",
        r"\$\frac{",
        "_hidden",
    ]


def test_a_batch_is_split_into_prompts_and_answers() -> None:
    """A step with a prompt of 30 and 2 answers from 0 to 10 ms, then 5 steps with 3 answers each to 20 ms."""
    runs = {name: np.array([1, 1]) for name in ("running", "waiting", "kv_blocks")}
    runs |= {"start_ns": np.array([0, 10_000_000]), "end_ns": np.array([10_000_000, 20_000_000])}
    runs |= {"steps": np.array([1, 5]), "prefill_tokens": np.array([30, 0]), "decode_seqs": np.array([2, 3])}
    runs["preemptions"] = np.array([0, 4])
    run = view(record(table([0]), [instance([10_000_000, 20_000_000], runs=runs)], [(0, [0, 1])]))
    state = timeline(run, slices=2)
    assert state is not None
    assert state.prefill_tokens.tolist() == [[30, 0]]
    assert state.decode_tokens.tolist() == [[2, 15]]
    assert state.steps.tolist() == [[1, 5]]
    assert state.preemptions is not None
    assert state.preemptions.tolist() == [[0, 4]]
    assert state.busy.tolist() == [[1, 1]]


def test_blocks_of_block_diffusion_are_answers_and_no_prompts() -> None:
    runs = {name: np.array([1]) for name in ("steps", "running", "waiting", "kv_blocks")}
    runs |= {"start_ns": np.array([0]), "end_ns": np.array([10_000_000])}
    runs |= {"prefill_tokens": np.array([128]), "decode_seqs": np.array([0])}
    runs |= {"denoise_blocks": np.array([3]), "prefill_blocks": np.array([1])}
    state = timeline(view(record(table([0]), [instance([10_000_000], runs=runs)], [(0, [0])])), slices=1)
    assert state is not None
    assert (state.prefill_tokens.tolist(), state.decode_tokens.tolist()) == ([[32]], [[96]])


def test_every_class_has_its_curve() -> None:
    run = view(random_record(5, requests=100))
    labels = latency_cdf(run).axes[0].get_legend_handles_labels()[1]
    assert labels == ["all requests", "critical", "standard", "batch", "vip"]


def test_nothing_drawn_over_time_leaves_its_axes() -> None:
    run = view(random_record(6, requests=60, instances=2, steps=300))
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
    run = view(record(table([]), [instance([10, 30, 40], runs=runs), instance([40])], []))
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
    limits = ["ttft.p99=2s", "critical.ttft.p90=1s", "e2e.mean=1s"]
    for draw in (overview, latency_cdf, state_over_time, instances, batch):
        figure = draw(view(run, slo=limits))
        assert figure is not None
        canvas = FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        yield figure, canvas.get_renderer()


@pytest.mark.slow
@pytest.mark.parametrize("decades", [0.3, 1, 1.6, 2.4, 3.5, 6])
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


@pytest.mark.slow
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
    figure = state_over_time(view(record(table([0]), [instance([10_000_000], runs=runs)], [(0, [0])])))
    assert figure is not None
    assert figure.axes[1].get_ylim() == (0, 1)


def test_the_latencies_of_every_pool_and_the_waits_of_hand_overs_are_drawn() -> None:
    statistics = {"min": 1.0, "p50": 2.0, "p90": 3.0, "p95": 4.0, "p99": 5.0, "max": 6.0}
    pools = {"prefill": {"ttft_ms": statistics, "tpot_ms": {"p50": None}}, "decode": {"e2e_ms": statistics}}
    waits = {"handovers": 7, "handover_reservation_ms": 2.0, "handover_link_queue_ms": 0.5}
    run = replace(view(random_record(5, requests=50)), pools=pools, handovers=waits)
    picture = by_pool(run)
    assert picture is not None
    ttft, tpot, e2e, causes = picture.axes
    assert [line.get_label() for line in ttft.lines] == ["prefill"]
    assert list(ttft.lines[0].get_xdata()) == [*statistics.values()]
    assert list(ttft.lines[0].get_ydata()) == [0, 50, 90, 95, 99, 100]
    assert [text.get_text() for text in tpot.texts] == ["no pool has a TPOT"]
    assert [line.get_label() for line in e2e.lines] == ["decode"]
    assert [bar.get_x() + bar.get_width() for bar in causes.patches] == [2.0, 2.5, 2.5]
    assert by_pool(replace(run, pools={})) is None
    without = by_pool(replace(run, handovers={}))
    assert without is not None
    assert [ax.axison for ax in without.axes] == [True, True, True, False]


def test_every_pool_has_its_line_over_time_and_its_rows_on_the_map() -> None:
    run = random_record(5, requests=50, instances=3)
    for one, pool in zip(run.instances, ("prefill", "prefill", "decode"), strict=True):
        one.pool = pool
    picture, state = state_over_time(view(run)), timeline(view(run))
    assert picture is not None
    assert state is not None
    running = {str(line.get_label()): line.get_ydata() for line in picture.axes[0].lines}
    assert list(running) == ["prefill", "decode"]
    np.testing.assert_allclose(running["prefill"], state.running[:2].sum(axis=0))
    np.testing.assert_allclose(running["decode"], state.running[2])
    assert [line.get_label() for line in picture.axes[3].lines] == ["prefill, of 2", "decode, of 1"]
    chart = instances(view(run))
    assert chart is not None
    assert [text.get_text() for text in chart.axes[0].get_yticklabels()] == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"disaggregation": {"prefill_instances": 2, "decode_instances": 1}},
            "2 prefill and 1 decode instance of m",
        ),
        (
            {"disaggregation": {"xpyd": "2p1d", "decode_gpu": "h200", "prefill_tp": 2}},
            "2 prefill instances of m on 2 × H100, 1 decode instance of m on H200",
        ),
        (
            {"pools": [{"name": "new", "count": 2}, {"name": "old", "count": 1, "gpu": "l40s"}]},
            "2 instances of m on H100, 1 instance of m on L40S",
        ),
        ({"disaggregation": {"prefill_instances": 0}, "num_instances": 3}, "3 instances of m on H100"),
    ],
)
def test_the_foot_counts_the_instances_of_each_side(settings: dict[str, Any], said: str) -> None:
    assert cluster({"model": "m", "gpu": "h100", **settings}).startswith(said)
