"""Pairs of a prefill and a decode instance, in a fleet that may serve several models: both serve the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blis_py.cluster.routing.deciders import decider
from blis_py.cluster.routing.pair_dispatcher import (
    PairDispatcher,
    PrefillChoice,
    PrefillOfModel,
    RoutedPrefill,
)
from blis_py.cluster.topology import side_of
from blis_py.core.request import Request

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import Fleet
    from blis_py.cluster.instances.handoff import HandOff
    from blis_py.cluster.routing.router import Router
    from blis_py.cluster.routing.signals import Signals
    from blis_py.cluster.topology import Pool


class Pairing:
    """The choices of both sides among the instances of each model.

    Args:
        everywhere: the dispatcher among all decode instances; with several models, of requests without one.
        dispatcher_of: makes a dispatcher among the instances of pools.
        routing_of: makes a router among them, and the signals that it reads.
    """

    def __init__(
        self,
        handoff: HandOff,
        fleet: Fleet,
        everywhere: PairDispatcher,
        dispatcher_of: Callable[[Sequence[Pool]], PairDispatcher],
        routing_of: Callable[[Sequence[Pool]], tuple[Signals, Router]],
    ) -> None:
        cluster = fleet.cluster
        self._handoff, self._members = handoff, fleet.members
        self.dispatchers: dict[str, PairDispatcher] = {}
        """By pool, of the pools whose prefill and decode may be apart."""
        self._prefill: dict[str, RoutedPrefill] = {}
        several = len(cluster.groups) > 1
        for pools in cluster.pairs:
            choice = _choice(routing_of(side_of(pools, "prefill")))
            dispatcher = dispatcher_of(side_of(pools, "decode")) if several else everywhere
            self._pair(dispatcher, choice)
            for pool in pools:
                self._prefill[pool.name], self.dispatchers[pool.name] = choice, dispatcher
        if several:
            prefill = [pool for pools in cluster.pairs for pool in side_of(pools, "prefill")]
            anywhere = _choice(routing_of(prefill))
            self._pair(everywhere, PrefillOfModel(self._prefill, anywhere, fleet.members))

    @property
    def looks(self) -> bool:
        """Whether a choice of a prefill instance depends on the state of the instances."""
        return any(choice.looks for choice in self._prefill.values())

    def decode_beside(self, request: Request, prefill: int, now_ns: int) -> int:
        """A decode instance beside a prefill instance; -1 if none is ready."""
        return self.dispatchers[self._members[prefill].pool.name].choose(request, now_ns)

    def _pair(self, dispatcher: PairDispatcher, prefill: PrefillChoice) -> None:
        settings = self._handoff.settings
        decides = decider(settings.decider)(settings, dispatcher.signals)
        dispatcher.pair(decides, self._handoff, prefill, settings.pair_order == "decode-first")


def _choice(routing: tuple[Signals, Router]) -> RoutedPrefill:
    signals, router = routing
    return RoutedPrefill(router, signals)
