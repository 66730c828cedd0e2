"""Latencies as clients far away see them: those of the cluster, and the time on the line.

As BLIS's calibrate reckons: TTFT and the round trip and the prompt's upload; E2E and these and the answer's
download.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.latencies import Latencies
from blis_py.metrics.record import RunRecord

Floats = NDArray[np.float64]


def client_latencies_ns(record: RunRecord, columns: Latencies) -> dict[str, Floats]:
    """`client_ttft` and `client_e2e` of every request, NaN where it never got that far.

    Of clients at the door they are TTFT and E2E. Nothing where all are.
    """
    network_ns = record.table.network_ns
    if network_ns is None:
        return {}
    rtt_ns, token_ns = network_ns.T
    first_ns = rtt_ns + record.table.prompt_tokens * token_ns
    whole_ns = first_ns + record.emitted_tokens * token_ns
    return {"client_ttft": columns.ttft_ns + first_ns, "client_e2e": columns.e2e_ns + whole_ns}
