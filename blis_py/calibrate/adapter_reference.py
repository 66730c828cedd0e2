"""Totals of runs with LoRA adapters against a reference's, as BLIS's `calibrate --adapter-reference` has it.

The reference holds mean TTFT and output tokens/s of one configuration, with the cost of adapters and without.
The runs are files of `--metrics-path`, of BLIS or of blis-py. Ratios (with / without adapters) cancel what
they differ in besides adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.json_files import load_object

THRESHOLD = 0.20
"""Default limit of the error, a share."""
_METRICS = {"ttft": "ms", "output_throughput": "tokens/s"}
_WORDS = {"ttft": "mean TTFT", "output_throughput": "output throughput"}
_NAMES = {"ttft": "ttft", "output_throughput": "throughput"}
"""Metrics by their key in the reference: how BLIS's report calls them."""


@dataclass(frozen=True, slots=True)
class MetricError:
    """Error of one metric, as a share, and that of its ratio with / without adapters where both are known."""

    metric: str
    reference: float
    simulated: float
    threshold: float
    ratio_error: float | None

    @property
    def error(self) -> float:
        return abs(self.simulated - self.reference) / self.reference

    @property
    def within(self) -> bool:
        return self.error <= self.threshold

    def __str__(self) -> str:
        both = (
            f"{self.reference:,.4g} {_METRICS[self.metric]} in the reference, {self.simulated:,.4g} simulated"
        )
        verdict = f"{'within' if self.within else 'exceeds'} {100 * self.threshold:.4g}%"
        ratio = (
            "" if self.ratio_error is None else f"; its ratio with / without adapters {self.ratio_error:.1%}"
        )
        return f"{_WORDS[self.metric]}: {both}: error {self.error:.1%}, {verdict}{ratio}"


@dataclass(frozen=True, slots=True)
class AdapterComparison:
    """All metrics of one configuration."""

    model: str
    threshold: float
    metrics: tuple[MetricError, ...]

    @property
    def within(self) -> bool:
        return all(each.within for each in self.metrics)

    @property
    def without_ratio(self) -> list[str]:
        return [_NAMES[each.metric] for each in self.metrics if each.ratio_error is None]

    def as_dict(self) -> dict[str, Any]:
        """The report of BLIS."""
        return {
            "model": self.model,
            "mape_threshold": self.threshold,
            "metrics": [_reported(each) for each in self.metrics],
            "all_within_threshold": self.within,
        }


def compare_adapters(
    reference: Path, metrics: Path, blind: Path | None, threshold: float
) -> AdapterComparison:
    """Errors of a run with adapters; with `blind`, a run without their cost, those of ratios too.

    Raises:
        InputError: an unreadable file, or one without the figures.
    """
    document = load_object(reference, fix="give a reference with adapter_aware and adapter_blind")
    aware = _of_reference(document, "adapter_aware", reference, positive=True)
    base = _of_reference(document, "adapter_blind", reference, positive=False)
    simulated = _of_run(metrics)
    without = None if blind is None else _of_run(blind)
    errors = []
    for key in _METRICS:
        ratio = None
        if without is not None and base[key] and without[key]:
            expected = aware[key] / base[key]
            ratio = abs(simulated[key] / without[key] - expected) / expected
        errors.append(MetricError(key, aware[key], simulated[key], threshold, ratio))
    return AdapterComparison(str(document.get("model", "")), threshold, tuple(errors))


def _of_reference(document: Mapping[str, Any], side: str, file: Path, *, positive: bool) -> dict[str, float]:
    section = document.get(side)
    held = section if isinstance(section, Mapping) else {}
    return {
        key: _number(held.get(key, None if positive else 0), file, f"{side}.{key}", positive)
        for key in _METRICS
    }


def _of_run(file: Path) -> dict[str, float]:
    """Mean TTFT and output tokens/s of a `--metrics-path` file."""
    held = load_object(file, fix="write it with --metrics-path")
    duration_s = _number(held.get("vllm_estimated_duration_s"), file, "vllm_estimated_duration_s", True)
    tokens = _number(held.get("total_output_tokens"), file, "total_output_tokens", False)
    return {
        "ttft": _number(held.get("ttft_mean_ms"), file, "ttft_mean_ms", False),
        "output_throughput": tokens / duration_s,
    }


def _number(value: Any, file: Path, key: str, positive: bool) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not 0 <= value < 1e15 or (positive and value == 0):
        kind = "must be a number above 0" if positive else "must be a number of at least 0"
        raise InputError(kind, file=file, key=key, value=value)
    return float(value)


def _reported(each: MetricError) -> dict[str, Any]:
    held = {
        "metric": _NAMES[each.metric],
        "dt_value": each.reference,
        "blis_value": each.simulated,
        "mape": each.error,
        "within_threshold": each.within,
    }
    return held if each.ratio_error is None else held | {"delta_mape": each.ratio_error}
