"""Hand-overs as engines do them. Each is a class and one line in `HANDOFFS`.

- `vllm`: the decode instance takes blocks when the request is at the head of its queue, after the prefill,
  and pulls what it lacks; the first token is that of one more step. The prefill instance keeps its blocks
  until they are read, or its lease ends.
- `trtllm`: the same, but for the first token, which comes with the KV from the prefill.
- `trtllm-generation-first`: both instances get the request at once; the KV is sent when the prompt is there
  and the decode instance has blocks for it, whichever is later.
- `sglang`: the decode instance takes blocks before the prefill begins, and keeps a reserve for each of its
  requests; the KV of each chunk is sent when it is computed, with the last one the first token.
- `blis`: the KV is sent at the end of the prefill, all of it; blocks are taken when it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from blis_py.cluster.extensions import named
from blis_py.cluster.instances.handoff import TRANSFER_FAILED, HandOff
from blis_py.cluster.instances.instance import Instance
from blis_py.cluster.instances.pairs import Pair
from blis_py.cluster.topology import Cluster, Disaggregation
from blis_py.core.blocks import block_count
from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.kv_source import Supply
from blis_py.core.request import NEVER_NS, NO_VISIT, Request
from blis_py.metrics.record import INSTANCE_FAILED

_ALL_TOKENS = 1 << 60
"""More than any instance has room for: the request waits."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Vllm(HandOff):
    """vLLM with a pulling connector: prefill with one token, then the request anew on the decode instance.

    Its head-of-queue request takes ordinary blocks and leaves the queue while it pulls what it lacks; then
    it computes the last prompt token again, which emits the first token that the client gets.
    """

    looks_ahead = True

    def _prefilled(self, pair: Pair) -> None:
        pair.request.forget_since(0)  # the proxy discards that token

    def _hand_over(self, pair: Pair, end_ns: int) -> None:
        ready_ns = end_ns + self._front_end_ns
        self._to_decode(pair, end_ns, ready_ns)
        lease_ns = self.settings.lease_ns
        if lease_ns is not None:
            self._events.call_at(end_ns + lease_ns, lambda now_ns: self._expire(pair, now_ns))

    def _expire(self, pair: Pair, now_ns: int) -> None:
        """End a lease: the prefill instance frees KV that is not being fetched."""
        if not pair.is_open or pair.reserved_ns >= 0 or pair.decode_request is None:
            return
        if not pair.is_lost:
            self._lose_kv(pair, TRANSFER_FAILED)


@mypyc_attr(allow_interpreted_subclasses=True)
class Trtllm(HandOff):
    """TensorRT-LLM, context first: the orchestrator sends a request to a context server, then with its first
    token to a generation server, which takes blocks and receives the KV from the cache transceiver.

    Source: "Disaggregated Serving" of the TensorRT-LLM documentation. Its capacity scheduler may reserve the
    whole answer (`GUARANTEED_NO_EVICT`); here blocks are taken as they are needed.
    """

    looks_ahead = True
    token_of_prefill = True

    def begin(self, request: Request, prefill: int, decode: int, now_ns: int) -> bool:
        if 1 not in (request.output_tokens, request.max_tokens):
            return super().begin(request, prefill, decode, now_ns)
        self._recorder.dispatched(request, prefill)
        self._instances[prefill].take_over(request, now_ns + self._front_end_ns)
        return True

    def _supply(self, pair: Pair, request: Request, tokens: int) -> Supply:
        """A request takes one of the decode instance's places while its KV is on the way."""
        instance = self._instances[pair.decode]
        full = instance.free_places(request) <= 0
        buffer = self.settings.max_tokens_in_buffer
        if not full and buffer is not None:
            full = self._buffer_is_full(request, instance, buffer)
        return Supply(tokens, NEVER_NS, _ALL_TOKENS if full else 0)

    def _buffer_is_full(self, request: Request, instance: Instance, most_tokens: int) -> bool:
        """Whether a prompt has to wait for others whose KV a decode instance receives: all of each counts to
        its end, in whole blocks, and one that is longer than the buffer is received alone.

        Source: the admission of transfers in NVIDIA/TensorRT-LLM pull request 15356.
        """
        beside, size = instance.receiving_beside(request), instance.block_size
        blocks = sum(block_count(other.prompt_tokens, size) for other in beside)
        return blocks > 0 and blocks + block_count(request.prompt_tokens, size) > block_count(
            most_tokens, size
        )

    def _hand_over(self, pair: Pair, end_ns: int) -> None:
        ready_ns = end_ns + self._front_end_ns
        self._to_decode(pair, end_ns, ready_ns, carried=1)

    def _resume(self, pair: Pair, end_ns: int) -> None:
        """Continue on a decode instance that has had the request since its arrival."""
        request = pair.decode_request
        assert request is not None
        self._recorder.revisit(request, end_ns)
        self._recorder.dispatched(request, pair.decode)
        if self._is_gone(pair):
            self._evict(pair, INSTANCE_FAILED)
            return
        if pair.deadline_ns >= 0:
            self._instances[pair.decode].set_deadline(request, pair.deadline_ns, end_ns)
        if pair.reserved_ns >= 0:
            self._send(pair, pair.request.prompt_tokens, end_ns)

    def _there(self, pair: Pair, end_ns: int) -> None:
        self._recorder.deliver_late(pair.request, end_ns - pair.prefill_end_ns)
        super()._there(pair, end_ns)


@mypyc_attr(allow_interpreted_subclasses=True)
class Sglang(Trtllm):
    """SGLang: both instances get the request at once. The decode instance takes blocks first, with a reserve;
    then the prefill begins, and its chunks are sent as they are computed. The first token comes with the
    last of them, and the request decodes without a step of its own for it.
    """

    needs_overlap = "chunk"
    both_at_once = True

    def fitted(self, cluster: Cluster) -> Cluster:
        """The reserve as the only rule on decode instances."""
        cluster, pools = super().fitted(cluster), []
        for pool in cluster.pools:
            if pool.role == "decode":
                scheduler = replace(pool.spec.scheduler, admission_rule="blocks")
                pool = replace(pool, spec=replace(pool.spec, scheduler=scheduler))
            pools.append(pool)
        return replace(cluster, pools=tuple(pools))

    def _start(self, pair: Pair, now_ns: int) -> None:
        """Enqueue at the decode instance alone until it has blocks for the request."""
        output_tokens, max_tokens = pair.limits
        pair.decode_request = request = pair.request.next_visit(output_tokens, max_tokens)
        request.carried = request.generated = 1
        self._instances[pair.decode].take_over(request, now_ns + self._front_end_ns)

    def _supply(self, pair: Pair, request: Request, tokens: int) -> Supply:
        supply = super()._supply(pair, request, tokens)
        committed = self._instances[pair.decode].committed_beside(request)
        if committed and not supply.free_tokens:
            reserve = self.settings.reserved_decode_tokens * (committed + 1)
            supply.free_tokens = max(reserve, request.max_tokens - 1)
        return supply

    def _reserved(self, pair: Pair, now_ns: int) -> None:
        if pair.prefill_end_ns >= 0:
            self._send(pair, pair.request.prompt_tokens, now_ns)
        elif not pair.started:
            assert pair.decode_request is not None
            pair.started = True
            self._instances[pair.decode].set_deadline(pair.decode_request, -1, now_ns)
            pair.decode_request.visit = NO_VISIT
            self._to_prefill(pair, max(now_ns, pair.arrived_ns + self._front_end_ns))

    def _hand_over(self, pair: Pair, end_ns: int) -> None:
        self._resume(pair, end_ns)


@mypyc_attr(allow_interpreted_subclasses=True)
class GenerationFirst(Trtllm):
    """TensorRT-LLM, generation first: the orchestrator sends a request to both servers at once. That for the
    generation takes blocks while the prompt is computed, and pulls the KV when it is complete.

    Source: `schedule_style` of the orchestrator, NVIDIA/TensorRT-LLM pull request 12239.
    """

    both_at_once = True

    def _start(self, pair: Pair, now_ns: int) -> None:
        instance, ready_ns = self._instances[pair.decode], now_ns + self._front_end_ns
        output_tokens, max_tokens = pair.limits
        pair.decode_request = request = pair.request.next_visit(output_tokens, max_tokens)
        request.carried = request.generated = 1
        if request.prompt_tokens + (request.max_tokens or 1) <= instance.most_tokens:
            request.deadline_ns, request.visit = -1, NO_VISIT  # those of the prefill count until its end
            self._to_prefill(pair, ready_ns)
        instance.take_over(request, ready_ns)

    def _reserved(self, pair: Pair, now_ns: int) -> None:
        if pair.prefill_end_ns >= 0:
            self._send(pair, pair.request.prompt_tokens, now_ns)

    def _hand_over(self, pair: Pair, end_ns: int) -> None:
        if pair.reserved_ns >= 0:
            pair.reserved_ns = end_ns  # nothing has waited for them
        self._resume(pair, end_ns)


@mypyc_attr(allow_interpreted_subclasses=True)
class Blis(HandOff):
    """The hand-over of BLIS, for comparisons with it, in its whole microseconds.

    Round-robin has one count for both sides, and a decode instance counts a request as in flight when its KV
    is there. Without a wait for blocks of the decode instance; all KV is sent whatever either side has
    cached; the bandwidth of a transfer is fixed by the number of transfers at its begin, in the whole
    cluster; the first two tokens come with the first step on the decode instance.
    """

    keeps_blocks = False
    looks_ahead = True
    to_itself = True
    counts_late = True

    def __init__(self, settings: Disaggregation) -> None:
        super().__init__(settings)
        self.turns = [0]
        self._active = 0
        """Transfers under way."""
        self._short: set[int] = set()
        """Rows of requests for one token, which take a step on the decode instance nevertheless."""

    def _prefilled(self, pair: Pair) -> None:
        pair.request.forget_since(0)

    def _hand_over(self, pair: Pair, end_ns: int) -> None:
        spec, link = self._fleet.members[pair.prefill].pool.spec, self.link(pair.prefill, pair.decode)
        blocks = block_count(pair.request.prompt_tokens, spec.scheduler.block_size)
        self._active += 1
        wire_us = 0.0
        if link.bandwidth_gbps is not None:
            per_transfer = link.bandwidth_gbps * 1000 / (self._active if link.contended else 1)
            wire_us = blocks * (spec.kv_block_bytes // spec.gpus) / per_transfer
        duration_ns = max(1, ceil(link.latency_ns / 1000 + wire_us)) * 1000
        pair.begin_ns = pair.reserved_ns = end_ns
        pair.alone_ns, pair.size_bytes = duration_ns, blocks * spec.kv_block_bytes
        self._events.call_at(end_ns + duration_ns, lambda now_ns: self._received(pair, now_ns))

    def _received(self, pair: Pair, now_ns: int) -> None:
        self._active -= 1
        if not pair.is_open:
            return
        if not self._is_gone(pair):
            self._note(pair, now_ns)
        output_tokens, max_tokens = pair.limits
        if 1 in (output_tokens, max_tokens):
            pair.limits = 2, 0
            self._short.add(pair.row)
        self._to_decode(pair, now_ns, now_ns, carried=1)

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        pair = self._pairs.get(request.row)
        if pair is None or request is not pair.decode_request:
            return None
        return Supply(request.num_tokens - computed_tokens, now_ns)

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None:
        self._close(self._pairs[request.row])

    def _decoded(self, request: Request) -> None:
        if request.carried and request.row not in self._short:
            request.carried = 0
            request.bursts = [(request.first_tick, 2)]


HANDOFFS: dict[str, Callable[[Disaggregation], HandOff]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "trtllm": Trtllm,
    "trtllm-generation-first": GenerationFirst,
    "blis": Blis,
}


def handoff(settings: Disaggregation) -> HandOff:
    """The hand-over of the settings."""
    return named(HANDOFFS, "blis_py.handoffs", settings.handoff, "hand-over", key="disaggregation.handoff")(
        settings
    )
