"""Errors of predicted step times, and validation of models against measured runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import StepFeatures, features_from, further_names
from blis_py.core.kinds import KINDS
from blis_py.latency.base import LatencyModel
from blis_py.latency.fitted_profile import Accuracy
from blis_py.traces.samples import StepSamples

Array = NDArray[np.float64]


def accuracy(predicted: Array, measured: Array) -> Accuracy:
    """Errors over steps of non-zero length."""
    ran = measured > 0
    predicted, measured = predicted[ran], measured[ran]
    if not len(measured):
        return Accuracy(0, 0.0, 0.0, 0.0, 0.0)
    error = predicted / measured - 1.0
    size = np.abs(error)
    return Accuracy(
        steps=len(error),
        mape=float(size.mean()),
        bias=float(error.mean()),
        p95=float(np.percentile(size, 95)),
        total=float(predicted.sum() / measured.sum() - 1.0),
    )


def features_of(samples: StepSamples) -> Iterator[StepFeatures]:
    """Features of each step as a latency model reads them."""
    there = (kind.features for kind in KINDS.values() if any(samples[name].any() for name in kind.names))
    return features_as(next(there, StepFeatures), samples)


def features_as(kind: type[StepFeatures], samples: StepSamples, but: str = "") -> Iterator[StepFeatures]:
    """The steps as features of a given class.

    Args:
        but: a feature to leave out.
    """
    names = [name for name in (*kind().names(), *further_names()) if name != but]
    for values in zip(*(samples[name].tolist() for name in names), strict=True):
        yield features_from(kind, dict(zip(names, values, strict=True)))


def kinds_of(samples: StepSamples) -> NDArray[np.str_]:
    """decode, prefill, mixed, or for blocks denoise: what each step does."""
    blocks = samples["denoise_blocks"]
    prefill = samples["prefill_seqs"] > blocks
    decode = (samples["decode_seqs"] > 0) | (blocks > 0)
    pure = np.where(blocks > 0, "denoise", "decode")
    return np.where(prefill, np.where(decode, "mixed", "prefill"), pure)


@dataclass(frozen=True)
class Validation:
    """Errors of a group of measured steps."""

    source: str
    regime: str
    kind: str
    """decode, prefill, mixed, denoise, or all."""
    synchronous: Accuracy
    gpu: Accuracy
    """This and the next without launch-bound steps, whose parts cannot be separated."""
    host: Accuracy
    pace: float
    """Median of measured over predicted, minus one: a common factor, such as a slower machine."""
    mape_at_pace: float
    """Mean absolute relative error after that factor is removed."""


def predict(model: LatencyModel, samples: StepSamples) -> tuple[Array, Array]:
    """GPU and host time of every step, in ns."""
    times = [model.step(features) for features in features_of(samples)]
    gpu, host = (np.array([getattr(time, part) for time in times], float) for part in ("gpu_ns", "host_ns"))
    return gpu, host


def validate(model: LatencyModel, samples: StepSamples) -> list[Validation]:
    """Errors by source, and within each by regime and kind of step; one line for all steps of a source."""
    gpu, host = predict(model, samples)
    kinds, validations = kinds_of(samples), []
    for source in dict.fromkeys(samples["source"].tolist()):
        mine = samples["source"] == source
        parts = sorted(set(zip(samples["regime"][mine].tolist(), kinds[mine].tolist(), strict=True)))
        for regime, kind in [*parts, ("all", "all")]:
            rows = mine
            if kind != "all":
                rows = mine & (samples["regime"] == regime) & (kinds == kind)
            measured = {part: samples[f"{part}_ns"][rows].astype(float) for part in ("total", "gpu", "host")}
            predicted, apart = (gpu + host)[rows], samples["launch_bound"][rows] == 0
            pace = float(np.median(measured["total"] / predicted))
            validations.append(
                Validation(
                    source,
                    regime,
                    kind,
                    accuracy(predicted, measured["total"]),
                    accuracy(gpu[rows][apart], measured["gpu"][apart]),
                    accuracy(host[rows][apart], measured["host"][apart]),
                    pace - 1.0,
                    accuracy(predicted * pace, measured["total"]).mape,
                )
            )
    return validations
