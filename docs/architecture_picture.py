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
    """A request that visits two pools, from its source to the record of its visits and back."""
    figure, axes = _canvas(9.6, 4.6, (0, 13.1), (0.05, 5.0))
    source = _box(axes, (0.95, 4.2), "source", "requests as they arrive", PART)
    gateway = _box(axes, (3.1, 4.2), "gateway", "admission, flow control", PART)
    dispatcher = _box(axes, (5.25, 4.2), "dispatcher", "router: which instance", PART)
    prefill = _pool(axes, (7.7, 4.2), "pool of role prefill: first visit", 0.66)
    outlet = _box(axes, (10.0, 4.2), "outlet", "finish, or the next visit", PART)
    again = _box(axes, (5.25, 2.5), "dispatcher", "router of the pool", PART)
    decode = _pool(axes, (7.7, 2.5), "pool of role decode: second visit", -0.58)
    recorder = _box(axes, (12.1, 3.35), "recorder", "visits, steps, tokens", PART)
    for one, other in ((source, gateway), (gateway, dispatcher), (dispatcher, prefill), (again, decode)):
        _arrow(axes, one, other)
    _arrow(axes, (prefill[0] + 0.16, prefill[1]), outlet)
    _arrow(axes, outlet, (recorder[0], recorder[1] + 0.15))
    _arrow(axes, (decode[0] + 0.16, decode[1]), (recorder[0], recorder[1] - 0.15))
    _handed_over(axes, outlet, again, 3.35)
    _link(axes, prefill, decode)
    _way_back(axes, recorder, source, 1.5, "ended: a closed-loop source sends what follows from it")
    for x, title, below in (
        (2.25, "fleet", "instances: added, ready, draining, gone"),
        (6.55, "event queue", "the order of what happens in a nanosecond"),
        (10.85, "lookahead", "until when nothing reaches an instance"),
    ):
        _box(axes, (x, 0.45), title, below, PRICE, 4.0)
    return figure


@in_house_style
def step() -> Picture:
    """What one step of an instance consists of, and which of it is the same under the engine."""
    figure, axes = _canvas(9.6, 2.6, (0, 10.4), (-0.15, 2.75))
    schedule = _box(axes, (1.2, 1.65), "schedule", "a batch and its KV pages", CORE, 2.1)
    advance = _box(axes, (3.9, 1.65), "advance", "the host's state at launch", CORE, 2.1)
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


def _pool(axes: Axes, at: Place, title: str, up: float) -> Place:
    """Instances of a pool, one behind the other; its title above or below them."""
    for behind in (0.16, 0.08):
        _box(axes, (at[0] + behind, at[1] + behind), "", "", CORE)
    axes.text(at[0] + 0.08, at[1] + up, title, ha="center", va="center", fontsize=7.5, color=INK)
    return _box(axes, at, "instance", "its time, its scheduler", CORE)


def _handed_over(axes: Axes, one: Place, other: Place, low: float) -> None:
    """Down, back and down again: from the end of a visit to the beginning of the next."""
    end = (other[0], other[1] + _HEIGHT / 2 + 0.04)
    axes.plot([one[0], one[0], other[0]], [one[1] - _HEIGHT / 2 - 0.04, low, low], color=INK, lw=1)
    axes.add_patch(
        FancyArrowPatch((other[0], low), end, arrowstyle="-|>", mutation_scale=11, color=INK, lw=1)
    )
    axes.text(one[0] - 0.1, low - 0.07, "handed over", ha="right", va="top", fontsize=7.5, color=INK)


def _link(axes: Axes, one: Place, other: Place) -> None:
    """The way of the KV blocks."""
    x, ends = one[0] - 0.45, (one[1] - _HEIGHT / 2 - 0.03, other[1] + _HEIGHT / 2 + 0.2)
    style = {"arrowstyle": "-|>", "mutation_scale": 13, "color": "#15803d", "lw": 2.2}
    axes.add_patch(FancyArrowPatch((x, ends[0]), (x, ends[1]), **style))
    axes.text(
        x - 0.12,
        (one[1] + other[1]) / 2 + 0.15,
        "link: KV blocks",
        ha="right",
        va="bottom",
        fontsize=7.5,
        color="#15803d",
    )


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
