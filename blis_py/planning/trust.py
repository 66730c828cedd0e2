"""Uncertainty of step times, from the latency models' own validations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.files.profiles import squeeze
from blis_py.files.yaml_files import load_mapping
from blis_py.latency.hardware import load_gpu

_MEASURED, _NOT_MEASURED = "new model", "new GPU"


@dataclass(frozen=True, slots=True)
class StepError:
    """Relative error of a model's step times: normal, with this mean and standard deviation."""

    bias: float
    """Mean relative error; positive = predicted too slow."""
    deviation: float
    source: str
    """Source of the figures."""

    def factors(self, count: int) -> list[float]:
        """Ratios of true to predicted step times, at the midpoints of `count` equal parts of the
        distribution, ascending."""
        errors = norm.ppf(
            [(count - index - 0.5) / count for index in range(count)], self.bias, self.deviation
        )
        return [1 / (1 + max(float(error), -0.9)) for error in np.asarray(errors)]


def step_error(config: RunConfig) -> StepError | None:
    """The model's step-time error; None if unknown.

    A validation gives the mean absolute error m of single steps. Assuming cautiously that all steps of a run
    are off by the same factor, the error is normal with standard deviation m·√(π/2).
    """
    if config.latency.model == "trained":
        return _of_trained(config.gpu)
    if config.latency.model == "fitted" and config.latency.profile is not None:
        return _of_fitted(config.latency.profile)
    return None


def _of_trained(gpu: str) -> StepError:
    """The worst validation with this GPU's steps; for another GPU, the worst of any held-out GPU."""
    file = root("profiles") / "trained" / "coefficients.yaml"
    rows: Mapping[str, Mapping[str, Any]] = load_mapping(file)["validation"]
    own = {name: row for name, row in rows.items() if squeeze(_gpu_name(gpu)) in squeeze(name)}
    held_out = _MEASURED if own else _NOT_MEASURED
    name, (mean, bias) = max(
        ((name, row[held_out]) for name, row in (own or rows).items()), key=lambda item: float(item[1][0])
    )
    source = f"trained on steps of other models: {mean} % mean error, {name}, {held_out} held out"
    if not own:
        source = f"no steps of {_gpu_name(gpu)} were learned on; {mean} % mean error on {name}, held out"
    return StepError(bias / 100, _deviation(mean / 100), f"{source} (profiles/trained/coefficients.yaml)")


def _of_fitted(profile: str) -> StepError | None:
    from blis_py.latency.fitted_profile import read_profile

    found = read_profile(profile)
    known = [fit.cross_validated for fit in found.regimes.values() if fit.cross_validated is not None]
    if not known:
        return None
    worst = max(known, key=lambda each: each.mape)
    source = f"cross-validation of the profile: {100 * worst.mape:.1f} % mean error ({found.file})"
    return StepError(worst.bias, _deviation(worst.mape), source)


def _deviation(mean_absolute: float) -> float:
    return mean_absolute * math.sqrt(math.pi / 2)


def _gpu_name(gpu: str) -> str:
    try:
        return load_gpu(gpu).name
    except InputError:
        return gpu
