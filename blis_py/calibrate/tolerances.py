"""Verdicts of a calibration on tolerances: hit rate, TTFT and throughput, as BLIS's calibrate has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blis_py.calibrate.compare import Calibration
from blis_py.errors import InputError
from blis_py.files.json_files import load_object


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Tolerances of a prediction; a verdict is given only on known figures."""

    hit_rate_points: float = 5.0
    """Percentage points."""
    ttft_mape: float = 0.15
    throughput_percent: float = 0.0
    """Tolerance on output tokens per second; 0 = no verdict."""


@dataclass(frozen=True, slots=True)
class ToleranceVerdict:
    """A measured and a predicted figure, or an error alone, against its tolerance."""

    what: str
    error: float
    tolerance: float
    unit: str
    measured: float | None = None
    predicted: float | None = None

    @property
    def within(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        both = ""
        if self.measured is not None and self.predicted is not None:
            both = f"{self.measured:,.4g} measured, {self.predicted:,.4g} predicted: "
        verdict = "within" if self.within else "exceeds"
        return f"{self.what}: {both}{self.error:.1f} {self.unit}, {verdict} {self.tolerance:g} {self.unit}"


def verdicts(
    calibration: Calibration, tolerances: Tolerances, hit_rates: tuple[float, float] | None, ttft: bool
) -> list[ToleranceVerdict]:
    """All verdicts that are known.

    Args:
        hit_rates: measured and predicted.
        ttft: whether a verdict on TTFT is wanted.
    """
    judged = []
    if hit_rates is not None:
        off = 100 * abs(hit_rates[0] - hit_rates[1])
        judged.append(
            ToleranceVerdict("KV cache hit rate", off, tolerances.hit_rate_points, "points", *hit_rates)
        )
    error = next((each for each in calibration.errors if (each.latency, each.group) == ("TTFT", "all")), None)
    if ttft and error is not None:
        judged.append(ToleranceVerdict("TTFT MAPE", 100 * error.mape, 100 * tolerances.ttft_mape, "%"))
    tokens = calibration.throughput[0]
    if tolerances.throughput_percent and tokens.measured:
        both = tokens.measured, tokens.predicted
        off = 100 * abs(tokens.error)
        judged.append(ToleranceVerdict("output tokens/s", off, tolerances.throughput_percent, "%", *both))
    return judged


def lines(verdicts: list[ToleranceVerdict], calibration: Calibration, gpus: int) -> Iterator[str]:
    """The verdicts, and the throughput of each GPU."""
    tokens = calibration.throughput[0]
    if gpus and tokens.measured:
        each = tokens.measured / gpus, tokens.predicted / gpus
        yield f"output tokens/s of each of {gpus} GPUs: {each[0]:,.4g} measured, {each[1]:,.4g} predicted"
    yield from map(str, verdicts)


def as_dict(verdicts: list[ToleranceVerdict]) -> list[dict[str, Any]]:
    return [asdict(each) | {"within": each.within} for each in verdicts]


def observed_hit_rate(header: dict[str, Any], file: Path | None) -> float | None:
    """The hit rate that BLIS's observe recorded in a trace's header.

    Raises:
        InputError: it is not a share.
    """
    value = (header.get("observed_kv_metrics") or {}).get("hit_rate")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError("must be a share", file=file, key="observed_kv_metrics.hit_rate", value=value)
    return float(value)


def simulated_hit_rate(path: str) -> float:
    """`cache_hit_rate` of a `--metrics-path` file.

    Raises:
        InputError: no such file, or none of that form.
    """
    value = load_object(Path(path), fix="give what blis replay --metrics-path wrote").get("cache_hit_rate")
    if not isinstance(value, int | float):
        fix = "write it with blis replay --metrics-path"
        raise InputError("has no cache_hit_rate", key="--sim-metrics", value=path, fix=fix)
    return float(value)
