"""Random settings of whole runs, and everything that results say of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from drawing import Values, digest, drawn, kept

from blis_py.errors import InputError

INPUTS = Path(__file__).parent / "inputs"

ENGINE: Values = {
    "engine": ("vllm", "vllm", "sglang", "trtllm", "blis"),
    "scheduler": ("fcfs", "priority-fcfs", "reverse-priority", "sjf", "lpm", "hrrn"),
    "+scheduler": (
        {"scheduler": "lpm", "lpm_max_queue": 3, "in_batch_sharing_tokens": 10, "scan_us": 40.0},
        {"scheduler": "lpm", "fairness_ms": 10, "prefix_cache": "radix"},
        {"scheduler": "hrrn", "fairness_ms": 60},
        {"scheduler": "dfs-weight", "prefix_cache": "radix", "fairness_tokens": 300},
        {"scheduler": "dfs-weight", "prefix_cache": "radix", "in_batch_sharing_tokens": 40},
    ),
    "+radix": tuple(
        {"prefix_cache": "radix", "radix_eviction_policy": policy, "num_kv_blocks": 60}
        for policy in ("lru", "lfu", "fifo", "mru", "priority", "cold-subtree")
    ),
    "+in_flight": ({"batch_former": "in-flight", "prompt_wait_steps": 3, "prompt_wait_share": 0.2},),
    "preemption_policy": ("fcfs", "priority"),
    "batch_former": ("running-first", "prefill-first", "prefill-only", "in-flight"),
    "admission_rule": ("guaranteed-no-evict", "new-token-ratio"),
    "prefix_cache": ("hash", "radix", "none"),
    "num_kv_blocks": (45, 60, 80, 200),
    "block_size": (16, 32),
    "max_num_seqs": (2, 3, 5, 16),
    "max_num_batched_tokens": (64, 96, 300, 2048),
    "long_prefill_token_threshold": (24, 40),
    "receive_interval": (3,),
    "async_scheduling": (True, False),
    "late_length_stops": (True, False),
    "mask_row_us": (30.0,),
    "mask_step_us": (90.0,),
    "frontend_ms": ((2.0, 1.0, 0.3),),
    "latency_model": ("trained", "roofline", "trained-physics"),
    "kv_cache_dtype": ("fp8", "auto"),
    "horizon": ("400ms", "900ms", "2s"),
    "seed": (1, 2, 3),
}
ROUTING: Values = {
    "num_instances": (2, 3, 6),
    "routing_policy": (
        *("round-robin", "least-loaded", "random", "power-of-two", "always-busiest", "weighted"),
        "session-affinity",
    ),
    "routing_scorers": (
        {"prefix-affinity": 3.0, "load-balance": 1.0},
        {"precise-prefix-cache": 2.0, "queue-depth": 1.0, "kv-utilization": 0.5},
        {"no-hit-lru": 2.0, "active-requests": 1.0},
        {"load-aware": 1.0, "running-requests": 1.0, "vllm-dp": 1.0},
    ),
    "routing_latency": (300, 4000),
    "snapshot_refresh_interval": (0, 5000, 90_000),
    "cache_signal_delay": (0, 30_000),
    "trace_level": ("decisions",),
    "+decisions": ({"trace_level": "decisions", "counterfactual_k": 2},),
    "admission_latency": (500,),
    "+admission": (
        {"admission_policy": "always-admit"},
        {"token_bucket_capacity": 500.0, "token_bucket_refill_rate": 2000.0},
        {"token_bucket_capacity": 3000.0, "token_bucket_refill_rate": 9000.0},
        {"tier_shed_threshold": 1.0, "tier_shed_min_priority": 3},
        {"tier_shed_threshold": 3.0},
        {"gaie_qd_threshold": 1.0, "gaie_kv_threshold": 0.3},
        {"gaie_qd_threshold": 3.0},
        {"tenant_budgets": {"north": 0.2, "south": 0.3}},
    ),
}
GATEWAY: Values = {
    "flow_control": (True,),
    "+detector": (
        {"saturation_detector": "concurrency", "max_concurrency_per_instance": 1},
        {"saturation_detector": "concurrency", "max_concurrency_per_instance": 3},
        {"saturation_detector": "utilization", "queue_depth_threshold": 1.0},
        {"saturation_detector": "utilization", "kv_cache_util_threshold": 0.3},
        {"saturation_detector": "utilization"},
    ),
    "dispatch_order": ("fifo", "priority", "slo-deadline", "edf"),
    "fairness_policy": ("round-robin", "global-strict"),
    "max_gateway_queue_depth": (2, 6),
    "per_band_capacity": (2, 4),
    "usage_limit_threshold": (0.4, 0.8),
    "request_ttl": (50_000, 400_000),
    "+shedding": ({"queue_shedding": True, "max_gateway_queue_depth": 3, "dispatch_order": "priority"},),
    "+eviction": ({"in_flight_eviction": True, "dispatch_order": "priority"},),
    "dispatch_tick_interval": (2000, 20_000),
    "slo_targets": ({"critical": 50000, "batch": 900_000},),
    "goodput": ("ttft:60 tpot:15 e2e:700",),
    "slo": ("ttft.p99=60ms critical.e2e.p50=400ms itl.p99=15ms",),
}
POOLS: Values = {
    "handoff": ("vllm", "sglang", "trtllm", "blis"),
    "pd_decider": ("always", "never", "prefix-threshold", "load"),
    "pd_prefix_threshold": (30, 90),
    "pd_load_threshold": (1, 3),
    "pd_pair_order": ("prefill-first", "decode-first"),
    "pd_link": ("nvlink", "roce200", "eth25", "ndr400"),
    "pd_transfer_bandwidth": (0.05, 0.5, 20.0),
    "pd_transfer_base_latency": (0.0, 3.0),
    "pd_link_efficiency": (0.3, 0.9),
    "pd_node_bandwidth": (0.5, 30.0),
    "pd_gpus_per_node": (1, 2),
    "pd_transfer_contention": (True, False),
    "pd_overlap": ("none", "chunk", "layer"),
    "num_reserved_decode_tokens": (8, 60),
    "kv_lease_duration": (0.02, 0.2),
    "kv_load_failure_policy": ("fail", "recompute"),
    "prefill_max_num_batched_tokens": (64, 200),
    "prefill_num_kv_blocks": (60, 100),
    "decode_num_kv_blocks": (60, 100),
    "prefill_max_num_seqs": (2, 5),
    "decode_max_num_seqs": (3, 9),
    "prefill_tp": (2,),
    "decode_tp": (2,),
    "prefill_routing_policy": ("least-loaded", "random", "weighted"),
    "decode_routing_policy": ("least-loaded", "power-of-two"),
    "decode_routing_scorers": ({"kv-utilization": 1.0, "queue-depth": 2.0},),
}
DIFFUSION: Values = {
    "num_kv_blocks": (24, 30, 60),
    "max_num_batched_tokens": (300, 2048),
    "dllm_fdfo": (True, False),
    "dllm_in_place_reuse": (True, False),
    "dllm_re_loop": (True, False),
    "dllm_schedule_us": (40.0,),
    "dllm_allocator_call_us": (7.0,),
    "scheduler": ("fcfs", "priority-fcfs", "sjf"),
    "prefix_cache": ("hash", "radix", "none"),
    "horizon": ("20ms", "60ms"),
    "latency_model": ("trained", "roofline"),
    "num_instances": (1, 2, 3),
}
RANKS: Values = {
    "engine": ("vllm", "sglang", "trtllm"),
    "rank_choice": ("round-robin", "least-queued", "total-requests", "total-tokens", "balanced-tokens"),
    "attention_dp_timeout_iters": (0, 3),
    "redundant_experts": (0, 8),
    "ep": (4,),
    "cuda_graphs": (True, False),
}
PAIR = {"prefill_instances": 1, "decode_instances": 2}
ROUND = 0.4
"""Share of runs in which everything happens at round times."""
CLUSTERS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "one": ({}, {}),
    "routed": ({}, {"ROUTING": 0.35}),
    "gateway": ({"flow_control": True}, {"ROUTING": 0.15, "GATEWAY": 0.35}),
    "pools": (
        {"prefill_instances": 2, "decode_instances": 2, "engine": "vllm"},
        {"POOLS": 0.2, "ROUTING": 0.05, "GATEWAY": 0.03},
    ),
    "ranks": ({"model": "qwen3-30b-a3b", "tp": 4, "attention_dp": 4}, {"RANKS": 0.4}),
    "ranked-pools": (
        {**PAIR, "model": "qwen3-30b-a3b", "tp": 4, "attention_dp": 4},
        {"POOLS": 0.15, "RANKS": 0.3},
    ),
    "diffusion": ({}, {"DIFFUSION": 0.35, "ROUTING": 0.05}),
}
"""Fixed settings of each kind, and how often a setting of a table is drawn; of `ENGINE` it is 0.12."""


def settings_of(kind: str, rng: Random) -> dict[str, Any]:
    """Random settings of a run of that kind."""
    fixed, tables = CLUSTERS[kind]
    settings: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", **fixed}
    if kind == "diffusion":
        settings |= {"model": "llada2.0-mini", "gpu": "h200", "latency_model": "roofline", "block_size": 32}
        settings |= {"workload": "diffusion-tiny", "num_requests": 30, "rate": rng.choice((300, 2000))}
        settings |= {"max_num_seqs": rng.choice((3, 8)), "max_model_len": 768}
    else:
        is_round = rng.random() < ROUND
        settings |= _on_a_grid(rng) if is_round else _traffic(rng)
        tables = {"ENGINE": 0.07 if is_round else 0.12, **tables}
    for name, share in tables.items():
        settings |= drawn(globals()[name], share, rng)
    return settings


def _on_a_grid(rng: Random) -> dict[str, Any]:
    """Traffic and step times in round numbers: much happens at the same time, or just fills a limit."""
    costs = {"step": rng.choice((1e6, 5e6)), "prefill_tokens": rng.choice((0.0, 1e4))}
    return {
        "latency": {"model": "linear", "linear": {"gpu": costs, "frontend": {"before_enqueue_ns": 0}}},
        "arrival": "constant",
        "rate": rng.choice((100, 200, 500)),
        "prompt_tokens": rng.choice((16, 32, 64, 96)),
        "prompt_tokens_stdev": 0,
        "output_tokens": rng.choice((4, 16, 17)),
        "output_tokens_stdev": 0,
        "prefix_tokens": rng.choice((0, 16, 48)),
        "timeout": rng.choice((0.02, 0.05, 60)),
        "num_requests": rng.choice((30, 60)),
        "max_model_len": rng.choice((128, 160)),
        "num_kv_blocks": rng.choice((10, 16, 20, 32)),
        "max_num_seqs": rng.choice((2, 4, 8)),
        "max_num_batched_tokens": rng.choice((32, 64, 128)),
        "horizon": rng.choice(("100ms", "200ms", "10s")),
    }


def _traffic(rng: Random) -> dict[str, Any]:
    name = rng.choice(("classes", "classes", "talks", "loops", "closed", "sessions", "drawn"))
    if name in ("classes", "talks", "loops"):
        return {"workload_spec": str(INPUTS / f"{name}.yaml"), "num_requests": 40, "max_model_len": 640}
    made: dict[str, Any] = {
        "prompt_tokens": rng.choice((40, 150)),
        "prompt_tokens_stdev": rng.choice((0, 60)),
        "prompt_tokens_max": 400,
        "output_tokens": rng.choice((5, 30)),
        "output_tokens_stdev": rng.choice((0, 20)),
        "output_tokens_max": 100,
        "prefix_tokens": rng.choice((0, 50)),
        "eos_share": rng.choice((0.0, 0.4)),
        "structured_output_ratio": rng.choice((0.0, 0.5)),
        "num_requests": rng.choice((40, 40, 120)),
        "max_model_len": 640,
    }
    if name == "closed":
        return made | {"concurrency": rng.choice((3, 8)), "think_time_ms": rng.choice((0.0, 15.0))}
    process = {"arrival": rng.choice(("poisson", "gamma", "weibull", "constant"))}
    process |= {"cv": 2.5} if process["arrival"] in ("gamma", "weibull") else {}
    return made | process | {"rate": rng.choice((20, 90, 400)), "timeout": rng.choice((0.3, 60))}


def runs(kind: str, first: str, count: str) -> Iterator[str]:
    """Everything that a result says of runs with random settings, or why they are refused."""
    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"{kind} {seed}")
        yield f"{seed} {' '.join(kept(settings_of(kind, rng), rng, _said))}"


def _said(settings: dict[str, Any], rng: Random) -> Iterator[str]:
    from configurations import digest as of_record

    from blis_py.api import build
    from blis_py.ledger.explain import explain
    from blis_py.metrics.detectors import DETECTORS, DetectorSettings, detect, events_of
    from blis_py.report.blis import blis_metrics

    simulation = build(**settings)
    result = simulation.run(progress=False)
    yield f"record {of_record(result.record)}"
    yield f"requests {digest(result.requests.to_dict('list'))}"
    yield f"visits {digest(result.visits.to_dict('list'))}"
    yield f"steps {digest(result.steps.to_dict('list'))}"
    summary = {key: value for key, value in result.summary.items() if "scheduler" not in key}
    yield " ".join(f"{key} {digest(value)}" for key, value in summary.items())
    if result.record.decisions is not None:
        yield f"decisions {digest(result.decisions.to_dict('list'))}"
    found = detect(events_of(result.record), DETECTORS, DetectorSettings(), 10**9)
    yield f"detectors {digest(found.report())}"
    yield f"vllm {digest(result.vllm())} blis {digest(blis_metrics(result.record, requests=True))}"
    yield f"gaps {digest(result.token_times())}"
    metric = rng.choice(("ttft.p99", "e2e.p90", "itl.p99", "e2e.p50"))
    try:
        explanation = explain(result, metric=metric, what_if=False)
        yield f"explained {digest(explanation.as_dict())} {digest(str(explanation))}"
    except InputError as error:
        yield f"not explained: {error}"
