"""Kinds of links between instances, with bandwidth, efficiency and set-up time.

Effective bandwidths and ranges of the set-up: the link table of llm-d-inference-sim (NVLink 600, NDR400 40,
RoCE200 20, 100 GbE 10, 25 GbE 2.5 GB/s; 0.1 to 0.5 ms with NVLink, 0.5 to 2 ms with RDMA, 2 to 10 ms with
TCP), of which the middle is taken. Measured transfers of Mooncake confirm them: 0.5 to 1.8 ms and 0.6 to 0.85
of the line. `blis`: the defaults of BLIS.
"""

from __future__ import annotations

from typing import NamedTuple


class LinkKind(NamedTuple):
    """A link of one GPU."""

    gbps: float
    """GB/s on paper, in each direction."""
    efficiency: float
    """Share of it that a transfer attains."""
    latency_ms: float
    """Set-up of a transfer."""


LINK_KINDS = {
    "nvlink": LinkKind(750.0, 0.8, 0.3),
    "ndr400": LinkKind(50.0, 0.8, 1.0),
    "roce200": LinkKind(25.0, 0.8, 1.0),
    "eth100": LinkKind(12.5, 0.8, 5.0),
    "eth25": LinkKind(3.125, 0.8, 5.0),
    "blis": LinkKind(25.0, 1.0, 0.05),
}
