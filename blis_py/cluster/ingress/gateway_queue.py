"""The queue at the gateway: requests in priority bands, with limits and an order of dispatch."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.dispatch_order import Waiting, dispatch_order
from blis_py.cluster.ingress.fairness import Fairness, MakeFairness, fairness_policy

QUEUE_FULL, BAND_FULL = "gateway queue full", "gateway band full"


class Band:
    """The waiting requests of one priority."""

    def __init__(self, priority: int, fairness: MakeFairness) -> None:
        self.priority = priority
        self.turns: Fairness = fairness()
        self.by_number: OrderedDict[int, Waiting] = OrderedDict()
        """All requests of the band, in the order of entry."""

    def latest(self) -> Waiting:
        """The request that entered last; the band must not be empty."""
        return self.by_number[next(reversed(self.by_number))]


class GatewayQueue:
    """Requests waiting for capacity in the cluster.

    There is a band for each priority seen so far. Band i of n is dispatched up to a saturation of 1 - i (1 -
    u) / (n - 1), where u is the usage limit: the most urgent band up to 1, the least urgent up to u.
    """

    def __init__(self, settings: FlowSettings) -> None:
        self._order = dispatch_order(settings.dispatch_order)
        self._fairness = fairness_policy(settings.fairness_policy)
        self._most, self._most_of_band = settings.max_gateway_queue_depth, settings.per_band_capacity
        self._sheds, self._limit = settings.queue_shedding, settings.usage_limit_threshold
        self._bands: list[Band] = []
        """Bands, the most urgent first."""
        self._band_of: dict[int, Band] = {}
        self._count = self._urgent = 0

    def __len__(self) -> int:
        return self._count

    @property
    def urgent(self) -> int:
        """Number of queued requests that are not sheddable."""
        return self._urgent

    # -- entering ------------------------------------------------------------------------------------

    def refusal(self, priority: int) -> str:
        """The reason why a request cannot enter; empty if it can, displacing its victim where the queue is
        full."""
        if self._most_of_band and len(self._band(priority).by_number) >= self._most_of_band:
            return BAND_FULL
        if self.is_full and self.victim(priority) is None:
            return QUEUE_FULL
        return ""

    @property
    def is_full(self) -> bool:
        """Whether the queue is full: a new request must displace a queued one."""
        return 0 < self._most <= self._count

    def victim(self, priority: int) -> Waiting | None:
        """The request to shed for one of this priority: the latest of the least urgent sheddable requests."""
        if not self._sheds:
            return None
        least = next((band for band in reversed(self._bands) if band.by_number), None)
        if least is None or least.priority >= min(priority, 0):
            return None
        return least.latest()

    def add(self, waiting: Waiting) -> None:
        """Add a request; limits have been checked."""
        waiting.key = self._order.key(waiting)
        band = self._band(waiting.band)
        band.turns.add(waiting)
        band.by_number[waiting.number] = waiting
        self._count += 1
        self._urgent += waiting.band >= 0

    # -- leaving -------------------------------------------------------------------------------------

    def next(self, saturation: float) -> Waiting | None:
        """The next request to dispatch; `None` if no queued request may be dispatched at this saturation."""
        heads = []
        for place, band in enumerate(self._bands):
            if saturation >= self._ceiling(place):
                break
            if band.by_number:
                heads.append(band.turns.head())
                if self._order.by_priority:
                    break
        return min(heads, key=lambda waiting: (waiting.key, waiting.number), default=None)

    def _ceiling(self, place: int) -> float:
        return 1.0 - place * (1.0 - self._limit) / (len(self._bands) - 1) if place else 1.0

    def remove(self, waiting: Waiting, served: bool = False) -> None:
        """Remove a request.

        Args:
            served: it leaves because it was next.
        """
        waiting.gone = True
        band = self._band(waiting.band)
        del band.by_number[waiting.number]
        band.turns.remove(waiting, served)
        self._count -= 1
        self._urgent -= waiting.band >= 0

    def _band(self, priority: int) -> Band:
        band = self._band_of.get(priority)
        if band is None:
            band = self._band_of[priority] = Band(priority, self._fairness)
            insort(self._bands, band, key=lambda one: -one.priority)
        return band
