"""Cross-checks of settings: names that lead nowhere, and contradictions."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from typing import Any

from blis_py.config.cluster import AdmissionSection, GatewaySection, RoutingSection
from blis_py.config.disaggregation import ROLES, WITHOUT_POOLS, DisaggregationSection
from blis_py.config.effects import refuse_useless
from blis_py.config.latency import EXPERT_LOADS, LatencySection
from blis_py.config.layers import Layers, did_you_mean, flatten
from blis_py.config.models import RunConfig, SchedulerSection
from blis_py.config.paths import looks_like_load
from blis_py.config.workload import WorkloadSection
from blis_py.core.bounds import LAST_NS, MAX_INSTANCES, clock_ns
from blis_py.core.checks import contradictions
from blis_py.errors import InputError

_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION = r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[a-zµ]*)"

_NOT_IN_NAMES = ("/", "\\", ".", ":", "=", ",")
"""Signs with a meaning in keys, targets and names of files."""
TRACE_ONLY = (
    *("trace_header", "trace_format", "columns", "time_unit", "hash_block_size", "tokenizer"),
    *("time_scale", "limit", "skip_bad_rows", "as_recorded", "slo_shares", "client_timeout_s"),
)
"""Settings that apply to recordings only."""
_LENGTHS = tuple(
    f.name
    for f in fields(WorkloadSection)
    if f.name.startswith(("prompt_", "output_", "prefix_", "length_law", "arrival", "cv"))
)


def duration_ns(value: str | int, key: str = "horizon") -> int:
    """`"60s"`, `"1.5h"`, `"500ms"`, or a plain number of µs, as nanoseconds.

    Raises:
        InputError: it is not a positive duration.
    """
    fix = 'write "60s", "10m", or a number of µs'
    match = re.fullmatch(_DURATION, str(value).strip(), re.ASCII)
    unit_ns = None if match is None else _NS.get(match["unit"] or "us")
    if match is None or unit_ns is None:
        raise InputError("must be a positive duration", key=key, value=value, fix=fix)
    number = match["number"]
    span = int(number) if len(number) < 25 and "." not in number else float(number)
    return clock_ns(span, unit_ns, key=key, least_ns=1, fix=fix)


def check(config: RunConfig, layers: Layers) -> None:
    """Check names and contradictions of a configuration.

    Raises:
        InputError: a name is unknown, or two settings contradict each other.
    """
    from blis_py.latency import LATENCY_MODELS

    name = config.latency.model
    if name not in LATENCY_MODELS:
        raise layers.error(
            "unknown value", "latency.model", value=name, fix=did_you_mean(name, LATENCY_MODELS)
        )
    _check_pools(config, layers)
    _check_routing(config.routing, layers)
    _check_admission(config.admission, layers)
    _check_gateway(config.gateway, layers)
    refuse_useless(config, layers)
    _check_source(config.workload, layers)
    _check_sessions(config.workload, layers)
    _check_horizon(config, layers)
    _check_latency(config, layers)
    _check_scheduler(config.scheduler, layers)


def _check_horizon(config: RunConfig, layers: Layers) -> None:
    if config.horizon is None:
        return
    duration_ns(config.horizon, layers.label("horizon"))
    if config.drain:
        fix = "drop one of the two, or bound the load with num_requests"
        raise layers.error("ends the run, and drain says that nothing does", "horizon", fix=fix)


def _check_latency(config: RunConfig, layers: Layers) -> None:
    """Settings that belong to one latency model."""
    from blis_py.latency import PRICES_LINKS

    latency = config.latency
    _check_coefficients(latency, layers)
    if latency.linear and latency.model != "linear":
        raise layers.error("belongs to the linear model", "latency.linear", fix="set latency.model to linear")
    if (latency.kernel_profile is None) == (latency.model == "kernel-tables"):
        raise layers.error(
            "goes with the kernel-tables model",
            "latency.kernel_profile",
            fix="give --latency-model kernel-tables and the folder of measured kernels together",
        )
    if (latency.profile is None) == (latency.model == "fitted"):
        raise layers.error(
            "goes with the fitted model",
            "latency.profile",
            fix="give --profile DIR, and no other --latency-model than fitted",
        )
    _check_expert_load(latency.expert_load, layers)
    if config.link_gbps is not None and latency.model not in PRICES_LINKS:
        fix = f"drop it or use --latency-model {' or '.join(PRICES_LINKS)}"
        raise layers.error(f"has no effect on {latency.model}", "link_gbps", fix=fix)


def _check_expert_load(name: str, layers: Layers) -> None:
    if name not in EXPERT_LOADS and not looks_like_load(name):
        fix = did_you_mean(name, (*EXPERT_LOADS, "a .csv file"))
        raise layers.error("unknown value", "latency.expert_load", value=name, fix=fix)


def _check_coefficients(latency: LatencySection, layers: Layers) -> None:
    if (latency.alpha_coeffs is None) != (latency.beta_coeffs is None):
        given = "alpha" if latency.beta_coeffs is None else "beta"
        other = "beta" if given == "alpha" else "alpha"
        raise layers.error(
            f"needs {other}-coeffs as well", f"latency.{given}_coeffs", fix="give both or neither"
        )
    if latency.alpha_coeffs is not None and latency.model != "trained-physics":
        raise layers.error(
            f"belongs to trained-physics, not to {latency.model}",
            "latency.alpha_coeffs",
            fix="drop the coefficients or the latency model",
        )


def _check_scheduler(scheduler: SchedulerSection, layers: Layers) -> None:
    for name, problem, fix in contradictions(scheduler.policy, scheduler):
        raise layers.error(problem, f"scheduler.{'policy' if name == 'scheduler' else name}", fix=fix)
    on = "scheduler.enable_prefix_caching"
    if layers.by_flag(on) and scheduler.enable_prefix_caching and scheduler.prefix_cache == "none":
        raise layers.error("contradicts prefix_cache: none", on, fix="drop one of the two")


def _check_pools(config: RunConfig, layers: Layers) -> None:
    pools, apart = config.all_pools, config.disaggregation
    _check_xpyd(apart, layers)
    if not config.is_disaggregated:
        _check_unused(apart, layers)
    if not pools:
        if config.routing.capacity_weights:
            key, fix = "routing.capacity_weights", "drop it, or list pools of different instances"
            raise layers.error("has no effect: all instances are alike", key, fix=fix)
        return
    names = [pool.name for pool in pools]
    if "" in names:
        raise layers.error(f"pool {names.index('')} has no name", "pools", fix="write - {name: …, count: …}")
    for name in names:
        if not name.isprintable() or name != name.strip() or any(sign in name for sign in _NOT_IN_NAMES):
            fix = f"leave out {' '.join(_NOT_IN_NAMES)}, control characters, and spaces around it"
            raise layers.error("not a name of a pool", "pools", value=name, fix=fix)
    if len(set(names)) < len(names):
        raise layers.error("two pools have the same name", "pools", value=names, fix="rename one")
    key = "pools" if config.pools else "disaggregation.prefill_instances"
    if config.pools and apart.instances:
        fix = "drop it: each pool has a count and a role"
        raise layers.error("contradicts pools", "disaggregation.prefill_instances", fix=fix)
    if not 1 <= config.instances <= MAX_INSTANCES:
        problem = f"must be 1 to {MAX_INSTANCES:,} instances in all"
        raise layers.error(problem, key, value=config.instances, fix="change a count")
    for shared in set.intersection(*(set(flatten(pool.overrides(), RunConfig)) for pool in pools)):
        if layers.by_flag(shared) and config.pools:
            raise layers.error("has no effect: every pool has its own", shared, fix="change it in the pools")
    if config.num_instances != 1 and config.num_instances != (apart.instances or 1):
        fix = f"use {apart.instances}, or drop it" if apart.instances else "drop it: each pool has a count"
        raise layers.error("contradicts the pools", "num_instances", value=config.num_instances, fix=fix)
    _check_disaggregation(config, layers, key)


def _check_xpyd(apart: DisaggregationSection, layers: Layers) -> None:
    if apart.xpyd is None:
        return
    for name in ROLES.values():
        if getattr(apart, name):
            raise layers.error("contradicts --xpyd", f"disaggregation.{name}", fix="drop one of the two")


def _check_unused(apart: DisaggregationSection, layers: Layers) -> None:
    """Refuse settings of a hand-over where there is none."""
    for f in fields(apart):
        value = getattr(apart, f.name)
        if (
            value != f.default
            and WITHOUT_POOLS.get(f.name) != value
            and f.name not in ("shared_instances", "xpyd")
        ):
            fix = "give --prefill-instances and --decode-instances, or drop it"
            key = f"disaggregation.{f.name}"
            raise layers.error("has no effect: prefill and decode are not apart", key, value=value, fix=fix)


def _check_disaggregation(config: RunConfig, layers: Layers, key: str) -> None:
    """Check that both sides exist, and that the link is known."""
    from blis_py.config.link_kinds import LINK_KINDS

    roles = {pool.role for pool in config.all_pools if pool.count}
    if "both" not in roles and len(roles) == 1:
        other = "decode" if "prefill" in roles else "prefill"
        fix = f"give --{other}-instances, or a pool of that role"
        at = key if config.pools else f"disaggregation.{min(roles)}_instances"
        raise layers.error(f"no instance serves {other}", at, fix=fix)
    link = config.disaggregation.link
    if link is not None and link not in LINK_KINDS:
        fix = did_you_mean(link, LINK_KINDS)
        raise layers.error("unknown link", "disaggregation.link", value=link, fix=fix)
    if config.links and not config.is_disaggregated:
        fix = "drop it: a request stays with one instance"
        raise layers.error("nothing goes over a link", "links", value=list(config.links), fix=fix)


def _check_sessions(load: WorkloadSection, layers: Layers) -> None:
    """Refuse pauses outside of a closed loop, and two definitions of their length."""
    if load.think_time_ms and load.concurrency is None and load.session_mode != "closed-loop":
        fix = "say how many requests may be under way with --concurrency, or drop it"
        if load.trace is not None:
            fix = "add --session-mode closed-loop, or --concurrency, or drop it"
        raise layers.error("means a closed loop", "workload.think_time_ms", fix=fix)
    for name in ("session_mode", "think_time_dist"):
        if getattr(load, name) is not None and load.trace is None:
            fix = "drop it: a workload spec says it with closed_loop and multi_turn"
            raise layers.error("is about the sessions of a trace", f"workload.{name}", fix=fix)
    if load.think_time_dist is not None:
        if load.session_mode != "closed-loop":
            fix = "add --session-mode closed-loop"
            raise layers.error("is about sessions that wait", "workload.think_time_dist", fix=fix)
        if load.think_time_ms is not None:
            raise layers.error("says the same as think_time_ms", "workload.think_time_dist", fix="drop one")
    if load.session_mode == "closed-loop" and load.concurrency is not None:
        problem, fix = "the turns of sessions wait for answers already", "drop one of the two"
        raise layers.error(problem, "workload.concurrency", value=load.concurrency, fix=fix)


def _check_routing(routing: RoutingSection, layers: Layers) -> None:
    from blis_py.cluster.extensions import find, names
    from blis_py.cluster.routing.policies import POLICY_GROUP, ROUTING_POLICIES
    from blis_py.cluster.routing.scorers import GROUP, SCORERS

    if find(ROUTING_POLICIES, POLICY_GROUP, routing.policy) is None:
        fix = did_you_mean(routing.policy, names(ROUTING_POLICIES, POLICY_GROUP))
        raise layers.error("unknown value", "routing.policy", value=routing.policy, fix=fix)
    key = "routing.scorers"
    for name, weight in routing.scorers.items():
        if find(SCORERS, GROUP, name) is None:
            fix = did_you_mean(name, names(SCORERS, GROUP))
            raise layers.error("unknown scorer", key, value=name, fix=fix)
        if not 0 < weight < float("inf"):
            fix = "leave a scorer out that shall not count"
            raise layers.error("a weight must be greater than 0", key, value=f"{name}:{weight:g}", fix=fix)
    if routing.counterfactual_k and routing.trace_level == "none":
        fix = "give --trace-level decisions"
        raise layers.error("means decisions that are kept", "routing.counterfactual_k", fix=fix)


def _check_admission(admission: AdmissionSection, layers: Layers) -> None:
    from blis_py.cluster.extensions import find, names
    from blis_py.cluster.ingress.admission import ADMISSION_GROUP, ADMISSION_POLICIES

    chosen = admission.policy
    if find(ADMISSION_POLICIES, ADMISSION_GROUP, chosen) is None:
        fix = did_you_mean(chosen, names(ADMISSION_POLICIES, ADMISSION_GROUP))
        raise layers.error("unknown value", "admission.policy", value=chosen, fix=fix)
    for tenant, share in admission.tenant_budgets.items():
        if not 0 <= share <= 1:
            fix = "give a share of all request slots, such as 0.25"
            raise layers.error(
                "must be from 0 to 1", "admission.tenant_budgets", value=f"{tenant}={share:g}", fix=fix
            )


_NAMES_OF_PARTS = ("saturation_detector", "dispatch_order", "fairness_policy")


def _check_gateway(gateway: GatewaySection, layers: Layers) -> None:
    if any(getattr(gateway, name) != getattr(GatewaySection, name) for name in _NAMES_OF_PARTS):
        _check_parts(gateway, layers)
    if gateway.flow_control and gateway.queue_shedding and not gateway.max_gateway_queue_depth:
        fix = "give --max-gateway-queue-depth"
        raise layers.error("needs a limit: without one no request is shed", "gateway.queue_shedding", fix=fix)
    _check_targets(gateway, layers)


def _check_parts(gateway: GatewaySection, layers: Layers) -> None:
    """Check that named components exist; defaults do."""
    from blis_py.cluster.extensions import find, names
    from blis_py.cluster.ingress import dispatch_order, fairness, saturation

    tables: tuple[tuple[str, Any, str], ...] = (
        ("saturation_detector", saturation.SATURATION_DETECTORS, saturation.DETECTOR_GROUP),
        ("dispatch_order", dispatch_order.DISPATCH_ORDERS, dispatch_order.ORDER_GROUP),
        ("fairness_policy", fairness.FAIRNESS_POLICIES, fairness.FAIRNESS_GROUP),
    )
    for name, table, group in tables:
        value = getattr(gateway, name)
        if find(table, group, value) is None:
            fix = did_you_mean(value, names(table, group))
            raise layers.error("unknown value", f"gateway.{name}", value=value, fix=fix)


def _check_targets(gateway: GatewaySection, layers: Layers) -> None:
    key = "gateway.slo_targets_us"
    for name, target_us in gateway.slo_targets_us.items():
        if not 0 < target_us <= LAST_NS // 1000:
            raise layers.error("must be a time above 0", key, value=f"{name}={target_us}", fix="give µs")


def _check_source(load: WorkloadSection, layers: Layers) -> None:
    given = [
        f.name
        for f in fields(load)
        if getattr(load, f.name) != _default(f) or layers.by_flag(f"workload.{f.name}")
    ]
    of_flags = load.preset == "distribution"  # BLIS's name for the flags' workload
    sources = [name for name in ("trace", "spec", "preset") if name in given]
    if len(sources) > 1:
        first, second = (layers.label(f"workload.{name}") for name in sources[:2])
        raise InputError(f"cannot be combined with {second}", key=first, fix="name one source of requests")
    source = sources[0] if sources and not of_flags else "generated"
    useless = {
        "trace": (*_LENGTHS, "timeout_s"),
        "spec": (*TRACE_ONLY, *_LENGTHS, "timeout_s"),
        "preset": (*TRACE_ONLY, *(name for name in _LENGTHS if name not in ("arrival", "cv"))),
        "generated": TRACE_ONLY,
    }[source]
    for name in given:
        if name in useless:
            what = {"generated": "needs a trace"}.get(source, f"has no effect on a {source}")
            raise layers.error(what, f"workload.{name}", fix="drop it or change the source of requests")
    for name, other in (
        ("rate", "time_scale"),
        ("num_requests", "limit"),
        ("trace_format", "columns"),
    ):
        if name in given and other in given:
            raise layers.error(
                f"cannot be combined with {other}", f"workload.{name}", fix="give one of the two"
            )
    for side in ("prompt", "output"):
        if getattr(load, f"{side}_tokens_min") > getattr(load, f"{side}_tokens_max"):
            raise layers.error(
                f"is more than {side}_tokens_max", f"workload.{side}_tokens_min", fix="swap the two"
            )


def _default(spec: Field[Any]) -> Any:
    return {} if spec.default is MISSING else spec.default
