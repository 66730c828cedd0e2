"""The routing and admission policies to choose from, by name; see `blis_py.cluster.extensions.named`."""

from __future__ import annotations

from blis_py.cluster.admission import ADMISSION_GROUP, ADMISSION_POLICIES, MakeAdmission
from blis_py.cluster.extensions import named
from blis_py.cluster.router import (
    AlwaysBusiest,
    LeastLoaded,
    MakeRouter,
    PowerOfTwo,
    Random,
    RoundRobin,
    Router,
    RouterSetup,
    SessionAffinity,
)
from blis_py.cluster.scorers import DEFAULT_PROFILE, GROUP, SCORERS, MakeScorer
from blis_py.cluster.weighted import Weighted

POLICY_GROUP = "blis_py.routing_policies"
"""Of entry points."""


def weighted(setup: RouterSetup) -> Router:
    """A weighted sum of scores, of the default profile where no other is given."""
    setup.signals.watch_kv()
    makers = [(scorer(name), weight) for name, weight in setup.scorers or DEFAULT_PROFILE]
    return Weighted(setup, [(make(setup.signals), weight) for make, weight in makers])


ROUTING_POLICIES: dict[str, MakeRouter] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "random": Random,
    "power-of-two": PowerOfTwo,
    "weighted": weighted,
    "session-affinity": SessionAffinity,
    "always-busiest": AlwaysBusiest,
}
"""Name -> what makes the router. More of them can be installed; see `policy`."""


def policy(name: str) -> MakeRouter:
    """The routing policy of that name."""
    return named(ROUTING_POLICIES, POLICY_GROUP, name, "routing policy")


def scorer(name: str) -> MakeScorer:
    """The scorer of that name."""
    return named(SCORERS, GROUP, name, "scorer", key="routing_scorers")


def admission_policy(name: str) -> MakeAdmission:
    """The admission policy of that name."""
    return named(ADMISSION_POLICIES, ADMISSION_GROUP, name, "admission policy")
