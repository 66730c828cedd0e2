"""What it saves that sequences share pages: a KV entry that is read again in a step comes from a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import compress

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from blis_py.calibrate.fit.basis import Rows, one_row_per_shape, rows_of
from blis_py.calibrate.fit.residual import gpu_ns
from blis_py.calibrate.samples import StepSamples
from blis_py.latency.fitted_profile import RegimeFit
from blis_py.latency.model_shape import ModelShape

SHARED = "shared"
"""Source of the samples it is learned on: compositions with and without shared pages, otherwise alike."""

Array = NDArray[np.float64]


def repeated_reads(
    samples: StepSamples, regimes: Mapping[str, RegimeFit], shape: ModelShape | None, in_use: float
) -> float:
    """The share of a KV entry's price that reading it again does not cost; 0 where nothing tells.

    Each composition with shared pages is compared with its twin without, by the ratio of their times, so
    that what a fit has wrong about both does not count.
    """
    pairs = [pair for name, fit in regimes.items() for pair in _pairs(samples, name, fit, shape, in_use)]
    if not pairs:
        return 0.0

    def loss(saved: float) -> float:
        return float(sum(np.square(error(saved)).sum() for error in pairs))

    best = minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded").x
    return round(float(best), 3)


class _Pairs:
    """Rows with shared pages, and what their twins took."""

    def __init__(self, rows: Rows, twins_ns: Array, fit: RegimeFit) -> None:
        self._rows, self._fit = rows, fit
        self._kv = rows.point.decode_kv_tokens.copy()
        self._again = rows.samples["shared_kv_tokens"].astype(np.float64)
        self._measured = np.log(rows.gpu_ns / twins_ns)
        self._plain = gpu_ns(rows, fit.gpu, fit.correction)

    def __call__(self, saved: float) -> Array:
        """Logarithms of the ratios of predicted to measured savings."""
        self._rows.point.decode_kv_tokens = np.maximum(self._kv - saved * self._again, 0.0)
        error: Array = np.log(gpu_ns(self._rows, self._fit.gpu, self._fit.correction) / self._plain)
        return error - self._measured


def _pairs(
    samples: StepSamples, regime: str, fit: RegimeFit, shape: ModelShape | None, in_use: float
) -> Iterator[_Pairs]:
    mine = (samples["regime"] == regime) & (samples["gpu_ns"] > 0)
    if not mine.any():
        return
    rows = rows_of(one_row_per_shape(samples.where(mine)), shape, in_use)
    rows.point.knee = fit.knee
    again = rows.samples["shared_kv_tokens"]
    alike = list(zip(*(rows.samples[n].tolist() for n in ("decode_seqs", "decode_kv_tokens")), strict=True))
    twins = {
        what: ns for what, ns, n in zip(alike, rows.gpu_ns.tolist(), again.tolist(), strict=True) if not n
    }
    keep = np.array([bool(n) and what in twins for what, n in zip(alike, again.tolist(), strict=True)])
    if keep.any():
        twins_ns = np.array([twins[what] for what, kept in zip(alike, keep.tolist(), strict=True) if kept])
        yield _Pairs(rows.where(keep), twins_ns, fit)
