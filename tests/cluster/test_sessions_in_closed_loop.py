"""Sessions as closed loops: a turn is sent when its client has the answer before it, and has thought."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cluster_runs import LATENCIES, Row, differences, linear, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.ingress.closed_loop import ClosedLoops
from blis_py.cluster.instances.diffusion import BlockDiffusion, DiffusionCosts
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.summary import summarise
from blis_py.requests.loops import Loop, Loops
from blis_py.requests.sessions import as_early_as_can_be, later_turns_last, rounds_of, waits
from blis_py.requests.table import RequestTable
from blis_py.workload.diffusion import MeasuredSteps, table_rounds
from blis_py.workload.diffusion_steps import MeanAndSpread

US = 1000
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=4096, max_num_seqs=64)
ANSWERED = (Outcome.COMPLETED, Outcome.LENGTH_CAPPED)


def conversations(rows: list[Row], session: list[int], think_us: list[int]) -> RequestTable:
    """Rows in order of their sending, the session of each (-1: none), and the pause before it."""
    table = table_of([replace(row, arrival_us=10**6 * index) for index, row in enumerate(rows)])
    in_turn = np.array(session)
    table = replace(
        table,
        arrival_ns=np.array([row.arrival_us * US for row in rows]),
        deadline_ns=np.array(
            [-1 if row.patience_us < 0 else (row.arrival_us + row.patience_us) * US for row in rows]
        ),
        session=in_turn,
        round_index=rounds_of(in_turn),
        think_ns=np.array(think_us) * US,
    )
    return later_turns_last(as_early_as_can_be(table).sorted_by_arrival())


def source(table: RequestTable, *, as_blis: bool = False, at_most: int | None = None) -> ClosedLoops:
    first = Loop(slice(0, int((~waits(table)).sum())))
    return ClosedLoops(table, Loops([first], at_most, later_turns=True, as_blis=as_blis))


def played(
    rows: list[Row], session: list[int], think_us: list[int], as_blis: bool = False, **options: Any
) -> RunRecord:
    fields = {"scheduler": CONFIG, "latency": linear(10 * US), **options}
    return simulate(source(conversations(rows, session, think_us), as_blis=as_blis), **fields)


def test_the_next_turn_is_sent_when_its_client_has_the_answer_and_has_thought() -> None:
    """Steps of 10 us: an answer of n tokens takes n steps."""
    record = played([Row(0, 8, 3), Row(0, 8, 1), Row(0, 8, 2), Row(12, 8, 1)], [5, 5, 5, -1], [0, 7, 100, 0])
    turns = record.table.session == 5
    assert record.table.arrival_ns[turns].tolist() == [0, 37 * US, 147 * US]
    assert record.finish_ns[turns].tolist() == [30 * US, 47 * US, 167 * US]
    assert record.table.arrival_ns[~turns].tolist() == [12 * US]


def test_the_front_end_stands_between_an_answer_and_the_next_turn_but_not_in_blis() -> None:
    latency = linear(10 * US, FrontendDelays(before_enqueue_ns=3 * US, behind_ns=2 * US, at_end_ns=4 * US))
    rows, session, think = [Row(0, 8, 1), Row(0, 8, 1)], [0, 0], [0, 100]
    assert played(rows, session, think, latency=latency).table.arrival_ns.tolist() == [0, 119 * US]
    as_blis = played(rows, session, think, as_blis=True, latency=latency)
    assert as_blis.table.arrival_ns.tolist() == [0, 113 * US]


def test_patience_counts_from_the_sending_of_each_turn() -> None:
    record = played([Row(0, 8, 5, patience_us=60), Row(0, 8, 3, patience_us=60)], [0, 0], [0, 500])
    assert record.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED]
    assert (record.table.deadline_ns - record.table.arrival_ns).tolist() == [60 * US, 60 * US]


FAILURES: dict[str, tuple[Row, dict[str, Any], Outcome]] = {
    "timed out": (Row(0, 8, 900, patience_us=50), {}, Outcome.TIMED_OUT),
    "unservable": (Row(0, 5000, 1), {}, Outcome.UNSERVABLE),
    "rejected": (
        Row(0, 600, 1),
        {
            "admission_policy": "token-bucket",
            "admission": AdmissionSettings(token_bucket_capacity=100, token_bucket_refill_rate=1),
        },
        Outcome.REJECTED,
    ),
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("as_blis", [False, True])
def test_nothing_follows_a_turn_without_an_answer_and_what_does_not_is_counted(
    how: str, as_blis: bool
) -> None:
    failing, options, outcome = FAILURES[how]
    rows = [Row(0, 8, 1), failing, Row(0, 8, 1), Row(0, 8, 1), Row(3, 8, 1), Row(0, 8, 1)]
    record = played(rows, [4, 4, 4, 4, 9, 9], [0, 1, 1, 1, 0, 1], as_blis, **options)
    ended = record.outcome[record.table.session == 4]
    assert ended.tolist() == [Outcome.COMPLETED, outcome]
    assert record.unsent_turns is not None
    assert (record.unsent_turns.cancelled, record.unsent_turns.not_reached) == (2, 0)
    report = summarise(record)["sessions"]
    assert (report["sessions"], report["turns"]) == (2, 4)
    assert (report["broken_off"], report["cancelled_turns"], report["turns_not_reached"]) == (1, 2, 0)


def test_turns_that_the_end_of_the_run_forestalls_are_counted_of_sessions_that_have_begun() -> None:
    rows = [Row(0, 8, 3), Row(0, 8, 3), Row(0, 8, 3), Row(900, 8, 3), Row(0, 8, 3)]
    record = played(rows, [0, 0, 0, 1, 1], [0, 50, 50, 0, 50], horizon_ns=100 * US)
    assert len(record.table) == 2
    assert record.unsent_turns is not None
    assert (record.unsent_turns.cancelled, record.unsent_turns.not_reached) == (0, 1)


def test_an_answer_cut_at_the_longest_sequence_is_an_answer() -> None:
    """The next turn of a conversation that fills it can only be refused; that of another one need not."""
    config = replace(CONFIG, max_model_len=64)
    rows = [Row(0, 8, 500), Row(0, 8, 2), Row(0, 8, 500), Row(0, 516, 2), Row(0, 8, 1)]
    record = played(rows, [0, 0, 1, 1, 1], [0] * 5, scheduler=config)
    of = {number: record.outcome[record.table.session == number].tolist() for number in (0, 1)}
    assert of == {
        0: [Outcome.LENGTH_CAPPED, Outcome.COMPLETED],
        1: [Outcome.LENGTH_CAPPED, Outcome.UNSERVABLE],
    }


def test_a_session_stays_where_it_was_with_session_affinity() -> None:
    rows = [Row(3 * n, 40, 4) for n in range(6)] + [Row(0, 40, 3)] * 18
    session = [*range(6), *(n for n in range(6) for _ in range(3))]
    record = played(rows, session, [20] * 24, num_instances=3, routing_policy="session-affinity")
    for number in range(6):
        assert len(set(record.instance[record.table.session == number].tolist())) == 1
    assert len(set(record.instance.tolist())) == 3


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    fdfo=st.booleans(),
    slots=st.integers(1, 5),
    instances=st.integers(1, 2),
    patience_ms=st.sampled_from([-1, 60]),
)
def test_sessions_of_block_diffusion_are_the_same_round_by_round(
    seed: int, fdfo: bool, slots: int, instances: int, patience_ms: int
) -> None:
    rng = np.random.default_rng(seed)
    session = rng.integers(-1, 6, 30)
    arrivals_us, outputs = rng.integers(0, 40_000, 30), rng.integers(1, 80, 30)
    prompts = rng.choice([1, 31, 32, 90], 30)
    patience_us = -1 if patience_ms < 0 else 1000 * patience_ms
    columns = zip(arrivals_us.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    rows = [Row(*each, patience_us=patience_us) for each in columns]
    table = conversations(rows, session.tolist(), rng.integers(0, 9_000, 30).tolist())
    steps = dict.fromkeys(table.client.names, MeasuredSteps(MeanAndSpread(6, 0.5)))
    diffusion = BlockDiffusion(
        table_rounds(table, steps, 32, seed), DiffusionConfig(fdfo=fdfo), DiffusionCosts()
    )
    config = SchedulerConfig(num_kv_blocks=400, max_model_len=400, block_size=32, max_num_seqs=slots)
    record, single = (
        simulate(
            source(table),
            scheduler=config,
            latency=linear(400 * US, prefill_tokens=900),
            kind=diffusion,
            num_instances=instances,
            single_step=single_step,
        )
        for single_step in (False, True)
    )
    for column in ("outcome", "instance", "scheduled_ns", "finish_ns", "blocks"):
        assert np.array_equal(getattr(record, column), getattr(single, column))
    assert record.unsent_turns == single.unsent_turns
    check(record)
    _are_causal(record, as_blis=False)
    _lose_nothing(table, record, ends=False)


TURN = st.builds(
    Row,
    st.just(0),
    st.integers(1, 90),
    st.integers(1, 30),
    patience_us=st.sampled_from([-1, -1, -1, 200, 3_000]),
)
SESSION = st.tuples(
    st.integers(0, 1_500), st.lists(st.tuples(TURN, st.integers(0, 400)), min_size=1, max_size=5)
)


@st.composite
def many(draw: st.DrawFn) -> tuple[list[Row], list[int], list[int]]:
    """Sessions whose turns repeat what was said before, or do not, and single requests among them."""
    rows, session, think = list[Row](), list[int](), list[int]()
    for number, (start_us, turns) in enumerate(draw(st.lists(SESSION, min_size=1, max_size=6))):
        single, talks, said = draw(st.booleans()) and len(turns) == 1, draw(st.booleans()), 0
        for turn, pause_us in turns:
            prompt = said + turn.prompt if talks else turn.prompt
            runs = ((f"talk {number}", prompt + turn.output - 1),) if talks else ()
            rows.append(replace(turn, arrival_us=start_us, prompt=prompt, runs=runs, limit=turn.output))
            said = prompt + turn.output
            session.append(-1 if single else number)
            think.append(pause_us)
    return rows, session, think


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    sessions=many(),
    latency=st.sampled_from(["constant", "linear"]),
    overlapped=st.booleans(),
    as_blis=st.booleans(),
    instances=st.integers(1, 3),
    routing=st.sampled_from(["round-robin", "least-loaded", "session-affinity"]),
    admission=st.sampled_from(["always-admit", "token-bucket", "tier-shed"]),
    delays_us=st.sampled_from([(0, 0), (3, 0), (0, 2), (5, 7)]),
    horizon_us=st.none() | st.integers(1, 4_000),
    blocks=st.sampled_from([20, 60]),
)
def test_sessions_are_causal_lose_nothing_and_are_the_same_step_by_step(
    sessions: tuple[list[Row], list[int], list[int]],
    latency: str,
    overlapped: bool,
    as_blis: bool,
    instances: int,
    routing: str,
    admission: str,
    delays_us: tuple[int, int],
    horizon_us: int | None,
    blocks: int,
) -> None:
    table = conversations(*sessions)
    options: dict[str, Any] = {
        "scheduler": SchedulerConfig(
            num_kv_blocks=blocks,
            max_model_len=300,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            async_scheduling=overlapped,
        ),
        "latency": LATENCIES[latency],
        "num_instances": instances,
        "routing_policy": routing,
        "admission_policy": admission,
        "admission": AdmissionSettings(token_bucket_capacity=200, token_bucket_refill_rate=100_000),
        "admission_latency_ns": delays_us[0] * US,
        "routing_latency_ns": delays_us[1] * US,
        "horizon_ns": None if horizon_us is None else horizon_us * US,
    }
    record, single, again = (
        simulate(source(table, as_blis=as_blis), single_step=step, **options) for step in (False, True, False)
    )
    assert differences(record, single) == []
    assert differences(record, again) == []
    check(record)
    assert bool((np.diff(record.table.arrival_ns) >= 0).all())
    _are_causal(record, as_blis)
    _lose_nothing(table, record, ends=horizon_us is not None)


def _are_causal(record: RunRecord, as_blis: bool) -> None:
    """Turn after turn, each its pause after the answer before it; in BLIS, after its last step."""
    table = record.table
    assert table.session is not None
    assert table.round_index is not None
    assert table.think_ns is not None
    for number in set(table.session[table.session >= 0].tolist()):
        rows = np.flatnonzero(table.session == number)
        assert table.round_index[rows].tolist() == list(range(len(rows)))
        for before, after in pairwise(rows):
            assert record.outcome[before] in ANSWERED
            seen_ns = record.finish_ns[before]
            if as_blis:
                steps = record.instances[record.instance[before]].step_ends
                seen_ns = steps.one(int(record.visits.emission.last_step[before]))
            assert table.arrival_ns[after] == seen_ns + table.think_ns[after]


def _lose_nothing(table: RequestTable, record: RunRecord, ends: bool) -> None:
    """Of a session that has begun every turn is a request, cancelled, or cut off where the run ends."""
    assert table.session is not None
    assert record.table.session is not None
    assert record.unsent_turns is not None
    begun = set(record.table.session.tolist()) - {-1}
    planned = sum(number in begun for number in table.session.tolist())
    sent = int((record.table.session >= 0).sum())
    unsent = record.unsent_turns
    assert planned == sent + unsent.cancelled + unsent.not_reached
    assert ends or not unsent.not_reached
