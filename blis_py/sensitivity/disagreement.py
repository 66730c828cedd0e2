"""An inexpensive check of every run: would another latency model change the answer?

The busiest few minutes are simulated under another model as well: step times matter most there, and the worst
latencies of a run come from there. If a requested figure differs by more than a quarter, or a met target
would be missed, the run gets a note. The cost is a small share of the run itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blis_py.api import Simulation
from blis_py.config.models import PLAIN_ENGINE
from blis_py.errors import InputError
from blis_py.metrics.registry import METRICS, Unit, shown_in
from blis_py.metrics.slo import limit_and_measured
from blis_py.result import Result

MODELS = ("trained", "roofline")
"""Models trusted for comparison, in order. `trained-physics` is excluded: it prices long prompts faster than
a GPU's datasheet allows, so it would contradict nearly every run."""
OWN_TRUTH = ("fitted", "linear")
"""Models whose step times were measured on the engine itself, or given: no formula is better."""
TOLERANCE = 0.25
FAR_APART = 1.5
"""Factor between two models above which a note stands before the result."""
DIFFER = "latency models differ"
"""Begin of such a note."""
SHARE = 0.04
"""Share of the requests, for each of the two simulations."""
MIN, FREE, MAX = 50, 200, 2000
"""Numbers of requests: fewest for a note, always affordable, and sufficient."""
FREE_STEPS = 10_000
"""Above this number of steps, the affordable number of requests is reduced."""
_MAX_FIGURES = 3

Figures = dict[str, tuple[float, Unit]]


def disagreements(simulation: Simulation, result: Result) -> tuple[str, ...]:
    """Notes on the other latency models that disagree.

    Empty under `--engine blis`, whose step times are to be BLIS's; for measured or given step times; for
    several pools; without another applicable model; or with too few requests.
    """
    if len(simulation.pools) > 1:
        return ()
    if simulation.config.engine == PLAIN_ENGINE or simulation.latency.name in OWN_TRUTH:
        return ()
    others = list(_others(simulation))
    count = _sample(result)
    if not others or count < MIN:
        return ()
    whole = result.summary  # which is shown, too: its gaps between tokens are counted once
    if count == len(result.record.table):
        return tuple(filter(None, (_note(whole, whole, _run(o), o.latency.name, "") for o in others)))
    own, where = _run(simulation.busiest(count)), f" on the busiest {count:,} requests"
    return tuple(
        filter(None, (_note(whole, own, _run(o.busiest(count)), o.latency.name, where) for o in others))
    )


def _others(simulation: Simulation) -> Iterator[Simulation]:
    for name in MODELS:
        if name != simulation.latency.name:
            try:
                yield simulation.priced_by(name)
            except InputError:
                continue


def _sample(result: Result) -> int:
    """Number of requests to simulate. A function of the run alone: the same run, the same notes."""
    requests = len(result.record.table)
    steps = sum(instance.steps for instance in result.record.instances)
    free = min(FREE, requests, FREE_STEPS * requests // max(steps, 1))
    return min(max(int(SHARE * requests), free), MAX)


def _run(simulation: Simulation) -> Mapping[str, Any]:
    return simulation.run(record_steps=False).totals


def _note(
    whole: Mapping[str, Any], own: Mapping[str, Any], other: Mapping[str, Any], name: str, where: str
) -> str | None:
    """Note on the disagreement of another model, or None.

    Args:
        whole, own: summaries of the run, and of its busiest requests.
        other: summary of the latter under the other model.
    """
    stated = [*_targets(whole, own, other), *_figures(own, other)]
    if not stated:
        return None
    factor = _factor(own, other)
    begin = f"{DIFFER} by {factor:.1f} ×, {name}" if factor > FAR_APART else name
    return (
        f"{begin} says otherwise{where}: {'; '.join(stated[:_MAX_FIGURES])} (--cross-check for the whole run)"
    )


def _factor(own: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Largest factor between two models of a requested figure."""
    mine, theirs = _compared_figures(own), _compared_figures(other)
    ratios = [theirs[name][0] / mine[name][0] for name in mine.keys() & theirs.keys()]
    return max((max(ratio, 1 / ratio) for ratio in ratios if ratio), default=1.0)


def split(notes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Notes on models that are far apart, which come before the result, and all others."""
    far = tuple(note for note in notes if note.startswith(DIFFER))
    return far, tuple(note for note in notes if note not in far)


def _targets(whole: Mapping[str, Any], own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Targets that the whole run would miss, or meet, if it changed as the busiest requests do."""
    for verdict, here, there in zip(whole["slo"], own["slo"], other["slo"], strict=True):
        limit, measured, _ = limit_and_measured(verdict)
        before, after = (limit_and_measured(each)[1] for each in (here, there))
        if not (measured and before and after):
            continue
        if (measured * after / before <= limit) != verdict["met"]:
            otherwise = "missed" if verdict["met"] else "met"
            yield f"{verdict['slo']} would be {otherwise} ({_change(before, after)})"


def _figures(own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Figures that differ by more than the tolerance, largest change first; with targets, only theirs."""
    mine, theirs = _compared_figures(own), _compared_figures(other)
    changes = {name: theirs[name][0] / mine[name][0] - 1 for name in mine.keys() & theirs.keys()}
    for name in sorted(changes, key=lambda name: (-abs(changes[name]), name)):
        if abs(changes[name]) > TOLERANCE:
            change = _change(mine[name][0], theirs[name][0])
            yield f"{name} {_amount(*theirs[name])}, not {_amount(*mine[name])} ({change})"


def _compared_figures(summary: Mapping[str, Any]) -> Figures:
    """Values and units of figures, by name."""
    figures: Figures = {}
    for verdict in summary["slo"]:
        of_class = f"{verdict['slo_class']} " if verdict["slo_class"] else ""
        metric, (_, value, _) = METRICS[verdict["metric"]], limit_and_measured(verdict)
        if value:
            figures[f"{of_class}{metric.label} {verdict['stat']}"] = value, metric.unit
    if summary["slo"]:
        return figures
    for metric, stat in shown_in("disagreement"):
        if value := summary["cluster"][metric.key][stat]:
            figures[f"{metric.label} {stat}"] = value, metric.unit
    return figures


def _amount(value: float, unit: Unit) -> str:
    if not unit.is_time:
        return f"{value:,.3g} {unit.name}".rstrip()
    if value >= 10_000:
        return f"{value / 1000:,.3g} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:,.3g} ms"


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.0f} %"
