"""Routing, admission and flow control in the configuration.

Annotations are evaluated here and no later, as in `blis_py.config.models`.
"""

from dataclasses import field

from blis_py.config._flag_texts import digits, pairs, scorers, zero_is_usual
from blis_py.core.bounds import LAST_NS, MAX_INSTANCES, MAX_REQUESTS
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting

_LAST_US = LAST_NS // 1000


@dataclass(frozen=True, kw_only=True)
class RoutingSection:
    """Path from the cluster's ingress to an instance."""

    policy: str = setting(
        "round-robin",
        flag="--routing-policy",
        help="round-robin, least-loaded, random, power-of-two, weighted, session-affinity, always-busiest.",
    )
    """Which instance gets a request: `round-robin`, `least-loaded`, `random`, `power-of-two`, `weighted`,
    `session-affinity`, `always-busiest`, or one that is installed."""
    latency_us: int = setting(0, least=0, most=_LAST_US, flag="--routing-latency", help="Router delay, µs.")
    """Time that routing a request takes."""
    scorers: dict[str, float] = setting(
        factory=dict,
        flag="--routing-scorers",
        read=scorers,
        help="With weighted: scorers and weights. "
        "Default precise-prefix-cache:2,queue-depth:1,kv-utilization:1.",
        metavar="NAME:W,…",
    )
    """With `weighted`: scorers and their weights; empty = its default profile."""
    snapshot_refresh_interval_us: int = setting(
        50_000,
        least=0,
        most=_LAST_US,
        flag="--snapshot-refresh-interval",
        help="Age of what the router knows, µs; 0 = live.",
    )
    """Age up to which the router works with old instance state; 0 = live."""
    cache_signal_delay_us: int = setting(
        50_000,
        least=0,
        most=_LAST_US,
        flag="--cache-signal-delay",
        help="Age of what it knows of prefix caches, µs; 0 = live.",
    )
    """The same for what the instances' prefix caches hold."""
    capacity_weights: bool = setting(
        False,
        flag="--capacity-weights",
        help="Unequal instances get requests by capacity: turns, load and scores in relation to it.",
    )
    """Unequal instances get requests by capacity: turns, load and scores in relation to what a model of their
    step times says; a pool's `weight` replaces that. Otherwise the router takes all for alike, but for pools
    with a `weight`."""
    any_model: bool = setting(False, flag="--any-model", help="Serve requests whatever model they ask for.")
    """Serve requests whatever model they ask for; otherwise those for another model are rejected."""
    trace_level: str = setting(
        "none",
        choices=("none", "decisions"),
        flag="--trace-level",
        help="decisions: keep what the router knew, in decisions.csv of --out.",
    )
    """`decisions`: keep what the router knew at each of them."""
    counterfactual_k: int = setting(
        0,
        least=0,
        most=MAX_INSTANCES,
        flag="--counterfactual-k",
        help="Candidates to keep of each decision, the best first; 0 = all.",
    )
    """Candidates to keep of each decision, the best first; 0 = all."""


@dataclass(frozen=True, kw_only=True)
class AdmissionSection:
    """Admission of requests."""

    policy: str = setting(
        "always-admit",
        flag="--admission-policy",
        help="always-admit, reject-all, token-bucket, tier-shed, gaie-legacy.",
    )
    """Who is let in: `always-admit`, `reject-all`, `token-bucket`, `tier-shed`, `gaie-legacy`, or one that
    is installed."""
    latency_us: int = setting(
        0, least=0, most=_LAST_US, flag="--admission-latency", help="Admission delay, µs."
    )
    """Time that admitting a request takes."""
    token_bucket_capacity: float = setting(
        10_000.0,
        above=0,
        most=1e15,
        flag="--token-bucket-capacity",
        help="With token-bucket: prompt tokens that may come at once.",
    )
    """With `token-bucket`: prompt tokens that may come at once."""
    token_bucket_refill_rate: float = setting(
        1_000.0,
        above=0,
        most=1e15,
        flag="--token-bucket-refill-rate",
        help="With token-bucket: prompt tokens per second.",
    )
    """With `token-bucket`: prompt tokens per second."""
    tier_shed_threshold: float = setting(
        0.0,
        least=0,
        most=1e15,
        flag="--tier-shed-threshold",
        help="With tier-shed: load of an instance above which classes are shed.",
    )
    """With `tier-shed`: load of the most loaded instance (waiting, running and in flight) above which it
    sheds."""
    tier_shed_min_priority: int = setting(
        0,
        least=-101,
        most=101,
        flag="--tier-shed-min-priority",
        help="With tier-shed: the least priority that is let in then.",
    )
    """With `tier-shed`: SLO classes of a smaller priority are shed."""
    gaie_qd_threshold: float = setting(
        5.0,
        above=0,
        most=1e15,
        flag="--gaie-qd-threshold",
        help="With gaie-legacy: waiting requests of a saturated instance.",
    )
    """With `gaie-legacy`: requests waiting at an instance that is saturated."""
    gaie_kv_threshold: float = setting(
        0.8,
        above=0,
        most=1,
        flag="--gaie-kv-threshold",
        help="With gaie-legacy: KV use of a saturated instance.",
    )
    """With `gaie-legacy`: share of its KV blocks in use."""
    tenant_budgets: dict[str, float] = setting(
        factory=dict,
        flag="--tenant-budgets",
        read=pairs("each tenant once with its share", "acme=0.25,beta=0.1"),
        help="Shares of all request slots beyond which a tenant's sheddable requests are rejected.",
        metavar="NAME=S,…",
    )
    """By tenant, the share of all instances' `max_num_seqs` above which its sheddable requests are rejected,
    whatever the policy; a tenant without has no limit."""
    slo_priorities: dict[str, int] = field(default_factory=dict)
    """Urgency by SLO class, larger = more urgent; adds to or replaces the defaults."""


@dataclass(frozen=True, kw_only=True)
class GatewaySection:
    """Flow control: who waits at the gateway, in which order, and until when."""

    flow_control: bool = setting(
        False, flag="--flow-control", help="Requests wait at the gateway under saturation."
    )
    """Requests wait at the gateway while the cluster is saturated, instead of at an instance."""
    saturation_detector: str = setting(
        "never", flag="--saturation-detector", help="When it is saturated: never, utilization, concurrency."
    )
    """When it is: `never`, `utilization`, `concurrency`, or one that is installed."""
    queue_depth_threshold: float = setting(
        5.0,
        above=0,
        most=1e15,
        flag="--queue-depth-threshold",
        help="With utilization: waiting requests of a saturated instance.",
    )
    """With `utilization`: requests waiting at an instance that is saturated."""
    kv_cache_util_threshold: float = setting(
        0.8,
        above=0,
        most=1,
        flag="--kv-cache-util-threshold",
        help="With utilization: KV use of a saturated instance.",
    )
    """With `utilization`: share of its KV blocks in use."""
    max_concurrency_per_instance: int = setting(
        100,
        least=1,
        most=MAX_REQUESTS,
        flag="--max-concurrency-per-instance",
        help="With concurrency: requests in flight at a saturated instance.",
    )
    """With `concurrency`: requests in flight at an instance that is saturated."""
    dispatch_order: str = setting(
        "fifo", flag="--dispatch-order", help="Who goes first: fifo, priority, slo-deadline, edf."
    )
    """Who goes first: `fifo`, `priority`, `slo-deadline`, `edf`, or one that is installed."""
    fairness_policy: str = setting(
        "global-strict",
        flag="--fairness-policy",
        help="Whose turn it is among tenants: global-strict, round-robin.",
    )
    """Whose turn it is among tenants of one priority: `global-strict`, `round-robin`, or one that is
    installed."""
    max_gateway_queue_depth: int = setting(
        0,
        least=0,
        most=MAX_REQUESTS,
        flag="--max-gateway-queue-depth",
        help="Requests that wait, at most; 0 = no limit.",
    )
    """Requests that wait, at most; 0 = no limit."""
    per_band_capacity: int = setting(
        0, least=0, most=MAX_REQUESTS, flag="--per-band-capacity", help="The same of each priority."
    )
    """Requests of one priority that wait, at most; 0 = no limit."""
    usage_limit_threshold: float = setting(
        1.0,
        above=0,
        most=1,
        flag="--usage-limit-threshold",
        help="Saturation up to which the least urgent are dispatched.",
    )
    """Saturation up to which the least urgent are dispatched; those between them and the most urgent, who
    are up to 1, at even distances."""
    request_ttl_us: int = setting(
        0, least=0, most=_LAST_US, flag="--request-ttl", help="Longest wait at the gateway, µs; 0 = no limit."
    )
    """So long a request waits at the gateway, at most; 0 = as long as its client does."""
    queue_shedding: bool = setting(
        False, flag="--queue-shedding", help="A full queue sheds the least urgent for who is more urgent."
    )
    """A request that comes to a full queue displaces the least urgent sheddable one, if that is less
    urgent."""
    in_flight_eviction: bool = setting(
        False,
        flag="--in-flight-eviction",
        help="Instances give up sheddable requests for those that wait and are not.",
    )
    """A non-sheddable request that has to wait displaces a sheddable one at an instance."""
    dispatch_tick_interval_us: int | None = setting(
        None,
        least=1,
        most=_LAST_US,
        flag="--dispatch-tick-interval",
        read=zero_is_usual(1000),
        help="One request at most per arrival and tick, µs. Default: as many as can be, at once.",
    )
    """One request at most is dispatched with each arrival and each such tick, as by BLIS; null = as many as
    can be, as soon as they can."""
    slo_targets_us: dict[str, int] = setting(
        factory=dict,
        flag="--slo-targets",
        read=pairs("each class once with its target in µs", "critical=150000,standard=600000", read=digits),
        help="With slo-deadline: µs from arrival to dispatch, by SLO class.",
        metavar="CLASS=US,…",
    )
    """With `slo-deadline`: by SLO class, how long after it came a request should be dispatched."""
