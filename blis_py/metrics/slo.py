"""Service level objectives: goodput targets every request should meet, and limits on a run's statistics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import clock_ns
from blis_py.errors import InputError
from blis_py.metrics.distribution import NS_PER_MS
from blis_py.metrics.groups import SLO_CLASSES, rows_by_name, slo_classes
from blis_py.metrics.latencies import Latencies
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS, limitable

ANY_CLASS = "default"
"""Targets under this name hold for every class that has none of its own."""

_IN_MS = {"ttft_ms": "ttft", "itl_ms": "itl", "e2e_ms": "e2e"}
_ALIASES = {"e2el": "e2e"}
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_DURATION = r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ns|us|µs|ms|s)"
_STAT = r"\.(?P<stat>mean|median|min|max|std|p\d+(?:\.\d+)?)=(?P<limit>.+)"


@dataclass(frozen=True, slots=True)
class GoodputTargets:
    """Latencies a request may not exceed, by class and dimension, in ns.

    A class is held to its own limits and, in dimensions where it has none, to those of `default`.
    """

    limits_ns: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def of_class(self, name: str) -> dict[str, int]:
        """Limit by dimension; empty where the class is held to nothing."""
        return {**self.limits_ns.get(ANY_CLASS, {}), **self.limits_ns.get(name, {})}

    def under(self, other: GoodputTargets, classes: Iterable[str]) -> GoodputTargets:
        """`other`, and these where it says nothing, of these classes and the usual ones."""
        said, known = other.limits_ns.get(ANY_CLASS, {}), {*classes, *SLO_CLASSES, ANY_CLASS}
        kept = {
            name: {dimension: limit for dimension, limit in limits.items() if dimension not in said}
            for name, limits in self.limits_ns.items()
            if name in known
        }
        return GoodputTargets({name: limits for name, limits in kept.items() if limits}).merged(other)

    def merged(self, other: GoodputTargets) -> GoodputTargets:
        """Both; where they name the same class and dimension, `other` wins."""
        names = [*self.limits_ns, *(name for name in other.limits_ns if name not in self.limits_ns)]
        return GoodputTargets(
            {n: {**self.limits_ns.get(n, {}), **other.limits_ns.get(n, {})} for n in names},
        )


class SloCheck(NamedTuple):
    """One limit on a statistic of the run: `[class.]metric.stat=limit`."""

    text: str
    metric: str
    stat: str
    limit_ns: int
    slo_class: str | None = None


def parse_goodput(pairs: Iterable[str], *, key: str = "--goodput") -> GoodputTargets:
    """vLLM's syntax: `ttft:500`, `tpot:50`, `e2el:5000`, limits in ms; `itl` and `e2e` are understood too.

    A limit may have a unit of its own, as in `--slo-ttft`: `ttft:500ms`, `e2el:5s`.

    Raises:
        InputError: not NAME:LIMIT, an unknown name, a name given twice or a limit that is not positive.
    """
    limits: dict[str, int] = {}
    for pair in (part for text in pairs for part in text.split()):
        name, colon, number = pair.partition(":")
        metric = _ALIASES.get(name, name)
        if not colon or metric not in limitable():
            fix = "write " + ", ".join(f"{each}:MS" for each in limitable())
            raise InputError("not a goodput target", key=key, value=pair, fix=fix)
        if metric in limits:
            raise InputError(f"{name} is limited twice", key=key, value=pair, fix="give one limit")
        unit = "" if number[-1:].isalpha() else "ms"
        limits[metric] = _positive_ns(number + unit, key=key, found=pair)
    return GoodputTargets({ANY_CLASS: limits} if limits else {})


def parse_class_targets(metric: str, text: str, *, key: str | None = None) -> GoodputTargets:
    """BLIS's syntax for `--slo-ttft`, `--slo-itl` and `--slo-e2e`: `critical=100ms,standard=500ms`.

    Args:
        metric: the dimension that is limited: `ttft`, `tpot`, `itl` or `e2e`.
        text: comma-separated CLASS=DURATION; the class `default` holds for all that are not named.

    Raises:
        InputError: not CLASS=DURATION, a class named twice or a duration that is not positive.
    """
    key = key or f"--slo-{metric}"
    limits: dict[str, Mapping[str, int]] = {}
    for pair in text.split(","):
        name, equals, duration = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            fix = "write critical=100ms,standard=1s"
            raise InputError("not CLASS=DURATION", key=key, value=pair, fix=fix)
        if name in limits:
            raise InputError(f"class {name} is limited twice", key=key, value=text, fix="give one limit")
        limits[name] = {metric: _positive_ns(duration, key=key, found=pair)}
    return GoodputTargets(limits)


def targets_in_ms(values: Any, *, key: str, file: str | Path | None = None) -> GoodputTargets:
    """What a workload or a trace says itself: `{critical: {ttft_ms: 100, itl_ms: 50, e2e_ms: 5000}}`.

    A limit of 0 is none.

    Raises:
        InputError: another shape, an unknown dimension, or a limit that is no time.
    """
    if not isinstance(values, Mapping):
        raise InputError("must map SLO classes to limits", file=file, key=key, value=values)
    limits: dict[str, dict[str, int]] = {}
    for name, own in values.items():
        if not isinstance(own, Mapping):
            raise InputError("must be {ttft_ms: …, itl_ms: …, e2e_ms: …}", file=file, key=f"{key}.{name}")
        for dimension, value in own.items():
            where = f"{key}.{name}.{dimension}"
            if dimension not in _IN_MS:
                raise InputError("unknown key", file=file, key=where, fix=f"use {', '.join(_IN_MS)}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError("must be a number of ms", file=file, key=where, value=value)
            if limit_ns := clock_ns(value, 10**6, key=where, file=file):
                limits.setdefault(str(name), {})[_IN_MS[dimension]] = limit_ns
    return GoodputTargets(limits)


def parse_slo(text: str, *, key: str = "--slo") -> SloCheck:
    """`ttft.p99=500ms`, or for one class `critical.ttft.p99=200ms`.

    Metrics: ttft, tpot, itl, e2e (or e2el), scheduling_delay. Statistics: mean, median, min, max, std and
    any percentile (p50, p99, p99.9). Units: ns, us, ms, s.

    Raises:
        InputError: anything else.
    """
    names = "|".join(map(re.escape, (*METRICS, *_ALIASES)))
    found = re.fullmatch(rf"(?:(?P<slo_class>[^.=]+)\.)?(?P<metric>{names}){_STAT}", text.replace(" ", ""))
    if found is None:
        fix = "write [CLASS.]METRIC.STAT=LIMIT, such as ttft.p99=500ms or critical.e2e.mean=2s"
        raise InputError("not an SLO", key=key, value=text, fix=fix)
    stat = found["stat"]
    if stat.startswith("p") and float(stat[1:]) > 100:
        raise InputError("no such percentile", key=key, value=text, fix="use p0 to p100")
    return SloCheck(
        text=text,
        metric=_ALIASES.get(found["metric"], found["metric"]),
        stat=stat,
        limit_ns=_positive_ns(found["limit"], key=key, found=text),
        slo_class=found["slo_class"],
    )


def require_known_classes(names: Iterable[str], present: Iterable[str]) -> None:
    """A class in a target is one of the workload's, or a usual one that this workload happens to lack.

    Raises:
        InputError: it is neither, so it must be a slip.
    """
    known = {*present, *SLO_CLASSES, ANY_CLASS}
    for name in names:
        if name not in known:
            fix = f"use one of {', '.join(sorted(filter(None, known)))}"
            raise InputError("no request is of this SLO class", key="SLO", value=name, fix=fix)


class Goodput(NamedTuple):
    """Which requests are held to targets, and which of them met all."""

    limits_ns: dict[str, NDArray[np.int64]]
    """By dimension, each request's limit; 0 where it has none."""
    covered: NDArray[np.bool_]
    """Has at least one limit."""
    met: dict[str, NDArray[np.bool_]]
    """By dimension: completed, and within the limit where there is one."""
    good: NDArray[np.bool_]
    """Covered, completed and within every limit."""

    def report(self, rows: NDArray[np.intp], duration_s: float) -> dict[str, Any]:
        """Goodput and attainment of some requests, over a window of `duration_s`."""
        good, covered = int(self.good[rows].sum()), int(self.covered[rows].sum())
        return {
            "requests_per_s": good / duration_s if duration_s else 0.0,
            "attainment": good / covered if covered else None,
            "good": good,
            "covered": covered,
            "attainment_by_target": {
                name: float(self.met[name][held].mean())
                for name, limit in self.limits_ns.items()
                if len(held := rows[limit[rows] > 0])
            },
        }


def assess(record: RunRecord, columns: Latencies, targets: GoodputTargets | None) -> Goodput | None:
    """Hold every request to its targets; `None` when nobody has any.

    A request's own target (`slo_target_ns`, a TTFT limit) takes the place of its class's TTFT limit.
    An undefined TPOT or ITL (one token) meets any limit, as in vLLM; a request that did not complete
    meets none.
    """
    limits = _limits_ns(record, targets or GoodputTargets())
    if not limits:
        return None
    covered = np.zeros(len(record.table), dtype=np.bool_)
    good = columns.completed.copy()
    met = {}
    for name, limit in limits.items():
        covered |= limit > 0
        met[name] = columns.completed & ((limit == 0) | ~(columns.column(name) > limit))
        good &= met[name]
    return Goodput(limits, covered, met, good & covered)


def _limits_ns(record: RunRecord, targets: GoodputTargets) -> dict[str, NDArray[np.int64]]:
    limits = {name: np.zeros(len(record.table), dtype=np.int64) for name in limitable()}
    by_class = rows_by_name(slo_classes(record))
    require_known_classes(targets.limits_ns, by_class)
    for slo_class, rows in by_class.items():
        for name, limit_ns in targets.of_class(slo_class).items():
            limits[name][rows] = limit_ns
    own = record.table.slo_target_ns
    if len(own):
        limits["ttft"] = np.where(own > 0, own, limits["ttft"])
    return {name: limit for name, limit in limits.items() if limit.any()}


def verdict(check: SloCheck, measured_ns: float, requests: int) -> dict[str, Any]:
    """What was measured against a limit.

    `met` is False when there were `requests` but none got far enough to be measured, and None when there
    were no requests at all.
    """
    known = not np.isnan(measured_ns)
    return {
        "slo": check.text,
        "slo_class": check.slo_class,
        "metric": check.metric,
        "stat": check.stat,
        "limit_ms": check.limit_ns / NS_PER_MS,
        "measured_ms": measured_ns / NS_PER_MS if known else None,
        "met": measured_ns <= check.limit_ns if known else (False if requests else None),
    }


def parse_slos(texts: Sequence[str], *, key: str = "--slo") -> list[SloCheck]:
    """`parse_slo` of each."""
    return [parse_slo(text, key=key) for text in texts]


def _positive_ns(text: str, *, key: str, found: str) -> int:
    fix = "write it like 500us, 250ms or 2s"
    match = re.fullmatch(_DURATION, text)
    if match is None:
        raise InputError("the limit must be a positive time", key=key, value=found, fix=fix)
    try:
        return clock_ns(float(match["number"]), _UNIT_NS[match["unit"]], key=key, least_ns=1)
    except InputError as error:
        raise InputError(f"the limit {error.problem}", key=key, value=found, fix=fix) from None
