"""The hand-over of a request from a prefill to a decode instance: common to all engines.

A `HandOff` is the outlet of the prefill instances and the KV source of the decode instances. It holds every
request between the two as a `Pair`, from the choice of both instances until the KV has arrived. What differs
between engines is in `blis_py.cluster.instances.handoffs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from blis_py.cluster.instances.decode_horizon import DecodeHorizon
from blis_py.cluster.instances.network import Network, Transfer
from blis_py.cluster.instances.pairs import Pair
from blis_py.cluster.topology import Cluster, Disaggregation, Link
from blis_py.core.blocks import block_count
from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.kv_source import Supply
from blis_py.core.request import NEVER_NS, Request
from blis_py.errors import InputError
from blis_py.metrics.handovers import HandOvers
from blis_py.metrics.record import INSTANCE_FAILED, NO_INSTANCE
from blis_py.metrics.visits import Onward

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import Fleet
    from blis_py.cluster.recording.recorder import Recorder
    from blis_py.cluster.time.events import EventQueue
    from blis_py.core.step import Step

ChooseBeside = Callable[[Request, int, int], int]
"""Choice of an instance for a request beside another one, at a time; -1 for "none yet" on either side."""

DEADLOCK = "hand-over deadlock"
"""Reason of an eviction: its instances held KV blocks for each other."""
_HANDED_OVER: Final = Onward.HANDED_OVER
TRANSFER_FAILED = "KV transfer failed"
"""Reason of an eviction: the prefill instance no longer had the KV."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HandOff:
    """Common part of all engines: pairs, transfers, and the blocks that the prefill instance keeps.

    Raises:
        InputError: the settings demand an order of choices that it does not have.
    """

    keeps_blocks = True
    """Whether the prefill instance keeps the blocks until they have been read."""
    token_of_prefill = False
    """Whether the client gets the token of the prefill, with the KV."""
    to_itself = False
    """Whether an instance hands over to itself where it is chosen for both; otherwise it just goes on."""
    both_at_once = False
    """Whether both instances get a request at once, so that both are chosen on its arrival."""
    counts_late = False
    """Whether a decode instance counts a request as in flight only when its KV is there."""
    looks_ahead = False
    """Whether decode instances may run ahead as far as `DecodeHorizon` permits: requests reach them as it
    says, and in no other way."""
    needs_overlap = "none"
    """Default of `Disaggregation.overlap`."""

    def __init__(self, settings: Disaggregation) -> None:
        if self.both_at_once and settings.pair_order != "decode-first":
            key, problem = "disaggregation.pair_order", f"has no effect with {settings.handoff}"
            raise InputError(problem, key=key, value=settings.pair_order, fix="drop it")
        self.settings = settings
        self.turns: list[int] | None = None
        """The one count of all round-robin routers that have no policy of their own; None = one each."""
        self._packed = bytearray()
        """The completed hand-overs, a `HandOver` behind the other."""
        self._pairs: dict[int, Pair] = {}
        """By row of the request, from the choice of its instances until its KV has arrived."""
        self.on_arrival: Callable[[Request, int], None] | None = None
        """Called with each request, as the decode instance serves it, when its KV is there."""
        self._failed: set[int] = set()
        """Instances that have failed."""
        self._horizon: DecodeHorizon | None = None
        overlap = settings.overlap or self.needs_overlap
        self._sends_chunks, self._sends_layers = overlap != "none", overlap == "layer"

    def fitted(self, cluster: Cluster) -> Cluster:
        """The cluster whose decode instances have this source of KV.

        Raises:
            InputError: a decode instance has a source of KV already, one side is empty, or a link missing.
        """
        cluster.require_pairs()
        apart = {pool.name for pools in cluster.pairs for pool in pools}
        pools = []
        for pool in cluster.pools:
            if pool.role != "prefill" and pool.name in apart:
                if pool.spec.kv_source is not None:
                    raise InputError("takes its KV from another source", key="pools", value=pool.name)
                pool = replace(pool, spec=replace(pool.spec, kv_source=self))
            pools.append(pool)
        return replace(cluster, pools=tuple(pools))

    def connect(
        self,
        events: EventQueue,
        fleet: Fleet,
        recorder: Recorder,
        choose_decode: ChooseBeside,
    ) -> None:
        """Become the outlet of all instances, and listen to the ends of requests."""
        self._events, self._fleet, self._recorder = events, fleet, recorder
        self._instances = fleet.instances
        self._front_end_ns = recorder.frontend.before_enqueue_ns
        self._choose_decode = choose_decode
        self._links = {(link.from_pool, link.to_pool): link for link in fleet.cluster.links}
        self._block_bytes: dict[int, tuple[int, int]] = {}
        """Tokens and bytes of a KV block of each decode instance."""
        self.network = Network(events, fleet.members, self.link)
        self._when_sent, self._when_computed = self._sent, self._chunks
        for pool in fleet.cluster.pools:
            fleet.connect(pool.name, self)
        if self.looks_ahead and self.settings.pair_order == "decode-first":
            self._horizon = DecodeHorizon(events, fleet, self._front_end_ns)
        recorder.on_failure = self._ended
        events.when_dry = self.resolve_deadlock

    @property
    def under_way(self) -> int:
        """Requests between the choice of their instances and the arrival of their KV."""
        return len(self._pairs)

    @property
    def counted_twice(self) -> int:
        """Requests that both of their instances count as in flight: the decode instance from the choice on,
        the prefill instance until the prompt is computed."""
        if self.counts_late:
            return 0
        pairs = self._pairs.values()
        return sum(pair.started and pair.decode >= 0 and pair.prefill_end_ns < 0 for pair in pairs)

    def record(self) -> HandOvers:
        """All hand-overs that were completed; call once, before the record of the run is made."""
        for pair in self._pairs.values():
            self._forget_token(pair)
            if pair.prefill_end_ns >= 0 and pair.decode_request is None:
                self._recorder.revisit(pair.request.next_visit(*pair.limits))
        return HandOvers.of_bytes(self._packed)

    def whereabouts(self, row: int) -> tuple[int, Request] | None:
        """The instance that has a request between both, and the request as it serves it; `None` = is not."""
        pair = self._pairs.get(row)
        if pair is None:
            return None
        if pair.decode_request is not None and (pair.prefill_end_ns >= 0 or not pair.started):
            return pair.decode, pair.decode_request
        return pair.prefill, pair.request

    # -- the way of a request ------------------------------------------------------------------------

    def begin(self, request: Request, prefill: int, decode: int, now_ns: int) -> bool:
        """Send a request on its way; False if both instances are the same."""
        if prefill == decode and not self.to_itself:
            return False
        pair = Pair(request, prefill, decode, now_ns)
        self._pairs[request.row] = pair
        if self._horizon is not None and decode >= 0:
            self._horizon.expect(pair)
        self._start(pair, now_ns)
        return True

    def _start(self, pair: Pair, now_ns: int) -> None:
        """Begin with the prefill; the decode instance counts the request as in flight."""
        if pair.decode >= 0:
            self._instances[pair.decode].expect(1, now_ns, self.counts_late)
        self._to_prefill(pair, now_ns + self._front_end_ns)

    def _to_prefill(self, pair: Pair, ready_ns: int) -> None:
        """Submit the request to its prefill instance, for one token."""
        request, instance = pair.request, self._instances[pair.prefill]
        request.max_tokens, request.keeps_blocks = 1, self.keeps_blocks
        pair.started = True
        if self._sends_chunks:
            instance.watch_steps(self._when_computed)
        if self._sends_layers:
            instance.watch_prompts(self._layers)
        self._recorder.dispatched(request, pair.prefill, ready_ns)
        instance.take_over(request, ready_ns)

    def enters(self, request: Request) -> None:
        """See `Outlet`."""

    def way_on(self, request: Request) -> Onward | None:
        """See `Outlet`."""
        pair = self._pairs.get(request.row)
        if pair is None or request is not pair.request:
            if pair is not None:  # computed again on the decode instance, whose KV was lost
                self._ended(request, self._events.now_ns)
            self._decoded(request)
            return None
        self._prefilled(pair)
        return _HANDED_OVER

    def take(self, requests: Sequence[Request], end_ns: int) -> None:
        """See `Outlet`."""
        for request in requests:
            pair = self._pairs[request.row]
            pair.prefill_end_ns = end_ns
            self._hand_over(pair, end_ns)

    def _prefilled(self, pair: Pair) -> None:
        """Handle the end of the prefill; the visit is not closed yet."""

    def _decoded(self, request: Request) -> None:
        """Handle the end of a request on its decode instance."""

    def _hand_over(self, pair: Pair, end_ns: int) -> None:
        """Continue a request whose prefill is done."""
        raise NotImplementedError

    def _to_decode(self, pair: Pair, now_ns: int, ready_ns: int, carried: int = 0) -> None:
        """Open the visit to the decode instance."""
        output_tokens, max_tokens = pair.limits
        request = pair.request.next_visit(output_tokens, max_tokens)
        request.carried = request.generated = carried
        pair.decode_request = request
        self._recorder.revisit(request, ready_ns)
        if pair.decode >= 0:
            self._instances[pair.decode].expect(-1, now_ns, self.counts_late)
        if self._is_gone(pair):
            self._recorder.lost(request, now_ns, pair.lost_because)
            return
        if pair.decode < 0:
            pair.decode = self._choose_decode(request, pair.prefill, now_ns)
            if pair.decode < 0:
                self._recorder.lost(request, now_ns, NO_INSTANCE)
                return
        self._recorder.dispatched(request, pair.decode)
        self._instances[pair.decode].take_over(request, ready_ns)

    # -- the KV ----------------------------------------------------------------------------------------

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        """See `KVSource`: all that the decode instance lacks, at a time that is not known yet."""
        pair = self._pairs.get(request.row)
        if pair is None or request is not pair.decode_request or pair.is_lost:
            return None
        return self._supply(pair, request, request.num_tokens - 1 - computed_tokens)

    def _supply(self, pair: Pair, request: Request, tokens: int) -> Supply:
        """An offer of so many tokens: all but the last one, which is computed in any case."""
        return Supply(tokens, NEVER_NS)

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None:
        """See `KVSource`."""
        pair = self._pairs[request.row]
        pair.reserved_ns, pair.sent_tokens, pair.ahead_bytes = now_ns, computed_tokens, 0
        self._reserved(pair, now_ns)

    def _reserved(self, pair: Pair, now_ns: int) -> None:
        """Handle that the decode instance has blocks for the KV."""
        self._send(pair, pair.request.prompt_tokens, now_ns)

    def arrived(self, request: Request, now_ns: int) -> int:
        """See `KVSource`."""
        pair = self._pairs.get(request.row)
        return 0 if pair is not None and pair.is_lost else request.num_tokens

    def cancel(self, request: Request) -> None:
        """See `KVSource`."""
        pair = self._pairs.get(request.row)
        if pair is not None and request is pair.decode_request:
            self._stop(pair)
            pair.reserved_ns, pair.size_bytes, pair.ahead_bytes = -1, 0, 0

    def _send(self, pair: Pair, until_tokens: int, now_ns: int) -> None:
        """Send the KV of the prompt up to a token, as far as it is not there or on the way."""
        is_last = until_tokens == pair.request.prompt_tokens
        size_bytes = self._lacking_bytes(pair, until_tokens) - pair.ahead_bytes
        pair.sent_tokens, pair.ahead_bytes = until_tokens, 0
        if size_bytes <= 0 and not is_last:
            return
        transfer = self._transfer(pair, size_bytes)
        pair.begin_ns, pair.alone_ns = now_ns, transfer.alone_ns

    def _lacking_bytes(self, pair: Pair, until_tokens: int) -> int:
        """KV of the prompt up to a token, as far as it is not there or on the way."""
        sizes = self._block_bytes.get(pair.decode)
        if sizes is None:
            spec = self._fleet.members[pair.decode].pool.spec
            sizes = self._block_bytes[pair.decode] = spec.scheduler.block_size, spec.kv_block_bytes
        size, size_bytes = sizes
        is_last = until_tokens == pair.request.prompt_tokens
        until = block_count(until_tokens, size) if is_last else until_tokens // size
        blocks = until - pair.sent_tokens // size
        return blocks * size_bytes if blocks > 0 else 0

    def _transfer(self, pair: Pair, size_bytes: int) -> Transfer:
        pair.size_bytes += size_bytes
        transfer = self.network.send(size_bytes, pair.prefill, pair.decode, self._when_sent, pair)
        pair.transfers.append(transfer)
        return transfer

    def link(self, prefill: int, decode: int) -> Link:
        """The link between the pools of two instances."""
        members = self._fleet.members
        return self._links[members[prefill].pool.name, members[decode].pool.name]

    def _chunks(self, step: Step, steps: int) -> None:
        """Send the chunks of prompts that a step has computed, the last ones excepted."""
        for request, tokens in step.prefills:
            if tokens == request.prompt_tokens:
                continue  # a whole prompt: all of its KV is sent at its end
            pair = self._pairs.get(request.row)
            if pair is None or request is not pair.request or pair.prefill_end_ns >= 0:
                continue
            if not pair.chunk_tokens or pair.preemptions < request.preemptions:
                pair.preemptions, pair.chunk_tokens = request.preemptions, max(request.cached_tokens, 0)
            pair.chunk_tokens += tokens
            if pair.reserved_ns >= 0 and pair.chunk_tokens < request.prompt_tokens:
                complete = pair.chunk_tokens - pair.chunk_tokens % self._fleet.cluster.block_size
                if complete > pair.sent_tokens:
                    self._send(pair, complete, self._events.now_ns)

    def _layers(self, step: Step, begin_ns: int, end_ns: int) -> None:
        """Send the KV of each layer of a step's prompts when it is computed; that of the last one at the end,
        as of a chunk."""
        for request, tokens in step.prefills:
            pair = self._pairs.get(request.row)
            if pair is None or request is not pair.request or pair.reserved_ns < 0:
                continue
            until_tokens = request.computed + tokens
            if until_tokens < request.prompt_tokens:
                until_tokens -= until_tokens % self._fleet.cluster.block_size
            layers = self._fleet.members[pair.prefill].pool.spec.kv_layers
            for layer in range(1, layers):
                at_ns = begin_ns + (end_ns - begin_ns) * layer // layers
                send = partial(self._send_layer, pair, until_tokens, layer, layers, pair.reserved_ns)
                self._events.call_at(at_ns, send)

    def _send_layer(
        self, pair: Pair, until_tokens: int, layer: int, layers: int, reserved_ns: int, now_ns: int
    ) -> None:
        """Send a chunk's KV as far as it is computed, unless its blocks on the decode instance are gone."""
        if not pair.is_open or pair.reserved_ns != reserved_ns:
            return
        size_bytes = self._lacking_bytes(pair, until_tokens) * layer // layers - pair.ahead_bytes
        if size_bytes > 0:
            pair.ahead_bytes += size_bytes
            self._transfer(pair, size_bytes)

    def _sent(self, transfer: Transfer, end_ns: int) -> None:
        pair: Pair = transfer.tag
        if len(pair.transfers) == 1:
            pair.transfers.clear()
        else:
            pair.transfers = [one for one in pair.transfers if one is not transfer]
        if not pair.transfers and pair.prefill_end_ns >= 0 and pair.sent_tokens == pair.request.prompt_tokens:
            self._there(pair, end_ns)

    def _there(self, pair: Pair, end_ns: int) -> None:
        """Handle that all KV is at the decode instance."""
        assert pair.decode_request is not None
        self._close(pair)
        self._note(pair, end_ns)
        self._instances[pair.prefill].let_go(pair.request, end_ns)
        self._instances[pair.decode].kv_ready_at(pair.decode_request, end_ns)
        if self.on_arrival is not None:
            self.on_arrival(pair.decode_request, end_ns)

    def _close(self, pair: Pair) -> None:
        """Handle that a pair is no longer under way."""
        del self._pairs[pair.row]
        pair.is_open = False

    def _note(self, pair: Pair, end_ns: int) -> None:
        """Record a completed hand-over."""
        self._packed += pair.record(end_ns)

    # -- ends ------------------------------------------------------------------------------------------

    def _ended(self, request: Request, seen_ns: int) -> None:
        """Handle that a request has ended before its KV arrived: it timed out, or can never be served."""
        pair = self._pairs.get(request.row)
        if pair is None:
            return
        self._close(pair)
        now_ns = self._events.now_ns
        self._forget_token(pair)
        self._stop(pair)
        self._instances[pair.prefill].let_go(pair.request, now_ns)
        if pair.decode_request is None:
            if pair.decode >= 0:
                self._instances[pair.decode].expect(-1, now_ns, self.counts_late)
        elif request is not pair.decode_request:
            self._instances[pair.decode].cancel(pair.decode_request, now_ns)

    def lose(self, index: int) -> set[int]:
        """End or go on with requests on their way from or to an instance that has failed; returns their
        rows."""
        self._failed.add(index)
        affected = {row: pair for row, pair in self._pairs.items() if index in (pair.prefill, pair.decode)}
        for pair in affected.values():
            if pair.prefill_end_ns >= 0 and pair.decode_request is None:
                pair.is_lost = True  # between both: see `_to_decode`
            elif index == pair.decode or pair.prefill_end_ns < 0:
                self._evict(pair, INSTANCE_FAILED)
            elif not pair.is_lost:
                self._lose_kv(pair, INSTANCE_FAILED)
        return set(affected)

    def _is_gone(self, pair: Pair) -> bool:
        """Whether one of its instances has failed before the KV arrived."""
        if not self._failed:
            return pair.is_lost
        return pair.is_lost or pair.prefill in self._failed or pair.decode in self._failed

    def _lose_kv(self, pair: Pair, why: str) -> None:
        """Handle that KV of a complete prefill does not arrive: the request fails, or is computed again."""
        now_ns, request = self._events.now_ns, pair.decode_request
        assert request is not None
        self._stop(pair)
        pair.is_lost = True
        if self._horizon is not None:
            self._horizon.forget(pair.decode)
        self._instances[pair.prefill].let_go(pair.request, now_ns)
        if self.settings.load_failure_policy == "fail" or self.token_of_prefill:
            self._evict(pair, why)
        elif pair.reserved_ns >= 0:
            self._instances[pair.decode].kv_ready_at(request, now_ns)

    def resolve_deadlock(self) -> bool:
        """Evict the oldest request that holds blocks while its hand-over waits for others that wait for it.

        To be called when no event is left; returns whether a hand-over was under way.
        """
        ends_ns = [instance.now_ns for instance in self._instances]  # they may have run ahead
        self._events.now_ns = max(self._events.now_ns, *ends_ns)
        return self.evict_oldest(DEADLOCK)

    def evict(self, row: int, why: str) -> bool:
        """Evict a request between the choice of its instances and the arrival of its KV; False if it is not
        there. KV on the wire between two visits arrives in vain."""
        pair = self._pairs.get(row)
        if pair is None:
            return False
        if pair.prefill_end_ns >= 0 and pair.decode_request is None:
            pair.is_lost, pair.lost_because = True, why
        else:
            self._evict(pair, why)
        return True

    def evict_oldest(self, why: str) -> bool:
        """Evict the oldest request on its way that holds blocks, or else the oldest; False if there is none.

        One whose KV is on the wire between two visits is at no instance, and goes on by itself.

        Args:
            why: the reason in the record.
        """
        waiting = [
            pair
            for pair in self._pairs.values()
            if pair.decode_request is not None or pair.prefill_end_ns < 0
        ]
        if not waiting:
            return False
        self._evict(next((pair for pair in waiting if pair.holds_blocks), waiting[0]), why)
        return True

    def _evict(self, pair: Pair, why: str) -> None:
        """Evict a request from the instance that it waits on."""
        request, index = pair.request, pair.prefill
        if pair.decode_request is not None and (pair.prefill_end_ns >= 0 or not pair.started):
            request, index = pair.decode_request, pair.decode
            if not pair.started:  # in the queue there, ahead of the dispatch for the prefill
                self._recorder.dispatched(request, index)
        self._recorder.evicted(request, why)
        self._instances[index].cancel(request, self._events.now_ns)

    def _forget_token(self, pair: Pair) -> None:
        """Forget the token of a prefill whose KV does not arrive."""
        if self.token_of_prefill and pair.prefill_end_ns >= 0:
            self._recorder.undelivered(pair.request)

    def _stop(self, pair: Pair) -> None:
        for transfer in pair.transfers:
            self.network.cancel(transfer)
        pair.transfers = []
