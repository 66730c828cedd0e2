"""Settings of flow control: when the cluster counts as saturated, which requests wait, and how long.

Each is registered here, once. Annotations are evaluated here and no later, because the configuration reads
them.
"""

from blis_py.core.bounds import LAST_NS, MAX_REQUESTS
from blis_py.core.flag_texts import digits, pairs
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting

_LAST_US = LAST_NS // 1000
_TICK_US = 1000
"""BLIS's tick, which its flag calls 0."""


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """Parameters of the gateway queue."""

    saturation_detector: str = setting(
        "never", flag="--saturation-detector", help="When it is saturated: never, utilization, concurrency."
    )
    """Detector of saturation: `never`, `utilization`, `concurrency`, or one that is installed."""
    queue_depth_threshold: float = setting(
        5.0,
        above=0,
        most=1e15,
        flag="--queue-depth-threshold",
        help="With `utilization`: waiting requests of a saturated instance.",
    )
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
        help="With `concurrency`: requests in flight at a saturated instance.",
    )
    dispatch_order: str = setting(
        "fifo", flag="--dispatch-order", help="Order of dispatch: fifo, priority, slo-deadline, edf."
    )
    """Order of dispatch: `fifo`, `priority`, `slo-deadline`, `edf`, or one that is installed."""
    fairness_policy: str = setting(
        "global-strict",
        flag="--fairness-policy",
        help="Order among tenants: global-strict, round-robin.",
    )
    """Order among tenants of one priority: `global-strict`, `round-robin`, or one that is
    installed."""
    max_gateway_queue_depth: int = setting(
        0,
        least=0,
        most=MAX_REQUESTS,
        flag="--max-gateway-queue-depth",
        help="Requests that wait, at most; 0 = no limit.",
    )
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
    """Longest wait of a request at the gateway; 0 = until its client times out."""
    queue_shedding: bool = setting(
        False,
        flag="--queue-shedding",
        help="A full queue sheds its least urgent request for a more urgent one.",
    )
    """A request that comes to a full queue displaces the least urgent sheddable one, if that is less
    urgent."""
    in_flight_eviction: bool = setting(
        False,
        flag="--in-flight-eviction",
        help="Waiting requests that are not sheddable displace running ones that are.",
    )
    """A non-sheddable request that has to wait displaces a sheddable one at an instance."""
    dispatch_tick_interval_us: int | None = setting(
        None,
        least=1,
        most=_LAST_US,
        flag="--dispatch-tick-interval",
        read=lambda name, value: value or _TICK_US,
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

    @property
    def request_ttl_ns(self) -> int:
        return self.request_ttl_us * 1000

    @property
    def dispatch_tick_interval_ns(self) -> int | None:
        tick_us = self.dispatch_tick_interval_us
        return None if tick_us is None else tick_us * 1000

    @property
    def slo_targets_ns(self) -> dict[str, int]:
        return {name: target * 1000 for name, target in self.slo_targets_us.items()}
