"""Length of a run from which a closed loop is judged in its steady state instead of at its start.

The clients of a closed loop send their first requests at once. Of a short run these are so many that they
decide its percentiles, which then depend on the number of requests and not on the load.
"""

from __future__ import annotations

import math
import re

from blis_py.planning.goal import Goal
from blis_py.planning.job import JobOutcome

LEAST_REQUESTS = 2000
"""Fewest requests of a run from which a percentile is taken for stationary."""
_OF_TAIL = 0.25
"""Largest share of the requests beyond a percentile that the start may make up."""
_MEAN = 0.04
"""Share of the requests that may move a mean like a percentile's tail."""
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")


def requests_needed(outcome: JobOutcome, goal: Goal) -> int:
    """Fewest requests at which the start of a closed loop no longer decides a target; 0 of an open loop."""
    if not outcome.facts.get("closed"):
        return 0
    tails = [tail for each in outcome.slo if (tail := _tail(each["stat"]))]
    tails += [1 - share for share in goal.attainment.values() if share < 1]
    of_start: float = outcome.facts["at_once"] / (_OF_TAIL * min(tails, default=_MEAN))
    return max(math.ceil(round(of_start / 100, 6)) * 100, LEAST_REQUESTS)


def steady_length(outcome: JobOutcome, goal: Goal) -> float:
    """Factor on the number of requests to reach the steady state, as far as a run may be that long."""
    needed = min(requests_needed(outcome, goal), goal.most_in_loops)
    requests: int = outcome.facts.get("requests", 0)
    return max(needed / max(requests, 1), 1.0)


def is_steady(outcome: JobOutcome, goal: Goal) -> bool:
    """Whether a run of a closed loop is long enough; False of an open loop."""
    return bool(0 < requests_needed(outcome, goal) <= outcome.facts["requests"])


def _tail(stat: str) -> float | None:
    """The share of requests that decides a statistic; None of extremes, which are always single requests."""
    if stat == "mean":
        return _MEAN
    found = _PERCENTILE.fullmatch(stat)
    return 1 - float(found[1]) / 100 if found is not None else None
