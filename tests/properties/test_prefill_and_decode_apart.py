"""Random clusters with prefill and decode apart: a jump is its steps, and nothing is lost on either side."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.cluster.simulation import ClusterSimulation
from blis_py.core.rank_choice import RANK_CHOICES
from blis_py.core.ranks import RankedScheduler
from blis_py.core.scheduler import Scheduler
from blis_py.metrics.handovers import HandOvers
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.visits import Onward
from blis_py.requests.table import RequestTable

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from apart import US, cluster, requests

VISITS = ("request", "instance", "outcome", "scheduled_ns", "first_token_ns", "finish_ns", "preemptions")
INSTANCES = ("busy_ns", "peak_kv_blocks", "kv_block_steps", "prefill_tokens", "decode_tokens", "preemptions")


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    count = draw(st.integers(1, 25))
    rows = st.lists(
        st.tuples(
            st.integers(0, 60),
            st.integers(1, 60),
            st.sampled_from([1, 2, 9, 50]),
            st.sampled_from([-1, -1, 0, 20, 90, 400]),
            st.tuples(st.sampled_from("ab"), st.sampled_from([0, 8, 24, 60])),
        ),
        min_size=count,
        max_size=count,
    )
    stretch = draw(st.sampled_from([1, 1, 8]))  # with long gaps, decode instances run ahead
    gaps, prompts, outputs, patience, shared = zip(*draw(rows), strict=True)
    arrivals = [stretch * sum(gaps[: index + 1]) for index in range(count)]
    deadlines = [-1 if p < 0 else a + p for a, p in zip(arrivals, patience, strict=True)]
    texts = [(name, min(length, prompt)) for (name, length), prompt in zip(shared, prompts, strict=True)]
    return requests(arrivals, prompts, outputs, deadlines, texts)


AT_ONCE = ("sglang", "trtllm-generation-first")
"""Both instances get a request at once, so both are chosen on its arrival."""


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    handoff = draw(st.sampled_from(["vllm", "trtllm", "trtllm-generation-first", "sglang", "blis"]))
    order = "decode-first" if handoff in AT_ONCE else draw(st.sampled_from(["decode-first", "prefill-first"]))
    drawn = {
        "handoff": handoff,
        "pair_order": order,
        "prefill": draw(st.integers(1, 2)),
        "decode": draw(st.integers(1, 2)),
        "shared": 0 if order == "prefill-first" else draw(st.integers(0, 3)),
        "policy": draw(
            st.sampled_from(["round-robin", "least-loaded", "power-of-two", "weighted", "dynamo"])
        ),
        "decider": draw(st.sampled_from(["always", "prefix-threshold", "load"])),
        "num_kv_blocks": draw(st.sampled_from([32, 40, 1000])),
        "prefix_cache": draw(st.sampled_from(["hash", "radix"])),
        "async_scheduling": draw(st.booleans()),
        "batch_former": draw(st.sampled_from(["running-first", "prefill-only", "in-flight"])),
        "admission_rule": draw(st.sampled_from(["blocks", "guaranteed-no-evict", "new-token-ratio"])),
        "receive_interval": draw(st.sampled_from([1, 4])),
        "max_num_batched_tokens": draw(st.sampled_from([8, 2048])),
        "bandwidth_gbps": draw(st.sampled_from([0.2, 4.0, None])),
        "latency_ns": draw(st.sampled_from([0, 3 * US])),
        "before_enqueue_ns": draw(st.sampled_from([0, 0, 7 * US])),
        "node_gbps": draw(st.sampled_from([None, 0.3])),
        "contended": draw(st.booleans()),
        "reserved_decode_tokens": draw(st.sampled_from([0, 20])),
        "ranks": {pool: draw(st.sampled_from([1, 1, 1, 2, 3])) for pool in ("prefill", "decode", "shared")},
        "rank_choice": draw(st.sampled_from(sorted(RANK_CHOICES))),
    }
    if handoff == "sglang":
        drawn |= {"overlap": draw(st.sampled_from(["none", "chunk", "layer"])), "kv_layers": 3}
    if handoff.startswith("trtllm"):
        drawn |= {"max_tokens_in_buffer": draw(st.sampled_from([None, 30, 90]))}
    if handoff == "vllm" and draw(st.booleans()):
        drawn |= {"lease_ns": 50 * US, "load_failure_policy": draw(st.sampled_from(["fail", "recompute"]))}
    return drawn


@dataclass(frozen=True)
class Disturbance:
    """Injected into a run: an instance drains or fails, or a hand-over under way ends from outside."""

    drain: int = -1
    """Index of an instance, modulo their number; -1 = none."""
    drain_us: int = 0
    evictions_us: tuple[int, ...] = ()
    fails: bool = False
    """Whether the instance fails, and does not drain."""

    def inject(self, simulation: ClusterSimulation) -> None:
        handoff, fleet = simulation.handoff, simulation.fleet
        assert handoff is not None
        if self.drain >= 0:
            index = self.drain % len(fleet.instances)
            leave = simulation.fail if self.fails else fleet.drain
            simulation.call_at(self.drain_us * US, lambda now_ns: leave(index))
        for at_us in self.evictions_us:
            simulation.call_at(at_us * US, lambda now_ns: handoff.evict_oldest("injected"))


disturbances = st.builds(
    Disturbance,
    st.integers(0, 5),
    st.integers(0, 900),
    st.lists(st.integers(0, 900), max_size=3).map(tuple),
    st.booleans(),
)


def schedulers_of(instance: Any) -> list[Scheduler]:
    """The scheduler of an instance, or those of its ranks."""
    whole = instance.scheduler
    return [rank.scheduler for rank in whole.ranks] if isinstance(whole, RankedScheduler) else [whole]


def run(
    table: RequestTable, disturbance: Disturbance | None, settings: dict[str, Any], single_step: bool
) -> RunRecord:
    simulation = ClusterSimulation(table, cluster(**settings), single_step=single_step)
    schedulers = [one for instance in simulation.fleet.instances for one in schedulers_of(instance)]
    if disturbance is not None:
        disturbance.inject(simulation)
    record = simulation.run()
    check(record)
    for scheduler in schedulers:
        scheduler.check()
        assert not scheduler.running
        assert not scheduler.holding
        assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
    assert simulation.handoff is not None
    assert simulation.handoff.under_way == 0
    network = simulation.handoff.network
    assert network.under_way == 0
    assert record.handovers is not None
    if settings["handoff"] != "blis":  # its bytes do not pass the network
        assert network.moved_bytes + network.cancelled_bytes == network.sent_bytes
        assert network.moved_bytes >= record.handovers.size_bytes.sum()
    return record


def facts(record: RunRecord) -> dict[str, Any]:
    """All that a jump may not change."""
    assert record.handovers is not None
    return (
        {name: getattr(record.visits, name).tolist() for name in VISITS}
        | {f"hand-over {name}": column.tolist() for name, column in vars_of(record.handovers).items()}
        | {name: [getattr(one, name) for one in record.instances] for name in INSTANCES}
    )


def vars_of(handovers: HandOvers) -> dict[str, Any]:
    return {field.name: getattr(handovers, field.name) for field in fields(handovers)}


@pytest.mark.slow
@pytest.mark.parametrize("disturbed", [False, True])
@settings(max_examples=40)
@given(tables(), clusters(), disturbances)
def test_nothing_is_lost_and_a_jump_is_its_steps(
    disturbed: bool, table: RequestTable, drawn: dict[str, Any], drawn_disturbance: Disturbance
) -> None:
    disturbance = drawn_disturbance if disturbed else None
    jump, single = (run(table, disturbance, drawn, single_step) for single_step in (False, True))
    assert facts(jump) == facts(single)
    done = jump.outcome == Outcome.COMPLETED
    assert (jump.emitted_tokens == table.output_tokens)[done].all()
    ended = {Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.EVICTED}
    assert set(jump.outcome.tolist()) <= ended | ({Outcome.REJECTED} if disturbed else set())
    assert jump.handovers is not None
    begun = (jump.visits.outcome == Onward.HANDED_OVER).sum()
    assert len(jump.handovers) <= begun
    patient = (table.deadline_ns < 0).all()
    if patient and not disturbed and not drawn["shared"] and "lease_ns" not in drawn:
        assert len(jump.handovers) == begun
    assert (jump.handovers.link_queue_ns >= 0).all()
    whole = drawn["handoff"] in ("vllm", "trtllm")
    if whole and (not drawn["contended"] or drawn["bandwidth_gbps"] is None):
        assert (jump.handovers.link_queue_ns == 0).all()
