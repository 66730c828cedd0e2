"""Uncertainty of a prediction: how far validated predictions of the same latencies were off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from blis_py.config.loader import pool_configs
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.profiles import squeeze
from blis_py.hardware.gpu import load_gpu
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.planning import unlearned
from blis_py.planning.job import JobOutcome
from blis_py.planning.validated import CLOSED, DENSE, EXPERTS, NEW_GPU, OPEN, SATURATED, Validated, validated

FEW = 8
"""Below this number of validated runs the draws say so."""
_ONE_OF = (NEW_GPU, "new model")
"""Predictions of the same runs by coefficients that had not seen the GPU, or the model."""
_MIN_TELLING = {
    OPEN: ("gpu", "load", "precision", "kind", "engine"),
    SATURATED: ("gpu", "load", "precision", "kind", "engine"),
    CLOSED: ("gpu", "precision", "load", "kind", "engine"),
}
"""Parts of a regime that may differ, the first one first, where too few runs are alike in all. Few open loops
were measured, so closed ones stand in for them rather than the reverse."""
_MIN = 4
"""Fewest validated runs of a regime to draw from; with fewer, those of a wider regime are taken."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One equally likely truth: factors on what is predicted."""

    step: float
    """On every step time."""
    residual: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """On the latencies that follow, by metric and statistic: what slower steps do not explain."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Distribution of the truth over the prediction."""

    draws: tuple[Draw, ...]
    source: str
    """The runs it is drawn from, in words."""
    runs: int
    """Number of validated runs; 0 = a cross-validation of step times."""

    @property
    def few(self) -> bool:
        return 0 < self.runs < FEW

    @property
    def typical(self) -> float:
        """Mean relative error of the step times."""
        return float(np.mean([abs(1 / each.step - 1) for each in self.draws])) if self.draws else 0.0


class Regime(NamedTuple):
    """Circumstances on which the error of a prediction depends."""

    engine: str
    gpu: str
    precision: str
    kind: str
    """Kind of the model."""
    load: str


def errors_of(
    config: RunConfig, count: int, targets: Sequence[tuple[str, str]], *, near_saturation: bool = False
) -> Errors | None:
    """Draws of the truth for a configuration; None if nothing is known.

    Args:
        targets: the statistics with a limit: metric and statistic.
        near_saturation: whether queues build up at times.
    """
    if not count:
        return None
    if config.latency.model == "fitted" and config.latency.profile is not None:
        return _of_fitted(config.latency.profile, count)
    known = validated(config.latency.model)
    if not known:
        return None
    largest = _largest(config)
    regime = _regime_of(largest, near_saturation)
    far = unlearned.unlearned(config.latency.model)
    if far and (of := _not_learned(largest, regime)):
        return errors_of_unlearned(regime, far, count, targets, of)
    return errors_in(regime, known, count, targets)


def _largest(config: RunConfig) -> RunConfig:
    """The configuration of the pool with the most GPUs, whose errors count for the whole fleet."""
    pools = pool_configs(config)
    return max(pools, key=lambda each: each[0].count * each[1].tp)[1] if len(pools) > 1 else config


def errors_in(
    regime: Regime, known: Sequence[Validated], count: int, targets: Sequence[tuple[str, str]]
) -> Errors:
    """Draws of the truth from the validated runs that are most like a regime."""
    chosen, note = _most_alike(regime, known)
    runs = len({each.case for each in chosen})
    alike = len({each.case for each in chosen if each.load == regime.load})
    return Errors(tuple(_drawn(chosen, count, targets)), note, min(runs, max(alike, 1)))


def errors_of_unlearned(
    regime: Regime,
    runs: Sequence[Validated],
    count: int,
    targets: Sequence[tuple[str, str]],
    of: str = "what was not learned on",
) -> Errors:
    """Draws of the truth for a server that nothing was learned on; see `unlearned`.

    Args:
        of: the server in words.
    """
    alike = unlearned.alike(regime.kind, regime.precision, regime.load, runs)
    drawn = unlearned.picked(alike, count, np.random.default_rng(0))
    return Errors(tuple(_draw(each, targets) for each in drawn), unlearned.note(alike, of), len(alike))


def _draw(run: Validated, targets: Sequence[tuple[str, str]]) -> Draw:
    """As many E2E are unknown, their errors are those of step times."""
    residuals = {target: _residual(run, *target) for target in targets}
    residuals |= {target: 1.0 for target in targets if target[0] == "e2e" and residuals[target] is None}
    return Draw(_step(run), {target: each for target, each in residuals.items() if each is not None})


def _not_learned(config: RunConfig, regime: Regime) -> str:
    """The server in words, if step times were not learned on its like; otherwise empty."""
    shape = _shape_of(config)
    if shape is not None and unlearned.is_learned(regime.engine, shape, regime.precision, regime.gpu):
        return ""
    model = "an unknown model" if shape is None else shape.name
    return f"{model} {regime.precision} on {regime.gpu.upper()} under {regime.engine}"


def adjusted(outcome: JobOutcome, draw: Draw) -> JobOutcome:
    """An outcome whose latencies are off by what slower steps do not explain."""
    verdicts = []
    for each in outcome.slo:
        factor = draw.residual.get((each.get("metric", ""), each.get("stat", "")), 1.0)
        if factor != 1.0 and each["measured_ms"] is not None:
            measured = each["measured_ms"] * factor
            each = {**each, "measured_ms": measured, "met": measured <= each["limit_ms"]}
        verdicts.append(each)
    return replace(outcome, slo=verdicts)


def _most_alike(regime: Regime, known: Sequence[Validated]) -> tuple[list[Validated], str]:
    """The validated runs most like a regime, and which they are."""
    measured = {squeeze(each.gpu) for each in known}
    is_known = squeeze(regime.gpu) in measured
    runs = [each for each in known if each.held_out not in _ONE_OF or (each.held_out == NEW_GPU) != is_known]
    features = {**regime._asdict(), "gpu": squeeze(regime.gpu)}
    order = _MIN_TELLING[regime.load]
    for drop in (order[:count] for count in range(len(order) + 1)):
        same = {key: value for key, value in features.items() if key not in drop}
        alike = [each for each in runs if all(_feature(each, key) == value for key, value in same.items())]
        if len({each.case for each in alike}) >= _MIN:
            return alike, _sample_note(alike, features, drop)
    return runs, _sample_note(runs, features, tuple(features))


def _feature(run: Validated, key: str) -> str:
    value: str = getattr(run, key)
    return squeeze(value) if key == "gpu" else value


def _sample_note(sample: Sequence[Validated], features: Mapping[str, str], drop: Sequence[str]) -> str:
    count = len({each.case for each in sample})
    of = ", ".join(value for key, value in features.items() if key not in drop and key != "gpu") or "any kind"
    gpus = ", ".join(dict.fromkeys(each.gpu.upper() for each in sample))
    text = f"{count} measured runs ({of}; {gpus})"
    missing = [features[key] for key in drop if all(_feature(each, key) != features[key] for each in sample)]
    alike = len({each.case for each in sample if each.load == features["load"]})
    if "load" in drop and alike:
        text += f"; {alike} of them {features['load']}"
    return f"{text}; none of {', '.join(missing)}" if missing else text


def _regime_of(config: RunConfig, near_saturation: bool) -> Regime:
    precision, kind = "16-bit", DENSE
    if (shape := _shape_of(config)) is not None:
        width = shape.weights.experts if shape.experts else shape.weights.dense
        precision = "16-bit" if width >= 2 else "FP8" if width >= 1 else "FP4"
        kind = EXPERTS if shape.experts else DENSE
    is_open = config.workload.concurrency is None
    load = CLOSED if not is_open else SATURATED if near_saturation else OPEN
    return Regime(_engine(config), _gpu_name(config.gpu), precision, kind, load)


def _shape_of(config: RunConfig) -> ModelShape | None:
    try:
        return load_model(config.model or "", config.model_config)
    except InputError:
        return None


def _drawn(runs: Sequence[Validated], count: int, targets: Sequence[tuple[str, str]]) -> list[Draw]:
    """Whole runs, drawn with repetition: their errors belong together.

    The time per output token says how far step times are off; the rest of each latency's error multiplies it.
    A normal scatter, by Silverman's rule for as many servers, stands for those that were not measured, since
    runs of one server are alike.
    """
    rng = np.random.default_rng(0)
    picked = [runs[i] for i in _spread(len(runs), count, rng)]
    servers = len({run.server for run in runs})
    noise = _scatter([_step(run) for run in runs], servers, count, rng)
    own = {target: [_residual(run, *target) for run in runs] for target in targets}
    others = {
        target: _scatter([each for each in ratios if each is not None], servers, count, rng)
        for target, ratios in own.items()
    }
    draws = []
    for index, run in enumerate(picked):
        residual = {
            target: ratio * others[target][index]
            for target in targets
            if (ratio := _residual(run, *target)) is not None
        }
        draws.append(Draw(_step(run) * noise[index], residual))
    return draws


def _step(run: Validated) -> float:
    """Measured over predicted step times."""
    return run.ratio("tpot", "mean") or 1.0


def _residual(run: Validated, metric: str, stat: str) -> float | None:
    """The part of a latency's error that step times do not explain; None if it was not measured."""
    own = run.ratio("ttft" if metric == "scheduling_delay" else metric, stat)
    return None if own is None else own / _step(run)


def _scatter(ratios: Sequence[float], servers: int, count: int, rng: np.random.Generator) -> list[float]:
    """Factors around 1, as wide as a kernel estimate of so many servers asks for."""
    width = 1.06 * float(np.log(ratios).std()) * servers**-0.2 if len(ratios) > 1 else 0.0
    factors: list[float] = np.exp(rng.normal(0.0, width, count)).tolist()
    return factors


def _spread(runs: int, count: int, rng: np.random.Generator) -> list[int]:
    """Indices with repetition in which each run is about equally frequent, in random order."""
    rounds = [rng.permutation(runs) for _ in range(math.ceil(count / runs))]
    chosen: list[int] = np.concatenate(rounds)[:count].tolist()
    return chosen


def _of_fitted(profile: str, count: int) -> Errors | None:
    """Step times only, by the cross-validation of the worst regime.

    A cross-validation gives the mean absolute error m of single steps. Assuming cautiously that all steps
    of a run are off by the same factor, the error is normal with standard deviation m·√(π/2).
    """
    from blis_py.latency.fitted_profile import read_profile

    fitted = read_profile(profile)
    known = [fit.cross_validated for fit in fitted.regimes.values() if fit.cross_validated is not None]
    if not known:
        return None
    worst = max(known, key=lambda each: each.mape)
    parts = [(count - index - 0.5) / count for index in range(count)]
    scale, normal = worst.mape * math.sqrt(math.pi / 2), NormalDist()
    errors = [normal.inv_cdf(part) * scale + worst.bias for part in parts]
    draws = tuple(Draw(1 / (1 + max(error, -0.9))) for error in errors)
    return Errors(draws, f"cross-validation of the profile: {100 * worst.mape:.1f} % mean error", 0)


def _engine(config: RunConfig) -> str:
    """The engine whose kernels are priced."""
    return config.latency.kernels


def _gpu_name(gpu: str) -> str:
    try:
        return load_gpu(gpu).name
    except InputError:
        return gpu
