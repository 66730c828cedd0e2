"""Picture of an explanation: the ledger as bars, and the results of the what-ifs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from blis_py.figures import style
from blis_py.figures.facts import foot
from blis_py.figures.style import (
    Picture,
    grid,
    headline,
    in_house_style,
    say,
)
from blis_py.metrics.registry import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = Mapping[str, Any]

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "on the way": (style.GREY, ("admission", "front_end_before", "hand_over", "front_end_after")),
    "waiting": (
        style.VERMILLION,
        (
            *("gateway", "running_step", "composed_step", "no_slot", "no_kv", "no_budget"),
            *("behind_slot", "behind_kv", "behind_budget", "held_back"),
        ),
    ),
    "own prefill": (style.BLUE, ("own_prefill",)),
    "others' work in its steps": (style.ORANGE, ("others_prefill", "others_decode", "riding", "stalled")),
    "decode": (style.GREEN, ("decode",)),
    "preemption": (style.PURPLE, ("preempted", "recompute")),
    "host": (style.SKY, ("host",)),
    "cut by the end of the run": (style.EARTH, ("unfinished",)),
}
"""Colour and ledger lines of each kind of time."""
_MAX_WHAT_IFS = 12


@in_house_style
def ledger(data: Data, settings: Data) -> Picture:
    """
    Args:
        `data`: `Explanation.as_dict()`.
        settings: the configuration of the run.
    """
    changes = [one for one in data["what_ifs"] if one.get("asked") is not None][:_MAX_WHAT_IFS]
    whole = data["share_of"] == "e2e"
    lines = [line for line in data["ledger"] if line["whole_ns" if whole else "asked_ns"]]
    rows = max(len(lines), len(changes), 4)
    figure, axes = grid(
        *(1, 2),
        height=1.9 + 0.27 * rows,
        foot=foot(settings),
        above=0.45,
        left=3.15,
        beside=2.75,
    )
    headline(figure, _title(data))
    if lines:
        _draw_ledger(axes[0], lines, whole, data["share_of"])
    else:
        axes[0].set_title("Where its time went")
        reason = data["no_match"] or "it ended the moment it came"
        say(axes[0], f"Nothing to explain: {reason}.")
    _draw_what_ifs(axes[1], changes, data)
    return figure


def _title(data: Data) -> str:
    request = data["request"]
    if request is None:
        return str(data["question"])
    value = "" if data["value_ns"] is None else f": {_ms(data['value_ns'])}"
    return f"{data['question']}{value}" + ("" if data["value_ns"] is None else f", as {request['id']} shows")


def _draw_ledger(ax: Axes, lines: Sequence[Data], whole: bool, metric: str) -> None:
    """Draw a bar for each cause of the metric in question; of E2E lighter from the first token on."""
    looks = {line: colour for colour, names in KINDS.values() for line in names}
    for row, line in enumerate(lines):
        length = (line["whole_ns"] if whole else line["asked_ns"]) / 1e6
        first = min((line["first_token_ns"] or 0) / 1e6, length) if whole else length
        colour = looks.get(line["line"], style.QUIET)
        ax.barh(row, first, color=colour, height=0.7)
        ax.barh(row, length - first, left=first, color=colour, alpha=0.45, height=0.7)
        text = f"{_number(length)} ({line['share']:.0%})" if line["share"] else _number(length)
        ax.annotate(text, (length, row), (3, 0), textcoords="offset points", va="center", size=8)
    ax.set_yticks(range(len(lines)), [_wrapped(line["what"]) for line in lines], size=8)
    ax.set_ylim(len(lines) - 0.4, -0.6)
    longest = max(line["whole_ns" if whole else "asked_ns"] for line in lines)
    ax.set_xlim(0, 1.5 * longest / 1e6)
    ax.locator_params(axis="x", nbins=4)
    ax.grid(visible=False, axis="y")
    label = METRICS[metric].own_label or METRICS[metric].label
    ax.set_xlabel("ms; lighter: after the first token" if whole else f"ms of {label}", size=8)
    ax.set_title("Where its time went")


def _draw_what_ifs(ax: Axes, changes: Sequence[Data], data: Data) -> None:
    """Draw the change of the explained quantity by each what-if."""
    in_question = "its E2E" if data["metric"] is None else data["question"]
    ax.set_title("What if (one run each)")
    if not changes:
        say(ax, "No run with other settings was requested, or none has an answer.")
        return
    percents = [100 * one["asked"] for one in changes]
    high = _cut(percents)
    for row, (one, percent) in enumerate(zip(changes, percents, strict=True)):
        colour = style.GREY if one["noise"] else style.BLUE if percent < 0 else style.VERMILLION
        ax.barh(row, min(percent, high), color=colour, height=0.7)
        ax.annotate(
            _effect(one, percent, high),
            (max(min(percent, high), 0), row),
            (3, 0),
            textcoords="offset points",
            va="center",
            size=8,
        )
    ax.axvline(0, color=style.INK, linewidth=0.8)
    ax.set_yticks(range(len(changes)), [_wrapped(one["change"]) for one in changes], size=7)
    ax.set_ylim(len(changes) - 0.4, -0.6)
    low = min(*percents, 0.0)
    span = max(max(high, 0) - low, 1)
    ax.set_xlim(low - 0.03 * span, max(high, 0) + 0.6 * span)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(f"{in_question}, change, %", size=8)


def _effect(one: Data, percent: float, high: float) -> str:
    if abs(percent) < 0.05:
        return "no difference"
    beyond = " →" if percent > high else ""
    return f"{percent:+,.1f} %{beyond}{' noise' if one['noise'] else ''}".replace("-", "−")


def _cut(percents: Sequence[float]) -> float:
    """End of the axis: larger values become arrows, so that the other bars stay readable."""
    return min(max(percents), max(100.0, 1.5 * max(-min(percents), 0)))


def _wrapped(change: str) -> str:
    """A label in two lines where one is too long."""
    return fill(change, 44, break_on_hyphens=False, break_long_words=False)


def _number(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:,.3g}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.4g} ms" if ns < 1e9 else f"{ns / 1e9:,.3g} s"
