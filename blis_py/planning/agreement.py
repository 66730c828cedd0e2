"""Whether a model agrees with a measured run within its known error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.calibrate.compare import Calibration
from blis_py.calibrate.tried_advice import config_of
from blis_py.config.models import RunConfig
from blis_py.files.paths import is_file, is_folder
from blis_py.files.yaml_files import load_mapping
from blis_py.planning.uncertainty import errors_of

LATENCIES = ("TTFT", "TPOT", "E2E")
_DRAWS, _SHARE = 400, 90
_LATE_MS = 1.0
"""99th percentile of the send error from which on a client is late."""


@dataclass(frozen=True)
class Agreement:
    """Errors of the means beside those that are known of the model."""

    errors: Mapping[str, float]
    """Predicted over measured, minus one, by latency."""
    known: Mapping[str, float]
    """Error within which 90 % of the validated runs most like this one are; empty = unknown."""
    source: str
    """The validated runs, or why there are none."""
    late: Mapping[str, float]
    """Send errors of the client, see `blis_py.observe.findings.lateness`; empty = unknown."""

    @property
    def agrees(self) -> bool | None:
        """Whether all means are within the known error; None = unknown."""
        if self.beyond:
            return False
        return True if self.errors and self.errors.keys() <= self.known.keys() else None

    @property
    def beyond(self) -> tuple[str, ...]:
        """The latencies whose mean is further off than what is known of the model."""
        return tuple(name for name, error in self.errors.items() if abs(error) > self.known.get(name, np.inf))

    @property
    def line(self) -> str:
        """The verdict in one line."""
        shown = ", ".join(
            f"mean {name} {error:+.1%}" + (f" (known {self.known[name]:.1%})" if name in self.known else "")
            for name, error in self.errors.items()
        )
        if self.agrees is None:
            text = f"whether the model agrees within its known error is open, {self.source}: {shown}"
        elif self.agrees:
            text = f"the model agrees within its known error: {shown}; {self.source}"
        else:
            text = f"the model is off by more than its known error in {', '.join(self.beyond)}: {shown}"
            text += f"; {self.source}"
        return f"{text}{self._lateness}"

    @property
    def _lateness(self) -> str:
        p99_ms = self.late.get("p99_ms", 0.0)
        if p99_ms <= _LATE_MS:
            return ""
        moved = self.late.get("moves_ttft_mean_percent")
        share = "" if moved is None else f": counted from the due times mean TTFT is {moved:.1f} % longer"
        return f"; the client itself was late, p99 {p99_ms:.1f} ms{share}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "agrees": self.agrees,
            "line": self.line,
            "errors": dict(self.errors),
            "known_errors": dict(self.known),
            "known_from": self.source,
            "client_send_error": dict(self.late),
        }


def agreement(calibration: Calibration, results: str | Path, measured: str | Path) -> Agreement:
    """The verdict on a comparison.

    Args:
        results: the simulated run; its folder has the configuration on which the known error depends.
        measured: the measured run; a folder of `blis observe` says whether its client was late.
    """
    errors = {
        each.latency: each.statistics[0].error
        for each in calibration.errors
        if each.group == "all" and each.latency in LATENCIES and np.isfinite(each.statistics[0].error)
    }
    config = config_of(results)
    known, source = ({}, f"{results} has no configuration") if config is None else known_errors(config)
    return Agreement(errors, known, source, client_lateness(measured))


def known_errors(config: RunConfig) -> tuple[dict[str, float], str]:
    """The error of each mean within which 90 % of the validated runs like this one are, and those runs."""
    targets = [(name.lower(), "mean") for name in LATENCIES]
    errors = errors_of(config, _DRAWS, targets)
    if errors is None:
        return {}, f"{config.latency.model} has no validated runs"
    known = {}
    for name, target in zip(LATENCIES, targets, strict=True):
        of_steps = name == "TPOT" or not errors.runs
        ratios = [
            draw.step * draw.residual.get(target, 1.0)
            for draw in errors.draws
            if of_steps or target in draw.residual
        ]
        if ratios:
            known[name] = float(np.percentile(np.abs(1 / np.array(ratios) - 1), _SHARE))
    return known, f"90 % of {errors.source} are within it" if errors.runs else f"by {errors.source}"


def client_lateness(measured: str | Path) -> dict[str, float]:
    """The send errors in the `run.yaml` of a measured run; empty if there are none."""
    path = Path(measured)
    file = (path if is_folder(path) else path.parent) / "run.yaml"
    if not is_file(file):
        return {}
    client = load_mapping(file).get("client")
    late = client.get("send_error") if isinstance(client, dict) else None
    if not isinstance(late, dict):
        return {}
    return {key: float(value) for key, value in late.items() if isinstance(value, int | float)}
