"""A plan as data, for JSON."""

from __future__ import annotations

from typing import Any

from blis_py.config.loader import as_dict
from blis_py.planning.analysis import Case
from blis_py.planning.goal import as_dict as judgement_dict
from blis_py.planning.report_text import why_second
from blis_py.planning.result import Candidate, Knobs, PlanResult
from blis_py.planning.stationary import HighestRate


def summary(plan: PlanResult) -> dict[str, Any]:
    """The complete plan, for JSON."""
    return {
        "holds": plan.holds,
        "ended": plan.ended or None,
        "objective": plan.objective,
        "best": {
            **_candidate(plan.best),
            "dollars_per_million_output_tokens": plan.dollars_per_million("output"),
            "dollars_per_million_tokens": plan.dollars_per_million("total"),
        },
        "sustained": _sustained(plan),
        "burst": None if plan.burst is None else _candidate(plan.burst),
        "settings_tried": None if plan.knobs is None else _knobs(plan.knobs),
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
            **_rate(plan.rate),
        },
        "probability": {
            "holds": plan.probability,
            "draws": len(plan.draws),
            "demanded": plan.confidence,
            "source": None if plan.error is None else plan.error.source,
            "validated_runs": None if plan.error is None else plan.error.runs,
            "mean_step_time_error": None if plan.error is None else plan.error.typical,
            "surer": None if plan.surer is None else _candidate(plan.surer),
            "surer_holds": plan.surer_holds,
            "fewest_instances": plan.fewest,
            "central": None if plan.central is None else _candidate(plan.central),
            "central_holds": plan.central_holds,
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


def _sustained(plan: PlanResult) -> dict[str, Any] | None:
    longer = plan.sustained
    if longer is None:
        return None
    fields = {
        "length": longer.length,
        "requests": longer.requests,
        "settled": longer.settled,
        "on_the_edge": longer.on_edge,
        "intervals": longer.outcome.facts.get("intervals", {}),
    }
    return fields | judgement_dict(longer.judgement)


def _rate(rate: HighestRate | None) -> dict[str, Any]:
    if rate is None:
        return {}
    bounds = rate.bounds
    ends = () if bounds is None else bounds[:2]
    return {
        "settled": rate.settled,
        "length": rate.length,
        "requests": rate.requests,
        "span_s": rate.span_s,
        "bounds_per_s": [None if each is None else rate.per_s_at(each) for each in ends] or None,
    }


def _knobs(knobs: Knobs) -> dict[str, Any]:
    return {
        "tried": {name: list(values) for name, values in knobs.tried.items()},
        "kept": list(knobs.kept),
        "judged": knobs.judged,
        "possible": knobs.possible,
        "as_given": None if knobs.before is None else _candidate(knobs.before),
    }


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
        **({"pools": [part._asdict() for part in candidate.parts]} if candidate.parts else {}),
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


def _finite(value: float) -> float | None:
    return None if value in (float("inf"), float("-inf")) else value
