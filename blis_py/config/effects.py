"""Settings that change nothing under the other settings: refused as flags, noted where a file sets them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields

from blis_py.config.cluster import AdmissionSection, GatewaySection
from blis_py.config.implied import SIDES
from blis_py.config.latency import LatencySection
from blis_py.config.layers import Layers
from blis_py.config.models import PLAIN_ENGINE, RunConfig, SchedulerSection
from blis_py.config.workload import WorkloadSection

Useless = Iterator[tuple[str, str, str]]
"""Key, problem, remedy."""

SETTINGS_OF = {"token-bucket": "token_bucket_", "tier-shed": "tier_shed_", "gaie-legacy": "gaie_"}
"""Prefix of an admission policy's settings."""
_OF_DETECTORS = {
    "queue_depth_threshold": "utilization",
    "kv_cache_util_threshold": "utilization",
    "max_concurrency_per_instance": "concurrency",
}
"""Settings of saturation detectors."""
_OF_FORMERS = {
    "receive_interval": "prefill-only",
    "prompt_wait_steps": "in-flight",
    "prompt_wait_share": "in-flight",
}
"""Settings of batch formers."""
_OF_TRAINED = (
    *("kernels", "moe_backend", "fused_norms", "expert_load"),
    *("cuda_graphs", "cuda_graph_max_size", "cuda_graph_sizes", "cuda_graph_padding"),
)
_NOTED = {
    *(f"workload.{side}_tokens_{bound}" for side in SIDES for bound in ("min", "max")),
    *("routing.scorers", "link_gbps", "memory", "scheduler.gpu_memory_utilization", "drain"),
    *(f"latency.{name}" for name in _OF_TRAINED if name not in ("kernels", "expert_load")),
    *("attention_dp_timeout_iters", "scheduler.rank_choice"),
    *(f"scheduler.{name}" for name in _OF_FORMERS),
}
"""A note as flags, too: commands documented by BLIS, and those of servers, have them."""


def refuse_useless(config: RunConfig, layers: Layers) -> None:
    """Refuse flags without effect.

    Raises:
        InputError: there is one.
    """
    for key, problem, fix in _refused(config):
        if layers.by_flag(key) and key not in _NOTED:
            raise layers.error(problem, key, fix=fix)


def useless_notes(config: RunConfig) -> list[str]:
    """Notes on settings without effect that were set in a file, or as flags that are not refused."""
    given = config.given
    if given is None:  # unknown: those that no preset sets
        known = [*_of_parts(config)] if config.engine == PLAIN_ENGINE else [*_of_scorers(config)]
    else:
        known = [each for each in without_effect(config) if each[0] in given]
    return [f"{key} {problem}" for key, problem, _ in known]


def without_effect(config: RunConfig) -> Useless:
    """All settings that differ from their defaults and change nothing."""
    yield from _of_parts(config)
    yield from _switched_off(config)


def _refused(config: RunConfig) -> Useless:
    """BLIS's own documented commands set policies that are not in use."""
    yield from _switched_off(config)
    if config.engine != PLAIN_ENGINE:
        yield from _of_parts(config)


def _of_parts(config: RunConfig) -> Useless:
    """Settings of policies that are not in use."""
    yield from _of_scorers(config)
    admission, gateway = config.admission, config.gateway
    for f in fields(admission):
        for policy, prefix in SETTINGS_OF.items():
            useless = f.name.startswith(prefix) and policy != admission.policy
            if useless and getattr(admission, f.name) != getattr(AdmissionSection, f.name):
                problem, fix = f"has no effect on {admission.policy}", f"give --admission-policy {policy}"
                yield f"admission.{f.name}", problem, f"{fix}, or drop it"
    for name, detector in _OF_DETECTORS.items():
        changed = getattr(gateway, name) != getattr(GatewaySection, name)
        if gateway.flow_control and changed and detector != gateway.saturation_detector:
            problem = f"has no effect on {gateway.saturation_detector}"
            yield f"gateway.{name}", problem, f"give --saturation-detector {detector}, or drop it"


def _of_scorers(config: RunConfig) -> Useless:
    routing = config.routing
    if routing.scorers and routing.policy != "weighted":
        problem = f"has no effect on {routing.policy}"
        yield "routing.scorers", problem, "give --routing-policy weighted, or drop it"


def _switched_off(config: RunConfig) -> Useless:
    """Settings of a mechanism that another setting switches off."""
    yield from _of_gateway(config.gateway)
    if config.drain and config.workload.spec is None:
        yield "drain", "has no effect without the horizon of a workload spec", "drop it"
    load = config.workload
    for name in ("prompt_tokens", "output_tokens", "prompt_tokens_stdev", "output_tokens_stdev"):
        if load.length_law == "uniform" and getattr(load, name) != getattr(WorkloadSection, name):
            fix = f"give {name.removesuffix('_stdev')}_min and _max"
            yield f"workload.{name}", "has no effect on uniform lengths", fix
    for side in SIDES:
        for name in (f"{side}_tokens_min", f"{side}_tokens_max"):
            alike = load.length_law == "normal" and not getattr(load, f"{side}_tokens_stdev")
            if alike and getattr(load, name) != getattr(WorkloadSection, name):
                fix = f"give {side}_tokens_stdev, or length_law uniform"
                yield f"workload.{name}", f"has no effect on lengths that are all alike: {fix}", fix
    if not config.all_pools:
        yield from _of_instances(config)


def _of_gateway(gateway: GatewaySection) -> Useless:
    for f in fields(gateway):
        default = {} if f.default is MISSING else f.default
        if not gateway.flow_control and getattr(gateway, f.name) != default:
            yield f"gateway.{f.name}", "has no effect without flow control", "add --flow-control"
    if gateway.flow_control and gateway.slo_targets_us and gateway.dispatch_order != "slo-deadline":
        problem, fix = f"have no effect on {gateway.dispatch_order}", "give --dispatch-order slo-deadline"
        yield "gateway.slo_targets_us", problem, f"{fix}, or drop it"


def _of_instances(config: RunConfig) -> Useless:
    latency, scheduler = config.latency, config.scheduler
    for name in _OF_TRAINED:
        if latency.model != "trained" and getattr(latency, name) != getattr(LatencySection, name):
            yield f"latency.{name}", f"has no effect on {latency.model}", "use --latency-model trained"
    for name, former in _OF_FORMERS.items():
        if scheduler.batch_former != former and getattr(scheduler, name) != getattr(SchedulerSection, name):
            problem, fix = f"has no effect on {scheduler.batch_former}", f"use --batch-former {former}"
            yield f"scheduler.{name}", problem, f"{fix}, or drop it"
    if config.attention_dp_timeout_iters and config.attention_dp == 1:
        yield "attention_dp_timeout_iters", "has no effect without attention DP", "give --attention-dp"
    if config.attention_dp == 1 and scheduler.rank_choice != SchedulerSection.rank_choice:
        yield "scheduler.rank_choice", "has no effect without attention DP", "give --attention-dp"
    if config.link_gbps is not None and config.tp == 1:
        yield "link_gbps", "has no effect on instances of one GPU", "drop it"
    if config.graph_memory_gib is not None and config.memory != "vllm":
        yield (
            "graph_memory_gib",
            f"has no effect on the memory of {config.memory}",
            "use --engine vllm, or drop it",
        )
    if scheduler.num_kv_blocks is not None:
        for key in ("memory", "graph_memory_gib", "scheduler.gpu_memory_utilization"):
            yield key, "has no effect: num_kv_blocks is given", "drop one of the two"
