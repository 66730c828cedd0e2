"""Who sends requests: one client of a workload, resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from blis_py.workload.arrivals import Arrivals
    from blis_py.workload.lengths import Lengths
    from blis_py.workload.modalities import Multimodal
    from blis_py.workload.prefixes import PrefixLevel
    from blis_py.workload.sessions import Sessions


class KindOfClient(Protocol):
    """What a client says of its requests where they are not autoregressive."""

    @property
    def kind(self) -> str:
        """The name that the workload spec gives it."""
        ...


class Client(NamedTuple):
    """A source of requests, every default resolved.

    Its arrivals are requests, or, where it has `sessions`, the beginnings of sessions. One without arrivals
    has `permits`, and sends whenever one of them is free.
    """

    name: str
    arrivals: Arrivals | None
    input: Lengths
    output: Lengths
    tenant: str = ""
    slo_class: str = ""
    model: str = ""
    multimodal: Multimodal | None = None
    """What its prompts consist of, instead of `input`; None = text."""
    rtt_ns: float = 0.0
    """Round trip between it and the cluster."""
    token_wire_ns: float = 0.0
    """Time of a token on its line."""
    prefix_group: str = ""
    prefix_tokens: int = 0
    """Shared tokens in front of `input`."""
    prefixes: tuple[PrefixLevel, ...] = ()
    """Shared texts in front of `input`, from the outermost on; instead of a prefix group."""
    sessions: Sessions | None = None
    streaming: bool = False
    timeout_ns: int | None = None
    slo_target_ns: int = 0
    structured_output_ratio: float = 0.0
    """Share of its answers that a grammar constrains."""
    kind: KindOfClient | None = None
    """How its model answers; None = it is autoregressive."""
    permits: int | None = None
    """Closed loop: so many of its requests are under way, at most; None = an open loop."""
    think_ns: int = 0
    """In a closed loop, the pause between an answer and the next request."""
    part: str = ""
    """Which part of what the client sends this is, where it is not all."""

    @property
    def draws(self) -> str:
        """What names its random numbers, and its sessions."""
        return f"{self.name} {self.part}" if self.part else self.name
