"""A request on its way through a prefill and a decode instance."""

from __future__ import annotations

from struct import Struct
from typing import Final

from blis_py.cluster.instances.network import Transfer
from blis_py.core.request import Request
from blis_py.metrics.handovers import HandOver
from blis_py.metrics.record import INSTANCE_FAILED

_pack: Final = Struct(f"{len(HandOver._fields)}q").pack


class Pair:
    """A request with its prefill and its decode instance. Times are -1 until they are reached.

    Args:
        request: as it arrived; it computes the prompt.
        decode: index of the decode instance; -1 = chosen when the prefill is done.
    """

    __slots__ = (
        "ahead_bytes",
        "alone_ns",
        "arrived_ns",
        "begin_ns",
        "chunk_tokens",
        "deadline_ns",
        "decode",
        "decode_request",
        "is_lost",
        "is_open",
        "limits",
        "lost_because",
        "preemptions",
        "prefill",
        "prefill_end_ns",
        "request",
        "reserved_ns",
        "row",
        "sent_tokens",
        "size_bytes",
        "started",
        "transfers",
    )

    decode_request: Request | None
    """The request as the decode instance serves it."""

    def __init__(self, request: Request, prefill: int, decode: int, arrived_ns: int) -> None:
        self.request, self.row = request, request.row
        self.decode_request = None
        self.prefill, self.decode = prefill, decode
        self.limits = request.output_tokens, request.max_tokens
        """Lengths of the whole output."""
        self.deadline_ns = request.deadline_ns
        self.arrived_ns = arrived_ns
        self.prefill_end_ns = self.reserved_ns = self.begin_ns = -1
        self.alone_ns = self.size_bytes = 0
        self.is_open = True
        """Whether it is under way: the KV has not arrived."""
        self.started = False
        """Whether the prefill instance has the request."""
        self.is_lost = False
        """Whether the prefill instance has dropped the KV before it was fetched."""
        self.lost_because = INSTANCE_FAILED
        """Reason for which KV on the wire arrives in vain."""
        self.chunk_tokens = 0
        """Prompt tokens whose KV the prefill instance has, as far as chunks are sent."""
        self.preemptions = 0
        """Preemptions of the prefill, as far as chunks are concerned."""
        self.sent_tokens = 0
        """Leading tokens that the decode instance has, or that are on the way to it."""
        self.ahead_bytes = 0
        """Layers sent so far of the chunk that is being computed."""
        self.transfers: list[Transfer] = []
        """Transfers under way."""

    @property
    def holds_blocks(self) -> bool:
        """Whether one of its instances keeps blocks while the other one has none for it."""
        return not self.is_lost and (self.prefill_end_ns >= 0) != (self.reserved_ns >= 0)

    def record(self, end_ns: int) -> bytes:
        """The row in the record, a `HandOver`, when the KV is there."""
        row: bytes = _pack(
            self.row, self.prefill, self.decode, self.arrived_ns, self.prefill_end_ns,
            self.reserved_ns, self.begin_ns, end_ns, self.alone_ns, self.size_bytes,
        )  # fmt: skip
        return row
