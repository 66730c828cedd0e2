"""The smallest scenario that still shows a property, found by leaving things out."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator

from benchmarks.engines.scenario import RequestSpec, Scenario, answer_limit, prompt_tokens

Shows = Callable[[Scenario], bool]
_NUMBERS = ("step", "output_tokens", "max_tokens", "priority")


def shrunk(scenario: Scenario, shows: Shows, limit_s: float = 30.0) -> Scenario:
    """A scenario with fewer requests and smaller numbers that still shows what the given one shows.

    Args:
        shows: whether a scenario shows it; true of the given one.
        limit_s: time after which the smallest so far is returned.
    """
    end_s = time.monotonic() + limit_s
    improved = True
    while improved:
        improved = False
        for smaller in _smaller(scenario):
            if time.monotonic() > end_s:
                return scenario
            if shows(smaller):
                scenario, improved = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with something left out, the largest parts first."""
    count = len(scenario["requests"])
    size = count // 2
    while size:
        for first in range(0, count, size):
            yield _without(scenario, first, first + size)
        size //= 2
    for index, request in enumerate(scenario["requests"]):
        for simpler in _simpler(request):
            if simpler != request:
                smaller = copy.deepcopy(scenario)
                smaller["requests"][index] = simpler
                if _is_valid(smaller):
                    yield smaller


def _without(scenario: Scenario, first: int, end: int) -> Scenario:
    """A scenario without some requests, and without those that would follow them."""
    smaller = copy.deepcopy(scenario)
    gone = {request["id"] for request in smaller["requests"][first:end]}
    kept: list[RequestSpec] = []
    for request in smaller["requests"]:
        if request["id"] in gone or request.get("after") in gone:
            gone.add(request["id"])
        else:
            kept.append(request)
    smaller["requests"] = kept
    return smaller


def _simpler(request: RequestSpec) -> Iterator[RequestSpec]:
    if "abort_step" in request:
        simpler = copy.deepcopy(request)
        del simpler["abort_step"]
        yield simpler
    for key in _NUMBERS:
        value = request[key]  # type: ignore[literal-required]
        for less in dict.fromkeys((0, value // 2, value - 1)):
            if 0 <= less < value and not (key == "output_tokens" and less < 1):
                simpler = copy.deepcopy(request)
                simpler[key] = less  # type: ignore[literal-required]
                yield simpler
    for run, (_, count) in enumerate(request["prompt"]):
        for less in sorted({0, count // 2, count - 1}):
            simpler = copy.deepcopy(request)
            simpler["prompt"][run][1] = less
            simpler["prompt"] = [each for each in simpler["prompt"] if each[1]]
            if simpler["prompt"]:
                simpler["shared_tokens"] = min(simpler["shared_tokens"], prompt_tokens(simpler))
                yield simpler


def _is_valid(scenario: Scenario) -> bool:
    """Whether every request keeps its limits."""
    return all(
        0 < each["output_tokens"] <= answer_limit(scenario, each)
        and prompt_tokens(each) + each["max_tokens"] <= scenario["max_model_len"]
        for each in scenario["requests"]
    )
