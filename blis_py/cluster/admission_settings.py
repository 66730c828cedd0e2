"""Settings of the admission policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from blis_py.core.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Parameters of the admission policies."""

    token_bucket_capacity: float = 10_000
    """Capacity of the bucket in prompt tokens: the largest burst."""
    token_bucket_refill_rate: float = 1_000
    """Prompt tokens per second."""
    tier_shed_threshold: float = 0
    """Effective load of the most loaded instance above which `tier-shed` sheds."""
    tier_shed_min_priority: int = 0
    """The minimum priority of SLO classes that are still admitted then."""
    gaie_qd_threshold: float = 5
    """Queued requests at which `gaie-legacy` counts an instance as saturated."""
    gaie_kv_threshold: float = 0.8
    """Share of KV blocks in use at which it does."""
    tenant_budgets: Mapping[str, float] = field(default_factory=dict)
    """By tenant, the share of the cluster's slots above which its sheddable requests are rejected."""
