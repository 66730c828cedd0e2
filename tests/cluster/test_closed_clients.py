"""Clients with so many requests under way, beside others who send when they like, in one workload spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_runs import LATENCIES, Row, differences, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import simulate

import blis_py as blis
from blis_py.cluster.ingress.closed_loop import ClosedLoops
from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError
from blis_py.metrics.load import CLOSED
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.loops import Loop, Loops

MODEL: dict[str, Any] = {"model": "llama-3.1-8b", "seed": 3}
LENGTHS = """
    input_distribution: {type: exponential, params: {mean: 300}}
    output_distribution: {type: exponential, params: {mean: 100}}
"""
WEB = f"  - id: web\n    rate_fraction: 3\n    arrival: {{process: poisson}}{LENGTHS}"
USERS = f"  - id: users\n    concurrency: 8\n    think_time_us: 250000{LENGTHS}"
PACED = f"""\
  - id: paced
    rate_fraction: 1
    arrival: {{process: gamma, cv: 3}}
    concurrency: 2{LENGTHS}"""


def spec(folder: Path, *clients: str, head: str = "aggregate_rate: 8\nnum_requests: 300") -> str:
    (folder / "spec.yaml").write_text(f'version: "2"\n{head}\nclients:\n{"".join(clients)}')
    return str(folder / "spec.yaml")


def under_way(record: RunRecord, client: str, think_ns: int = 0) -> int:
    """The most requests of a client at a time, until it has thought about the answer."""
    rows = record.table.client.codes == record.table.client.names.index(client)
    sent, free = record.table.arrival_ns[rows], np.sort(record.finish_ns[rows] + think_ns)
    return int((np.arange(1, len(sent) + 1) - np.searchsorted(free, sent, side="right")).max())


def test_each_client_keeps_to_its_own_permits_and_the_others_come_when_they_come(tmp_path: Path) -> None:
    result = blis.run(**MODEL, workload_spec=spec(tmp_path, WEB, USERS, PACED))
    record, frame = result.record, result.requests
    assert len(record.table) == 300
    assert set(record.outcome.tolist()) == {Outcome.COMPLETED}
    assert bool((np.diff(record.table.arrival_ns) >= 0).all())
    assert under_way(record, "users", think_ns=250_000_000) == 8
    assert under_way(record, "paced") == 2
    alone = blis.build(
        **MODEL, workload_spec=spec(tmp_path, WEB, head="aggregate_rate: 6\nnum_requests: 300")
    )
    web = frame[frame.client == "web"]
    assert web.arrival_s.to_numpy() == pytest.approx(alone.table.arrival_ns[: len(web)] / 1e9, abs=1e-9)
    waited = frame.groupby("client", observed=True).client_wait_ms.max()
    assert np.isnan(waited["web"])
    assert waited["users"] == 0
    assert waited["paced"] > 0


def test_clients_without_a_rate_send_as_many_as_permits_at_the_start(tmp_path: Path) -> None:
    head = "num_requests: 40"
    result = blis.run(**MODEL, workload_spec=spec(tmp_path, USERS, head=head))
    assert (result.requests.arrival_s == 0).sum() == 8
    assert len(result.requests) == 40
    assert result.summary["load"]["verdict"] == CLOSED


def test_the_verdict_is_on_requests_that_do_not_wait_for_answers(tmp_path: Path) -> None:
    """Without the users the web client's requests are offered at the same rate."""
    both = blis.run(**MODEL, workload_spec=spec(tmp_path, WEB, USERS)).summary["load"]
    assert both["verdict"] != CLOSED
    assert both["offered_per_s"] == pytest.approx(8, rel=0.4)
    assert 0 < both["closed_loop_requests"] < 300
    assert blis.run(**MODEL, workload_spec=spec(tmp_path, PACED, USERS)).summary["load"]["verdict"] == CLOSED


def test_at_a_horizon_what_has_been_sent_is_all_there_is(tmp_path: Path) -> None:
    record = blis.run(**MODEL, workload_spec=spec(tmp_path, WEB, USERS, PACED), horizon="3s").record
    assert len(record.table) < 300
    assert record.table.arrival_ns.max() <= 3_000_000_000
    assert {Outcome.COMPLETED, Outcome.RUNNING} <= set(record.outcome.tolist())


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    simulation = blis.build(**MODEL, workload_spec=spec(tmp_path, WEB, USERS, PACED))
    first, second = simulation.run(), simulation.run()
    assert first.summary == second.summary
    assert differences(first.record, second.record) == []


def test_a_limit_for_all_beside_those_of_clients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wait for answers already"):
        blis.build(**MODEL, workload_spec=spec(tmp_path, WEB, USERS), concurrency=4)


def test_without_a_server_such_a_spec_is_refused(tmp_path: Path) -> None:
    from blis_py.cli import main

    assert main(["convert", spec(tmp_path, WEB, USERS), str(tmp_path / "trace.csv")]) == 2
    assert not (tmp_path / "trace.csv").exists()


@pytest.mark.parametrize("single_step", [False, True])
def test_of_steps_that_end_together_the_next_of_the_first_instance_begins_before_the_second_brings_anything(
    single_step: bool,
) -> None:
    """At 40 us a step of either instance ends. What the end on the second brings waits for the step after."""
    alone, four = [Row(0, 1, 5)], [Row(0, 1, 1) for _ in range(4)]
    loops = Loops([Loop(slice(0, 1), None, 0, True), Loop(slice(1, 5), 1, 0, False)], None)
    record = simulate(
        ClosedLoops(table_of(alone + four), loops),
        scheduler=SchedulerConfig(num_kv_blocks=60, max_model_len=512, max_num_seqs=4),
        latency=LATENCIES["constant"],
        num_instances=2,
        single_step=single_step,
    )
    assert record.instance.tolist() == [0, 1, 0, 1, 0]
    assert record.table.arrival_ns.tolist() == [0, 0, 10_000, 30_000, 40_000]
    assert record.scheduled_ns.tolist() == [0, 0, 20_000, 30_000, 50_000]


ROWS = st.builds(
    Row,
    st.integers(0, 2_000),
    st.integers(1, 200),
    st.integers(1, 30),
    patience_us=st.sampled_from([-1, -1, 300, 3_000]),
)
PARTS = st.tuples(
    st.lists(ROWS, min_size=1, max_size=12), st.none() | st.integers(1, 4), st.integers(0, 500), st.booleans()
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(PARTS, min_size=1, max_size=3),
    at_most=st.none() | st.integers(1, 20),
    latency=st.sampled_from(["constant", "linear"]),
    overlapped=st.booleans(),
    instances=st.integers(1, 2),
)
def test_looking_ahead_or_not_closed_loops_are_the_same_to_the_nanosecond(
    parts: list[Any], at_most: int | None, latency: str, overlapped: bool, instances: int
) -> None:
    rows, loops = list[Row](), list[Loop]()
    for part, permits, think_us, paced in parts:
        where = slice(len(rows), len(rows) + len(part))
        loops.append(Loop(where, permits, think_us * 1000, paced or permits is None))
        rows += sorted(part, key=lambda row: row.arrival_us)
    in_order = np.argsort([row.arrival_us for row in rows], kind="stable")
    table = table_of(rows).take(np.argsort(in_order))
    config = SchedulerConfig(
        num_kv_blocks=60,
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        async_scheduling=overlapped,
    )
    one, other = (
        simulate(
            ClosedLoops(table, Loops(loops, at_most)),
            scheduler=config,
            latency=LATENCIES[latency],
            num_instances=instances,
            single_step=single_step,
        )
        for single_step in (False, True)
    )
    assert differences(one, other) == []
    assert len(one.table) == min(len(table), at_most or len(table))
    assert (one.outcome < Outcome.QUEUED).all()
    assert bool((np.diff(one.table.arrival_ns) >= 0).all())
