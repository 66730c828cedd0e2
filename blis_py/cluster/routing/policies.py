"""Routing policies by name; see `blis_py.cluster.extensions.named`."""

from __future__ import annotations

from blis_py.cluster.extensions import named
from blis_py.cluster.routing._weighted import Weighted
from blis_py.cluster.routing.dynamo import Dynamo
from blis_py.cluster.routing.router import (
    AlwaysBusiest,
    LeastLoaded,
    MakeRouter,
    PowerOfTwo,
    Random,
    Router,
    RouterSetup,
    SessionAffinity,
    round_robin,
)
from blis_py.cluster.routing.scorers import DEFAULT_PROFILE, GROUP, SCORERS, MakeScorer

POLICY_GROUP = "blis_py.routing_policies"
"""Entry point group of routing policies."""


def weighted(setup: RouterSetup) -> Router:
    """A router by weighted sum of scores, with the default profile where none is given."""
    setup.signals.watch_kv()
    makers = [(scorer(name), weight) for name, weight in setup.scorers or DEFAULT_PROFILE]
    return Weighted(setup, [(make(setup.signals), weight) for make, weight in makers])


ROUTING_POLICIES: dict[str, MakeRouter] = {
    "round-robin": round_robin,
    "least-loaded": LeastLoaded,
    "random": Random,
    "power-of-two": PowerOfTwo,
    "weighted": weighted,
    "session-affinity": SessionAffinity,
    "dynamo": Dynamo,
    "always-busiest": AlwaysBusiest,
}
"""Name -> factory of the router. Packages can add more; see `policy`."""


def policy(name: str) -> MakeRouter:
    """The routing policy of that name."""
    return named(ROUTING_POLICIES, POLICY_GROUP, name, "routing policy")


def scorer(name: str) -> MakeScorer:
    """The scorer of that name."""
    return named(SCORERS, GROUP, name, "scorer", key="routing_scorers")
