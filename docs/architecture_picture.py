"""The two pictures of the architecture guide: a request's journey through the cluster, and one step."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from blis_py.figures.style import INK, QUIET, Picture, in_house_style

PART, CORE, PRICE = "#dbeafe", "#dcfce7", "#fef3c7"
_HEIGHT = 0.66

Place = tuple[float, float]


@in_house_style
def journey() -> Picture:
    """Source, gateway, dispatcher, instances, recorder; and who says how far ahead may be looked."""
    figure, axes = _canvas(9.6, 3.5, (0, 11.2), (-0.05, 3.75))
    source = _box(axes, (1.0, 2.5), "source", "requests as they arrive", PART)
    gateway = _box(axes, (3.3, 2.5), "gateway", "admission and its delay", PART)
    dispatcher = _box(axes, (5.6, 2.5), "dispatcher", "asks the router", PART)
    first = _box(axes, (7.9, 3.2), "instance", "its clock, its core", CORE)
    last = _box(axes, (7.9, 1.8), "instance", "its clock, its core", CORE)
    recorder = _box(axes, (10.2, 2.5), "recorder", "columns of times", PART)
    for one, other in (
        (source, gateway),
        (gateway, dispatcher),
        (dispatcher, first),
        (dispatcher, last),
        (first, recorder),
        (last, recorder),
    ):
        _arrow(axes, one, other)
    axes.text(7.9, 2.5, "⋮", ha="center", va="center", fontsize=14, color=INK)
    _way_back(axes, recorder, source, 1.15, "ended: a source that listens sends what follows from it")
    _box(axes, (5.6, 0.35), "outlook", "who could disturb an instance, and when at the earliest", PRICE, 5.0)
    return figure


@in_house_style
def step() -> Picture:
    """What one step of an instance consists of, and which of it is the same under the engine."""
    figure, axes = _canvas(9.6, 2.6, (0, 10.4), (-0.15, 2.75))
    schedule = _box(axes, (1.2, 1.65), "schedule", "a batch and its KV pages", CORE, 2.1)
    advance = _box(axes, (3.9, 1.65), "advance", "what the host knows at launch", CORE, 2.1)
    price = _box(axes, (6.6, 2.2), "simulator", "latency model: its duration", PRICE, 2.1)
    run = _box(axes, (6.6, 1.1), "engine", "GPU: forward and sampling", PART, 2.1)
    resolve = _box(axes, (9.2, 1.65), "resolve", "tokens, ends, pages freed", CORE, 2.1)
    for one, other in (
        (schedule, advance),
        (advance, price),
        (advance, run),
        (price, resolve),
        (run, resolve),
    ):
        _arrow(axes, one, other, 2.1)
    words = "synchronous: when it is resolved · asynchronous: while it runs"
    _way_back(axes, resolve, schedule, 0.4, f"the next step is scheduled — {words}")
    return figure


def _canvas(width: float, height: float, across: Place, up: Place) -> tuple[Picture, Axes]:
    figure = Picture(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot(xlim=across, ylim=up)
    axes.axis("off")
    return figure, axes


def _box(axes: Axes, at: Place, title: str, below: str, colour: str, width: float = 1.7) -> Place:
    x, y = at
    corner = (x - width / 2, y - _HEIGHT / 2)
    style = "round,pad=0.02,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(corner, width, _HEIGHT, boxstyle=style, fc=colour, ec=INK, lw=0.8))
    axes.text(x, y + 0.11, title, ha="center", va="center", fontsize=10, color=INK, weight="bold")
    axes.text(x, y - 0.16, below, ha="center", va="center", fontsize=7, color=INK)
    return at


def _arrow(axes: Axes, one: Place, other: Place, width: float = 1.7) -> None:
    start, end = (one[0] + width / 2 + 0.04, one[1]), (other[0] - width / 2 - 0.02, other[1])
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=INK, lw=1))


def _way_back(axes: Axes, one: Place, other: Place, low: float, words: str) -> None:
    """Down, back and up again."""
    below = _HEIGHT / 2 + 0.04
    axes.plot([one[0], one[0], other[0]], [one[1] - below, low, low], color=QUIET, lw=1, ls="--")
    up = FancyArrowPatch((other[0], low), (other[0], other[1] - below), arrowstyle="-|>", mutation_scale=11)
    up.set(color=QUIET, lw=1, ls="--")
    axes.add_patch(up)
    axes.text((one[0] + other[0]) / 2, low - 0.06, words, ha="center", va="top", fontsize=7.5, color=QUIET)
