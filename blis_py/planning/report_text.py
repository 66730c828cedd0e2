"""A plan as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from blis_py.planning.analysis import CHANGE, Case
from blis_py.planning.goal import THROUGHPUTS, Judgement, Requirement
from blis_py.planning.intervals import undecided
from blis_py.planning.knobs import ROUNDS
from blis_py.planning.result import RATE, Candidate, Knobs, PlanResult, Standing
from blis_py.planning.stationary import MIN_FACTOR, HighestRate, Sustained

LOST = "requests lost"
SURE = 0.9
"""Share of the draws below which a surer configuration is shown."""
SAME_RATE = 0.01
NAMES = {"compute": "GPU compute", "host": "the host", "KV": "KV cache memory"}
DISAGREE = 0.25
"""Relative disagreement between latency models from which it is reported."""
DIFFER = "Latency models differ"
"""Begin of the line where they differ so much that it comes first."""
FAR_APART = 1.5
"""Factor between two latency models above which it is the first line of the answer."""


def answer(plan: PlanResult) -> str:
    """The answer in a few lines."""
    return "\n".join(lines(plan))


def lines(plan: PlanResult) -> list[str]:
    """The answer first, then its limits, certainty and provenance; before it what puts it in doubt."""
    best = plan.best
    given = _given_load(plan)
    lines = [
        *_far_apart(plan),
        f"{_verb(plan)}: {best}{_doubt(plan)}",
        f"  {_size(plan)}",
        *_parts(best),
    ]
    room = _room(plan)
    if plan.objective == RATE:
        lines, room = lines + room, []
    if not given or _is_load_given(plan):
        lines += [f"  {_met(each)} {each}{given}" for each in best.judgement.requirements if _shown(each)]
    lines += [*_ended(plan), *_longer(plan)]
    if best.judgement.saturated:
        lines.append("  ✗ the backlog grows: the cluster does not keep up with the load")
    if any(r.what == LOST and not r.met for r in best.judgement.requirements):
        lines.append(f"  ✗ {_lost(best)} are lost: rejected, too long for the KV cache, or timed out")
    lines += [*room, *_binding(plan), *_tried(plan), *_runner_up(plan)]
    lines += [*_probability(plan), *_agreement(plan)]
    if plan.standings:
        lines.append(_searched(plan))
    return lines + [f"Note: {note}" for note in plan.notes]


def _ended(plan: PlanResult) -> list[str]:
    """The limits of an answer that came early."""
    if not plan.ended:
        return []
    others = "no other settings" if plan.knobs is None else "few other settings"
    return [
        f"  so far ({plan.ended}): not run for longer, {others} tried; highest rate, bottleneck and "
        "confidence are not known"
    ]


def _given_load(plan: PlanResult) -> str:
    """The load to which figures beside a highest rate belong."""
    return " at the load given" if plan.objective == RATE else ""


def _is_load_given(plan: PlanResult) -> bool:
    """Whether a rate, a trace or a spec says how much load there is."""
    load = plan.config.workload
    return plan.rate is None or any(each is not None for each in (load.rate, load.trace, load.spec))


def _shown(requirement: Requirement) -> bool:
    return requirement.unit != "share" or bool(requirement.limit)


def why_second(plan: PlanResult) -> str | None:
    """The disadvantage of the runner-up."""
    best, second = plan.best, plan.runner_up
    if second is None:
        return None
    if best.dollars_per_hour is not None and second.dollars_per_hour is not None:
        more = second.dollars_per_hour - best.dollars_per_hour
        if more > 0.005:
            return f"${second.dollars_per_hour:,.2f} an hour, ${more:,.2f} more"
        same = f"the same ${best.dollars_per_hour:,.2f} an hour"
    else:
        if second.gpus > best.gpus:
            return f"{second.gpus} GPUs instead of {best.gpus}; no price to compare"
        same = f"the same number of GPUs ({best.gpus}); no price to compare"
    slack, other = best.judgement.slack, second.judgement.slack
    if other < slack and str(second.judgement.tightest) != str(best.judgement.tightest):
        return f"{same}, and closer to a limit: {second.judgement.tightest}"
    return f"{same} and the same latencies; the first one listed is taken"


class OfModel(NamedTuple):
    """The answer under another latency model."""

    name: str
    tightest: Requirement | None
    """The target that is tightest in the plan."""
    farthest: Requirement | None
    """The target whose figure differs most."""
    factor: float
    """Larger over smaller of the two figures of that target; infinite if one of them is never reached."""
    holds: bool
    refused: str | None


def of_models(plan: PlanResult) -> list[OfModel]:
    """Results of the other latency models, compared on every target."""
    tightest, mine = plan.best.judgement.tightest, plan.best.judgement.requirements
    rows = []
    for case in plan.models:
        theirs = {each.what: each for each in case.judgement.requirements}
        own = theirs.get(tightest.what) if tightest else None
        pairs = [
            (_factor(each, theirs[each.what]), theirs[each.what]) for each in mine if each.what in theirs
        ]
        factor, farthest = max(pairs, key=lambda pair: pair[0], default=(1.0, None))
        name = case.name.removeprefix("model ")
        rows.append(OfModel(name, own, farthest, factor, case.judgement.holds, case.judgement.refused))
    return rows


def _factor(one: Requirement, other: Requirement) -> float:
    """Larger over smaller of two figures of a target."""
    if one.unit == "share" or not (one.measured or other.measured):
        return 1.0
    if not (one.measured and other.measured):
        return inf
    return max(one.measured / other.measured, other.measured / one.measured)


def _verb(plan: PlanResult) -> str:
    if plan.objective == RATE:
        return "Cluster" if not plan.rated else "Configuration with the highest rate"
    if not plan.holds:
        return "No configuration tried meets all targets; nearest"
    sure = "" if plan.confidence is None else f" in {100 * plan.confidence:g} % of the draws"
    return f"Cheapest configuration that meets all targets{sure}"


def _doubt(plan: PlanResult) -> str:
    """The confidence of an answer, where it is low."""
    share = None if plan.objective == RATE or not plan.holds else plan.probability
    return "" if share is None or share >= SURE else f" (confidence {100 * share:.0f} %)"


def _size(plan: PlanResult) -> str:
    best = plan.best
    text = f"{best.gpus} GPU{'s' if best.gpus > 1 else ''}"
    if best.dollars_per_hour is None:
        return text
    text += f", ${best.dollars_per_hour:,.2f} an hour"
    million, total = plan.dollars_per_million("output"), plan.dollars_per_million("total")
    if million is None or total is None:
        return text
    at = ""
    if plan.objective == RATE:
        at = " at the highest rate" if plan.max_rate_per_s else " at the load given"
    return f"{text}; ${million:,.2f} per million output tokens, ${total:,.2f} per million tokens in all{at}"


def _parts(best: Candidate) -> list[str]:
    """GPUs and price of each pool, if there are several."""
    if len(best.parts) < 2:
        return []
    return [
        f"    {part.name}: {part.gpus} × {part.gpu}"
        + ("" if part.dollars_per_hour is None else f", ${part.dollars_per_hour:,.2f} an hour")
        for part in best.parts
    ]


def _met(requirement: Requirement) -> str:
    return "✓" if requirement.met else "✗"


def _lost(best: Candidate) -> str:
    lost = next(r for r in best.judgement.requirements if r.what == LOST)
    return f"{100 * (lost.measured or 0):.2f} % of the requests"


def _longer(plan: PlanResult) -> list[str]:
    """The configuration over longer durations, and a cheaper one that only survives the burst."""
    longer, lines = plan.sustained, []
    if longer is not None and longer.begun > 1:
        lines = [f"  {_begun(plan)}"]
    if longer is not None and longer.length > longer.begun:
        over = f"over {longer.length / longer.begun:.3g} × the duration ({longer.requests:,} requests)"
        failed = "" if longer.judgement.holds else "✗ "
        lines += [f"  {failed}{over}: {_tightest(longer.judgement)}"]
    if longer is not None and longer.on_edge:
        lines += _on_edge(longer)
    elif lines and longer is not None and not longer.settled and longer.judgement.holds:
        lines[-1] += ", not yet stationary"
    if plan.burst is not None:
        lines.append(f"  {plan.burst} meets the targets over {_requests(plan.burst)}, but not over more")
    return lines


def _requests(candidate: Candidate) -> str:
    return f"{candidate.outcome.facts.get('requests', 0):,} requests"


def _on_edge(longer: Sustained) -> list[str]:
    """Targets within the error of the longest run."""
    by = {each.what: each for each in longer.judgement.requirements}
    lines = []
    for text, interval in undecided(longer.outcome):
        each = by.get(text.partition("=")[0])
        if each is not None:
            lines.append(f"  {_unsure(each, *interval, longer.requests)}")
    return lines


def _unsure(each: Requirement, low: float | None, high: float | None, requests: int) -> str:
    if high is None or low is None:
        return f"{requests:,} requests are too few to be sure of {each.title}: raise --most-requests"
    least, most = (f"{end:,.4g}{each.unit and ' ' + each.unit}" for end in (low, high))
    return (
        f"on the edge: {each.title} is {least} to {most}, with 99 % confidence; other requests of this load "
        f"may {'miss' if each.met else 'meet'} the target"
    )


def _begun(plan: PlanResult) -> str:
    """The reason why candidates are judged by a longer run than given."""
    facts = plan.best.outcome.facts
    requests, at_once = facts["requests"], facts["at_once"]
    text = f"judged over {requests:,} requests of this load"
    if not at_once:
        return text
    return f"{text}: with fewer, the {at_once:,} sent at once at the start would dominate the tail"


def _tightest(judgement: Judgement) -> str:
    return str(judgement.tightest) if judgement.holds else str(judgement)


def _room(plan: PlanResult) -> list[str]:
    rate = plan.rate
    if rate is None:
        return []
    if rate.factor is None:
        missed = [each.what for each in plan.best.judgement.requirements if not each.met]
        if too_few := [what for what in missed if what in THROUGHPUTS]:
            return [f"Highest rate: none; a lower rate misses {' and '.join(too_few)} as well"]
        more = "" if plan.objective == RATE else ", so more instances do not help"
        return [f"Highest rate: none; even {100 * MIN_FACTOR:g} % of the load misses a target{more}"]
    if rate.per_s is None:
        return []
    over = f"over {rate.requests:,} requests, {_duration(rate.span_s)}"
    burst = not rate.settled and rate.bounds is None
    kind = f"Highest rate of a burst of {_duration(rate.span_s)}" if burst else "Highest rate"
    if rate.broken is None:
        return [f"{kind}: beyond {rate.per_s:,.3g} requests/s, where the search ended ({over})"]
    offered = _offered(plan, rate.per_s / rate.factor)
    text = f"{kind}: {rate.per_s:,.3g} requests/s ({rate.factor:.2f} × {offered}; {over})"
    if burst:
        text += "; a longer run may sustain less: give more requests"
    lines = [text, f"  just above it: {rate.broken}", *_bounds(rate)]
    if not plan.holds and plan.objective != RATE and rate.factor >= 1:
        few = f"{plan.best.outcome.facts.get('requests', 0):,} requests"
        lines.append(f"  {few} of this load miss a target that a longer run meets: give more requests")
    return lines


def bounds_text(rate: HighestRate) -> str:
    """The rates between which the highest lies; empty if it is known to 5 %, or of a recorded load."""
    if rate.settled or rate.bounds is None:
        return ""
    least, most = (None if each is None else f"{rate.per_s_at(each):,.3g}" for each in rate.bounds[:2])
    if least is None or most is None:
        return f"above {least}" if least is not None else f"below {most}" if most is not None else "uncertain"
    return f"{least} to {most}"


def _bounds(rate: HighestRate) -> list[str]:
    text = bounds_text(rate)
    if not text or rate.bounds is None:
        return []
    if text == "uncertain":
        return [f"  these {rate.bounds.requests:,} requests are too few to bound it: raise --most-requests"]
    over = f"{rate.bounds.requests:,} requests"
    return [f"  with 99 % confidence, for other requests of this load: {text} requests/s ({over})"]


def _offered(plan: PlanResult, offered: float) -> str:
    """The offered rate, and the configured one if they differ."""
    typed = plan.config.workload.rate
    if typed is None or abs(offered / typed - 1) < SAME_RATE:
        return f"the {offered:,.3g} offered"
    return f"the {offered:,.3g} offered by these requests at rate {typed:g}"


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:,.3g} s"


def _binding(plan: PlanResult) -> list[str]:
    if plan.binding is None:
        return []
    short = plan.short
    if short is None:
        return [f"Bottleneck: {plan.binding}."]
    change = f"would improve the tightest target by {100 * short.gain:.0f} %"
    return [f"Bottleneck: {NAMES.get(plan.binding, plan.binding)}. {_first_upper(short.how)} {change}."]


def _first_upper(text: str) -> str:
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def _tried(plan: PlanResult) -> list[str]:
    """Settings tried around the winner, and what they save."""
    knobs = plan.knobs
    if knobs is None or not knobs.tried:
        return []
    named = "; ".join(f"{name} {_values(values)}" for name, values in knobs.tried.items())
    if knobs.before is not None:
        saved = _saving(knobs.before, plan.best)
        return [
            f"Settings tried: {named}.",
            f"  With the settings as given it takes {knobs.before}: {saved}.",
        ]
    if plan.holds and any(name in plan.best.point for name in knobs.tried):
        return [f"Settings tried: {named}.", "  With the settings as given nothing meets the targets."]
    return [f"Settings tried: {named}.", f"  {_in_vain(knobs, 'lowers the cost' if plan.holds else None)}"]


def _in_vain(knobs: Knobs, wanted: str | None) -> str:
    """The extent of a search for settings that found none."""
    none = f"none of which {wanted or 'meets the targets'}"
    if knobs.judged >= knobs.possible:
        return f"All {knobs.possible:,} combinations were tried, {none}."
    return (
        f"{knobs.judged:,} of {knobs.possible:,} combinations were tried, {none}: one setting is changed at "
        f"a time, up to {ROUNDS} in a row, at the sizes next to the answer."
    )


def _values(values: Sequence[object]) -> str:
    if all(isinstance(each, int) for each in values):
        numbers = sorted(values)  # type: ignore[type-var]
        return f"{numbers[0]:,} to {numbers[-1]:,}"
    return ", ".join(map(str, values))


def _saving(before: Candidate, after: Candidate) -> str:
    if before.dollars_per_hour is None or after.dollars_per_hour is None:
        return f"{before.gpus} GPUs instead of {after.gpus}"
    more = before.dollars_per_hour - after.dollars_per_hour
    return f"${before.dollars_per_hour:,.2f} an hour, ${more:,.2f} more"


def _runner_up(plan: PlanResult) -> list[str]:
    return [] if plan.runner_up is None else [f"Runner-up: {plan.runner_up}: {why_second(plan)}"]


def _probability(plan: PlanResult) -> list[str]:
    if not plan.holds:
        return []
    if plan.probability is None:
        if plan.error is not None or plan.draws:
            return []
        model = plan.config.latency.model
        return [f"Confidence: {'unknown, no runs validate ' + model if plan.drawn else 'not estimated'}"]
    error = plan.error
    assert error is not None
    held = sum(case.judgement.holds for case in plan.draws)
    lines = [
        f"Confidence{_given_load(plan)}: all targets are met in {held} of {len(plan.draws)} draws "
        f"({100 * plan.probability:.0f} %) of the prediction's error and of the requests",
        f"  errors drawn from {error.source}{'; too few to rely on' if error.few else ''}",
    ]
    if plan.probability < SURE:
        lines.append(f"  Warning: below {100 * SURE:.0f} %: the real servers may well miss a target")
    if plan.surer is not None and plan.surer_holds is not None:
        share = f"{100 * plan.surer_holds:.0f} %"
        lines.append(f"  cheapest at 90 %: {plan.surer}, {_price(plan.surer)} ({share})")
    elif plan.probability < min(SURE, plan.confidence or SURE) and plan.standings:
        lines.append("  no configuration searched meets all targets in 90 % of the draws")
    if plan.central is not None and plan.central_holds is not None:
        share = f"{100 * plan.central_holds:.0f} % of the draws"
        lines.append(f"  cheapest by the prediction alone: {plan.central}, {_price(plan.central)} ({share})")
    return lines + _needed(plan)


def _needed(plan: PlanResult) -> list[str]:
    """Numbers of instances between which the truth lies in eight of ten draws."""
    best, surer = plan.best, plan.surer
    if plan.fewest is None or plan.probability is None or best.parts:
        return []
    most = best.instances if plan.probability >= SURE else None
    if surer is not None and surer.point == best.point:
        most = surer.instances
    if most is None:
        several = "instances are" if plan.fewest > 1 else "instance is"
        return [f"  with these settings, at least {plan.fewest} {several} needed in nine of ten draws"]
    if most == plan.fewest:
        return []
    return [f"  with these settings, {plan.fewest} to {most} instances are needed in eight of ten draws"]


def _price(candidate: Candidate) -> str:
    cost = candidate.dollars_per_hour
    return f"{candidate.gpus} GPUs" if cost is None else f"${cost:,.2f} an hour"


def _agreement(plan: PlanResult) -> list[str]:
    """The other latency models, where one of them contradicts the answer in any target."""
    parts, apart = [], False
    for model in of_models(plan):
        shown = model.tightest if model.factor <= 1 + DISAGREE else model.farthest
        if model.refused is not None or shown is None or shown.measured is None:
            continue
        agrees = model.holds == plan.holds and model.factor <= 1 + DISAGREE
        parts.append(f"{model.name} {'agrees' if agrees else 'does not agree'}: {shown}")
        apart |= not agrees
    return [f"Other latency models: {'; '.join(parts)}"] if apart else []


def _far_apart(plan: PlanResult) -> list[str]:
    """Latency models between which a target differs so much that the answer depends on the model."""
    mine = {each.what: each for each in plan.best.judgement.requirements}
    return [
        f"{DIFFER}{f' by {model.factor:.1f} ×' if model.factor < inf else ''}: {mine[model.farthest.what]}; "
        f"by {model.name} {_digits_of(model.farthest)}"
        for model in of_models(plan)
        if model.refused is None and model.farthest is not None and model.factor > FAR_APART
    ]


def _digits_of(requirement: Requirement) -> str:
    """The figure of a target without the target."""
    return str(requirement).removeprefix(requirement.title).partition(" (target")[0].strip()


def _searched(plan: PlanResult) -> str:
    looked = [each for each in plan.standings if not _added(plan, each)]
    tried = sum(each.tried for each in looked)
    text = f"Searched: {tried:,} of {plan.lines:,} combinations of settings, {plan.simulated:,} runs"
    if plan.known:
        text += f", {plan.known:,} more from the cache"
    if len(looked) < plan.lines:
        return text + "; a combination that was not tried may be cheaper"
    return text + ("; the others cost more" if tried < plan.lines else "")


def _added(plan: PlanResult, standing: Standing) -> bool:
    """Whether a combination was added when settings were tried."""
    return len(standing.point) > min(len(each.point) for each in plan.standings)


def change_names(cases: Iterable[Case]) -> dict[str, tuple[Case, Case]]:
    """Sensitivity runs by the varied property: a fifth lower, and a fifth higher."""
    pairs: dict[str, list[Case]] = {}
    for case in cases:
        pairs.setdefault(case.name.partition("×")[0], []).append(case)
    return {name: (pair[0], pair[1]) for name, pair in pairs.items() if len(pair) == 2 and CHANGE}
