"""Kinds of requests on their way from a configuration to the simulation: a module for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from blis_py.config.models import RunConfig
from blis_py.core.config import SchedulerConfig
from blis_py.core.kinds import modules
from blis_py.setup.demand import Demand

if TYPE_CHECKING:
    from blis_py.cluster.instances.kinds import KindOfRequests


class KindInSetup(Protocol):
    """The functions of such a module."""

    TITLE: str
    """Name in messages."""

    def described(self, demand: Demand, config: RunConfig) -> Demand:
        """With what the configuration says of all requests, which may make them requests of this kind."""
        ...

    def scheduler(self, config: RunConfig, scheduler: SchedulerConfig) -> SchedulerConfig:
        """The scheduler settings under which such requests are served."""
        ...

    def simulated(
        self, demand: Demand, config: RunConfig, schedulers: Sequence[SchedulerConfig]
    ) -> KindOfRequests | None:
        """The kind as the simulation needs it; `None` where the requests are not of this kind.

        Raises:
            InputError: settings of the kind that such requests have no use for, or that cannot work.
        """
        ...


KINDS: dict[str, KindInSetup] = modules("blis_py.setup")


def described(demand: Demand, config: RunConfig) -> Demand:
    """With what the configuration says of all requests."""
    for kind in KINDS.values():
        demand = kind.described(demand, config)
    return demand


def title(demand: Demand) -> str:
    """The kind of requests that are not autoregressive."""
    return _of(demand).TITLE


def scheduler(demand: Demand, config: RunConfig, scheduler: SchedulerConfig) -> SchedulerConfig:
    """The scheduler settings under which requests of their kind are served."""
    return _of(demand).scheduler(config, scheduler) if demand.kinds else scheduler


def simulated(
    demand: Demand, config: RunConfig, schedulers: Sequence[SchedulerConfig]
) -> KindOfRequests | None:
    """The kind of requests as the simulation needs it; `None` = autoregressive."""
    kinds = [kind.simulated(demand, config, schedulers) for kind in KINDS.values()]
    return next((kind for kind in kinds if kind is not None), None)


def _of(demand: Demand) -> KindInSetup:
    return KINDS[next(iter(demand.kinds.values())).kind]
