"""Settings of flow control: when the cluster counts as saturated, which requests wait, and how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Parameters of the gateway queue. For limits, 0 = unlimited."""

    saturation_detector: str = "never"
    queue_depth_threshold: float = 5
    """With `utilization`: queued requests of a saturated instance."""
    kv_cache_util_threshold: float = 0.8
    """The same for the share of its KV blocks in use."""
    max_concurrency_per_instance: int = 100
    """With `concurrency`: requests in flight at a saturated instance."""
    dispatch_order: str = "fifo"
    fairness_policy: str = "global-strict"
    max_gateway_queue_depth: int = 0
    """Maximum number of queued requests."""
    per_band_capacity: int = 0
    """Maximum number of queued requests of one priority."""
    usage_limit_threshold: float = 1.0
    """Saturation up to which the least urgent requests are dispatched; for the most urgent it is 1."""
    request_ttl_ns: int = 0
    """Maximum time in the queue."""
    queue_shedding: bool = False
    """A request that reaches a full queue displaces a less urgent sheddable one."""
    in_flight_eviction: bool = False
    """A non-sheddable queued request displaces a sheddable one in flight."""
    dispatch_tick_interval_ns: int | None = None
    """Interval of ticks, as in BLIS: at most one request is dispatched at each arrival and each tick; `None`
    = as many as possible, at every change."""
    slo_targets_ns: Mapping[str, int] = field(default_factory=dict)
    """With `slo-deadline`: time from a request's arrival to its latest dispatch, by SLO class."""
