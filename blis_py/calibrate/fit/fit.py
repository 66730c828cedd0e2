"""Fit of a profile to measured steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.fit._residual import correct, gpu_ns
from blis_py.calibrate.fit._solve import Solution, search, solve, solve_within
from blis_py.calibrate.fit.accuracy import accuracy
from blis_py.calibrate.fit.basis import (
    Rows,
    design,
    domain,
    experts_in_use,
    gpu_names,
    host_names,
    one_row_per_shape,
    rows_of,
)
from blis_py.calibrate.fit.bootstrap import draw_groups, redraw
from blis_py.calibrate.fit.masks import mask_prices
from blis_py.calibrate.fit.scans import QUEUED, scan_price_ns, without_scans
from blis_py.calibrate.fit.sharing import SHARED, repeated_read_ns
from blis_py.errors import InputError
from blis_py.latency.fitted_profile import REGIMES, Accuracy, Correction, FittedProfile, RegimeFit
from blis_py.latency.fitted_shape import shape_of
from blis_py.traces.samples import StepSamples

Array = NDArray[np.float64]

FOLDS = 5
MIN_SHAPES = 8
"""Minimum number of shapes in a regime for a fit."""
_WORTH_IT = 0.98
"""The table is kept if it lowers the cross-validated error to at most this share ..."""
_NOTICEABLE = 5e-4
"""... and by this much."""
_INTERRUPTED = 3.0
_MIN_HOST_NS = 1e3
"""Minimum host time of a step: rounds within a batch follow each other without a gap."""


def fit(samples: StepSamples, *, bootstrap: int = 50, seed: int = 0) -> FittedProfile:
    """Fit step times by regime; see `latency.fitted` for the model.

    Args:
        bootstrap: sets of coefficients from redrawn shapes.
        seed: seed of the redrawing, and of the folds of the cross-validation.

    Raises:
        InputError: too few steps, or none that run eagerly (those with a prefill).
    """
    scan_ns = scan_price_ns(samples)
    samples = without_scans(samples, scan_ns)
    shape = shape_of(samples.meta)
    device = str(samples.meta.get("device_kind", "cuda"))
    in_use = experts_in_use(samples, shape)
    apart = np.isin(samples["source"], (SHARED, QUEUED))
    regimes: dict[str, RegimeFit] = {}
    for number, regime in enumerate(REGIMES):
        mine = (samples["regime"] == regime) & (samples["gpu_ns"] > 0) & ~apart
        if not mine.any():
            continue
        rows = rows_of(one_row_per_shape(samples.where(mine)), shape, in_use)
        if len(rows) < MIN_SHAPES:
            problem = f"only {len(rows)} compositions of {regime} steps"
            raise InputError(problem, fix=f"measure at least {MIN_SHAPES}")
        regimes[regime] = _fit_regime(rows, device, bootstrap, np.random.default_rng([seed, number]))
    if "eager" not in regimes:
        raise InputError("no eager steps, so prefills cannot be priced", fix="measure prefills as well")
    names, counts = np.unique(samples["source"], return_counts=True)
    sources = dict(zip(names.tolist(), counts.tolist(), strict=True))
    saved_ns = repeated_read_ns(samples.where(samples["source"] == SHARED), regimes)
    masks = mask_prices(samples)
    return FittedProfile(dict(samples.meta), regimes, in_use, masks, sources, saved_ns, scan_ns)


@dataclass(frozen=True)
class _Parts:
    gpu: Solution
    host: Solution
    launching: Solution | None
    correction: Correction | None

    def predict(self, rows: Rows) -> Array:
        """Synchronous time of rows whose knee is that of the fit."""
        host: Array = design(rows, self.host.names) @ self.host.prices
        gpu = gpu_ns(rows, self.gpu.as_dict(), self.correction)
        if self.launching is not None:
            gpu = np.maximum(gpu, design(rows, self.launching.names) @ self.launching.prices)
        return gpu + host


def _solve(rows: Rows, device: str, corrected: bool) -> _Parts:
    apart = rows.where(~rows.launch_bound)
    gpu = search(apart, gpu_names(rows, device))
    rows.point.knee = apart.point.knee
    correction = correct(apart, gpu.as_dict()) if corrected else None
    launching = _launching(rows)
    host = _host(rows, gpu, correction) if launching is None else _behind(rows)
    return _Parts(gpu, host, launching, correction)


def _launching(rows: Rows) -> Solution | None:
    """Host time beside the GPU's work; None where it was not measured."""
    known = rows.where(rows.launching_ns > 0)
    if len(known) < MIN_SHAPES:
        return None
    names = host_names(known)
    return solve(design(known, names), known.launching_ns, names)


def _behind(rows: Rows) -> Solution:
    """Host time while the GPU has nothing to do: what launching and GPU time leave of the whole."""
    names = host_names(rows)
    host_ns = rows.total_ns - np.maximum(rows.gpu_ns, rows.launching_ns)
    return solve_within(design(rows, names), np.maximum(host_ns, 0.0), rows.total_ns, names)


def _host(rows: Rows, gpu: Solution, correction: Correction | None) -> Solution:
    """Host time; of launch-bound steps all that the GPU's work, priced without them, leaves of the whole."""
    names, bound = host_names(rows), rows.launch_bound
    terms = design(rows, names)
    if not rows.host_ns.any():
        return Solution(names, np.zeros(len(names)), np.zeros(terms.shape), np.ones(len(rows)), 0.0)
    if not bound.any():
        return solve(terms, np.maximum(rows.host_ns, _MIN_HOST_NS), names)
    launching_ns = np.maximum(rows.gpu_ns - gpu_ns(rows, gpu.as_dict(), correction), 0.0)
    return solve_within(terms, rows.host_ns + np.where(bound, launching_ns, 0.0), rows.total_ns, names)


def _fit_regime(rows: Rows, device: str, bootstrap: int, rng: np.random.Generator) -> RegimeFit:
    measured = len(rows)
    if not rows.launch_bound.all():
        rows = _uninterrupted(rows, device)
    if len(rows) < MIN_SHAPES:
        problem = f"only {len(rows)} of {measured} compositions have consistent times"
        raise InputError(problem, fix=f"measure at least {MIN_SHAPES} without interruptions")
    if (apart := int((~rows.launch_bound).sum())) < MIN_SHAPES:
        problem = f"only {apart} of {measured} compositions are not launch-bound, so GPU time is not known"
        raise InputError(problem, fix="measure larger steps, or a larger model")
    plain, bent = (_held_out(rows, device, corrected, rng.spawn(1)[0]) for corrected in (False, True))
    useful = bent.mape <= min(_WORTH_IT * plain.mape, plain.mape - _NOTICEABLE)
    parts = _solve(rows, device, useful)
    taken = draw_groups(rows.group, bootstrap, rng)
    launching, known = parts.launching, rows.launching_ns > 0
    return RegimeFit(
        gpu=parts.gpu.as_dict(),
        host=parts.host.as_dict(),
        knee=rows.point.knee,
        correction=parts.correction,
        domain=domain(rows.samples),
        gpu_draws=tuple(redraw(parts.gpu, rows.group[~rows.launch_bound], taken)),
        host_draws=tuple(redraw(parts.host, rows.group, taken)),
        launching={} if launching is None else launching.as_dict(),
        launching_draws=() if launching is None else tuple(redraw(launching, rows.group[known], taken)),
        shapes=measured,
        excluded=measured - len(rows),
        in_sample=accuracy(parts.predict(rows), rows.total_ns),
        cross_validated=bent if useful else plain,
        without_correction=plain,
    )


def _uninterrupted(rows: Rows, device: str) -> Rows:
    """The rows without interrupted steps."""
    parts = _solve(rows, device, False)
    off = np.abs(np.log(rows.total_ns / np.maximum(parts.predict(rows), 1.0)))
    return rows.where(off <= np.log(_INTERRUPTED))


def _held_out(rows: Rows, device: str, corrected: bool, rng: np.random.Generator) -> Accuracy:
    """Error on held-out groups of shapes."""
    count = int(rows.group.max()) + 1
    fold = rng.permutation(count) % FOLDS
    predicted = np.zeros(len(rows))
    for number in range(FOLDS):
        out = fold[rows.group] == number
        if not out.any() or (out | rows.launch_bound).all():
            predicted[out] = np.nan
            continue
        fitted_rows, held_out = rows.where(~out), rows.where(out)
        parts = _solve(fitted_rows, device, corrected)
        held_out.point.knee = fitted_rows.point.knee
        predicted[out] = parts.predict(held_out)
    known = ~np.isnan(predicted)
    return accuracy(predicted[known], rows.total_ns[known])
