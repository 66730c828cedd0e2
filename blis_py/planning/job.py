"""A run among many: its configuration, what a configuration cannot say, and what it came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from types import NoneType
from typing import Any

from blis_py.config.loader import as_dict
from blis_py.config.models import RunConfig


@dataclass(frozen=True, slots=True)
class Variation:
    """Factors on what a run is made of; 1 leaves it as it is."""

    rate: float = 1.0
    """Arrivals come so many times as often: the same requests, closer together."""
    prompt: float = 1.0
    output: float = 1.0
    """Lengths of prompts and answers."""
    gpu_time: float = 1.0
    host_time: float = 1.0
    """The two parts of every step."""
    kv_blocks: float = 1.0
    """KV blocks of every instance."""


AS_IT_IS = Variation()


@dataclass(frozen=True, slots=True)
class Job:
    """One run to do."""

    config: RunConfig
    variation: Variation = AS_IT_IS
    stops_at: tuple[str, ...] = ()
    """A part of the arrivals is simulated first, and no more where it says this: `hopeless`, `fine`."""
    max_lost: float = 0.0
    """For that: the share of requests that may be lost."""

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides its outcome, but for the content of files."""
        return {
            "config": as_dict(replace(self.config, given=None)),
            "variation": asdict(self.variation),
            "stops_at": [*self.stops_at, self.max_lost] if self.stops_at else None,
        }


HOPELESS, FINE = "hopeless", "fine"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job."""

    figures: dict[str, float | None] = field(default_factory=dict)
    """The numbers of `summary.json`'s `cluster`, by dotted path."""
    classes: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Of each SLO class, its goodput."""
    slo: list[dict[str, Any]] = field(default_factory=list)
    """The verdicts on the SLOs, as in `summary.json`."""
    verdict: str = ""
    """Whether it keeps up with the load."""
    facts: dict[str, Any] = field(default_factory=dict)
    """`capacity`, `models`, `provenance` and `notes`."""
    early: str | None = None
    """`hopeless` or `fine`: what the first part of the arrivals says, where no more was simulated."""
    refused: str | None = None
    """Why the configuration cannot be run."""
    failed: str | None = None
    """What went wrong; another attempt may do better."""

    @property
    def ran(self) -> bool:
        return self.refused is None and self.failed is None


def outcome_from(values: dict[str, Any]) -> Outcome:
    """An outcome of a run from what `asdict` made of it.

    Raises:
        TypeError, LookupError, ValueError: it made something else.
    """
    found = Outcome(**values)
    for figures in (found.figures, *_mapping(found.classes).values()):
        _all(_mapping(figures).values(), (int, float, NoneType))
    for each in found.slo:
        _all([each["slo"]], str)
        _all([each["met"]], (bool, NoneType))
        _all([each["measured_ms"]], (int, float, NoneType))
        _all([each["limit_ms"]], (int, float))
    facts = _mapping(found.facts)
    _mapping(facts["scheduler"])
    _all(
        [found.verdict, *(facts[name] for name in ("capacity", "models", "provenance")), *facts["notes"]], str
    )
    _all([facts["requests"], facts["span_s"]], (int, float))
    _all([facts["offered_per_s"]], (int, float, NoneType))
    if not found.ran or found.early not in (None, HOPELESS, FINE):
        raise ValueError("no outcome of a run")
    return found


def _mapping(value: Any) -> dict[str, Any]:
    _all([value], dict)
    return value  # type: ignore[no-any-return]


def _all(values: Iterable[Any], kinds: type | tuple[type, ...]) -> None:
    for value in values:
        if not isinstance(value, kinds):
            raise TypeError(value)
