"""Pictures of a run: latency distributions, and the state of the cluster over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.metrics.distribution import NS_PER_MS, Distribution
from blis_py.metrics.groups import Rows, rows_by_name, slo_classes
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import RunRecord
from blis_py.outputs.staging import replacing
from blis_py.report.timeline import Floats, Timeline, timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
_WIDTH = 10.0  # inches: 1200 pixels

_STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0.2,
    "legend.columnspacing": 1.2,
    "legend.handlelength": 1.4,
    "legend.handletextpad": 0.5,
}
_INK = "#222222"
_CLASS_COLOURS = {
    "critical": "#d62728",
    "standard": "#1f77b4",
    "batch": "#2ca02c",
    "sheddable": "#ff7f0e",
    "background": "#8c8c8c",
}
_OTHER_COLOURS = ("#9467bd", "#17becf", "#bcbd22", "#e377c2", "#8c564b")
_METRICS = {
    "ttft": "Time to first token",
    "tpot": "Time per output token, by request",
    "itl": "Inter-token latency, all tokens",
    "e2e": "End-to-end latency",
}
_MOST_CLASSES = 8
_LEGEND_COLUMNS = 6

Samples = Callable[[str, Rows], Distribution]


def save_plots(record: RunRecord, folder: str | Path) -> list[Path]:
    """Write every picture that this run has data for, as PNG, 1200 pixels wide.

    Returns:
        The files, named after their content: `overview.png`, `latency_cdf.png`, and `timeline.png` if the
        run recorded its steps.
    """
    pictures = {"overview": overview, "latency_cdf": latency_cdf, "timeline": state_over_time}
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in pictures.items():
        figure = draw(record)
        if figure is not None:
            written.append(Path(folder) / f"{name}.png")
            with replacing(written[-1]) as file:
                # No metadata: the same run gives the same bytes.
                figure.savefig(file, dpi=DPI, metadata={"Software": None})
    return written


def latency_cdf(record: RunRecord) -> Figure:
    """Cumulative distributions of TTFT, TPOT, ITL and E2E, by SLO class where there are several."""
    with _style():
        legend = _room_for_legend(record)
        figure, axes = _grid(2, 2, height=6.4 + legend, above=legend)
        samples = _samples(record)
        for metric, ax in zip(_METRICS, axes, strict=True):
            _draw_cdf(ax, record, metric, samples)
        _legend_of_classes(figure, axes[0], from_top=0.1)
        return figure


def state_over_time(record: RunRecord) -> Figure | None:
    """Running and waiting requests and KV use; `None` if the run did not record its steps."""
    state = timeline(record)
    if state is None:
        return None
    with _style():
        figure, axes = _grid(3, 1, height=7.2, gap=0.55)
        _draw_state(axes[0], state, state.running, "Running requests")
        _draw_state(axes[1], state, state.waiting, "Waiting requests")
        _draw_kv(axes[2], state)
        for ax in axes[:2]:
            _count_axis(ax)
        for ax in axes:
            _time_axis(ax, state)
            _legend_beside_title(ax)
            ax.label_outer()
        return figure


def overview(record: RunRecord) -> Figure:
    """The run at a glance: how long users wait, and how full the cluster is."""
    state = timeline(record)
    headline, legend = 0.65, _room_for_legend(record)
    height = (6.35 if state else 3.15) + headline + legend
    with _style():
        figure, axes = _grid(2 if state else 1, 2, height=height, above=headline + legend)
        samples = _samples(record)
        for metric, ax in zip(("ttft", "itl"), axes, strict=False):
            _draw_cdf(ax, record, metric, samples)
        if state is not None:
            _draw_requests(axes[2], state)
            _draw_kv(axes[3], state)
            for ax in axes[2:]:
                _time_axis(ax, state)
                _legend_beside_title(ax)
        top = 1 - 0.12 / height
        figure.suptitle(_headline(record), x=0.012, y=top, ha="left", va="top", fontsize=12, color=_INK)
        _legend_of_classes(figure, axes[0], from_top=headline)
        return figure


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def _grid(
    rows: int, columns: int, *, height: float, above: float = 0.0, gap: float = 0.85
) -> tuple[Figure, list[Axes]]:
    """A figure `_WIDTH` by `height` inches with a grid of axes, and room `above` it in inches.

    Margins are fixed: measuring every label, as matplotlib's layout engines do, takes as long as drawing.
    """
    from matplotlib.figure import Figure

    left, right, top, bottom, beside = 0.62, 0.3, 0.35 + above, 0.55, 0.75
    wide = (_WIDTH - left - right - beside * (columns - 1)) / columns
    high = (height - top - bottom - gap * (rows - 1)) / rows
    figure = Figure(figsize=(_WIDTH, height))
    figure.subplots_adjust(
        left=left / _WIDTH,
        right=1 - right / _WIDTH,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=beside / wide,
        hspace=gap / high,
    )
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _headline(record: RunRecord) -> str:
    """What ran on what, and what came of it."""
    columns = latencies(record)
    done = int(columns.completed.sum())
    instances, config = len(record.instances), record.config
    where = f"{instances} instance{'' if instances == 1 else 's'}"
    if config.get("model") and config.get("gpu"):
        gpu = Path(config["gpu"]).stem.upper()
        where = f"{where} of {Path(config['model']).name} on {gpu} TP{config.get('tp', 1)}"
    text = f"{done:,} of {len(record.table):,} requests completed on {where}"
    if done:
        window_ns = record.finish_ns[columns.completed].max() - record.table.arrival_ns[0]
        tokens = record.emitted_tokens[columns.completed].sum()
        text += f"\n{done / window_ns * 1e9:,.1f} requests/s, {tokens / window_ns * 1e9:,.0f} output tokens/s"
    return text


def _samples(record: RunRecord) -> Samples:
    columns, gaps = latencies(record), TokenGaps(record)

    def of(metric: str, rows: Rows) -> Distribution:
        if metric == "itl":
            return gaps.distribution(rows[columns.completed[rows]])
        values = columns.column(metric)[rows]
        return Distribution.of(values[~np.isnan(values)])

    return of


def _draw_cdf(ax: Axes, record: RunRecord, metric: str, samples: Samples) -> None:
    classes = rows_by_name(slo_classes(record))
    everyone: Rows = np.arange(len(record.table))
    lines: list[tuple[str, Rows, dict[str, Any]]] = [("all requests", everyone, {"color": _INK})]
    if len(classes) > 1:
        others = cycle(_OTHER_COLOURS)
        lines[0][2].update(linestyle=(0, (4, 2)), linewidth=1.4)
        for name, rows in list(classes.items())[:_MOST_CLASSES]:
            lines.append((name, rows, {"color": _CLASS_COLOURS.get(name) or next(others)}))
    extent = []
    for name, rows, style in lines:
        distribution = samples(metric, rows)
        if distribution.count:
            values, share = distribution.curve()
            ax.step(values / NS_PER_MS, 100 * share, where="post", label=name, **style)
            extent += [values[0] / NS_PER_MS, values[-1] / NS_PER_MS]
    _latency_axis(ax, extent)
    ax.set_title(_METRICS[metric])
    ax.set_ylabel("% of tokens" if metric == "itl" else "% of requests")
    ax.set_ylim(0, 101)
    ax.set_yticks([0, 25, 50, 75, 90, 99])


def _latency_axis(ax: Axes, extent: Sequence[float]) -> None:
    """Logarithmic where values span more than a decade and a half, labelled in the unit that reads best."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    span = max(extent) / min(extent) if extent and min(extent) > 0 else 1.0
    if span > 30:
        ax.set_xscale("log")
        # As many labels as have room beside each other, where two columns share the width.
        labelled = (1.0, 2.0, 5.0) if span < 50 else (1.0, 3.0) if span < 300 else (1.0,)
        ax.xaxis.set_major_locator(LogLocator(subs=labelled, numticks=5))
        ax.xaxis.set_minor_locator(LogLocator(subs=range(2, 10)))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_xlim(left=0)
        ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: _in_words(ms)))
    ax.set_xlabel("latency")


def _in_words(ms: float) -> str:
    if ms >= 1000:
        return f"{ms / 1000:,.9g} s"
    if ms >= 1:
        return f"{ms:g} ms"
    return f"{ms * 1000:g} µs" if ms > 0 else "0"


def _draw_state(ax: Axes, state: Timeline, rows: Floats, title: str, mean: bool = False) -> None:
    """The whole cluster as a bold line, single instances as faint ones."""
    scale = _time_unit(state)[1]
    if len(rows) > 1:
        for index, row in enumerate(rows):
            label = "each instance" if index == 0 else None
            ax.plot(state.time_s / scale, row, color="#9ecae1", linewidth=0.8, label=label)
    whole = rows.mean(axis=0) if mean else rows.sum(axis=0)
    label = "one instance" if len(rows) == 1 else "mean" if mean else "cluster"
    ax.plot(state.time_s / scale, whole, color="#08519c", linewidth=1.6, label=label)
    ax.set_title(title)
    ax.set_ylim(bottom=0)


def _draw_kv(ax: Axes, state: Timeline) -> None:
    _draw_state(ax, state, state.kv_pct, "KV cache in use, %", mean=True)
    ax.set_ylim(top=101)


def _draw_requests(ax: Axes, state: Timeline) -> None:
    """Running and waiting requests of the whole cluster."""
    moments = state.time_s / _time_unit(state)[1]
    shown = (("running", state.running, "#08519c"), ("waiting", state.waiting, "#e08214"))
    for label, rows, colour in shown:
        ax.plot(moments, rows.sum(axis=0), color=colour, linewidth=1.6, label=label)
        ax.fill_between(moments, rows.sum(axis=0), color=colour, alpha=0.12, linewidth=0)
    ax.set_title("Requests")
    _count_axis(ax)


def _time_unit(state: Timeline) -> tuple[str, float]:
    longest = state.time_s[-1]
    return ("s", 1.0) if longest < 300 else ("min", 60.0) if longest < 3 * 3600 else ("h", 3600.0)


def _count_axis(ax: Axes) -> None:
    """Whole requests, from zero to at least one."""
    from matplotlib.ticker import MaxNLocator

    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))


def _time_axis(ax: Axes, state: Timeline) -> None:
    unit, seconds = _time_unit(state)
    ax.set_xlim(0, state.time_s[-1] / seconds)
    ax.set_xlabel(f"simulated time, {unit}")


def _legend_beside_title(ax: Axes) -> None:
    """Above the axes on the right, where no data can be."""
    labels = ax.get_legend_handles_labels()[1]
    if len(labels) > 1:
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(labels))


def _room_for_legend(record: RunRecord) -> float:
    """The height of the legend of classes, in inches."""
    curves = 1 + min(_MOST_CLASSES, len(rows_by_name(slo_classes(record))))
    return 0.25 * math.ceil(curves / _LEGEND_COLUMNS) + 0.05 if curves > 2 else 0.0


def _legend_of_classes(figure: Figure, ax: Axes, from_top: float) -> None:
    """One legend for all distributions, above them."""
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(0.012, 1 - from_top / figure.get_figheight()),
            ncols=min(len(labels), _LEGEND_COLUMNS),
            borderaxespad=0,
        )
