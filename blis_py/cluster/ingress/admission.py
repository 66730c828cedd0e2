"""Admission policies: which requests enter the cluster.

A policy is a class and one line in `ADMISSION_POLICIES`, or an entry point of a package that is installed:

    [project.entry-points."blis_py.admission_policies"]
    office-hours = "my_package:OfficeHours"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from blis_py.cluster.admission_settings import AdmissionSettings
from blis_py.cluster.extensions import named
from blis_py.cluster.routing.signals import Signals
from blis_py.core.bounds import SECOND_NS
from blis_py.core.request import Request
from blis_py.core.slo import CLUSTER_PRIORITY, DEFAULT_CLASS
from blis_py.requests.table import RequestTable

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import Membership

REJECT_ALL, NO_TOKENS, TOO_LONG = "reject-all", "insufficient tokens", "prompt beyond the bucket"
TIER_SHED, SATURATED, OVER_BUDGET = "tier-shed", "saturated", "tenant budget"


class AdmissionSetup:
    """The inputs of an admission policy.

    Args:
        signals: the instance state visible to the policy.
        fleet: the instances.
        priorities: of SLO classes, on the cluster's side, that replace the defaults.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        signals: Signals,
        fleet: Membership,
        table: RequestTable,
        priorities: Mapping[str, int] | None = None,
    ) -> None:
        self.settings, self.signals, self._fleet = settings, signals, fleet
        by_class = CLUSTER_PRIORITY | dict(priorities or {})
        by_code = [by_class[name or DEFAULT_CLASS] for name in table.slo_class.names]
        self.priority = [by_code[code] for code in table.slo_class.codes.tolist()]
        """Cluster-side priority by `request.row`; larger is more urgent, below 0 the request is sheddable."""
        self.tenant = table.tenant.to_list()
        """Tenant by `request.row`; empty if there is none."""

    @property
    def slots(self) -> int:
        """Requests that all ready instances together can run at once."""
        return self._fleet.slots


class Admission(Protocol):
    """Admission decision for each request, called in order of arrival."""

    looks_at_load: bool
    """Whether the answer depends on the state of the instances. If so, `Signals.look` is called before each
    decision; if not, decisions may be made ahead of time."""

    def __call__(self, request: Request, now_ns: int) -> str:
        """The reason for rejecting the request, in a few words; empty if it is admitted."""
        ...


MakeAdmission = Callable[[AdmissionSetup], Admission]


class AlwaysAdmit:
    """Admit every request."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None: ...

    def __call__(self, request: Request, now_ns: int) -> str:
        return ""


class RejectAll:
    """Reject every request."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None: ...

    def __call__(self, request: Request, now_ns: int) -> str:
        return REJECT_ALL


class TokenBucket:
    """Limit on prompt tokens per second: each prompt takes its length from a bucket that is full at first."""

    looks_at_load = False

    def __init__(self, setup: AdmissionSetup) -> None:
        self._capacity_tokens = self._tokens = float(setup.settings.token_bucket_capacity)
        self._per_s = float(setup.settings.token_bucket_refill_rate)
        self._latest_ns = 0

    def __call__(self, request: Request, now_ns: int) -> str:
        refill = (now_ns - self._latest_ns) * self._per_s / SECOND_NS
        self._tokens, self._latest_ns = min(self._capacity_tokens, self._tokens + refill), now_ns
        if self._tokens < request.prompt_tokens:
            return TOO_LONG if request.prompt_tokens > self._capacity_tokens else NO_TOKENS
        self._tokens -= request.prompt_tokens
        return ""


class TierShed:
    """Under load, admit only classes of a minimum priority; load is that of the most loaded instance."""

    looks_at_load = True

    def __init__(self, setup: AdmissionSetup) -> None:
        self._signals, self._priority = setup.signals, setup.priority
        self._threshold = setup.settings.tier_shed_threshold
        self._least = setup.settings.tier_shed_min_priority

    def __call__(self, request: Request, now_ns: int) -> str:
        if self._priority[request.row] >= self._least or self._largest_load() <= self._threshold:
            return ""
        return TIER_SHED

    def _largest_load(self) -> int:
        signals, load = self._signals, self._signals.load
        return max(load) if signals.all_ready else max((load[i] for i in signals.ready), default=0)


class GaieLegacy:
    """Shed sheddable classes while the pool is saturated, as the Gateway API inference extension did.

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
        """Saturation of the pool, as last reported."""
        signals, total = self._signals, 0.0
        for index in signals.ready:
            queued, used = signals.queue_depth[index], signals.kv_utilization[index]
            total += max(queued / self._queue, used / self._kv)
        return total / max(len(signals.ready), 1)


class TenantBudgets:
    """A filter before another policy: sheddable requests of tenants over their share are rejected.

    A tenant's share counts its requests in progress: admitted and not ended. Tenants without a budget are
    unlimited.

    Args:
        then: the policy applied to requests within the budget.
    """

    looks_at_load = True

    def __init__(self, setup: AdmissionSetup, then: Admission) -> None:
        self._then, self._priority, self._tenant = then, setup.priority, setup.tenant
        budgets = setup.settings.tenant_budgets
        self._setup, self._budgets = setup, budgets
        self._under_way = dict.fromkeys(budgets, 0)

    def __call__(self, request: Request, now_ns: int) -> str:
        tenant = self._tenant[request.row]
        share = self._budgets.get(tenant)
        if share is None:
            return self._then(request, now_ns)
        most = share * self._setup.slots
        if self._under_way[tenant] > most and self._priority[request.row] < 0:
            return OVER_BUDGET
        why = self._then(request, now_ns)
        if not why:
            self._under_way[tenant] += 1
        return why

    def ended(self, request: Request, seen_ns: int) -> None:
        """Remove an admitted request from its tenant's requests in progress."""
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
"""Name -> factory of the policy. Packages can add more; see `blis_py.cluster.extensions`."""

ADMISSION_GROUP = "blis_py.admission_policies"
"""Entry point group of admission policies."""


def admission_policy(name: str) -> MakeAdmission:
    """The admission policy of that name."""
    return named(ADMISSION_POLICIES, ADMISSION_GROUP, name, "admission policy")
