"""Settings of the admission policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What the policies can be told."""

    token_bucket_capacity: float = 10_000
    """Prompt tokens that may come at once."""
    token_bucket_refill_rate: float = 1_000
    """Prompt tokens per second."""
    tier_shed_threshold: float = 0
    """Effective load of the most loaded instance above which `tier-shed` sheds."""
    tier_shed_min_priority: int = 0
    """The least priority of an SLO class that it goes on admitting then."""
    gaie_qd_threshold: float = 5
    """Requests that wait at an instance which `gaie-legacy` takes for saturated."""
    gaie_kv_threshold: float = 0.8
    """The same for the share of its KV blocks in use."""
    tenant_budgets: Mapping[str, float] = field(default_factory=dict)
    """By tenant, the share of the cluster's slots above which its sheddable requests are rejected."""
