"""Savings from shared pages: a KV entry that is read again in a step comes from a cache."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress

import numpy as np

from blis_py.calibrate.fit.basis import one_row_per_shape
from blis_py.latency.fitted_profile import RegimeFit
from blis_py.traces.samples import StepSamples

SHARED = "shared"
"""Source of its training samples: compositions with and without shared pages, otherwise identical."""
_KV = ("decode_kv_tokens", "padded_kv_tokens")


def repeated_read_ns(samples: StepSamples, regimes: Mapping[str, RegimeFit]) -> float:
    """Savings for an entry that is read again; 0 without such measurements.

    By least squares over compositions with shared pages, each against its twin without, so that common errors
    of the fit cancel. At most the cost of reading an entry.
    """
    if not len(samples):
        return 0.0
    rows = one_row_per_shape(samples.where(samples["gpu_ns"] > 0))
    names = ("decode_seqs", "decode_kv_tokens")
    alike = list(zip(*(rows[n].tolist() for n in names), rows["regime"].tolist(), strict=True))
    again, gpu_ns = rows["shared_kv_tokens"].astype(np.float64), rows["gpu_ns"].astype(np.float64)
    alone = dict(compress(zip(alike, gpu_ns.tolist(), strict=True), again == 0))
    pairs = (again > 0) & np.array([what in alone for what in alike])
    if not pairs.any():
        return 0.0
    saved_ns = np.array([alone[what] for what in compress(alike, pairs)]) - gpu_ns[pairs]
    each_ns = float(again[pairs] @ saved_ns / (again[pairs] @ again[pairs]))
    most_ns = max(sum(fit.gpu.get(name, 0.0) for name in _KV) for fit in regimes.values())
    return min(max(each_ns, 0.0), most_ns)
