"""Clients of a workload, resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from blis_py.workload._modalities import Multimodal
    from blis_py.workload._prefixes import PrefixLevel
    from blis_py.workload._sessions import Sessions
    from blis_py.workload.arrivals import Arrivals
    from blis_py.workload.lengths import Lengths


class KindOfClient(Protocol):
    """Properties of a client whose requests are not autoregressive."""

    @property
    def kind(self) -> str:
        """The name that the workload spec gives it."""
        ...


class Client(NamedTuple):
    """A source of requests with all defaults resolved.

    Its arrivals are requests or, with `sessions`, starts of sessions. A client without arrivals has
    `permits`, and sends whenever one of them is free.
    """

    name: str
    arrivals: Arrivals | None
    input: Lengths
    output: Lengths
    tenant: str = ""
    slo_class: str = ""
    model: str = ""
    multimodal: Multimodal | None = None
    """Prompt composition, instead of `input`; None = text."""
    rtt_ns: float = 0.0
    """Round-trip time between client and cluster, in ns."""
    token_wire_ns: float = 0.0
    """Transmission time of a token, in ns."""
    prefix_group: str = ""
    prefix_tokens: int = 0
    """Shared tokens before `input`."""
    prefixes: tuple[PrefixLevel, ...] = ()
    """Levels of shared texts before `input`, outermost first; instead of a prefix group."""
    sessions: Sessions | None = None
    streaming: bool = False
    timeout_ns: int | None = None
    slo_target_ns: int = 0
    structured_output_ratio: float = 0.0
    """Share of its answers that a grammar constrains."""
    kind: KindOfClient | None = None
    """Kind of its model; None = autoregressive."""
    permits: int | None = None
    """Closed loop: most requests in progress; None = an open loop."""
    think_ns: int = 0
    """Closed loop: pause between an answer and the next request, in ns."""
    part: str = ""
    """Name of this part of the client's requests, if not all."""

    @property
    def draws(self) -> str:
        """Name of its random streams, and of its sessions."""
        return f"{self.name} {self.part}" if self.part else self.name
