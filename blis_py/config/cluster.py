"""From the cluster's entrance to an instance: routing, admission and flow control in the configuration.

Annotations are evaluated here and no later, as in `blis_py.config.models`.
"""

from dataclasses import dataclass, field

from blis_py.config.layers import setting
from blis_py.core.bounds import LAST_NS, MOST_INSTANCES, MOST_REQUESTS

_LAST_US = LAST_NS // 1000


@dataclass(frozen=True, kw_only=True)
class RoutingSection:
    """From the cluster's entrance to an instance."""

    policy: str = "round-robin"
    """Which instance gets a request: `round-robin`, `least-loaded`, `random`, `power-of-two`, `weighted`,
    `session-affinity`, `always-busiest`, or one that is installed."""
    latency_us: int = setting(0, least=0, most=_LAST_US)
    """Time that routing a request takes."""
    scorers: dict[str, float] = field(default_factory=dict)
    """With `weighted`: scorers and their weights; empty = its default profile."""
    snapshot_refresh_interval_us: int = setting(50_000, least=0, most=_LAST_US)
    """Age up to which the router works with old instance state; 0 = live."""
    cache_signal_delay_us: int = setting(50_000, least=0, most=_LAST_US)
    """The same for what the instances' prefix caches hold."""
    any_model: bool = False
    """Serve requests whatever model they ask for; otherwise those for another model are rejected."""
    trace_level: str = setting("none", choices=("none", "decisions"))
    """`decisions`: keep what the router knew at each of them."""
    counterfactual_k: int = setting(0, least=0, most=MOST_INSTANCES)
    """Candidates to keep of each decision, the best first; 0 = all."""


@dataclass(frozen=True, kw_only=True)
class AdmissionSection:
    """Who is let in."""

    policy: str = "always-admit"
    """Who is let in: `always-admit`, `reject-all`, `token-bucket`, `tier-shed`, `gaie-legacy`, or one that
    is installed."""
    latency_us: int = setting(0, least=0, most=_LAST_US)
    """Time that admitting a request takes."""
    token_bucket_capacity: float = setting(10_000.0, above=0, most=1e15)
    """With `token-bucket`: prompt tokens that may come at once."""
    token_bucket_refill_rate: float = setting(1_000.0, above=0, most=1e15)
    """With `token-bucket`: prompt tokens per second."""
    tier_shed_threshold: float = setting(0.0, least=0, most=1e15)
    """With `tier-shed`: load of the most loaded instance (waiting, running and in flight) above which it
    sheds."""
    tier_shed_min_priority: int = setting(0, least=-101, most=101)
    """With `tier-shed`: SLO classes of a smaller priority are shed."""
    gaie_qd_threshold: float = setting(5.0, above=0, most=1e15)
    """With `gaie-legacy`: requests waiting at an instance that is saturated."""
    gaie_kv_threshold: float = setting(0.8, above=0, most=1)
    """With `gaie-legacy`: share of its KV blocks in use."""
    tenant_budgets: dict[str, float] = field(default_factory=dict)
    """By tenant, the share of all instances' `max_num_seqs` above which its sheddable requests are rejected,
    whatever the policy; a tenant without has no limit."""
    slo_priorities: dict[str, int] = field(default_factory=dict)
    """Urgency by SLO class, larger = more urgent; adds to or replaces the defaults."""


@dataclass(frozen=True, kw_only=True)
class GatewaySection:
    """Flow control: who waits at the gateway, in which order, and until when."""

    flow_control: bool = False
    """Requests wait at the gateway while the cluster is saturated, instead of at an instance."""
    saturation_detector: str = "never"
    """When it is: `never`, `utilization`, `concurrency`, or one that is installed."""
    queue_depth_threshold: float = setting(5.0, above=0, most=1e15)
    """With `utilization`: requests waiting at an instance that is saturated."""
    kv_cache_util_threshold: float = setting(0.8, above=0, most=1)
    """With `utilization`: share of its KV blocks in use."""
    max_concurrency_per_instance: int = setting(100, least=1, most=MOST_REQUESTS)
    """With `concurrency`: requests in flight at an instance that is saturated."""
    dispatch_order: str = "fifo"
    """Who goes first: `fifo`, `priority`, `slo-deadline`, `edf`, or one that is installed."""
    fairness_policy: str = "global-strict"
    """Whose turn it is among tenants of one priority: `global-strict`, `round-robin`, or one that is
    installed."""
    max_gateway_queue_depth: int = setting(0, least=0, most=MOST_REQUESTS)
    """Requests that wait, at most; 0 = no limit."""
    per_band_capacity: int = setting(0, least=0, most=MOST_REQUESTS)
    """Requests of one priority that wait, at most; 0 = no limit."""
    usage_limit_threshold: float = setting(1.0, above=0, most=1)
    """Saturation up to which the least urgent are dispatched; those between them and the most urgent, who
    are up to 1, at even distances."""
    request_ttl_us: int = setting(0, least=0, most=_LAST_US)
    """So long a request waits at the gateway, at most; 0 = as long as its client does."""
    queue_shedding: bool = False
    """Whoever comes to a full queue takes the place of the least urgent one that may be shed, if that is less
    urgent."""
    in_flight_eviction: bool = False
    """Whoever may not be shed and has to wait takes the place of a request at an instance that may be."""
    dispatch_tick_interval_us: int | None = setting(None, least=1, most=_LAST_US)
    """One request at most is dispatched with each arrival and each such tick, as by BLIS; null = as many as
    can be, as soon as they can."""
    slo_targets_us: dict[str, int] = field(default_factory=dict)
    """With `slo-deadline`: by SLO class, how long after it came a request should be dispatched."""
