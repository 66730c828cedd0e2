"""A server that was not warmed up compiles the kernels of prompts that go on once, and all wait for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster_runs import LATENCIES, differences, linear

from blis_py import api
from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster, InstanceSpec, Pool
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.latency.base import LatencyModel
from blis_py.latency.launch_pipeline import LaunchPipeline
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

MS = 1_000_000
STEP = linear(1.0 * MS)


def run(
    prompts: list[int],
    compile_ms: int = 100,
    asynchronous: bool = False,
    latency: LatencyModel = STEP,
    count: int = 1,
    output: int = 3,
    content: bool = False,
    **options: Any,
) -> RunRecord:
    """Requests that are there from the beginning, and steps of 100 tokens."""
    scheduler = SchedulerConfig(
        num_kv_blocks=1000, max_model_len=4096, max_num_batched_tokens=100, async_scheduling=asynchronous
    )
    spec = InstanceSpec(scheduler=scheduler, latency=latency, kernel_compile_ns=compile_ms * MS)
    alike: dict[str, Any] = {}
    if content:
        alike = {"content": np.zeros(len(prompts), dtype=np.int64), "contents": [((1, max(prompts)),)]}
    arrival_ns = np.arange(len(prompts)) * (500 * MS if content else 0)
    table = RequestTable.build(arrival_ns, np.array(prompts), np.full(len(prompts), output), **alike)
    return simulate(table, Cluster(pools=(Pool(spec=spec, count=count),)), **options)


def first_tokens_ms(record: RunRecord) -> list[float]:
    return [ns / MS for ns in record.first_token_ns]


def test_prompts_that_fit_into_a_step_wait_for_nothing() -> None:
    for asynchronous in (False, True):
        assert first_tokens_ms(run([60, 40], asynchronous=asynchronous)) == [1, 1]


def test_a_synchronous_loop_waits_in_the_first_step_that_goes_on_with_a_prompt() -> None:
    """Steps end at 1, 102, 103 and 104 ms."""
    assert first_tokens_ms(run([50, 250])) == [1, 104]


def test_an_asynchronous_loop_reads_the_step_before_it_afterwards() -> None:
    """Steps end at 101, 102, 103 and 104 ms: the second one is launched before the first one is read."""
    assert first_tokens_ms(run([50, 250], asynchronous=True)) == [101, 104]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_kernels_are_compiled_once_by_each_instance(asynchronous: bool) -> None:
    warm, cold = (run([150, 150, 150, 150], ms, asynchronous, count=2) for ms in (0, 100))
    assert (cold.finish_ns - warm.finish_ns).tolist() == [100 * MS] * 4


def test_a_cached_beginning_needs_them_as_well() -> None:
    warm, cold = (run([90, 90, 90], ms, content=True) for ms in (0, 100))
    assert (cold.finish_ns - warm.finish_ns).tolist() == [0, 100 * MS, 0]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("latency", sorted(LATENCIES))
def test_a_jump_equals_its_steps_on_a_cold_server(latency: str, asynchronous: bool) -> None:
    pair = [
        run([30, 250, 80, 120], 7, asynchronous, LATENCIES[latency], output=40, single_step=single)
        for single in (False, True)
    ]
    assert differences(*pair) == []


def test_steps_behind_the_wait_are_launched_after_it() -> None:
    """GPU 100, launching 20, other work of the host 10: the step behind begins when the one before ends."""
    features = StepFeatures(prefill_seqs=1, prefill_tokens=10)
    ends = []
    for wait in (0, 1000):
        pipeline = LaunchPipeline(lambda f: (100, 10, 20))
        pipeline.filled_ns(features, 0, 130, goes_on=False)
        pipeline.blocked(wait)
        ends.append(pipeline.prompt_end_ns(features, 130 + wait))
    assert ends == [230, 1230]


def test_the_setting_is_of_each_run_and_pool() -> None:
    load: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "concurrency": 4,
        "num_requests": 8,
        "prompt_tokens": 3000,
        "output_tokens": 4,
        "max_num_batched_tokens": 2048,
    }
    warm, cold = (api.run(**load, kernel_compile_ms=ms).requests["ttft_ms"].max() for ms in (0, 5000))
    assert cold - warm == pytest.approx(5000, abs=1)


def test_block_diffusion_has_no_such_kernels() -> None:
    load: dict[str, Any] = {
        "workload": "diffusion-tiny",
        "model": "llada2.0-mini",
        "latency_model": "roofline",
    }
    load |= {"block_size": 32, "max_num_seqs": 16}
    notes = api.build(**load, kernel_compile_ms=5.0).notes
    assert "latency.kernel_compile_ms has no effect on block diffusion" in notes


@pytest.mark.parametrize(
    ("changed", "wait_ms"),
    [
        ({}, 69_800),
        ({"cold_kernels": False}, 0),
        ({"gpu": "h200"}, 0),
        ({"model": "qwen3-32b"}, 0),
        ({"engine": "vllm"}, 0),
        ({"kernel_compile_ms": 5.0}, 5),
    ],
)
def test_sglang_compiles_kernels_of_latent_prompts_late_on_blackwell(
    changed: dict[str, Any], wait_ms: float
) -> None:
    load: dict[str, Any] = {"engine": "sglang", "model": "deepseek-r1", "gpu": "b200", "tp": 8}
    run = api.build(**{**load, "num_requests": 2, "cold_kernels": True, **changed})
    assert run.config.latency.kernel_compile_ms == wait_ms
    said = "latency.cold_kernels has no effect: no kernels are known to be compiled late here"
    assert (said in run.notes) == (run.config.latency.cold_kernels and not wait_ms)
