"""Plans in parts: numbers of instances, layouts, the nearest miss, and throughputs above the offered load."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from small_plans import CONFIG, Known

from blis_py.api import configure
from blis_py.errors import InputError
from blis_py.planning.attempt import nearest
from blis_py.planning.axes import Axis, axis
from blis_py.planning.goal import Judgement, Requirement
from blis_py.planning.job import JobOutcome
from blis_py.planning.plan import _is_laid_out, _more_than_offered, _sizes
from blis_py.planning.study import Study


def test_the_nearest_is_the_largest_size_with_the_most_slack() -> None:
    search: Any = Known({(0, 1): -0.5, (1, 1): -0.2, (2, 1): None, (3, 1): -0.2})
    space: Any = SimpleNamespace(sizes=[1, 2], largest=lambda line: 1)
    assert nearest(space, search, [0, 1, 2, 3]) == (1, 1)
    assert search.probes == [(0, 1), (1, 1), (3, 1)]
    with pytest.raises(InputError, match="no configuration can be run: no"):
        nearest(space, search, [2])
    space.largest = lambda line: -1
    with pytest.raises(InputError, match="too few for an instance"):
        nearest(space, search, [0])


PLAIN = Study(start=CONFIG)


@pytest.mark.parametrize(
    ("sizes", "axes", "found"),
    [
        ([3, 1, 3], [], [1, 3]),
        (None, [axis("num_instances", [4, 2])], [2, 4]),
        ([100_000], [], [100_000]),
        (None, [axis("xpyd", ["1p1d", "2"])], [1]),
    ],
)
def test_numbers_of_instances_are_in_order(sizes: Any, axes: list[Axis], found: list[int]) -> None:
    tried, others = _sizes(sizes, axes, PLAIN)
    assert tried == found
    assert [each.name for each in others] == [each.name for each in axes if each.name == "xpyd"]


@pytest.mark.parametrize(
    ("sizes", "axes", "message"),
    [
        ([0], [], "whole numbers from 1"),
        ([100_001], [], "whole numbers from 1"),
        ([True], [], "whole numbers from 1"),
        ([1.0], [], "whole numbers from 1"),
        ([], [], "has no values"),
        ([1], [axis("num_instances", [1])], "given by --instances, too"),
        ([1], [axis("xpyd", ["1p1d"])], "contradicts the instances of each side"),
        (
            None,
            [axis("xpyd", ["1p1d"]), axis("num_instances", [1])],
            "contradicts the instances of each side",
        ),
    ],
)
def test_other_numbers_of_instances_are_refused(sizes: Any, axes: list[Axis], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _sizes(sizes, axes, PLAIN)


def test_a_layout_is_one_that_is_varied_or_given() -> None:
    assert not _is_laid_out(PLAIN, [])
    assert not _is_laid_out(Study(), [axis("model", ["llama-3.1-8b"])])
    assert _is_laid_out(PLAIN, [axis("tp", [1]), axis("xpyd", ["1p1d"])])
    assert _is_laid_out(Study(start=configure(model="llama-3.1-8b", num_requests=5, xpyd="1p1d")), [])


def missing(*missed: tuple[str, float, float], **more: Any) -> Any:
    requirements = tuple(
        Requirement(what, limit, measured, "per s", measured / limit - 1) for what, limit, measured in missed
    )
    judged = Judgement(False, requirements, saturated=more.pop("saturated", False))
    concurrency = more.pop("concurrency", None)
    config = replace(CONFIG, workload=replace(CONFIG.workload, concurrency=concurrency))
    return SimpleNamespace(judgement=judged, config=config, outcome=JobOutcome(facts=more))


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (missing(("requests_per_s", 10, 8.25)), "requests_per_s 8.25"),
        (missing(("requests_per_s", 10, 8), ("ttft.p99", 10, 8)), ""),
        (missing(("goodput_per_s", 10, 8), offered_per_s=9.9), "goodput_per_s 8"),
        (missing(("goodput_per_s", 10, 8), offered_per_s=10.0), ""),
        (missing(("goodput_per_s", 10, 8)), ""),
        (missing(("requests_per_s", 10, 11)), ""),
        (missing(("requests_per_s", 10, 8), saturated=True), ""),
        (missing(("requests_per_s", 10, 8), concurrency=3), ""),
    ],
)
def test_a_throughput_above_what_is_offered_is_named(case: Any, text: str) -> None:
    assert _more_than_offered(case) == text
