"""What flow control is told: when the cluster counts as saturated, who waits at the gateway, and how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Of the gateway queue. 0 = no limit, where a number limits something."""

    saturation_detector: str = "never"
    queue_depth_threshold: float = 5
    """With `utilization`: requests that wait at a saturated instance."""
    kv_cache_util_threshold: float = 0.8
    """The same for the share of its KV blocks in use."""
    max_concurrency_per_instance: int = 100
    """With `concurrency`: requests in flight at a saturated instance."""
    dispatch_order: str = "fifo"
    fairness_policy: str = "global-strict"
    max_gateway_queue_depth: int = 0
    """Requests that wait, at most."""
    per_band_capacity: int = 0
    """Requests of one priority that wait, at most."""
    usage_limit_threshold: float = 1.0
    """Saturation up to which the least urgent are dispatched; the most urgent are up to 1."""
    request_ttl_ns: int = 0
    """So long a request waits, at most."""
    queue_shedding: bool = False
    """Whoever comes to a full queue takes the place of a less urgent one that may be shed."""
    in_flight_eviction: bool = False
    """Whoever waits and may not be shed takes the place of a request that an instance works on and may be."""
    dispatch_tick_interval_ns: int | None = None
    """At each arrival and each such tick one request is dispatched at most, as by BLIS; `None` = as many as
    can be, whenever something has changed."""
    slo_targets_ns: Mapping[str, int] = field(default_factory=dict)
    """With `slo-deadline`: how long after it came a request of an SLO class should be dispatched."""
