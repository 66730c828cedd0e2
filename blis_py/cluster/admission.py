"""Admission: who is let into the cluster.

A policy is a class and one line in `ADMISSION_POLICIES`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.admission_policies"]
    office-hours = "my_package:OfficeHours"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from blis_py.cluster.signals import Signals
from blis_py.core.bounds import SECOND_NS
from blis_py.core.request import Request
from blis_py.core.slo import CLUSTER_PRIORITY, DEFAULT_CLASS
from blis_py.requests.table import RequestTable

REJECT_ALL, NO_TOKENS, TOO_LONG = "reject-all", "insufficient tokens", "prompt beyond the bucket"
TIER_SHED, SATURATED, OVER_BUDGET = "tier-shed", "saturated", "tenant budget"


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


class AdmissionSetup:
    """What a policy is made of.

    Args:
        signals: what it may know of the instances.
        slots: requests that they can run at once, all together.
        priorities: of SLO classes, on the cluster's side, that replace the defaults.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        signals: Signals,
        slots: int,
        table: RequestTable,
        priorities: Mapping[str, int] | None = None,
    ) -> None:
        self.settings, self.signals, self.slots = settings, signals, slots
        by_class = CLUSTER_PRIORITY | dict(priorities or {})
        by_code = [by_class[name or DEFAULT_CLASS] for name in table.slo_class.names]
        self.priority = [by_code[code] for code in table.slo_class.codes.tolist()]
        """Of each request by `request.row`; larger is more urgent, and below 0 it may be shed."""
        self.tenant = table.tenant.to_list()
        """Of each request by `request.row`; empty where it has none."""


class Admission(Protocol):
    """Decides about every request, in order of arrival."""

    looks_at_load: bool
    """Whether the answer depends on the state of the instances. Then `Signals.look` has been called when it
    is asked; if not, it can be asked ahead of time."""

    def __call__(self, request: Request, now_ns: int) -> str:
        """Why the request is rejected, in a few words; empty = it is admitted."""
        ...


MakeAdmission = Callable[[AdmissionSetup], Admission]


class AlwaysAdmit:
    """Everybody."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None: ...

    def __call__(self, request: Request, now_ns: int) -> str:
        return ""


class RejectAll:
    """Nobody."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None: ...

    def __call__(self, request: Request, now_ns: int) -> str:
        return REJECT_ALL


class TokenBucket:
    """A limit on prompt tokens per second. The bucket is full at first; a prompt takes its length."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None:
        self._capacity = self._tokens = float(setup.settings.token_bucket_capacity)
        self._per_s = float(setup.settings.token_bucket_refill_rate)
        self._latest_ns = 0

    def __call__(self, request: Request, now_ns: int) -> str:
        refill = (now_ns - self._latest_ns) * self._per_s / SECOND_NS
        self._tokens, self._latest_ns = min(self._capacity, self._tokens + refill), now_ns
        if self._tokens < request.prompt_tokens:
            return TOO_LONG if request.prompt_tokens > self._capacity else NO_TOKENS
        self._tokens -= request.prompt_tokens
        return ""


class TierShed:
    """Under load, only classes of a least priority. The most loaded instance decides whether there is any."""

    looks_at_load = True

    def __init__(self, setup: AdmissionSetup) -> None:
        self._signals, self._priority = setup.signals, setup.priority
        self._threshold = setup.settings.tier_shed_threshold
        self._least = setup.settings.tier_shed_min_priority

    def __call__(self, request: Request, now_ns: int) -> str:
        if self._priority[request.row] >= self._least or max(self._signals.load) <= self._threshold:
            return ""
        return TIER_SHED


class GaieLegacy:
    """When the pool is saturated, no sheddable classes; as the Gateway API inference extension did it.

    Saturation is the mean over instances of waiting requests or KV use over their thresholds, whichever is
    larger; 1 is saturated.
    """

    looks_at_load = True

    def __init__(self, setup: AdmissionSetup) -> None:
        setup.signals.watch_kv()
        self._signals, self._priority = setup.signals, setup.priority
        self._queue, self._kv = setup.settings.gaie_qd_threshold, setup.settings.gaie_kv_threshold

    def __call__(self, request: Request, now_ns: int) -> str:
        return SATURATED if self._priority[request.row] < 0 and self.saturation() >= 1 else ""

    def saturation(self) -> float:
        """Of the pool, as last reported."""
        signals, total = self._signals, 0.0
        for queued, used in zip(signals.queue_depth, signals.kv_utilization, strict=True):
            total += max(queued / self._queue, used / self._kv)
        return total / signals.count


class TenantBudgets:
    """In front of another policy: tenants with more requests under way than their share have no sheddable
    ones admitted.

    Under way is what has been admitted and has not ended. A tenant without a budget has no limit.

    Args:
        then: asked about whoever is within the budget.
    """

    looks_at_load = True

    def __init__(self, setup: AdmissionSetup, then: Admission) -> None:
        self._then, self._priority, self._tenant = then, setup.priority, setup.tenant
        budgets = setup.settings.tenant_budgets
        self._most = {tenant: share * setup.slots for tenant, share in budgets.items()}
        self._under_way = dict.fromkeys(budgets, 0)

    def __call__(self, request: Request, now_ns: int) -> str:
        tenant = self._tenant[request.row]
        most = self._most.get(tenant)
        if most is None:
            return self._then(request, now_ns)
        if self._under_way[tenant] > most and self._priority[request.row] < 0:
            return OVER_BUDGET
        why = self._then(request, now_ns)
        if not why:
            self._under_way[tenant] += 1
        return why

    def ended(self, request: Request, seen_ns: int) -> None:
        """One that was admitted is under way no more."""
        tenant = self._tenant[request.row]
        if tenant in self._under_way:
            self._under_way[tenant] -= 1


ADMISSION_POLICIES: dict[str, MakeAdmission] = {
    "always-admit": AlwaysAdmit,
    "reject-all": RejectAll,
    "token-bucket": TokenBucket,
    "tier-shed": TierShed,
    "gaie-legacy": GaieLegacy,
}
"""Name -> what makes the policy. More of them can be installed; see `blis_py.cluster.policies`."""

ADMISSION_GROUP = "blis_py.admission_policies"
"""Of entry points."""
