"""Mispricing of the steps of a recorded run by a latency model, and the corrected model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate import kinds
from blis_py.calibrate.fit.accuracy import features_as
from blis_py.core.features import StepFeatures
from blis_py.core.kinds import KINDS
from blis_py.core.request import NEVER_NS
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel, StepTime
from blis_py.latency.step_run import PricedRun, StepRun
from blis_py.traces.samples import samples_of
from blis_py.traces.steplog import StepLog

REGIMES = ("decode", "prefill", "mixed", "padded")
"""Decodes alone, prefills alone, both, and decodes alone in a graph with more rows than they need."""


@dataclass(frozen=True, slots=True)
class Bias:
    """Measured and predicted time of a group of steps."""

    steps: int
    measured_ns: int
    """Total measured time."""
    predicted_ns: int
    mape: float
    """Mean over steps of |predicted/measured - 1|; NaN without measured time."""

    @property
    def error(self) -> float:
        """Predicted over measured, minus one; NaN without measured time."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns else float("nan")

    @property
    def correction(self) -> BiasCorrection:
        """Correction that makes the sums equal: a factor, or the mean per step if the model predicts 0."""
        if self.predicted_ns:
            return BiasCorrection(max(self.measured_ns, 0) / self.predicted_ns, 0)
        return BiasCorrection(1.0, round(max(self.measured_ns, 0) / self.steps) if self.steps else 0)


@dataclass(frozen=True, slots=True)
class BiasCorrection:
    """A price is replaced by `factor` times itself plus `offset_ns`."""

    factor: float = 1.0
    offset_ns: int = 0

    def of(self, ns: int) -> int:
        return round(ns * self.factor) + self.offset_ns


NONE = BiasCorrection()


@dataclass(frozen=True, slots=True)
class StepBias:
    """Errors of the prices of a log's steps, each from its own features."""

    gpu: Mapping[str, Bias]
    """By regime: the time of forward pass and sampling."""
    host: Bias
    """The remaining time of all steps."""
    buckets: tuple[int, ...]
    """Rows of the graphs in use."""


def step_bias(log: StepLog, latency: LatencyModel) -> StepBias:
    """Price every step of a log, except failed ones, as it was composed in the engine.

    Raises:
        InputError: an overlapped run.
    """
    if "seen_ns" in log.steps:
        fix = "record a run without asynchronous scheduling"
        raise InputError("steps that overlap have no host time of their own", key="async_scheduling", fix=fix)
    samples = samples_of(log, "run")
    kind = KINDS[log.kind].features if log.kind else StepFeatures
    features = list(features_as(kind, samples, but="constrained_rows"))  # masks are in no time of samples
    prices = [latency.step(of_step) for of_step in features]
    decodes = samples["bucket"][samples["prefill_seqs"] == samples["denoise_blocks"]]
    buckets = tuple(sorted({*log.meta.get("graph_buckets", ()), *decodes.tolist()} - {0}))
    regimes = np.array(
        [
            regime_of(f, (bucket,) if bucket else ())
            for f, bucket in zip(features, samples["bucket"].tolist(), strict=True)
        ],
        dtype=np.str_,
    )

    def bias(rows: NDArray[np.bool_], measured: NDArray[np.int64], predicted: NDArray[np.int64]) -> Bias:
        real, guess = measured[rows], predicted[rows]
        known = real > 0
        mape = float(np.abs(guess[known] / real[known] - 1).mean()) if known.any() else float("nan")
        return Bias(len(real), int(real.sum()), int(guess.sum()), mape)

    gpu, host = (
        np.array([getattr(price, part) for price in prices], dtype=np.int64) for part in ("gpu_ns", "host_ns")
    )
    everything = np.ones(len(samples), dtype=np.bool_)
    return StepBias(
        {name: bias(regimes == name, samples["gpu_ns"], gpu) for name in regimes_of(log)},
        bias(everything, samples["host_ns"], host),
        buckets,
    )


def regimes_of(log: StepLog) -> tuple[str, ...]:
    """Those that its steps can be of."""
    return kinds.REGIMES if log.kind else REGIMES


def regime_of(features: StepFeatures, buckets: Sequence[int]) -> str:
    """One of `REGIMES`, or of `kinds.REGIMES`.

    Args:
        buckets: rows of the graphs, or blocks, ascending.
    """
    of_kind = kinds.regime_of(features, buckets)
    if of_kind is not None:
        return of_kind
    if features.prefill_seqs:
        return "mixed" if features.decode_seqs else "prefill"
    place = bisect_left(buckets, features.decode_seqs)
    return "padded" if place < len(buckets) and buckets[place] > features.decode_seqs else "decode"


class Corrected:
    """A latency model with corrected prices for the GPU part of some regimes, and for the host part.

    Args:
        base: the model.
        gpu: corrections by regime.
        buckets: rows of the graphs, ascending; they determine the padded steps.
    """

    def __init__(
        self,
        base: LatencyModel,
        gpu: Mapping[str, BiasCorrection],
        host: BiasCorrection,
        buckets: Sequence[int],
    ) -> None:
        self.name = f"{base.name}, corrected"
        self.provenance = f"{base.provenance}; corrected to the steps of a run"
        self.frontend = base.frontend
        self.uses_max_context = base.uses_max_context
        self._base, self._gpu, self._host, self._buckets = base, gpu, host, buckets

    def step(self, features: StepFeatures) -> StepTime:
        price = self._base.step(features)
        gpu = self._gpu.get(regime_of(features, self._buckets), NONE).of(price.gpu_ns)
        host = self._host.of(price.host_ns)
        return StepTime(gpu if gpu + host > 0 else 1 - host, host)

    def step_ns(self, features: StepFeatures) -> int:
        return self.step(features).synchronous_ns

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        correction = self._gpu.get(regime_of(features, self._buckets), NONE)
        if correction == self._host == NONE:
            return self._base.decode_run(features, steps, start_ns, until_ns)
        ends, end_ns = [], start_ns
        for done in range(steps):
            price = self._base.step(features.after(done))
            end_ns += max(correction.of(price.gpu_ns) + self._host.of(price.host_ns), 1)
            ends.append(end_ns)
            if end_ns >= until_ns:
                break
        return PricedRun(ends)
