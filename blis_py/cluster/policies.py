"""The routing and admission policies to choose from."""

from __future__ import annotations

from blis_py.cluster.admission import ADMISSION_GROUP, ADMISSION_POLICIES, MakeAdmission
from blis_py.cluster.extensions import find, names
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
from blis_py.errors import InputError

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
    """The routing policy of that name.

    Raises:
        InputError: there is none, nor an installed package that brings one.
    """
    found = find(ROUTING_POLICIES, POLICY_GROUP, name)
    if found is None:
        fix = f"use one of {', '.join(names(ROUTING_POLICIES, POLICY_GROUP))}"
        raise InputError("unknown routing policy", key="routing_policy", value=name, fix=fix)
    return found


def scorer(name: str) -> MakeScorer:
    """The scorer of that name.

    Raises:
        InputError: there is none, nor an installed package that brings one.
    """
    found = find(SCORERS, GROUP, name)
    if found is None:
        fix = f"use some of {', '.join(names(SCORERS, GROUP))}"
        raise InputError("unknown scorer", key="routing_scorers", value=name, fix=fix)
    return found


def admission_policy(name: str) -> MakeAdmission:
    """The admission policy of that name.

    Raises:
        InputError: there is none, nor an installed package that brings one.
    """
    found = find(ADMISSION_POLICIES, ADMISSION_GROUP, name)
    if found is None:
        fix = f"use one of {', '.join(names(ADMISSION_POLICIES, ADMISSION_GROUP))}"
        raise InputError("unknown admission policy", key="admission_policy", value=name, fix=fix)
    return found
