"""Length of a run from which a candidate is judged by the load, not by the few requests that were given.

A generated workload of few requests is a sample: one burst of it decides a percentile. And the clients of a
closed loop send their first requests at once: of a short run these are so many that its percentiles depend on
the number of requests and not on the load.
"""

from __future__ import annotations

import math
import re

from blis_py.metrics.load import TOO_SHORT
from blis_py.planning.goal import Goal
from blis_py.planning.job import JobOutcome

MIN_REQUESTS = 2000
"""Fewest requests of a run from which a percentile is taken for stationary."""
_BURSTS = 200
"""Fewest requests in bursts of the arrivals' variance over mean, of such a run."""
_OF_TAIL = 0.25
"""Largest share of the requests beyond a percentile that the start may make up."""
_MEAN = 0.04
"""Share of the requests that may move a mean like a percentile's tail."""
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")


def requests_needed(outcome: JobOutcome, goal: Goal) -> int:
    """Fewest requests at which neither chance nor the start of a closed loop decides a target; 0 of an open
    loop that was recorded, which is what it is."""
    if not outcome.facts.get("closed"):
        return MIN_REQUESTS if outcome.facts.get("generated") else 0
    tails = [tail for each in outcome.slo if (tail := _tail(each["stat"]))]
    tails += [1 - share for share in goal.attainment.values() if share < 1]
    of_start: float = outcome.facts["at_once"] / (_OF_TAIL * min(tails, default=_MEAN))
    return max(math.ceil(round(of_start / 100, 6)) * 100, MIN_REQUESTS)


def steady_length(outcome: JobOutcome, goal: Goal) -> float:
    """Factor on the number of requests to reach the steady state, as far as a run may be that long."""
    closed = outcome.facts.get("closed")
    needed = min(requests_needed(outcome, goal), goal.most_extended if closed else goal.most_requests)
    requests: int = outcome.facts.get("requests", 0)
    return max(needed / max(requests, 1), 1.0)


def is_enough(outcome: JobOutcome) -> bool:
    """Whether a run has enough requests, and independent bursts of them, for a percentile."""
    facts, needed = outcome.facts, float(MIN_REQUESTS)
    if facts.get("generated"):
        needed = max(needed, _BURSTS * facts.get("dispersion", 1.0))
    return bool(facts["requests"] >= needed and outcome.verdict != TOO_SHORT)


def most_requests(outcome: JobOutcome, goal: Goal) -> int:
    """Requests of the longest run of a candidate: more where more can be generated than recorded."""
    return goal.most_extended if outcome.facts.get("generated") else goal.most_requests


def is_steady(outcome: JobOutcome, goal: Goal) -> bool:
    """Whether a run of a closed loop is long enough; False of an open loop."""
    closed = outcome.facts.get("closed", False)
    return bool(closed and requests_needed(outcome, goal) <= outcome.facts["requests"])


def _tail(stat: str) -> float | None:
    """The share of requests that decides a statistic; None of extremes, which are always single requests."""
    if stat == "mean":
        return _MEAN
    match = _PERCENTILE.fullmatch(stat)
    return 1 - float(match[1]) / 100 if match is not None else None
