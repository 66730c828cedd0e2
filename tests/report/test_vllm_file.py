from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_builders import emission_times, instance, random_record, record, table

import blis_py as blis
from blis_py.metrics.latencies import completed_mask
from blis_py.metrics.record import Outcome
from blis_py.metrics.slo import parse_goodput
from blis_py.metrics.step_ends import StepEnds
from blis_py.report import vllm
from blis_py.report.vllm import vllm_result

MS = 1_000_000
seeds = st.integers(0, 2**32 - 1)

SUMMARY_KEYS = {
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s"),
    *("max_concurrent_requests", "model_id", "num_prompts", "request_rate", "backend"),
}
LISTS = {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors"}


def test_a_closed_loop_has_its_limit_in_the_file() -> None:
    loop = {"model": "llama-3.1-8b", "num_requests": 8, "output_tokens": 5}
    assert blis.run(**loop, concurrency=3).vllm()["max_concurrency"] == 3
    assert blis.run(**loop, rate=5).vllm()["max_concurrency"] is None


def test_the_keys_are_those_of_vllm_bench_serve() -> None:
    result = vllm_result(random_record(1))
    stats = {f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")}
    assert result.keys() >= SUMMARY_KEYS | LISTS | stats
    assert not LISTS & vllm_result(random_record(1), detailed=False).keys()


@given(seeds)
@settings(max_examples=30)
def test_its_statistics_are_those_of_its_lists(seed: int) -> None:
    """What a reader of the file would compute from the lists is what the file says."""
    result = vllm_result(random_record(seed, requests=20))
    done = [i for i, error in enumerate(result["errors"]) if not error]
    assert result["completed"] == len(done)
    assert result["completed"] + result["failed"] == result["num_prompts"] == 20
    lengths = result["output_lens"]
    several = [i for i in done if lengths[i] > 1]
    lists = {
        "ttft": [result["ttfts"][i] for i in done],
        "e2el": [result["latencies"][i] for i in done],
        "tpot": [(result["latencies"][i] - result["ttfts"][i]) / (lengths[i] - 1) for i in several],
        "itl": [itl for i in done for itl in result["itls"][i]],
    }
    for name, seconds in lists.items():
        for word, value in (
            ("mean", np.mean(seconds or 0)),
            ("median", np.median(seconds or 0)),
            ("std", np.std(seconds or 0)),
            ("p99", np.percentile(seconds or 0, 99)),
        ):
            assert result[f"{word}_{name}_ms"] == pytest.approx(1000 * value, abs=1e-6)
    assert result["total_output_tokens"] == sum(lengths)
    assert all(len(itls) == max(n - 1, 0) for itls, n in zip(result["itls"], lengths, strict=True))


@pytest.mark.slow
@given(seeds, st.sampled_from([7, 10**9]))
@settings(max_examples=30)
def test_the_busiest_second_and_the_most_concurrent_requests_are_counted(seed: int, at_once: int) -> None:
    run = random_record(seed, requests=30, steps=400)
    ends = run.instances[0].step_end_ns
    ends[200:] += 3_000_000_000  # a long pause, so that seconds differ
    run.instances[0].step_ends = StepEnds.of(ends)
    emission = run.visits.emission
    for row in np.flatnonzero((run.instance == 0) & (emission.first_step >= 0)).tolist():
        run.first_token_ns[row] = ends[emission.first_step[row]] + run.frontend.per_token_ns
        late = run.emitted_tokens[row] * run.frontend.per_token_ns
        run.last_token_ns[row] = ends[emission.last_step[row]] + late
        if run.finish_ns[row] >= 0:
            run.finish_ns[row] = run.last_token_ns[row] + run.frontend.at_end_ns
    done = np.flatnonzero(completed_mask(run)).tolist()
    start = min((run.table.arrival_ns[row] for row in done), default=0)
    seconds = [(t - start) // 10**9 for row in done for t in emission_times(run, row)]
    moments = [(run.table.arrival_ns[row], 1) for row in done] + [(run.finish_ns[row], -1) for row in done]
    concurrent = np.cumsum([change for _, change in sorted(moments)])
    vllm._TOKENS_AT_ONCE, usual = at_once, vllm._TOKENS_AT_ONCE
    try:
        result = vllm_result(run, detailed=False)
    finally:
        vllm._TOKENS_AT_ONCE = usual
    assert result["max_output_tokens_per_s"] == max(np.bincount(seconds), default=0)
    assert result["max_concurrent_requests"] == max(concurrent, default=0)


def test_a_request_that_ends_as_another_starts_does_not_overlap_it() -> None:
    ends = np.array([10, 20]) * MS
    run = record(table([0, 10 * MS]), [instance(ends)], [(0, [0]), (0, [1])])
    assert vllm_result(run)["max_concurrent_requests"] == 1


def test_goodput_and_failures_are_reported() -> None:
    ends = np.array([10, 20, 30, 1000]) * MS
    run = record(
        table([0, 0, 0]),
        [instance(ends)],
        [(0, [0, 1]), (0, [2, 3]), None],
        [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.UNSERVABLE],
    )
    result = vllm_result(run, goodput=parse_goodput(["ttft:20"]), request_rate=3.0)
    assert result["request_goodput"] == pytest.approx(1.0)
    assert result["request_rate"] == 3.0
    assert result["errors"][:2] == ["", ""]
    assert "does not fit" in result["errors"][2]
    assert (result["output_lens"], result["ttfts"]) == ([2, 2, 0], [0.01, 0.03, 0.0])
    assert vllm_result(run)["request_goodput"] is None


def test_a_run_in_which_nothing_completed_is_a_valid_file() -> None:
    result = vllm_result(record(table([0]), [instance([])], [None]))
    assert json.loads(json.dumps(result, allow_nan=False))["failed"] == 1
