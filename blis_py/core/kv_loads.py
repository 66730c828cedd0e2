"""Requests waiting for KV loads, and those whose load is complete and that wait to run."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.kv import KVCache
from blis_py.core.kv_source import KVSource, Supply
from blis_py.core.request import NEVER_NS, WAITING, WAITING_FOR_KV, Request


@mypyc_attr(acyclic=True)
class _Load:
    """A load of tokens `first_tokens` to `first_tokens + tokens` of a request."""

    def __init__(self, request: Request, first_tokens: int, tokens: int, ready_ns: int) -> None:
        self.request = request
        self.first_tokens = first_tokens
        self.tokens = tokens
        self.ready_ns = ready_ns


class KVLoads:
    """Requests that hold blocks for loaded KV and have left the waiting queue."""

    def __init__(self, source: KVSource, kv: KVCache) -> None:
        self.first_ready_ns = NEVER_NS
        """No load is ready before this time."""
        self.arrived: deque[Request] = deque()
        """Requests whose KV has arrived, in the order of arrival."""
        self.supplied_tokens = 0
        self._source, self._kv = source, kv
        self._holders: dict[Request, _Load | None] = {}
        """Loads in the order of their start; None = it has arrived."""
        self._heap: list[tuple[int, int, _Load]] = []
        """Loads by ready time; some entries are stale."""
        self._entries = 0

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, request: Request) -> bool:
        return request in self._holders

    @property
    def requests(self) -> list[Request]:
        """Requests that hold blocks without running, in the order in which their loads started."""
        return list(self._holders)

    @property
    def receiving(self) -> list[Request]:
        """Those of them whose loads are in progress."""
        return [request for request, load in self._holders.items() if load is not None]

    @property
    def under_way(self) -> bool:
        """Whether a load is in progress."""
        return len(self._holders) > len(self.arrived)

    def offer(self, request: Request, computed: int, now_ns: int) -> Supply | None:
        """The source's offer, minus the one token that every step has to compute.

        Of a load that is not ready yet nothing may be left after that: the request waits for it nevertheless.
        """
        most = request.num_tokens - 1 - computed
        supply = self._source.offer(request, computed, now_ns)
        if supply is None or (min(supply.tokens, most) <= 0 and supply.ready_ns <= now_ns):
            return None
        return supply if supply.tokens <= most else Supply(most, supply.ready_ns, supply.free_tokens)

    def begin(self, request: Request, computed: int, supply: Supply, now_ns: int) -> None:
        """Start the load of an accepted offer; the request has its blocks."""
        self._source.load(request, computed, supply, now_ns)
        if supply.ready_ns <= now_ns:
            self._supply(request, computed + supply.tokens, supply.tokens)
            return
        request.status = WAITING_FOR_KV
        self._holders[request] = load = _Load(request, computed, supply.tokens, supply.ready_ns)
        self._schedule(load)

    def move(self, request: Request, ready_ns: int) -> None:
        """Change the ready time of a load in progress."""
        load = self._holders.get(request)
        if load is not None:
            load.ready_ns = ready_ns
            self._schedule(load)

    def receive(self, now_ns: int) -> bool:
        """Complete the loads that are ready; returns whether a request with its KV waits to run."""
        while self.first_ready_ns <= now_ns:
            self._receive_one(heappop(self._heap)[2], now_ns)
            self._find_first()
        return bool(self.arrived)

    def remove(self, request: Request) -> None:
        """Cancel a request's load and free its blocks; its `computed` becomes 0."""
        if self._holders.pop(request) is None:
            self.arrived.remove(request)
        else:
            self._source.cancel(request)
            self._find_first()
        self._kv.release(request)
        request.computed = 0

    def next_arrived(self) -> Request:
        """Remove and return the first request whose KV has arrived, which is to run."""
        request = self.arrived.popleft()
        del self._holders[request]
        return request

    @property
    def latest(self) -> Request | None:
        """The request whose load started last."""
        return next(reversed(self._holders), None)

    def check_blocks(self) -> list[int]:
        """The blocks held by these requests.

        Raises:
            AssertionError: a request holds a wrong number of blocks.
        """
        held: list[int] = []
        for request, load in self._holders.items():
            tokens = request.computed if load is None else load.first_tokens + load.tokens
            assert len(request.block_table) == self._kv.blocks_of(tokens), (
                f"wrong number of blocks: {request!r}"
            )
            held += request.block_table
        return held

    def _supply(self, request: Request, computed: int, supplied: int) -> None:
        self.supplied_tokens += supplied
        request.computed = computed
        if request.scheduled_ns < 0:
            request.cached_tokens = computed

    def _receive_one(self, load: _Load, now_ns: int) -> None:
        request, first = load.request, load.first_tokens
        tokens = min(self._source.arrived(request, now_ns), load.tokens)
        self._supply(request, first + tokens, tokens)
        table, end = request.block_table, self._kv.blocks_of(request.computed)
        if end < len(table):
            self._kv.pool.give_back(table[end:])
            del table[end:]
        self._kv.publish_supplied(request, first)
        request.status = WAITING
        self._holders[request] = None
        self.arrived.append(request)

    def _schedule(self, load: _Load) -> None:
        if load.ready_ns < NEVER_NS:
            self._entries += 1
            heappush(self._heap, (load.ready_ns, self._entries, load))
        self._find_first()

    def _find_first(self) -> None:
        heap = self._heap
        while heap and (
            self._holders.get(heap[0][2].request) is not heap[0][2] or heap[0][2].ready_ns != heap[0][0]
        ):
            heappop(heap)
        self.first_ready_ns = heap[0][0] if heap else NEVER_NS
