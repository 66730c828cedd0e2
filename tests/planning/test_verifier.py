"""Stricter examination of candidates: longer runs, draws of the errors, and the fewest instances."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.planning import verify
from blis_py.planning.analysis import Case
from blis_py.planning.goal import Judgement, Requirement
from blis_py.planning.job import JobOutcome
from blis_py.planning.search import Search, SearchLine
from blis_py.planning.stationary import Sustained
from blis_py.planning.uncertainty import Draw, Errors
from blis_py.planning.verify import Drawn, Verifier

ERRORS = Errors((Draw(1.0),), "runs", 9)


def share_of(held: float, of: int = 20) -> Drawn:
    cases = [Case(f"draw {n}", Judgement(n < held * of), JobOutcome()) for n in range(of)]
    return Drawn(tuple(cases), ERRORS)


def verifier(shares: list[float], unknown: bool = False, runs_from: int = 0) -> Verifier:
    """Of one line, whose sizes hold in these shares of the draws."""
    space: Any = SimpleNamespace(goal=None, runner=None)
    space.config = lambda probe: SimpleNamespace(instances=10 * (probe[1] + 1), size=probe[1])
    space.runs, space.sizes = lambda line, size=0: size >= runs_from, shares
    space.largest = lambda line: len(shares) - 1
    holds = [Judgement(share > 0) for share in shares]
    search = Search(
        [SearchLine(1.0)], range(1, len(shares) + 1), lambda probes, _: [holds[size] for _, size in probes]
    )
    found = Verifier(space, search, 20)
    for size, share in enumerate(shares):
        found._drawn[0, size] = Drawn() if unknown else share_of(share)
        found._sustained[0, size] = Sustained(holds[size], JobOutcome(facts={"requests": 9}), 1.0, True)
    return found


@pytest.fixture
def drawn_again(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Shares of the sizes under given draws."""
    shares: list[float] = []
    monkeypatch.setattr(verify, "drawn_from", lambda _, config, *__: share_of(shares[config.size]))
    return shares


@pytest.mark.parametrize(
    ("shares", "fewest"),
    [([0.0, 0.05, 0.1, 0.9], 30), ([0.0, 0.0, 0.05, 0.9], 40), ([0.2, 0.3, 0.5, 0.9], 10)],
)
def test_fewer_instances_are_possible_while_one_of_ten_draws_holds(
    drawn_again: list[float], shares: list[float], fewest: int
) -> None:
    drawn_again += shares
    assert verifier(shares).fewest((0, 3)) == fewest
    assert verifier(shares, unknown=True).fewest((0, 3)) == 40


@pytest.mark.parametrize(
    ("shares", "fewest"), [([0.0, 0.05, 0.2, 0.9], 30), ([0.05, 0.1], 20), ([0.05, 0.0, 0.05], None)]
)
def test_more_instances_are_needed_where_the_answer_holds_in_fewer_draws(
    drawn_again: list[float], shares: list[float], fewest: int | None
) -> None:
    """An answer on the edge may hold in none of them."""
    drawn_again += shares
    assert verifier(shares).fewest((0, 0)) == fewest


def test_sizes_that_cannot_be_run_are_not_possible(drawn_again: list[float]) -> None:
    drawn_again += [0.9] * 4
    assert verifier([0.9] * 4, runs_from=2).fewest((0, 3)) == 30


@pytest.mark.parametrize(("confidence", "size"), [(None, 1), (0.5, 1), (0.55, 2), (0.9, 2), (0.95, None)])
def test_the_cheapest_holds_in_the_share_of_draws_that_is_demanded(
    confidence: float | None, size: int | None
) -> None:
    found = verifier([0.0, 0.5, 0.9])
    assert found.best([0], confidence) == (None if size is None else (0, size))
    assert len(found.unsure) == (2 if size is None else size - 1)


def test_what_holds_only_for_a_burst_is_refuted_and_remembered() -> None:
    found = verifier([0.5, 0.9])
    found._sustained[0, 0] = Sustained(Judgement(False), JobOutcome(), 4.0, True)
    assert found.best([0], None) == (0, 1)
    assert found.bursts == [(0, 0)]


def failing(requests_per_s: float, lasts: bool) -> Any:
    """Of three sizes, the second misses 90 requests/s of 100 by this, and may meet it over a longer run."""
    found = verifier([0.0, 0.0, 0.9])
    missed = Requirement("requests_per_s", 90.0, requests_per_s, "per s", requests_per_s / 90 - 1)
    short = JobOutcome(
        figures={"throughput.requests_per_s": requests_per_s}, facts={"offered_per_s": 100.0, "requests": 9}
    )
    taken: dict[Any, JobOutcome] = {}
    space: Any = found._space
    space.at, space.outcome, space.adopt = SimpleNamespace(length=1.0), lambda probe: short, taken.__setitem__
    longer = Sustained(Judgement(lasts), JobOutcome(facts={"requests": 36}), 4.0, True)
    found.sustained = lambda probe: found._sustained.setdefault(probe, longer)  # type: ignore[method-assign]
    del found._sustained[0, 1]
    found._search.best([0])
    found._search.rejudge((0, 1), Judgement(False, (missed,)))
    return found, taken


def test_a_throughput_missed_by_the_end_of_a_short_run_is_judged_by_a_longer_one() -> None:
    found, taken = failing(85.0, lasts=True)
    assert found.best([0]) == (0, 1)
    assert taken[0, 1].facts["requests"] == 36
    assert found.sustained((0, 1)).begun == 4


def test_what_a_longer_run_misses_too_stays_missed() -> None:
    found, taken = failing(85.0, lasts=False)
    assert found.best([0]) == (0, 2)
    assert not taken


@pytest.mark.parametrize("why", [{"refused": "needs 2 GPUs"}, {"early_stop": "hopeless"}])
def test_what_was_refused_or_stopped_as_hopeless_is_not_run_for_longer(why: dict[str, str]) -> None:
    found, taken = failing(85.0, lasts=True)
    found._search.rejudge((0, 1), replace(found._search.known[0, 1], **why))
    assert found.best([0]) == (0, 2)
    assert not taken
