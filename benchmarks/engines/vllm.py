"""vLLM: its releases, kinds of scenarios, and a scenario's settings on our side."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.engines import presets, scenarios
from benchmarks.engines.engine import Engine, Variant
from benchmarks.engines.scenario import Scenario
from blis_py.core.config import SchedulerConfig

PACKAGE = "vllm"
FURTHER = (
    scenarios.Setting("scheduler_reserve_full_isl", (0, 19), (True, True, False)),
    scenarios.Setting("watermark", (0, 24), (0.0, 0.0, 0.05, 0.2)),
    scenarios.Setting("prefill_schedule_interval", (0, 24), (1, 1, 2, 4)),
    scenarios.Setting("long_prefill_token_threshold_adaptive", (0, 31), (False, True)),
)
"""Our scheduler has them under the same names."""
_ASYNCHRONOUS = (0, 12)
"""Before, the asynchronous loop is an experiment that plans a step more than a request has tokens."""


def config(scenario: Scenario, version: str) -> SchedulerConfig:
    """Settings of our scheduler for a scenario, under the preset of a release."""
    priority = scenario["policy"] == "priority"
    own = {
        "num_kv_blocks": scenario["num_kv_blocks"],
        "max_model_len": scenario["max_model_len"],
        "max_num_seqs": scenario["max_num_seqs"],
        "max_num_batched_tokens": scenario["max_num_batched_tokens"],
        "long_prefill_token_threshold": scenario["long_prefill_token_threshold"],
        "block_size": scenario["block_size"],
        "scheduler": "priority-fcfs" if priority else "fcfs",
        "preemption_policy": "priority" if priority else "fcfs",
        "async_scheduling": scenario["async_scheduling"],
        "prefix_cache": "hash" if scenario["enable_prefix_caching"] else "none",
        **{key: value for key, value in scenario["settings"].items() if key in presets.FIELDS},
        **scenario["ours"],
    }
    return presets.config(PACKAGE, version, scenario["async_scheduling"], own)


def _variants() -> tuple[Variant, ...]:
    return tuple(
        Variant(
            f"{mode}, {loop}",
            partial(scenarios.scenario, asynchronous=asynchronous, mode=mode, further=FURTHER),
            _ASYNCHRONOUS if asynchronous else (),
        )
        for mode in (scenarios.DEFAULTS, scenarios.EVERYTHING)
        for loop, asynchronous in (("synchronous", False), ("asynchronous", True))
    )


VLLM = Engine(
    package=PACKAGE,
    kept=("vllm/v1/", "vllm/utils/", "vllm/config/", "vllm/engine/"),
    program=Path(__file__).with_name("vllm_child.py"),
    config=config,
    variants=_variants(),
    releases=("0.10", "0.12", "0.15", "0.19", "0.24", "0.29", "0.33", "newest"),
    gated=("0.15", "0.24", "newest"),
    recorded=("0.15", "0.24", "0.29", "0.33"),
    settings=tuple(f"vllm/config/{name}.py" for name in ("scheduler", "cache", "parallel", "speculative")),
    sources=(
        "vllm/v1/core/sched",
        "vllm/v1/core/kv_cache_manager.py",
        "vllm/v1/core/kv_cache_coordinator.py",
        "vllm/v1/core/single_type_kv_cache_manager.py",
        "vllm/v1/core/block_pool.py",
        "vllm/v1/request.py",
        "vllm/v1/engine/core.py",
        "vllm/engine/arg_utils.py",
    ),
)
