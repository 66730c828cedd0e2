"""Latencies seen by remote clients: those of the cluster plus network time.

As in BLIS's calibrate: TTFT plus round trip and upload of the prompt; E2E plus these and the download of the
answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.latencies import Latencies
from blis_py.metrics.record import RunRecord

Floats = NDArray[np.float64]


def client_latencies_ns(record: RunRecord, columns: Latencies) -> dict[str, Floats]:
    """`client_ttft` and `client_e2e` of every request, NaN if not reached.

    For local clients they equal TTFT and E2E. Empty if all clients are local.
    """
    network_ns = record.table.network_ns
    if network_ns is None:
        return {}
    rtt_ns, token_ns = network_ns.T
    first_ns = rtt_ns + record.table.prompt_tokens * token_ns
    whole_ns = first_ns + record.emitted_tokens * token_ns
    return {"client_ttft": columns.ttft_ns + first_ns, "client_e2e": columns.e2e_ns + whole_ns}
