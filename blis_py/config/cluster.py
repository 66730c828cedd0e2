"""Routing, admission and flow control in the configuration.

Annotations are evaluated here and no later, as in `blis_py.config.models`.
"""

from dataclasses import field

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.flow_settings import FlowSettings
from blis_py.core.bounds import LAST_NS, MAX_INSTANCES
from blis_py.core.flag_texts import scorers
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting

_LAST_US = LAST_NS // 1000


@dataclass(frozen=True, kw_only=True)
class RoutingSection:
    """Path from the cluster's ingress to an instance."""

    policy: str = setting(
        "round-robin",
        flag="--routing-policy",
        help="round-robin, least-loaded, random, power-of-two, weighted, session-affinity, dynamo, "
        "always-busiest.",
    )
    """Which instance gets a request: `round-robin`, `least-loaded`, `random`, `power-of-two`, `weighted`,
    `session-affinity`, `always-busiest`, `dynamo`, or one that is installed."""
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
        help="Age of the router's view of the instances, µs; 0 = live.",
    )
    """Age up to which the router works with old instance state; 0 = live."""
    cache_signal_delay_us: int = setting(
        50_000,
        least=0,
        most=_LAST_US,
        flag="--cache-signal-delay",
        help="Age of its view of the prefix caches, µs; 0 = live.",
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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _AdmissionPolicy:
    policy: str = setting(
        "always-admit",
        flag="--admission-policy",
        help="always-admit, reject-all, token-bucket, tier-shed, gaie-legacy.",
    )
    """Admission policy: `always-admit`, `reject-all`, `token-bucket`, `tier-shed`, `gaie-legacy`, or one that
    is installed."""
    latency_us: int = setting(
        0, least=0, most=_LAST_US, flag="--admission-latency", help="Admission delay, µs."
    )
    """Time that admitting a request takes."""


@dataclass(frozen=True, kw_only=True)
class AdmissionSection(AdmissionSettings, _AdmissionPolicy):
    """Admission of requests."""

    slo_priorities: dict[str, int] = field(default_factory=dict)
    """Urgency by SLO class, larger = more urgent; adds to or replaces the defaults."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _FlowControl:
    flow_control: bool = setting(
        False, flag="--flow-control", help="Requests wait at the gateway under saturation."
    )
    """Requests wait at the gateway while the cluster is saturated, instead of at an instance."""


@dataclass(frozen=True, kw_only=True)
class GatewaySection(FlowSettings, _FlowControl):
    """Flow control: who waits at the gateway, in which order, and until when."""
