from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_builders import emission_times, instance, random_record, record, table

from blis_py.latency.base import FrontendDelays
from blis_py.metrics import summarise, totals
from blis_py.metrics.invariants import InternalError, check
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import Labels

MS = 1_000_000
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture
def tiny() -> RunRecord:
    """Two instances; steps end every 10 ms on the first, every 20 ms on the second.

    Request 0 (10 tokens in) emits at 10, 20, 30 ms; request 1 (20 in), from 5 ms on, at 20 ms only;
    request 2 (30 in), from 10 ms on, at 40 and, after missing a step, at 80 ms; request 3 is rejected.
    Every token is seen 1 ms later than the one before would make it, the end another 4 ms later.
    """
    run = record(
        table(
            [0, 5 * MS, 10 * MS, 20 * MS],
            prompt_tokens=[10, 20, 30, 40],
            slo_class=["critical", "", "batch", "standard"],
            tenant=["a", "b", "b", "a"],
        ),
        [
            instance(np.arange(1, 5) * 10 * MS, busy_ns=40 * MS, kv_block_steps=100),
            instance(np.arange(1, 5) * 20 * MS, busy_ns=80 * MS, kv_block_steps=300, peak_kv_blocks=90),
        ],
        [(0, [0, 1, 2]), (0, [1]), (1, [1, 3]), None],
        frontend=FrontendDelays(per_token_ns=1 * MS, at_end_ns=4 * MS),
        preemptions=[0, 0, 1, 0],
    )
    for one in run.instances:
        one.gpus = 2
    return run


def test_the_tiny_run_is_summarised_as_worked_out_by_hand(tiny: RunRecord) -> None:
    summary = summarise(tiny)
    cluster = summary["cluster"]
    assert cluster["requests"] == {
        "injected": 4,
        "completed": 3,
        "length_capped": 0,
        "rejected": 1,
        "unservable": 0,
        "timed_out": 0,
        "still_queued": 0,
        "still_running": 0,
    }
    # first tokens at 11, 21, 41; finishes at 30+3+4, 20+1+4, 80+2+4
    assert cluster["ttft_ms"]["mean"] == pytest.approx((11 + 16 + 31) / 3)
    assert cluster["ttft_ms"]["p50"] == 16
    assert cluster["ttft_ms"]["p90"] == pytest.approx(16 + 0.8 * 15)
    assert cluster["e2e_ms"]["mean"] == pytest.approx((37 + 20 + 76) / 3)
    assert cluster["tpot_ms"]["count"] == 2
    assert cluster["tpot_ms"]["mean"] == pytest.approx(((37 - 11) / 2 + (86 - 41) / 1) / 2)
    assert cluster["itl_ms"]["count"] == 3  # 11, 11 and 41
    assert cluster["itl_ms"]["mean"] == pytest.approx((11 + 11 + 41) / 3)
    assert cluster["itl_ms"]["max"] == 41
    assert cluster["scheduling_delay_ms"]["mean"] == 0
    assert summary["window"]["duration_s"] == pytest.approx(0.086)
    assert cluster["throughput"]["requests_per_s"] == pytest.approx(3 / 0.086)
    assert cluster["throughput"]["output_tokens_per_s"] == pytest.approx(6 / 0.086)
    assert cluster["throughput"]["total_tokens_per_s"] == pytest.approx(66 / 0.086)
    assert cluster["output_tokens_per_s_per_gpu"] == pytest.approx(6 / 0.086 / 4)
    assert cluster["preemptions"] == 1
    assert cluster["preempted_requests"] == 1
    assert cluster["prefix_hit_rate"] == 0.25
    assert cluster["kv_peak_pct"] == 90
    assert cluster["kv_mean_pct"] == pytest.approx(100 * 400 / (8 * 100))
    assert cluster["busy_pct"] == pytest.approx(100 * 120 / (2 * 86))
    assert cluster["steps"] == 8
    assert cluster["jain_fairness"] == pytest.approx(1.0)  # 3 tokens each
    assert list(summary["classes"]) == ["critical", "standard", "batch"]
    assert summary["classes"]["standard"]["requests"]["injected"] == 2
    assert [one["requests"]["injected"] for one in summary["instances"]] == [2, 1]


def samples(run: RunRecord, metric: str, rows: Any) -> list[float]:
    """What a metric is computed from, request by request and token by token, in ms."""
    found = []
    for row in rows:
        arrival, finish = run.table.arrival_ns[row], run.finish_ns[row]
        tokens = emission_times(run, row) if run.emitted_tokens[row] else []
        done = run.outcome[row] in (Outcome.COMPLETED, Outcome.LENGTH_CAPPED)
        if metric == "ttft" and tokens:
            found.append(tokens[0] - arrival)
        elif metric == "itl" and done:
            found += np.diff(tokens).tolist()
        elif metric == "e2e" and done:
            found.append(finish - arrival)
        elif metric == "tpot" and done and len(tokens) > 1:
            found.append((finish - tokens[0]) / (len(tokens) - 1))
    return [value / MS for value in found]


@pytest.mark.slow
@given(seeds)
def test_every_group_agrees_with_numpy_on_its_own_requests(seed: int) -> None:
    run = random_record(seed, requests=25, instances=2)
    summary = summarise(run)
    names = [name or "standard" for name in run.table.slo_class.to_list()]
    owners = [name or "default" for name in run.table.tenant.to_list()]
    groups = [(summary["cluster"], range(len(run.table)))]
    groups += [(g, [r for r, n in enumerate(names) if n == c]) for c, g in summary["classes"].items()]
    groups += [(g, [r for r, n in enumerate(owners) if n == t]) for t, g in summary["tenants"].items()]
    groups += [(g, np.flatnonzero(run.instance == i)) for i, g in enumerate(summary["instances"])]
    for group, rows in groups:
        assert group["requests"]["injected"] == len(rows)
        for metric in ("ttft", "tpot", "itl", "e2e"):
            expected = samples(run, metric, rows)
            found = group[f"{metric}_ms"]
            assert found["count"] == len(expected)
            if expected:
                assert found["mean"] == pytest.approx(np.mean(expected))
                assert found["std"] == pytest.approx(np.std(expected), abs=1e-6)
                for q in (50, 90, 95, 99):
                    assert found[f"p{q}"] == pytest.approx(np.percentile(expected, q))
            else:
                assert found["mean"] is None


@pytest.mark.slow
@given(seeds)
def test_every_request_is_in_exactly_one_bucket(seed: int) -> None:
    summary = summarise(random_record(seed, requests=30))
    for group in (summary["cluster"], *summary["classes"].values(), *summary["tenants"].values()):
        counts = dict(group["requests"])
        injected, _ = counts.pop("injected"), counts.pop("length_capped")
        assert sum(counts.values()) == injected
    assert sum(c["requests"]["injected"] for c in summary["classes"].values()) == 30


@pytest.mark.slow
@given(seeds)
def test_rates_of_the_groups_add_up_to_the_clusters(seed: int) -> None:
    summary = summarise(random_record(seed, requests=30))
    for groups in (summary["classes"].values(), summary["tenants"].values(), summary["instances"]):
        for name, rate in summary["cluster"]["throughput"].items():
            assert sum(group["throughput"][name] for group in groups) == pytest.approx(rate)


@pytest.mark.slow
@given(seeds)
def test_a_summary_is_plain_json_with_the_same_bytes_every_time(seed: int) -> None:
    first = json.dumps(summarise(random_record(seed)), allow_nan=False)
    assert first == json.dumps(summarise(random_record(seed)), allow_nan=False)


def test_a_run_in_which_nothing_completed_has_no_latencies_and_zero_rates() -> None:
    run = record(table([0]), [instance([])], [(0, [])], [Outcome.QUEUED])
    cluster = summarise(run)["cluster"]
    assert cluster["e2e_ms"]["mean"] is None
    assert cluster["throughput"]["requests_per_s"] == 0
    assert cluster["mean_batch_tokens"] is None


def test_no_requests_at_all_is_a_summary_too() -> None:
    summary = summarise(record(table([]), [instance([])], []))
    assert summary["cluster"]["requests"]["injected"] == 0
    assert summary["classes"] == {}


def test_tokens_of_a_request_that_timed_out_count_for_ttft_but_not_for_throughput() -> None:
    ends = np.arange(1, 5) * 10 * MS
    run = record(table([0]), [instance(ends)], [(0, [0, 1])], [Outcome.TIMED_OUT])
    cluster = summarise(run)["cluster"]
    assert cluster["ttft_ms"]["mean"] == 10
    assert cluster["itl_ms"]["count"] == 0
    assert cluster["output_tokens"] == 0


def test_throughput_of_an_instance_and_of_a_gpu_is_by_their_mean_number() -> None:
    """Two of three instances, with 2 and 4 GPUs, leave in the middle: two instances and five GPUs."""
    ends = np.arange(1, 5) * 10 * MS
    stays = instance(ends, gpus=2)
    leaving = [instance(ends, gpus=gpus, gone_ns=20 * MS) for gpus in (2, 4)]
    cluster = summarise(record(table([0]), [stays, *leaving], [(0, [0, 1, 2, 3])]))["cluster"]
    assert cluster["throughput"]["output_tokens_per_s"] == pytest.approx(100)
    assert cluster["output_tokens_per_s_per_instance"] == pytest.approx(100 / 2)
    assert cluster["output_tokens_per_s_per_gpu"] == pytest.approx(100 / 5)


def test_one_tenant_with_everything_is_unfair() -> None:
    ends = np.arange(1, 5) * 10 * MS
    outcomes = [Outcome.COMPLETED, Outcome.REJECTED]
    run = record(table([0, 0], tenant=["a", "b"]), [instance(ends)], [(0, [0, 1]), None], outcomes)
    assert summarise(run)["cluster"]["jain_fairness"] == 0.5


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("outcome", 0, 9, "no known outcome"),
        ("scheduled_ns", 0, 0, "scheduled lies before"),
        ("finish_ns", 1, 1, "finished before its last token"),
        ("emitted_tokens", 2, 7, "tokens emitted and steps taken disagree"),
        ("preemptions", 0, 3, "instances preempted"),
    ],
)
def test_a_record_that_contradicts_itself_is_an_internal_error(
    tiny: RunRecord, column: str, row: int, value: int, message: str
) -> None:
    tiny.table.arrival_ns[0] = 1
    tiny.enqueue_ns[0] = 1
    tiny.scheduled_ns[0] = 1
    summarise(tiny)
    getattr(tiny, column)[row] = value
    with pytest.raises(InternalError, match=message):
        summarise(tiny)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("instance", 0, "a rejected request was dispatched"),
        ("outcome", Outcome.EVICTED, "an evicted request was never dispatched"),
        ("outcome", Outcome.TIMED_OUT, "a rejection and its reason disagree"),
        ("outcome", -1, "no known outcome"),
        ("outcome", max(Outcome) + 1, "no known outcome"),
    ],
)
def test_a_rejection_that_is_none_is_an_internal_error(column: str, value: int, message: str) -> None:
    ends = np.arange(1, 5) * 10 * MS
    outcomes = [Outcome.COMPLETED, Outcome.REJECTED]
    run = record(table([0, 0]), [instance(ends)], [(0, [0, 1]), None], outcomes)
    run.rejection = Labels.of(["", "full"])
    check(run)
    getattr(run, column)[1] = value
    with pytest.raises(InternalError, match=message):
        check(run)


def test_a_request_may_be_evicted_from_the_first_instance_and_needs_a_reason() -> None:
    ends = np.arange(1, 5) * 10 * MS
    run = record(table([0]), [instance(ends)], [(0, [0, 1])], [Outcome.EVICTED])
    run.rejection = Labels.of(["evicted"])
    check(run)
    run.rejection = None
    with pytest.raises(InternalError, match="without a reason"):
        check(run)


def test_a_lost_outcome_is_an_internal_error(tiny: RunRecord) -> None:
    tiny.visits.outcome = tiny.outcome[:-1]
    with pytest.raises(InternalError, match="4 requests went in, 3 outcomes came out"):
        summarise(tiny)


@pytest.mark.parametrize("pools", [("default",), ("prefill", "decode")])
def test_totals_are_the_summary_without_instances_and_pools(pools: tuple[str, ...]) -> None:
    run = random_record(3, requests=40, instances=4)
    for index, one in enumerate(run.instances):
        one.pool = pools[index % len(pools)]
    whole, part = summarise(run), totals(run)
    assert part["instances"] == []
    assert part == {name: value for name, value in whole.items() if name != "pools"} | {"instances": []}


@pytest.mark.parametrize("instances", [2, 8])
def test_the_steps_of_each_instance_are_looked_at_once_for_all_groups(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, step_gaps = [], TokenGaps._step_gaps

    def counted(self: TokenGaps, index: int) -> Any:
        looked_at.append(index)
        return step_gaps(self, index)

    monkeypatch.setattr(TokenGaps, "_step_gaps", counted)
    summarise(random_record(3, requests=400, instances=instances))
    assert sorted(looked_at) == list(range(instances))
