"""Lookahead through hand-overs: how far a decode instance runs ahead, and what it must not run past."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from apart import US, requests, simulate

from blis_py.cluster.instances.instance import Instance
from blis_py.metrics.record import Outcome, RunRecord


def woken_us(monkeypatch: pytest.MonkeyPatch, handoff: str, **settings: Any) -> list[float]:
    """When the decode instance is woken: two requests decode until about 1,100 us, a third comes at 2 ms.

    Woken by itself, at the end of a run of alike steps, or because the clock has reached a truncated one.
    """
    times: list[float] = []
    wake = Instance.wake

    def noted(self: Instance, time_ns: int) -> None:
        if self.turn.place == 1:
            times.append(time_ns / US)
        wake(self, time_ns)

    monkeypatch.setattr(Instance, "wake", noted)
    simulate(requests([0, 1, 2000], [20, 20, 20], [100, 30, 9]), handoff, **settings)
    return times


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "trtllm-generation-first", "sglang", "blis"])
@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
def test_a_decode_instance_runs_ahead_to_the_next_hand_over(
    monkeypatch: pytest.MonkeyPatch, handoff: str, policy: str
) -> None:
    """Once it has the KV of both it needs no further wake-up for the end of either, until the third comes."""
    times = woken_us(monkeypatch, handoff, policy=policy)
    assert max(time for time in times if time < 2000) < 120
    assert min(time for time in times if time > 120) >= 2000


def test_where_the_end_of_a_prefill_chooses_the_decode_instance_none_runs_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = woken_us(monkeypatch, "vllm", pair_order="prefill-first")
    assert any(300 < time < 2000 for time in times)


def finishes(record: RunRecord) -> tuple[list[int], list[int]]:
    return record.instance.tolist(), record.finish_ns.tolist()


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "trtllm-generation-first", "sglang", "blis"])
@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
@pytest.mark.parametrize("latency_us", [0, 300])
def test_it_runs_past_neither_a_prefill_under_way_nor_a_transfer(
    handoff: str, policy: str, latency_us: int
) -> None:
    """Requests end on it before, during and after the prefill of the last one, and while its KV is sent."""
    table = requests([0, 1, 2, 3, 200], [20, 20, 20, 20, 150], [100, 60, 30, 15, 9])
    how: dict[str, Any] = {"policy": policy, "latency_ns": latency_us * US}
    jump, single = (simulate(table, handoff, single_step=one, **how) for one in (False, True))
    assert jump.first_token_ns.tolist() == single.first_token_ns.tolist()
    assert finishes(jump) == finishes(single)


def test_choices_at_the_end_of_a_prefill_are_made_in_the_order_of_these_ends() -> None:
    """Round-robin counts the choices at arrivals too: none may be made ahead of its time."""
    table = requests([0, 30, 60, 90], [60, 5, 40, 5], [50, 50, 50, 50])
    jump, single = (
        simulate(table, "vllm", pair_order="prefill-first", prefill=3, decode=2, single_step=single_step)
        for single_step in (False, True)
    )
    assert finishes(jump) == finishes(single)


def test_a_deadlock_is_resolved_at_the_time_at_which_the_last_step_has_ended() -> None:
    """Two prompts wait for each other while the decode instance, which has run ahead, serves the first."""
    table = requests([0] * 8, [4, 4, 40, 4, 4, 4, 4, 40], [40, 4, 4, 4, 4, 4, 4, 4])
    crossed = {"prefill": 2, "decode": 1, "shared": 2, "num_kv_blocks": 12}
    jump, single = (simulate(table, "vllm", single_step=one, **crossed) for one in (False, True))
    assert (single.outcome == Outcome.EVICTED).sum() == 1
    assert single.finish_ns[single.outcome == Outcome.EVICTED] >= single.finish_ns[0]
    assert finishes(jump) == finishes(single)


@pytest.mark.parametrize("horizon_us", range(0, 120, 5))
def test_a_run_may_end_at_any_moment_of_a_hand_over(horizon_us: int) -> None:
    for handoff in ("vllm", "trtllm", "sglang", "blis"):
        table = requests([0], [30], [9])
        record = simulate(table, handoff, horizon_ns=horizon_us * US)
        assert np.isin(record.outcome, [Outcome.COMPLETED, Outcome.QUEUED, Outcome.RUNNING]).all()
