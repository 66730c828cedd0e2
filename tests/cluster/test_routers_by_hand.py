"""Routers and scorers on a state of four instances, worked out by hand or by an obvious way to the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from blis_py.cluster.routing import _weighted, decisions
from blis_py.cluster.routing.decisions import DecisionLog
from blis_py.cluster.routing.least_load import LeastLoad
from blis_py.cluster.routing.router import (
    AlwaysBusiest,
    CountedTurns,
    LeastLoaded,
    PowerOfTwo,
    RouterSetup,
    SessionAffinity,
    WeightedTurns,
    round_robin,
)
from blis_py.cluster.routing.router import Random as AtRandom
from blis_py.cluster.routing.scorers import SCORERS, NoHitLRU
from blis_py.core.request import Request
from blis_py.errors import InputError


class Caches:
    """What instances hold of every prompt."""

    block_size = 4

    def __init__(self) -> None:
        self.levels: list[tuple[int, int]] = []

    def held(self, request: Request) -> list[tuple[int, int]]:
        return self.levels


class Signals:
    """What is known of the instances."""

    block_size = 4

    def __init__(self, count: int = 4, ready: Sequence[int] | None = None, weights: Any = None) -> None:
        self.ready = list(range(count) if ready is None else ready)
        self.count, self.weights = count, weights
        self.load = [0] * count
        self.queue_depth, self.batch_size = [0] * count, [0] * count
        self.in_flight, self.kv_utilization = [0] * count, [0.0] * count
        self.reports = self.looks = 0
        self.moved: list[int] = []
        self.caches = Caches()
        self.followers: list[Callable[[int, str], None]] = []

    @property
    def all_ready(self) -> bool:
        return len(self.ready) == self.count

    def follow(self, follower: Any) -> None:
        self.followers.append(follower)
        for index in range(self.count):
            follower(index, "added")
            if index in self.ready:
                follower(index, "ready")

    def track_moves(self) -> None: ...

    def watch_kv(self) -> None: ...

    def watch_prefixes(self) -> Any:
        return self.caches


class Draws:
    """A stream of random numbers that is given."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.below_what = list(numbers), list[int]()

    def below(self, most: int) -> int:
        self.below_what.append(most)
        return self.numbers.pop(0)


def setup_of(signals: Signals, *numbers: int, **more: Any) -> Any:
    given: dict[str, Any] = {"signals": signals, "rng": Draws(*numbers), **more}
    return RouterSetup(**given)


def request(row: int = 0, prompt_tokens: int = 9) -> Request:
    return Request(f"r{row}", 0, prompt_tokens, row=row)


def choices(router: Any, count: int) -> list[int]:
    return [router(request(), 0) for _ in range(count)]


def test_instances_take_turns_while_others_come_and_go() -> None:
    signals = Signals(ready=[0, 2, 3])
    router: Any = round_robin(setup_of(signals))
    assert choices(router, 4) == [0, 2, 3, 0]
    signals.ready = router._ready
    signals.ready.insert(1, 1)
    signals.followers[0](1, "ready")
    assert choices(router, 2) == [1, 2]
    signals.ready.remove(0)
    signals.followers[0](0, "draining")
    assert choices(router, 2) == [3, 1]
    signals.followers[0](1, "gone")
    assert choices(router, 1) == [2]


def test_unequal_instances_take_turns_by_their_capacities() -> None:
    signals = Signals(3, weights=[1.0, 0.5, 0.5])
    router = round_robin(setup_of(signals))
    assert isinstance(router, WeightedTurns)
    assert choices(router, 8) == [0, 1, 2, 0] * 2


def test_routers_of_two_sides_share_a_count_in_blis() -> None:
    counts = [0]
    one, other = (CountedTurns(setup_of(Signals(ready=ready)), counts) for ready in ([0, 1], [2, 3]))
    assert [one(request(), 0), other(request(), 0), one(request(), 0), other(request(), 0)] == [0, 3, 0, 3]


def test_an_instance_is_drawn_by_its_share_of_all_capacity() -> None:
    assert choices(AtRandom(setup_of(Signals(ready=[1, 3]), 1, 0)), 2) == [3, 1]
    fine = 1 << 40
    drawn = (0, fine // 2 - 1, fine // 2, fine // 4 * 3, fine - 1)
    weighted = AtRandom(setup_of(Signals(3, weights=[1.0, 0.5, 0.5]), *drawn))
    assert choices(weighted, 5) == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("load", "weights", "draws", "chosen"),
    [
        ([3, 1, 2, 0], None, (0, 0), 1),
        ([3, 3, 2, 0], None, (0, 0), 0),
        ([3, 3, 2, 0], None, (1, 0), 1),
        ([3, 3, 2, 0], None, (1, 1), 2),
        ([3, 3, 2, 0], None, (3, 2), 3),
        ([1, 0, 0, 0], [1.0, 0.5, 1.0, 1.0], (0, 0), 0),
        ([2, 0, 0, 0], [1.0, 0.5, 1.0, 1.0], (0, 0), 1),
        ([1, 0, 0, 0], [1.0, 0.5, 1.0, 1.0], (1, 0), 1),
    ],
)
def test_of_two_instances_the_less_loaded_is_taken_and_of_equals_the_first_drawn(
    load: list[int], weights: list[float] | None, draws: tuple[int, ...], chosen: int
) -> None:
    signals = Signals(weights=weights)
    signals.load = load
    given = setup_of(signals, *draws)
    assert PowerOfTwo(given)(request(), 0) == chosen
    assert given.rng.below_what == [4, 3]


def test_a_single_instance_needs_no_second_draw() -> None:
    given = setup_of(Signals(ready=[2]), 0)
    assert PowerOfTwo(given)(request(), 0) == 2
    assert given.rng.below_what == [1]


@pytest.mark.parametrize(("ready", "chosen"), [([0, 1, 2, 3], 1), ([0, 2, 3], 2)])
def test_the_busiest_is_the_first_with_the_largest_load(ready: list[int], chosen: int) -> None:
    signals = Signals(ready=ready)
    signals.load = [1, 5, 3, 3]
    assert AlwaysBusiest(setup_of(signals))(request(), 0) == chosen


def test_a_session_stays_where_it_was_until_that_instance_drains() -> None:
    signals = Signals()
    router = SessionAffinity(setup_of(signals, 0, 0, 0, 0, session_of_row=[0, 0, -1, 1]))

    def choose(row: int, load: list[int]) -> int:
        signals.load, signals.moved = load, [0, 1, 2, 3]
        return router(request(row), 0)

    assert choose(0, [1, 0, 2, 2]) == 1
    assert choose(1, [0, 9, 2, 2]) == 1
    assert choose(2, [3, 9, 2, 4]) == 2
    assert choose(2, [3, 9, 4, 2]) == 3  # without a session there is no home
    assert choose(3, [0, 9, 4, 2]) == 0
    for state in ("gone", "draining"):
        router._change(1, state)  # type: ignore[arg-type]
        assert choose(0, [9, 9, 9, 8]) == (1 if state == "gone" else 3)
    assert choose(1, [0, 9, 9, 9]) == 3
    plain = SessionAffinity(setup_of(Signals(), 2, 3))
    assert [plain(request(), 0), plain(request(), 0)] == [2, 3]


@pytest.mark.parametrize("seed", range(6))
def test_the_tournament_knows_the_least_load_and_all_that_have_it(seed: int) -> None:
    rng = Random(seed)
    count = rng.choice((1, 2, 3, 5, 8, 9))
    weights = None if seed % 2 else [rng.choice((1.0, 0.5, 0.25)) for _ in range(count)]
    signals: Any = Signals(count, [index for index in range(count) if rng.random() < 0.7] or [0], weights)
    signals.load = [rng.randrange(3) for _ in range(count)]
    least = LeastLoad(signals)
    for _ in range(40):
        index = rng.randrange(count)
        kind = rng.randrange(4)
        if kind == 0 and len(signals.ready) > 1 and index in signals.ready:
            signals.ready.remove(index)
            least._change(index, rng.choice(("draining", "gone")))  # type: ignore[arg-type]
        elif kind == 1 and index not in signals.ready:
            signals.ready = sorted([*signals.ready, index])
            least._change(index, "ready")  # type: ignore[arg-type]
        else:
            signals.load[index] = rng.randrange(4)
            signals.moved.append(index)

        def load(index: int) -> float:
            return signals.load[index] if weights is None else (signals.load[index] + 1) / weights[index]

        smallest = min(map(load, signals.ready))
        ties = [index for index in signals.ready if load(index) == smallest]
        assert least.ties() == len(ties)
        assert [least.tied(number) for number in range(len(ties))] == ties
    router = LeastLoaded(setup_of(signals, *[0] * 9))
    assert router(request(), 0) == ties[0]


# -- scorers -----------------------------------------------------------------------------------------------

SCORES = {
    "queue-depth": [1, 0.75, 0, 0.5],
    "kv-utilization": [1, 0.75, 0.5, 0],
    "load-balance": [1, 0.25, 0.1, 0.5],
    "active-requests": [0.5, 1, 0, 0.75],
    "running-requests": [0.75, 1, 0, 0.25],
    "load-aware": [0.5, 0.375, 0, 0.25],
    "vllm-dp": [1 - 2 / 1032, 1 - 128 / 1032, 0, 1 - 262 / 1032],
    "precise-prefix-cache": [0, 1, 1 / 3, 0],
    "no-hit-lru": [0.5] * 4,
}


def loaded(ready: Sequence[int] | None = None) -> Signals:
    signals = Signals(ready=ready)
    signals.queue_depth, signals.batch_size = [0, 32, 128, 64], [2, 0, 8, 6]
    signals.kv_utilization, signals.load = [0.0, 0.25, 0.5, 1.0], [0, 3, 9, 1]
    signals.in_flight = [4, 0, 8, 2]
    signals.caches.levels = [(0b0110, 1), (0b0010, 3)]
    return signals


@pytest.mark.parametrize(("name", "scores"), SCORES.items())
def test_each_scorer_has_its_formula(name: str, scores: list[float]) -> None:
    if name == "vllm-dp":
        scores = [1 - (4 * q + b - 2) / (4 * 128 + 8 - 2) for q, b in ((0, 2), (32, 0), (128, 8), (64, 6))]
    signals: Any = loaded()
    scorer = SCORERS[name](signals)
    assert scorer(request()).tolist() == pytest.approx(scores)
    some: Any = loaded([0, 3])
    assert len(SCORERS[name](some)(request())) == 2
    alike: Any = Signals()
    found = SCORERS[name](alike)(request()).tolist()
    like = {"no-hit-lru": [1, 2 / 3, 1 / 3, 0], "load-aware": [0.5] * 4}.get(name, [1] * 4)
    assert found == pytest.approx(like)


def test_queues_longer_than_128_are_as_bad_as_that_and_unequal_instances_count_by_capacity() -> None:
    signals: Any = Signals(2, weights=[1.0, 0.5])
    signals.queue_depth = [500, 32]
    assert SCORERS["load-aware"](signals)(request()).tolist() == [0, 0.25]
    signals.load = [3, 1]
    assert SCORERS["load-balance"](signals)(request()).tolist() == [1 / 4, 1 / 3]
    signals.in_flight = [3, 1]
    assert SCORERS["active-requests"](signals)(request()).tolist() == [0, pytest.approx(1 / 3)]


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("queue-depth", (3, 3)),
        ("load-balance", (7, 8)),
        ("precise-prefix-cache", (-1, -1)),
        ("no-hit-lru", (-1, -1)),
    ],
)
def test_scores_of_reports_are_kept_between_reports(name: str, versions: tuple[int, int]) -> None:
    signals: Any = Signals()
    signals.reports, signals.looks = 3, 7
    scorer = SCORERS[name](signals)
    found = scorer.version()
    signals.looks = 8
    assert (found, scorer.version()) == versions


class Scorer:
    """Given scores of a given version."""

    def __init__(self, scores: list[float], version: int = -1) -> None:
        self.scores, self._version, self.sent_to, self.calls = scores, version, list[int](), 0

    def version(self) -> int:
        return self._version

    def __call__(self, request: Request) -> Any:
        self.calls += 1
        return np.array(self.scores)

    def sent(self, request: Request, index: int) -> None:
        self.sent_to.append(index)


def test_scores_are_cut_to_their_range_and_kept_as_long_as_their_version() -> None:
    scorer: Any = Scorer([-1.0, 0.5, 2.0], 0)
    term = _weighted.ScoreTerm(scorer, 0.5)
    for _ in range(2):
        assert term.scores(request()).tolist() == [0.0, 0.25, 0.5]
    assert scorer.calls == 1
    scorer.scores, scorer._version = [1.0], 1
    assert term.scores(request()).tolist() == [0.5]
    scorer._version = -1
    for _ in range(2):
        term.scores(request())
    assert scorer.calls == 4


def test_the_weighted_sum_decides_and_equals_are_drawn() -> None:
    one, other = Scorer([0.0, 1.0, 1.0]), Scorer([1.0, 0.0, 0.5])
    signals = Signals(ready=[0, 2, 3])
    given = setup_of(signals, 1)
    router = _weighted.Weighted(given, [(one, 3.0), (other, 1.0)])
    assert router(request(), 0) == 3
    assert router.scores.tolist() == [0.25, 0.75, 0.875]
    other.scores = [1.0, 0.5, 0.5]
    assert router(request(), 0) == 3
    assert given.rng.below_what == [2]
    assert one.sent_to == other.sent_to == [3, 3]


@pytest.mark.parametrize("seed", range(4))
def test_the_instance_least_recently_sent_a_new_prompt_is_next(seed: int) -> None:
    rng = Random(seed)
    signals: Any = Signals(3)
    scorer = NoHitLRU(signals)
    order: list[int] = [0, 1, 2]
    fresh = 3
    for _ in range(30):
        if rng.random() < 0.2 and signals.count < 7:
            order.insert(fresh, signals.count)
            signals.ready.append(signals.count)
            signals.count += 1
            scorer._change(signals.count - 1, "added")  # type: ignore[arg-type]
            fresh += 1
        signals.ready = sorted(rng.sample(range(signals.count), rng.randint(1, signals.count)))
        among = [index for index in order if index in signals.ready]
        most = max(len(among) - 1, 1)
        expected = [1 - among.index(index) / most for index in signals.ready]
        assert scorer(request()).tolist() == pytest.approx(expected)
        chosen = rng.choice(signals.ready)
        held = rng.random() < 0.3
        signals.caches.levels = [(1 << signals.ready[0], 1)] if held else []
        if held:
            assert scorer(request()).tolist() == [0.5] * len(signals.ready)
        scorer.sent(request(), chosen)
        signals.caches.levels = []
        if not held:
            fresh -= order.index(chosen) < fresh
            order.remove(chosen)
            order.append(chosen)
    away: Any = Signals(2, [0])
    away.caches.levels = [(0b10, 3)]
    assert not NoHitLRU(away)._is_held(request())


# -- decisions ---------------------------------------------------------------------------------------------


def test_decisions_are_logged_with_their_best_candidates() -> None:
    signals: Any = loaded()
    log = DecisionLog(signals, SCORERS["queue-depth"](signals), 2, 10)  # type: ignore[arg-type]
    log.note(request(5), 100, 3)
    log.note(request(6), 200, 0)
    found = log.record()
    assert (found.time_ns.tolist(), found.row.tolist(), found.instance.tolist()) == (
        [100, 200],
        [5, 6],
        [3, 0],
    )
    assert (found.score.tolist(), found.regret.tolist()) == ([-1, 0], [1, 0])  # by load: of 0, 3, 9 and 1
    assert found.candidates.tolist() == [[0, 3], [0, 3]]
    assert found.candidate_scores.tolist() == [[0, -1]] * 2
    assert (found.queue_depth.tolist()[0], found.batch_size.tolist()[0]) == ([0, 64], [2, 6])
    assert (found.in_flight.tolist()[0], found.kv_utilization.tolist()[0]) == ([4, 2], [0.0, 1.0])
    assert found.cached_blocks.tolist()[0] == [0, 0]
    assert (found.found_blocks.tolist(), found.missed_blocks.tolist()) == ([0, 0], [3, 3])
    assert found.block_size == 4


def test_rows_of_a_changing_fleet_are_padded() -> None:
    signals: Any = loaded([0, 1])
    log = DecisionLog(signals, AlwaysBusiest(setup_of(signals)), 0, 10)
    log.note(request(0), 1, 1)
    signals.ready = [1, 2, 3]
    log.note(request(1), 2, 2)
    found = log.record()
    assert found.candidates.tolist() == [[0, 1, -1], [3, 1, 2]]
    assert np.isnan(found.kv_utilization[0, 2])
    assert found.found_blocks.tolist() == [3, 1]
    assert found.missed_blocks.tolist() == [0, 2]
    assert DecisionLog(signals, AlwaysBusiest(setup_of(signals)), 0, 10).record().candidates.shape == (0, 1)


def test_no_more_candidates_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MAX_CANDIDATES", 40)
    signals: Any = Signals()
    router: Any = None
    DecisionLog(signals, router, 0, 10)
    DecisionLog(signals, router, 2, 20)
    for kept, count in ((0, 11), (2, 21), (99, 11)):
        with pytest.raises(InputError, match="too many to keep"):
            DecisionLog(signals, router, kept, count)
