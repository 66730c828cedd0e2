"""A cheap look at every run: would another latency model have said something else?

The busiest few minutes are simulated under another model as well: there step times matter most, and there
the worst latencies of a run are from. Where what was asked for differs by more than a quarter, or a target
would be missed that is met, the run says so. It costs a small share of the run itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blis_py.api import Simulation
from blis_py.config.models import PLAIN_ENGINE
from blis_py.errors import InputError
from blis_py.result import Result

MODELS = ("trained", "roofline")
"""Whose word counts. `trained-physics` is not among them: it prices long prompts faster than a GPU's
datasheet allows, so it would contradict nearly every run."""
OWN_TRUTH = ("fitted", "linear")
"""Step times that somebody measured on the engine itself, or gave: no formula knows better."""
FIGURES = tuple((metric, stat) for metric in ("ttft", "tpot", "e2e") for stat in ("mean", "p99"))
TOLERANCE = 0.25
SHARE = 0.04
"""Of the requests, for each of two simulations of them."""
FEWEST, FREE, MOST = 50, 200, 2000
"""Requests below which nothing is said, that cost next to nothing, and that are enough."""
FREE_STEPS = 10_000
"""The free ones are fewer where these have more steps than that."""
_TOLD = 3

Figures = dict[str, float]


def disagreements(simulation: Simulation, result: Result) -> tuple[str, ...]:
    """What other latency models say otherwise, a note for each of them that does.

    Nothing under `--engine blis`, whose step times are to be BLIS's; of step times that were measured or
    given; of several pools; where no other model applies; or where the requests are too few to tell.
    """
    if len(simulation.pools) > 1:
        return ()
    if simulation.config.engine == PLAIN_ENGINE or simulation.latency.name in OWN_TRUTH:
        return ()
    others = list(_others(simulation))
    count = _sample(result)
    if not others or count < FEWEST:
        return ()
    whole = result.summary
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
    """How many requests to look at. It depends on the run alone: the same run, the same notes."""
    requests = len(result.record.table)
    steps = sum(instance.steps for instance in result.record.instances)
    free = min(FREE, requests, FREE_STEPS * requests // max(steps, 1))
    return min(max(int(SHARE * requests), free), MOST)


def _run(simulation: Simulation) -> Mapping[str, Any]:
    return simulation.run(record_steps=False).summary


def _note(
    whole: Mapping[str, Any], own: Mapping[str, Any], other: Mapping[str, Any], name: str, where: str
) -> str | None:
    """What the other model says otherwise, or None.

    Args:
        whole, own: what the run came to, and its busiest requests.
        other: what these came to under the other model.
    """
    told = [*_targets(whole, own, other), *_figures(own, other)]
    if not told:
        return None
    return f"{name} says otherwise{where}: {'; '.join(told[:_TOLD])} (--cross-check for the whole run)"


def _targets(whole: Mapping[str, Any], own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Targets that the whole run would miss, or meet, if it differs as the busiest requests do."""
    for verdict, here, there in zip(whole["slo"], own["slo"], other["slo"], strict=True):
        measured, before, after = verdict["measured_ms"], here["measured_ms"], there["measured_ms"]
        if not (measured and before and after):
            continue
        if (measured * after / before <= verdict["limit_ms"]) != verdict["met"]:
            otherwise = "missed" if verdict["met"] else "met"
            yield f"{verdict['slo']} would be {otherwise} ({_change(before, after)})"


def _figures(own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Figures that differ by more than the tolerance, the worst first; where there are targets, theirs."""
    mine, theirs = _asked(own), _asked(other)
    changes = {name: theirs[name] / mine[name] - 1 for name in mine.keys() & theirs.keys() if mine[name]}
    for name in sorted(changes, key=lambda name: (-abs(changes[name]), name)):
        if abs(changes[name]) > TOLERANCE:
            change = _change(mine[name], theirs[name])
            yield f"{name} {_ms(theirs[name])}, not {_ms(mine[name])} ({change})"


def _asked(summary: Mapping[str, Any]) -> Figures:
    """In ms, by name."""
    if summary["slo"]:
        of_class = {v["slo"]: f"{v['slo_class']} " if v["slo_class"] else "" for v in summary["slo"]}
        return {
            f"{of_class[v['slo']]}{v['metric'].upper()} {v['stat']}": v["measured_ms"]
            for v in summary["slo"]
            if v["measured_ms"]
        }
    cluster = summary["cluster"]
    found = {f"{metric.upper()} {stat}": cluster[f"{metric}_ms"][stat] for metric, stat in FIGURES}
    return {name: value for name, value in found.items() if value}


def _ms(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.3g} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:,.3g} ms"


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.0f} %"
