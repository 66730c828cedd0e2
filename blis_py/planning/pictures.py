"""The picture of a plan: cost of each combination, sensitivity, bottleneck, and certainty."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blis_py.figures.style import BLUE, GREY, ORANGE, VERMILLION, Picture, grid, headline, in_house_style, say
from blis_py.metrics.slo_words import latency
from blis_py.planning.analysis import CHANGE
from blis_py.planning.goal import Requirement
from blis_py.planning.report_text import change_names, of_models
from blis_py.planning.result import PlanResult, Standing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_BARS = 12
_SHOWN_GAIN = 0.005
"""Smaller improvements are not shown."""
_MAX_SHOWN = 3.0
"""Multiples of the limit at which a bar is cut and labelled with its length."""
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
"""Background of text written across a line."""
_NAMES = {"rate": "request rate", "prompt": "prompt lengths", "output": "output lengths"}


def save_pictures(plan: PlanResult, folder: Path) -> list[Path]:
    """Write `plan.png` and `plan.svg`."""
    picture = draw(plan)
    return [picture.save(folder / f"plan.{kind}") for kind in ("png", "svg")]


@in_house_style
def draw(plan: PlanResult) -> Picture:
    """Four panels: standings, tornado, draws and other latency models, levers."""
    foot = plan.best.outcome.facts.get("models") or ""
    figure, panels = grid(2, 2, height=7.8, above=0.75, left=1.75, beside=2.0, gap=0.95, foot=str(foot))
    _standings(panels[0], plan)
    _tornado(panels[1], plan)
    _trust(panels[2], plan)
    _levers(panels[3], plan)
    headline(figure, _title(plan))
    return figure


def _title(plan: PlanResult) -> str:
    cost = plan.best.dollars_per_hour
    data = f"{'Meets all targets' if plan.holds else 'Misses a target'}: {plan.best}"
    price = "" if cost is None else f", ${cost:,.2f} an hour"
    sure = "" if plan.probability is None else f"; confidence {100 * plan.probability:.0f} %"
    return f"{data}\n{plan.best.gpus} GPU{'' if plan.best.gpus == 1 else 's'}{price}{sure}"


def _standings(ax: Axes, plan: PlanResult) -> None:
    """Panel of the cheapest size of each combination."""
    costs = [(each.cost, _label(each), each) for each in plan.standings if each.cost is not None]
    ax.set_title("Cheapest size of each combination")
    if not costs:
        say(
            ax,
            "no combination meets the targets"
            if plan.standings
            else "one configuration was given, none searched",
        )
        return
    costs = sorted(costs, key=lambda item: item[0])[:_MAX_BARS][::-1]
    best = {**plan.best.point}
    for row, (cost, _, standing) in enumerate(costs):
        ax.barh(row, cost, color=BLUE if standing.point == best else GREY, height=0.65)
        data = f" {standing.least} inst." + (" or fewer" if standing.at_most else "")
        ax.text(cost, row, data, va="center", size=8, bbox=_PAPER)
    ax.set_yticks(range(len(costs)), [name for _, name, _ in costs], size=8)
    ax.set_ylabel(", ".join(plan.best.point), size=8)
    ax.set_xlabel(plan.objective)
    ax.set_xlim(0, 1.45 * max(cost for cost, _, _ in costs))
    ax.grid(visible=False, axis="y")


def _label(standing: Standing) -> str:
    data = ", ".join(str(value) for value in standing.point.values()) or "as given"
    return data if len(data) <= 28 else f"{data[:27]}…"


def _tornado(ax: Axes, plan: PlanResult) -> None:
    """Panel of the tightest requirement with each workload property a fifth lower and higher."""
    tightest = plan.best.judgement.tightest
    pairs = change_names(plan.sensitivity)
    ax.set_title(f"Sensitivity: ±{100 * CHANGE:.0f} %")
    if tightest is None or not pairs or tightest.measured is None:
        say(ax, "no figure was measured")
        return
    base = 1 - tightest.slack
    bars = []
    for name, pair in pairs.items():
        used = [_used(case.judgement.requirements, tightest.what) for case in pair]
        bars.append((name, used[0], used[1]))
    bars.sort(key=lambda bar: max(abs(min(end, _MAX_SHOWN) - base) for end in bar[1:]))
    for row, (_, less, more) in enumerate(bars):
        for end, colour, sign in ((less, BLUE, "−"), (more, ORANGE, "+")):
            cut = min(end, _MAX_SHOWN)
            ax.barh(row, cut - base, left=base, color=colour, height=0.6)
            data = f"{sign}{100 * CHANGE:.0f} %: {_times_limit(tightest, end)}"
            ax.annotate(
                data,
                (cut, row + (0.17 if sign == "+" else -0.17)),
                xytext=(3 if cut >= base else -3, 0),
                textcoords="offset points",
                ha="left" if cut >= base else "right",
                va="center",
                size=7.5,
                bbox=_PAPER,
            )
    ax.axvline(1, color=VERMILLION, linewidth=1.4, linestyle=(0, (5, 1.5)))
    ax.axvline(base, color=GREY, linewidth=1)
    ends = [min(end, _MAX_SHOWN) for bar in bars for end in bar[1:]]
    low, high = min(*ends, base), max(*ends, 1.0)
    room = 0.65 * (high - low or 1)
    ax.set_xlim(low - room, high + room)
    ax.set_yticks(range(len(bars)), [_NAMES.get(name, name) for name, _, _ in bars])
    ax.set_xlabel(f"{tightest.title}, share of the target (dashed)")
    ax.grid(visible=False, axis="y")


def _trust(ax: Axes, plan: PlanResult) -> None:
    """Panel of the tightest requirement under the other latency models, and the share of draws that pass."""
    tightest = plan.best.judgement.tightest
    rows: list[tuple[str, float | None, str]] = []
    if tightest is not None and tightest.measured is not None:
        rows.append((plan.config.latency.model, 1 - tightest.slack, ""))
        for model in of_models(plan):
            own = model.tightest
            used = None if own is None or own.slack == float("-inf") else 1 - own.slack
            rows.append((model.name, used, "does not apply" if model.refused else ""))
    ax.set_title("Agreement of the latency models")
    if not rows:
        say(ax, "nothing was measured")
        return
    for row, (_, used, why) in enumerate(rows[::-1]):
        if used is None:
            ax.text(0.02, row, why or "never", va="center", size=8, bbox=_PAPER)
            continue
        cut = min(used, _MAX_SHOWN)
        ax.barh(row, cut, color=BLUE if row == len(rows) - 1 else GREY, height=0.55)
        ax.text(cut, row, f" {_times_limit(tightest, used)}", va="center", size=8, bbox=_PAPER)
    ax.axvline(1, color=VERMILLION, linewidth=1.4, linestyle=(0, (5, 1.5)))
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows[::-1]])
    ax.set_xlim(0, 1.45 * max([1.0, *(min(used, _MAX_SHOWN) for _, used, _ in rows if used is not None)]))
    ax.set_xlabel(f"{tightest.title if tightest else ''}, share of the target (dashed)")
    ax.grid(visible=False, axis="y")


def _levers(ax: Axes, plan: PlanResult) -> None:
    """Panel of the effect of a quarter more of each resource at the failing rate."""
    ax.set_title("Bottleneck at the limit")
    if not plan.levers:
        say(ax, "no bottleneck was found")
        return
    shown = [each for each in plan.levers if abs(each.gain) >= _SHOWN_GAIN][::-1]
    if not shown:
        say(ax, "no resource or setting makes a difference")
        return
    for row, lever in enumerate(shown):
        gain = 100 * max(lever.gain, -1.0)
        ax.barh(row, gain, color=BLUE if gain > 0 else ORANGE, height=0.6)
        ax.text(max(gain, 0), row, f" {100 * lever.gain:+.0f} %", va="center", size=8, bbox=_PAPER)
    ax.set_yticks(range(len(shown)), [lever.how for lever in shown], size=8)
    ax.set_xlim(min(-10, *(1.1 * 100 * max(x.gain, -1.0) for x in shown)), 119)
    ax.set_xlabel("improvement of the tightest target, %")
    ax.grid(visible=False, axis="y")


def _used(requirements: tuple[Requirement, ...], what: str) -> float:
    """Share of a limit in use."""
    own = next((each for each in requirements if each.what == what), None)
    return float("inf") if own is None else 1 - own.slack


def _times_limit(tightest: Requirement | None, used: float) -> str:
    if used == float("inf") or tightest is None:
        return "never"
    return latency(used * tightest.limit) if tightest.unit == "ms" else f"{used:.2f} ×"
