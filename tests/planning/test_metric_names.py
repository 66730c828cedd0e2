from __future__ import annotations

import pytest

import blis_py as blis
from blis_py.errors import InputError
from blis_py.planning.metric_names import figure_named

RUN = {"model": "qwen3-14b", "gpu": "h100", "num_requests": 6, "rate": 4, "workers": 1, "cache": False}


@pytest.fixture(scope="module")
def done() -> blis.Sweep:
    return blis.sweep(vary={"max_num_seqs": [1, 4]}, goodput="ttft:500", output_tokens=20, **RUN)


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("output_tokens_per_s", "throughput.output_tokens_per_s"),
        ("output_throughput", "throughput.output_tokens_per_s"),
        ("output_token_throughput", "throughput.output_tokens_per_s"),
        ("output_tokens_per_second", "throughput.output_tokens_per_s"),
        ("total_token_throughput", "throughput.total_tokens_per_s"),
        ("request_throughput", "throughput.requests_per_s"),
        ("requests_per_second", "throughput.requests_per_s"),
        ("request_goodput", "goodput.requests_per_s"),
        ("tokens_per_s_per_gpu", "output_tokens_per_s_per_gpu"),
        ("ttft.p99", "ttft_ms.p99"),
        ("ttft", "ttft_ms.p99"),
        ("p99_ttft_ms", "ttft_ms.p99"),
        ("median_tpot_ms", "tpot_ms.p50"),
        ("mean_e2el_ms", "e2e_ms.mean"),
        ("Time to first token", "ttft_ms.p99"),
        ("inter_token_latency.avg", "itl_ms.mean"),
        ("request_latency.p95", "e2e_ms.p95"),
        ("kv_peak_pct", "kv_peak_pct"),
    ],
)
def test_figures_have_the_names_of_other_benchmarks(done: blis.Sweep, name: str, figure: str) -> None:
    assert done.require(name) == figure


def test_an_unknown_name_is_refused_with_the_nearest(done: blis.Sweep) -> None:
    assert figure_named("ttft.p42", ["ttft_ms.p99"]) == "ttft.p42"
    with pytest.raises(InputError, match="did you mean"):
        done.require("kv_peak_pc")


def test_a_larger_throughput_is_better_under_any_name(done: blis.Sweep) -> None:
    means = [each["mean"] for each in done.ranked("output_throughput")]
    assert means == sorted(means, reverse=True)


def test_the_cheapest_point_comes_first() -> None:
    done = blis.sweep(vary={"tp": [4, 1, 2]}, output_tokens=20, **RUN)
    assert [each["tp"] for each in done.cheapest("ttft_ms.p99")] == [1, 2, 4]


def test_a_point_that_misses_a_target_comes_after_dearer_ones() -> None:
    done = blis.sweep(vary={"tp": [1, 4]}, output_tokens=20, slo="tpot.p99=6ms", **RUN)
    assert [(each["tp"], each["slo_met"]) for each in done.cheapest("ttft_ms.p99")] == [(4, True), (1, False)]


def test_a_closed_loop_is_ranked_by_dollars_per_token() -> None:
    closed = {**RUN, "rate": None, "concurrency": 4, "num_requests": 16}
    done = blis.sweep(vary={"max_num_seqs": [1, 4]}, output_tokens=20, **closed)
    costs = done.costs()
    ranked = [costs[str(each["max_num_seqs"]),].dollars_per_million for each in done.cheapest("ttft_ms.p99")]
    assert ranked == sorted(ranked)
    assert done.cheapest("ttft_ms.p99")[0]["max_num_seqs"] == 4
