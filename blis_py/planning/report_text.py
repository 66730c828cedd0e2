"""A plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from blis_py.config.loader import as_dict
from blis_py.planning.analysis import CHANGE, MORE, Case
from blis_py.planning.goal import Requirement
from blis_py.planning.goal import as_dict as judgement_dict
from blis_py.planning.result import Candidate, PlanResult

DISAGREE = 0.25
"""Relative disagreement between latency models from which it is reported."""


def answer(plan: PlanResult) -> str:
    """The answer in a few lines."""
    return "\n".join(lines(plan))


def lines(plan: PlanResult) -> list[str]:
    """The answer, its assumptions, and its limits."""
    best = plan.best
    lines = [f"{_verb(plan)}: {best} ({best.gpus} GPU{'s' if best.gpus > 1 else ''}{_cost(best)})"]
    lines += [
        f"  {_met(each)} {each}" for each in best.judgement.requirements if each.unit == "ms" or each.limit
    ]
    if best.judgement.saturated:
        lines.append("  ✗ the backlog grows: it does not keep up with the load")
    if any(r.what == "requests lost" and not r.met for r in best.judgement.requirements):
        lines.append(f"  ✗ {_lost(best)} are lost: rejected, never servable, or out of patience")
    lines += [*_room(plan), *_binding(plan), *_runner_up(plan), *_probability(plan), *_agreement(plan)]
    if plan.standings:
        lines.append(_searched(plan))
    return lines + [f"note: {note}" for note in plan.notes]


def summary(plan: PlanResult) -> dict[str, Any]:
    """The complete plan, for JSON."""
    return {
        "holds": plan.holds,
        "objective": plan.objective,
        "best": _candidate(plan.best),
        "runner_up": None if plan.runner_up is None else _candidate(plan.runner_up),
        "why_runner_up_lost": why_second(plan),
        "binding_constraint": plan.binding,
        "levers": [{"resource": x.resource, "how": x.how, "gain": x.gain} for x in plan.levers],
        "headroom": {
            "tightest": None if plan.best.judgement.tightest is None else plan.best.judgement.tightest.what,
            "slack": _finite(plan.best.judgement.slack),
            "max_rate_factor": plan.max_rate_factor,
            "max_rate_per_s": plan.max_rate_per_s,
            "breaks": None if plan.broken is None else str(plan.broken),
        },
        "probability": {
            "holds": plan.probability,
            "draws": len(plan.draws),
            "step_time_bias": None if plan.error is None else plan.error.bias,
            "step_time_deviation": None if plan.error is None else plan.error.deviation,
            "source": None if plan.error is None else plan.error.source,
            "with_one_instance_more": _share(plan.one_more),
        },
        "sensitivity": [_case(case) for case in plan.sensitivity],
        "latency_models": [_case(case) for case in plan.models],
        "standings": [_standing(each) for each in plan.standings],
        "search": {"combinations": plan.lines, "simulated": plan.simulated, "known": plan.known},
        "notes": list(plan.notes),
        "capacity": plan.best.outcome.facts.get("capacity"),
        "models": plan.best.outcome.facts.get("models"),
        "config": as_dict(plan.config),
    }


def why_second(plan: PlanResult) -> str | None:
    """The disadvantage of the runner-up."""
    best, second = plan.best, plan.runner_up
    if second is None:
        return None
    if plan.objective == "GPUs" or best.dollars_per_hour is None or second.dollars_per_hour is None:
        ours, theirs, what = float(best.gpus), float(second.gpus), "GPUs"
    else:
        ours, theirs, what = best.dollars_per_hour, second.dollars_per_hour, "per hour"
    if theirs > ours and what == "GPUs":
        return f"{theirs:g} GPUs instead of {ours:g}"
    if theirs > ours:
        return f"${theirs:,.2f} an hour, ${theirs - ours:,.2f} more"
    slack, other = best.judgement.slack, second.judgement.slack
    if other < slack:
        left = f"{100 * other:.1f} % of a limit left, not {100 * slack:.1f} %"
        return f"the same cost, with less to spare ({second.judgement.tightest}: {left})"
    return "the same cost and the same figures: the first in the space is taken"


def of_models(plan: PlanResult) -> list[tuple[str, Requirement | None, bool, str | None]]:
    """Results of the other latency models: name, tightest requirement, whether all targets are met, and the
    reason if the model does not apply."""
    tightest = plan.best.judgement.tightest
    rows = []
    for case in plan.models:
        own = next((r for r in case.judgement.requirements if tightest and r.what == tightest.what), None)
        rows.append((case.name.removeprefix("model "), own, case.judgement.holds, case.judgement.refused))
    return rows


def _verb(plan: PlanResult) -> str:
    if plan.objective == "the rate":
        return "given"
    return "cheapest that holds" if plan.holds else "nothing holds; nearest to it"


def _cost(best: Candidate) -> str:
    if best.dollars_per_hour is None:
        return ""
    text = f", ${best.dollars_per_hour:,.2f} an hour"
    million = best.dollars_per_million("output")
    total = best.dollars_per_million("total")
    if million is None or total is None:
        return text
    return f"{text}, ${million:,.2f} per million output tokens, ${total:,.2f} per million in all"


def _met(requirement: Requirement) -> str:
    return "✓" if requirement.met else "✗"


def _lost(best: Candidate) -> str:
    lost = next(r for r in best.judgement.requirements if r.what == "requests lost")
    return f"{100 * (lost.measured or 0):.2f} % of the requests"


def _room(plan: PlanResult) -> list[str]:
    offered, rate = plan.best.outcome.facts.get("offered_per_s"), plan.max_rate_per_s
    if plan.max_rate_factor is None or offered is None:
        return []
    if plan.broken is None:
        return [f"highest rate: beyond {rate:,.3g} requests/s, where the search ended"]
    text = f"highest rate: {rate:,.3g} requests/s ({plan.max_rate_factor:.2f} × the {offered:,.3g} offered)"
    return [f"{text}; a little above it {plan.broken}"]


def _binding(plan: PlanResult) -> list[str]:
    if plan.binding is None:
        return []
    text, short = f"what binds: {plan.binding}", plan.short
    if short is None:
        return [text]
    more = f"{100 * (MORE - 1):.0f} % more"
    return [f"{text} ({short.how}, {more}: what is tightest gets {_better(short.gain)})"]


def _better(gain: float) -> str:
    return f"{100 * gain:.0f} % better" if gain >= 0 else f"{-100 * gain:.0f} % worse"


def _runner_up(plan: PlanResult) -> list[str]:
    return [] if plan.runner_up is None else [f"runner-up: {plan.runner_up}: {why_second(plan)}"]


def _probability(plan: PlanResult) -> list[str]:
    if not plan.holds:
        return []
    if plan.probability is None:
        if plan.error is not None:
            return []
        model = plan.config.latency.model
        return [f"how sure: nothing is known of the errors of {model}, so there is no probability"]
    error = plan.error
    assert error is not None
    held = sum(case.judgement.holds for case in plan.draws)
    text = f"how sure: holds in {held} of {len(plan.draws)} draws ({100 * plan.probability:.0f} %)"
    more = []
    if plan.one_more:
        held = sum(case.judgement.holds for case in plan.one_more)
        more = [f"  one instance more holds in {held} of {len(plan.one_more)}{_cost_of_one_more(plan)}"]
    return [
        f"{text} of step times off by {100 * error.deviation:.1f} % (standard deviation): {error.source}",
        *more,
    ]


def _cost_of_one_more(plan: PlanResult) -> str:
    cost = plan.best.dollars_per_hour
    return (
        ""
        if cost is None
        else f", for ${cost / plan.best.instances * (plan.best.instances + 1):,.2f} an hour"
    )


def _agreement(plan: PlanResult) -> list[str]:
    tightest = plan.best.judgement.tightest
    if not plan.models or tightest is None:
        return []
    parts = []
    apart = False
    for name, own, holds, refused in of_models(plan):
        if refused is not None:
            parts.append(f"{name} does not apply")
        elif own is None or own.measured is None or not tightest.measured:
            parts.append(f"{name} {'holds' if holds else 'does not hold'}")
        else:
            parts.append(f"{name} {'holds' if holds else 'does not hold'} ({str(own).split(' of ')[0]})")
            apart |= abs(own.measured / tightest.measured - 1) > DISAGREE
    text = f"other latency models: {'; '.join(parts)}"
    return [text, *(["warning: the latency models disagree by more than a quarter"] if apart else [])]


def _searched(plan: PlanResult) -> str:
    looked = len(plan.standings)
    text = f"searched: {looked:,} of {plan.lines:,} combinations of settings, {plan.simulated:,} runs"
    if plan.known:
        text += f" and {plan.known:,} known from before"
    if looked < plan.lines:
        text += "; those not looked at may hold something cheaper"
    return text


def _candidate(candidate: Candidate) -> dict[str, Any]:
    price = candidate.price
    return {
        "what": str(candidate),
        "settings": candidate.point,
        "num_instances": candidate.instances,
        "model": candidate.config.model,
        "gpu": candidate.config.gpu,
        "tp": candidate.config.tp,
        "gpus": candidate.gpus,
        "dollars_per_gpu_hour": None if price is None else price.per_hour,
        "price_source": None if price is None else price.source,
        "dollars_per_hour": candidate.dollars_per_hour,
        "dollars_per_million_output_tokens": candidate.dollars_per_million("output"),
        "dollars_per_million_tokens": candidate.dollars_per_million("total"),
        **judgement_dict(candidate.judgement),
    }


def _case(case: Case) -> dict[str, Any]:
    return {"case": case.name, **judgement_dict(case.judgement)}


def _standing(standing: Any) -> dict[str, Any]:
    return {
        "settings": standing.point,
        "least_instances": standing.least,
        "at_most": standing.at_most,
        "fails_at": standing.fails_at,
        "cost": standing.cost,
        "why": standing.why,
    }


def _share(cases: Sequence[Case]) -> float | None:
    return sum(case.judgement.holds for case in cases) / len(cases) if cases else None


def _finite(value: float) -> float | None:
    return None if value in (float("inf"), float("-inf")) else value


def change_names(cases: Iterable[Case]) -> dict[str, tuple[Case, Case]]:
    """Sensitivity runs by the varied property: a fifth lower, and a fifth higher."""
    pairs: dict[str, list[Case]] = {}
    for case in cases:
        pairs.setdefault(case.name.partition("×")[0], []).append(case)
    return {name: (pair[0], pair[1]) for name, pair in pairs.items() if len(pair) == 2 and CHANGE}
