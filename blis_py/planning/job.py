"""A run of a study: its configuration, its variation beyond settings, and its outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from types import NoneType
from typing import Any

from blis_py.config.loader import as_dict
from blis_py.config.models import RunConfig
from blis_py.metrics.slo import limit_and_measured


@dataclass(frozen=True, slots=True)
class Variation:
    """Factors on workload, step times and memory; 1 = unchanged."""

    rate: float = 1.0
    """Factor on the arrival rate: the same requests, closer together."""
    length: float = 1.0
    """Factor on the number of requests: generated further, or the recording repeated (see `longer`)."""
    at_once: bool = False
    """Whether all requests are due at the start, so that a closed loop is always full."""
    resample: int | None = None
    """Seed of a bootstrap of the requests (see `longer.resampled`); None = as they are."""
    prompt: float = 1.0
    output: float = 1.0
    """Factors on the lengths of prompts and answers."""
    gpu_time: float = 1.0
    host_time: float = 1.0
    """Factors on the two parts of every step time."""
    kv_blocks: float = 1.0
    """Factor on the KV blocks of every instance."""


AS_IT_IS = Variation()


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a study."""

    config: RunConfig
    variation: Variation = AS_IT_IS
    stops_at: tuple[str, ...] = ()
    """Early verdicts (`hopeless`, `fine`) on the first part of the arrivals that end the run."""
    max_lost: float = 0.0
    """Share of requests that may be lost, for the early verdict."""

    def as_dict(self) -> dict[str, Any]:
        """Everything that determines the outcome, except the content of files."""
        return {
            "config": as_dict(replace(self.config, given=None)),
            "variation": asdict(self.variation),
            "stops_at": [*self.stops_at, self.max_lost] if self.stops_at else None,
        }


HOPELESS, FINE = "hopeless", "fine"


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Result of a job."""

    figures: dict[str, float | None] = field(default_factory=dict)
    """The numbers of `summary.json`'s `cluster`, by dotted path."""
    classes: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Goodput of each SLO class."""
    slo: list[dict[str, Any]] = field(default_factory=list)
    """The verdicts on the SLOs, as in `summary.json`."""
    verdict: str = ""
    """Whether the cluster keeps up with the load."""
    facts: dict[str, Any] = field(default_factory=dict)
    """`capacity`, `models`, `provenance` and `notes`."""
    early_stop: str | None = None
    """Early verdict `hopeless` or `fine` on the first part of the arrivals, if the run ended there."""
    refused: str | None = None
    """Reason why the configuration cannot be run."""
    failed: str | None = None
    """Unexpected failure; a retry may succeed."""

    @property
    def ran(self) -> bool:
        return self.refused is None and self.failed is None


def outcome_from(values: dict[str, Any]) -> JobOutcome:
    """An outcome from the data that `asdict` made of it.

    Raises:
        TypeError, LookupError, ValueError: data of another shape.
    """
    read = JobOutcome(**values)
    for figures in (read.figures, *_mapping(read.classes).values()):
        _all(_mapping(figures).values(), (int, float, NoneType))
    for each in read.slo:
        _all([each["slo"]], str)
        _all([each["met"]], (bool, NoneType))
        limit, measured, _ = limit_and_measured(each)
        _all([measured], (int, float, NoneType))
        _all([limit], (int, float))
    facts = _mapping(read.facts)
    _mapping(facts["scheduler"] if "scheduler" in facts else facts["schedulers"])
    _all(
        [read.verdict, *(facts[name] for name in ("capacity", "models", "provenance")), *facts["notes"]], str
    )
    _all([facts["requests"], facts["at_once"], facts["span_s"]], (int, float))
    _all([facts["offered_per_s"]], (int, float, NoneType))
    if not read.ran or read.early_stop not in (None, HOPELESS, FINE):
        raise ValueError("no outcome of a run")
    return read


def _mapping(value: Any) -> dict[str, Any]:
    _all([value], dict)
    return value  # type: ignore[no-any-return]


def _all(values: Iterable[Any], kinds: type | tuple[type, ...]) -> None:
    for value in values:
        if not isinstance(value, kinds):
            raise TypeError(value)
