from __future__ import annotations

import json

import numpy as np
import pytest
from record_builders import instance, random_record, record, table

from blis_py.latency.base import FrontendDelays
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.slo import parse_class_targets, parse_goodput
from blis_py.report.blis import as_go_writes, blis_metrics, blis_results

MS = 1_000_000


@pytest.fixture
def run() -> RunRecord:
    """Completed with 3 tokens; length-capped with 1; not served; timed out with one token; own id."""
    return record(
        table(
            [0, 5 * MS, 6 * MS, 7 * MS, 8 * MS],
            prompt_tokens=[10, 20, 30, 40, 50],
            slo_class=["critical", "", "batch", "critical", "critical"],
            tenant="t",
            model="m",
            request_id=["request_7", "request_8", "request_9", "request_10", "mine"],
        ),
        [instance(np.array([10, 20, 40]) * MS)],
        [(0, [0, 1, 2]), (0, [1]), None, (0, [1]), (0, [2])],
        [Outcome.COMPLETED, Outcome.LENGTH_CAPPED, Outcome.UNSERVABLE, Outcome.TIMED_OUT, Outcome.COMPLETED],
        frontend=FrontendDelays(per_token_ns=1500, at_end_ns=2 * MS),
    )


def test_replay_results_are_completed_requests_with_a_numeric_id_in_microseconds(run: RunRecord) -> None:
    """A class or a model that is empty is left out."""
    assert blis_results(run) == [
        {
            "request_id": 7,
            "ttft_us": 10_001.5,
            "e2e_us": 42_004.5,
            "input_tokens": 10,
            "output_tokens": 3,
            "slo_class": "critical",
            "model": "m",
            "itl_mean_us": 15_001.5,
        },
        {
            "request_id": 8,
            "ttft_us": 15_001.5,
            "e2e_us": 17_001.5,
            "input_tokens": 20,
            "output_tokens": 1,
            "model": "m",
            "itl_mean_us": 0.0,
        },
    ]


def test_metrics_have_the_names_and_units_of_blis(run: RunRecord) -> None:
    metrics = blis_metrics(run, requests=True)
    assert metrics["injected_requests"] == 5
    assert metrics["completed_requests"] == 3
    assert metrics["length_capped_requests"] == 1
    assert metrics["dropped_unservable"] == 1
    assert metrics["timed_out_requests"] == 1
    assert metrics["still_queued"] == metrics["still_running"] == 0
    assert metrics["total_input_tokens"] == 120  # without the unservable one
    assert metrics["total_output_tokens"] == 5
    assert metrics["vllm_estimated_duration_s"] == 0.04
    assert metrics["responses_per_sec"] == pytest.approx(75)
    assert metrics["tokens_per_sec"] == pytest.approx(125)
    assert metrics["itl_mean_ms"] == pytest.approx(15.0015)
    ttfts = [10.0015, 15.0015, 13.0015, 32.0015]  # the one that timed out included
    assert metrics["ttft_p90_ms"] == pytest.approx(np.percentile(ttfts, 90))
    assert metrics["cache_hit_rate"] == 0
    assert not [name for name in metrics if "p50" in name]
    first, capped, late, _ = metrics["requests"]  # none for the one that was dropped
    assert first == {
        "arrived_at": 0.0,
        "requestID": "request_7",
        "num_prefill_tokens": 10,
        "num_decode_tokens": 3,
        "ttft_ms": 10.0015,
        "itl_ms": 15.0015,
        "e2e_ms": 42.0045,
        "scheduling_delay_ms": 0.0,
        "slo_class": "critical",
        "tenant_id": "t",
        "handled_by": "instance_0",
        "model": "m",
        "round_index": 0,
    }
    assert (capped["length_capped"], "slo_class" in capped) == (True, False)
    assert (late["requestID"], late["e2e_ms"], late["num_decode_tokens"]) == ("request_10", 0, 4)


def test_outcomes_add_up_to_the_injected_requests() -> None:
    for seed in range(20):
        metrics = blis_metrics(random_record(seed, requests=30))
        ends = ("completed_requests", "still_queued", "still_running", "dropped_unservable")
        cut_off = ("timed_out_requests", "gateway_evicted_requests")  # the latter only if any
        assert sum(metrics.get(name, 0) for name in (*ends, *cut_off)) == metrics["injected_requests"]


def test_goodput_is_by_class_over_all_its_requests(run: RunRecord) -> None:
    metrics = blis_metrics(run, goodput=parse_class_targets("ttft", "critical=20ms"))
    assert metrics["slo_attainment"] == pytest.approx(1 / 3)
    assert metrics["goodput_rps"] == pytest.approx(25)
    assert metrics["per_class"].keys() == {"critical"}
    assert metrics["per_class"]["critical"]["count"] == 3
    assert metrics["per_class"]["critical"]["slo_attainment_by_dim"] == {"ttft": pytest.approx(1 / 2)}


def test_a_request_without_class_is_held_to_the_targets_of_default_only(run: RunRecord) -> None:
    metrics = blis_metrics(run, goodput=parse_class_targets("ttft", "standard=20ms,default=20ms"))
    assert metrics["per_class"].keys() == {"default"}
    assert metrics["per_class"]["default"]["count"] == 1
    without_targets = blis_metrics(run, goodput=parse_class_targets("ttft", "standard=20ms"))
    assert "per_class" not in without_targets
    everyone = blis_metrics(run, goodput=parse_goodput(["ttft:20"]), every_class=True)
    assert {name: own["count"] for name, own in everyone["per_class"].items()} == {
        "critical": 3,
        "batch": 1,
        "default": 1,
    }


def test_whole_numbers_are_written_without_a_fraction(run: RunRecord) -> None:
    assert json.dumps(as_go_writes({"a": [1.0, 1.5, True, "1.0", {"b": -3.0}]})) == (
        '{"a": [1, 1.5, true, "1.0", {"b": -3}]}'
    )
    assert '"preemption_count": 0' in json.dumps(blis_metrics(run))
    assert ".0," not in json.dumps(blis_metrics(run, requests=True))


def test_without_targets_and_requests_their_keys_are_absent(run: RunRecord) -> None:
    metrics = blis_metrics(run)
    assert not {"goodput_rps", "slo_attainment", "per_class", "requests", "cache_hit_rate"} & metrics.keys()
    json.dumps(metrics, allow_nan=False)


def test_a_run_without_a_step_is_a_valid_file() -> None:
    metrics = blis_metrics(record(table([0]), [instance([])], [None]), requests=True)
    assert json.loads(json.dumps(metrics, allow_nan=False))["ttft_mean_ms"] == 0.0
