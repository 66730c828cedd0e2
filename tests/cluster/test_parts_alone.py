"""Parts of a cluster by themselves: the clock of SimPy, users of closed loops, victims, choices, traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simpy
from simpy.core import EmptySchedule, Infinity

from blis_py.cluster.ingress.closed_loop import ClosedLoop, ClosedLoops, _Users
from blis_py.cluster.instances.dirty_set import DirtySet
from blis_py.cluster.instances.evictable import Evictable
from blis_py.cluster.instances.handoff import HandOff
from blis_py.cluster.instances.instance import Instance
from blis_py.cluster.recording.trace_observer import Traced, TracedSteps
from blis_py.cluster.routing.pair_dispatcher import PairDispatcher
from blis_py.cluster.time.clock import SimClock
from blis_py.core.request import FinishReason, Request
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward
from blis_py.outputs.instance_track import DECODE, PREEMPTED, PREFILL, QUEUED
from blis_py.requests.loops import Loop, Loops
from blis_py.requests.table import Labels, RequestTable


def test_the_clock_is_one_of_simpy() -> None:
    clock = SimClock()
    assert clock.peek() == Infinity
    with pytest.raises(EmptySchedule):
        clock.step()
    seen: list[int] = []

    def process(env: simpy.Environment) -> Any:
        yield env.timeout(7)
        seen.append(int(env.now))

    clock.process(process(clock))
    assert clock.peek() == 0
    clock.step()
    assert (clock.peek(), clock.now, seen) == (7, 0, [])
    clock.step()
    assert (clock.now, seen) == (7, [7])


# -- closed loops ------------------------------------------------------------------------------------------


def requests(rows: int, **columns: Any) -> RequestTable:
    return RequestTable.build(np.arange(rows) * 10, np.full(rows, 5), np.full(rows, 2), **columns)


def test_users_are_sessions_behind_those_of_the_table() -> None:
    table = requests(6, session=np.array([0, 1, -1, -1, -1, -1]), client=Labels.of(["x"] * 2 + ["y"] * 4))
    loops = [Loop(slice(0, 1), 3), Loop(slice(1, 2), None), Loop(slice(2, 4), 2, 0, False)]
    loops.append(Loop(slice(4, 6), 1, 0, False))
    users = _Users(table, loops)
    assert users.table.session_names == [
        *("session_0", "session_1"),
        *("concurrency_y_user_0", "concurrency_y_user_1", "concurrency_y_user_0"),
    ]
    for loop, user, row in ((loops[2], 1, 2), (loops[2], 1, 3), (loops[3], 0, 5), (loops[3], 0, 4)):
        users.note(loop, user, row)
    assert users.table.session is not None
    assert users.table.round_index is not None
    assert users.table.session.tolist() == [0, 1, 3, 3, 4, 4]
    assert users.table.round_index.tolist() == [0, 0, 0, 1, 1, 0]


def test_users_of_a_table_without_sessions_are_all_there_are() -> None:
    users = _Users(requests(2), [Loop(slice(0, 2), 2, 0, False)])
    assert users.table.session_names == ["concurrency__user_0", "concurrency__user_1"]
    assert users.table.session is not None
    assert users.table.session.tolist() == [-1, -1]
    named = requests(1, session=np.array([0]), session_names=["s"], round_index=np.array([4]))
    users = _Users(named, [Loop(slice(0, 1), 1, 0, False)])
    assert users.table.session_names == ["s", "concurrency__user_0"]
    assert users.table.round_index is not None
    assert users.table.round_index.tolist() == [4]
    assert _Users(requests(0), [Loop(slice(0, 0), 1, 0, False)]).table.session_names == [
        "concurrency__user_0"
    ]


class Client:
    """What a source sends, by time; every request is answered after so many ns."""

    def __init__(self, source: ClosedLoops, after_ns: int, answered: bool = True) -> None:
        self.env, self.source = SimClock(), source
        self.sent: list[tuple[int, int]] = []
        self._after_ns, self._answered = after_ns, answered
        make: Any = self._make
        source.start(self.env, make, self._send, False)
        self.env.run()

    def _make(self, rows: slice) -> list[Request]:
        table = self.source.table
        return [
            Request(f"r{row}", int(table.arrival_ns[row]), 5, row=row) for row in range(rows.start, rows.stop)
        ]

    def _send(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.sent.append((int(self.env.now), request.row))
            assert request.arrival_ns == self.env.now
            self.env.events.call_at(self.env.events.now_ns + self._after_ns, self._answer(request))

    def _answer(self, request: Request) -> Callable[[int], None]:
        def happen(now_ns: int) -> None:
            request.finish_reason = FinishReason.LENGTH if self._answered else FinishReason.TIMEOUT
            request.generated = 2
            self.source.ended(request, now_ns)

        return happen


@pytest.mark.parametrize(
    ("paced", "as_blis", "sent"),
    [
        (False, False, [(0, 0), (0, 1), (150, 2), (150, 3), (300, 4)]),
        (True, False, [(0, 0), (10, 1), (150, 2), (160, 3), (300, 4)]),
        # Those of BLIS begin spread over the first pause of 50 ns, which is less than a microsecond: at once.
        (False, True, [(0, 0), (0, 1), (150, 2), (150, 3), (300, 4)]),
    ],
)
def test_a_client_sends_after_its_pause(paced: bool, as_blis: bool, sent: list[tuple[int, int]]) -> None:
    source = ClosedLoop(requests(5), 2, 50, paced=paced, as_blis=as_blis)
    assert Client(source, 100).sent == sent
    due = source.table.due_ns
    assert due is not None
    assert due.tolist() == ([0, 10, 20, 30, 40] if paced else [time for time, _ in sent])


def test_clients_of_blis_begin_spread_over_whole_microseconds_of_their_pause() -> None:
    source = ClosedLoop(requests(3), 3, 10_000, paced=False, as_blis=True)
    assert Client(source, 1).sent == [(0, 0), (3_000, 1), (6_000, 2)]
    assert source.table.session_names == [f"concurrency__user_{user}" for user in range(3)]
    paced = ClosedLoop(requests(3), 3, 10_000, paced=True, as_blis=True)
    assert Client(paced, 1).sent == [(0, 0), (10, 1), (20, 2)]
    assert paced.table.session_names is None


def test_clients_without_an_answer_stop_as_in_blis_or_go_on() -> None:
    for as_blis, number in ((True, 2), (False, 5)):
        source = ClosedLoop(requests(5), 2, 0, paced=False, as_blis=as_blis)
        assert len(Client(source, 100, answered=False).sent) == number


def test_no_more_are_sent_than_may_be() -> None:
    loops = Loops([Loop(slice(0, 5), 1, 0, False)], at_most=3)
    assert Client(ClosedLoops(requests(5), loops), 10).sent == [(0, 0), (10, 1), (20, 2)]


def test_an_open_loop_sends_when_due_and_has_no_due_times_of_its_own() -> None:
    source = ClosedLoops(requests(3), Loops([Loop(slice(0, 3))]))
    assert Client(source, 999).sent == [(0, 0), (10, 1), (20, 2)]
    assert source.table.due_ns is None


@pytest.mark.parametrize(
    ("permits", "sent"),
    [(None, [(0, 0), (10, 1), (150, 2)]), (1, [(0, 0), (150, 2), (250, 1)])],  # a session holds its permit
)
def test_a_later_turn_follows_the_answer_and_its_pause(
    permits: int | None, sent: list[tuple[int, int]]
) -> None:
    table = requests(
        3,
        session=np.array([0, 1, 0]),
        round_index=np.array([0, 0, 1]),
        think_ns=np.array([-1, -1, 50]),
    )
    source = ClosedLoops(table, Loops([Loop(slice(0, 2), permits)], later_turns=True))
    assert Client(source, 100).sent == sent
    if permits:
        assert source.table.due_ns is not None
        assert source.table.due_ns.tolist() == [0, 10, 150]
    lost = ClosedLoops(table, Loops([Loop(slice(0, 2), permits)], later_turns=True))
    assert [row for _, row in Client(lost, 100, answered=False).sent] == [0, 1]


def test_a_network_delays_the_next_request_by_a_round_trip() -> None:
    """A way of 30 ns there and back, and 2 ns for each token: 5 up and 2 down."""
    table = requests(2, network_ns=np.array([[30.0, 2.0]] * 2))
    source = ClosedLoop(table, 1, 0, paced=False)
    assert Client(source, 100).sent == [(10, 0), (10 + 100 + 34 + 10, 1)]


# -- victims, choices, watchers ----------------------------------------------------------------------------


def test_the_least_urgent_is_found_after_those_that_ended_are_forgotten() -> None:
    """The first of all ended; behind it the less urgent one was not in front."""
    evicted: list[Request] = []
    evictable = Evictable(lambda request, *_: not evicted.append(request), [-3, -1, -2, 0])
    every = [Request(f"r{row}", 0, 1, row=row) for row in range(4)]
    for one in every:
        evictable.sent(one)
    evictable.ended(every[0])
    evictable._forget_ended()
    assert [evictable.evict("why", 0) for _ in range(3)] == [True, True, False]
    assert evicted == [every[2], every[1]]


def test_a_dispatcher_of_pairs_names_none_while_none_is_ready() -> None:
    looked: list[int] = []
    one: Any = SimpleNamespace(
        _ready=[], looks=True, _signals=SimpleNamespace(look=looked.append), _route=lambda *_: 3
    )
    request: Any = None
    assert PairDispatcher._candidate(one, request, 5) == -1
    assert not looked
    one._ready = [3]
    assert PairDispatcher._candidate(one, request, 5) == 3
    assert looked == [5]


def test_an_instance_is_watched_by_all_that_want_it_once() -> None:
    class Watched:
        _dirty = None
        watch = Instance.watch if isinstance(Instance.__dict__["watch"], type(lambda: 0)) else None

    if Watched.watch is None:
        pytest.skip("a method of native code has instances of its own class alone")
    one: Any = Watched()
    sets = [DirtySet() for _ in range(3)]
    for each in sets:
        for _ in range(5):
            each.grow()
    for each in (*sets, sets[0], sets[2]):
        one.watch(each, 4)
    one._dirty.add(4)
    assert [each.take() for each in sets] == [[4]] * 3
    assert len(one._dirty.sets) == 3
    assert not Instance.will_drop(one, one)


@pytest.mark.parametrize(
    ("decode_request", "prefill_end_ns", "started", "there"),
    [
        (None, -1, False, (0, "prefill")),
        (None, -1, True, (0, "prefill")),
        ("decode", -1, False, (1, "decode")),  # its decode instance has it first
        ("decode", -1, True, (0, "prefill")),
        ("decode", 0, True, (1, "decode")),
        ("decode", 7, False, (1, "decode")),
    ],
)
def test_a_request_is_where_it_was_last_sent(
    decode_request: str | None, prefill_end_ns: int, started: bool, there: Any
) -> None:
    pair = SimpleNamespace(
        request="prefill", prefill=0, decode=1, decode_request=decode_request, started=started
    )
    pair.prefill_end_ns = prefill_end_ns
    outlet: Any = SimpleNamespace(_pairs={3: pair})
    assert HandOff.whereabouts(outlet, 3) == there
    assert HandOff.whereabouts(outlet, 4) is None


# -- traces ------------------------------------------------------------------------------------------------


class Track:
    """In place of a track of a trace: all that is written."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []
        self.steps: list[tuple[Any, ...]] = []

    def request(self, phases: Any, facts: Any, flow: Any = None, brought: Any = None) -> None:
        self.requests.append((phases, facts["outcome"], flow, brought))

    def step(self, start_ns: int, end_ns: int, state: Any, fields: Any, steps: int = 1) -> None:
        self.steps.append((start_ns, end_ns, state, dict(fields), steps))


class Events:
    """What is passed on."""

    def __init__(self) -> None:
        self.passed: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self.passed.append((name, *given))


class Sent:
    """In place of the observer of a cluster: all were sent at 5 ns."""

    def sent_ns(self, request: Request) -> int:
        return 5

    def handed_over(self, request: Request) -> int | None:
        return None

    def hand_over(self, request: Request, end_ns: int) -> int:
        return 77


def traced(kind: type[Traced] = Traced, sample: int = 1) -> tuple[Any, Track, Events]:
    track, events, observer = Track(), Events(), Sent()
    scheduler: Any = SimpleNamespace(running=[1, 2], queue_depth=3, blocks_in_use=lambda steps: 10 * steps)
    given: Any = (observer, track, scheduler, events, sample)
    return kind(*given), track, events


def request_of(row: int, arrival_ns: int = 0) -> Request:
    return Request(f"r{row}", arrival_ns, 4, row=row)


@pytest.mark.parametrize(
    ("how", "written", "passed"),
    [
        (lambda t, r: t.unservable(r, 9), ([(QUEUED, 5, 9)], "unservable", None, None), "unservable"),
        (lambda t, r: t.finished([r], 9), ([(QUEUED, 5, 9)], "completed", None, None), "finished"),
        (lambda t, r: t.timed_out([r]), ([(QUEUED, 5, 8)], "timed out", None, None), "timed_out"),
        (
            lambda t, r: t.ended([r], Outcome.RUNNING),
            ([(QUEUED, 5, 8)], "still running", None, None),
            "ended",
        ),
        (
            lambda t, r: t.goes_on([r], Onward.HANDED_OVER, 9),
            ([(QUEUED, 5, 9)], "handed over", 77, None),
            "goes_on",
        ),
        (lambda t, r: t.finished([r], 5), ([(QUEUED, 5, 5)], "completed", None, None), "finished"),
    ],
)
def test_every_end_is_written_and_passed_on(how: Callable[..., None], written: Any, passed: str) -> None:
    observer, track, events = traced()
    how(observer, request_of(0, 8))
    assert track.requests == [written]
    assert [name for name, *_ in events.passed] == [passed]


def test_idle_time_and_what_is_in_progress_are_passed_on() -> None:
    observer, _, events = traced()
    observer.idle(4)
    observer.in_progress("step")
    assert events.passed == [("idle", 4), ("in_progress", "step")]


def test_of_a_sample_every_third_request_is_written() -> None:
    observer, track, events = traced(sample=3)
    for row in range(7):
        observer._phase(request_of(row), PREFILL, 6)
        observer.finished([request_of(row)], 9)
    assert len(track.requests) == 3
    assert len(events.passed) == 7
    assert track.requests[0][0] == [(QUEUED, 5, 6), (PREFILL, 6, 9)]


def test_phases_follow_each_other_and_do_not_repeat() -> None:
    observer, track, _ = traced()
    one = request_of(0)
    for name, at_ns in ((PREFILL, 7), (PREFILL, 8), (DECODE, 9), (PREEMPTED, 12), (DECODE, 20)):
        observer._phase(one, name, at_ns)
    observer.finished([one], 30)
    assert track.requests[0][0] == [
        (QUEUED, 5, 7),
        *((PREFILL, 7, 9), (DECODE, 9, 12), (PREEMPTED, 12, 20), (DECODE, 20, 30)),
    ]
    early = request_of(1)
    early.scheduled_ns = 0  # before its first step begins, and before it was sent
    observer._phase(early, PREFILL, 7)
    observer.finished([early], 30)
    assert track.requests[1][0] == [(PREFILL, 0, 30)]


def features(**values: int) -> Any:
    return SimpleNamespace(prefill_tokens=0, decode_seqs=2, decode_kv_tokens=50, **values)


@pytest.mark.parametrize(
    ("sample", "steps"),
    [
        (1, [(100, 110, (2, 3, 10), 50, 1), (110, 130, (2, 3, 20), 52, 1)]),
        (2, [(100, 130, (2, 3, 20), 50, 2)]),
    ],
)
def test_steps_are_written_one_by_one_or_of_a_sample_together(sample: int, steps: list[Any]) -> None:
    observer, track, events = traced(TracedSteps, sample)
    whole, part, going = request_of(0), request_of(2 * sample), request_of(4 * sample)
    going.generated, going.computed = 1, 4
    step = SimpleNamespace(
        preempted=[], prefills=[(whole, 4), (part, 3)], features=features(), admitted=[whole, part]
    )
    run = SimpleNamespace(end_ns=130, ends_ns=lambda: np.array([110, 130]))
    observer.steps(step, 100, run)
    assert [
        (start, end, state, fields["decode_kv_tokens"], number)
        for start, end, state, fields, number in track.steps
    ] == steps
    assert all(fields["admitted"] == 2 for *_, fields, _ in track.steps)
    assert [name for name, *_ in events.passed] == ["steps"]
    assert observer._open[0] == [(QUEUED, 5), (PREFILL, 100), (DECODE, 130)]
    assert observer._open[2 * sample] == [(QUEUED, 5), (PREFILL, 100)]
    observer.timed_out([whole])
    assert track.requests[0][0] == [(QUEUED, 5, 100), (PREFILL, 100, 130)]


def test_a_preempted_request_waits_until_it_is_computed_again() -> None:
    observer, track, _ = traced(TracedSteps)
    one = request_of(0)
    single = SimpleNamespace(end_ns=20, ends_ns=lambda: np.array([20]))
    observer._phase(one, PREFILL, 7)
    observer.steps(
        SimpleNamespace(preempted=[one], prefills=[], features=features(), admitted=[]), 10, single
    )
    observer.finished([one], 30)
    assert track.requests[0][0] == [(QUEUED, 5, 7), (PREFILL, 7, 10), (PREEMPTED, 10, 30)]
    assert track.steps[0][2:] == ((2, 3, 10), track.steps[0][3], 1)
