"""Service level objectives: goodput targets for each request, and limits on a run's statistics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import clock_ns
from blis_py.core.light_dataclass import dataclass
from blis_py.errors import InputError
from blis_py.metrics.groups import SLO_CLASSES, classes_of, rows_by_name
from blis_py.metrics.latencies import Latencies
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS, TTFT, Unit, main, named, names
from blis_py.requests.table import RequestTable

Limits = NDArray[np.int64] | NDArray[np.float64]

ANY_CLASS = "default"
"""Targets under this name apply to every class without its own."""

_OF_BLIS = ("ttft", "itl", "e2e")
"""Targets that a workload or a trace of BLIS states."""
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_DURATION = r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ns|us|µs|ms|s)"
_LEAST_PERCENTILE = 50
_STAT = r"\.(?P<stat>mean|median|min|max|std|p\d+(?:\.\d+)?)=(?P<limit>.+)"


@dataclass(frozen=True, slots=True)
class GoodputTargets:
    """Limits of each request, by class and dimension; of times in ns.

    A class has its own limits and, in dimensions where it has none, those of `default`.
    """

    limits_ns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of_class(self, name: str) -> dict[str, float]:
        """Limits by dimension; empty if the class has none."""
        return {**self.limits_ns.get(ANY_CLASS, {}), **self.limits_ns.get(name, {})}

    def under(self, other: GoodputTargets, classes: Iterable[str]) -> GoodputTargets:
        """`other`, completed by these where it has none, for these classes and the standard ones."""
        stated, known = other.limits_ns.get(ANY_CLASS, {}), {*classes, *SLO_CLASSES, ANY_CLASS}
        kept = {
            name: {dimension: limit for dimension, limit in limits.items() if dimension not in stated}
            for name, limits in self.limits_ns.items()
            if name in known
        }
        return GoodputTargets({name: limits for name, limits in kept.items() if limits}).merged(other)

    def merged(self, other: GoodputTargets) -> GoodputTargets:
        """The union of both; `other` wins for the same class and dimension."""
        names = [*self.limits_ns, *(name for name in other.limits_ns if name not in self.limits_ns)]
        return GoodputTargets(
            {n: {**self.limits_ns.get(n, {}), **other.limits_ns.get(n, {})} for n in names},
        )


class SloCheck(NamedTuple):
    """One limit on a statistic of the run: `[class.]metric.stat=limit`."""

    text: str
    metric: str
    stat: str
    limit_ns: float
    """Limit; in the unit of the metric where that is not a time."""
    slo_class: str | None = None


def parse_goodput(pairs: Iterable[str]) -> GoodputTargets:
    """Goodput targets in vLLM's syntax: `ttft:500`, `tpot:50`, `e2el:5000`, limits in ms; `itl` and `e2e` are
    accepted too.

    A limit may have its own unit, as in `--slo-ttft`: `ttft:500ms`, `e2el:5s`.

    Raises:
        InputError: not NAME:LIMIT, an unknown name, a name given twice or a non-positive limit.
    """
    key = "--goodput"
    limits: dict[str, float] = {}
    for pair in (part for text in pairs for part in text.split()):
        name, colon, number = pair.partition(":")
        metric = named(name)
        if not colon or metric is None or not metric.target:
            fix = "write " + ", ".join(f"{each.name}:{each.unit.name.upper() or 'LIMIT'}" for each in main())
            raise InputError("not a goodput target", key=key, value=pair, fix=fix)
        if metric.name in limits:
            raise InputError(f"{name} is limited twice", key=key, value=pair, fix="give one limit")
        unit = "" if number[-1:].isalpha() or not metric.unit.is_time else "ms"
        limits[metric.name] = _limit(number + unit, metric.unit, key=key, given=pair)
    return GoodputTargets({ANY_CLASS: limits} if limits else {})


def parse_class_targets(metric: str, text: str) -> GoodputTargets:
    """Goodput targets in BLIS's syntax for `--slo-ttft`, `--slo-itl` and `--slo-e2e`:
    `critical=100ms,standard=500ms`.

    Args:
        metric: the limited dimension: `ttft`, `tpot`, `itl` or `e2e`.
        text: comma-separated CLASS=DURATION; the class `default` applies to all others.

    Raises:
        InputError: not CLASS=DURATION, a class named twice or a non-positive duration.
    """
    key = f"--slo-{metric}"
    limits: dict[str, Mapping[str, float]] = {}
    for pair in text.split(","):
        name, equals, duration = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            fix = "write critical=100ms,standard=1s"
            raise InputError("not CLASS=DURATION", key=key, value=pair, fix=fix)
        if name in limits:
            raise InputError(f"class {name} is limited twice", key=key, value=text, fix="give one limit")
        limits[name] = {metric: _limit(duration, METRICS[metric].unit, key=key, given=pair)}
    return GoodputTargets(limits)


def targets_in_ms(values: Any, *, key: str, file: str | Path | None = None) -> GoodputTargets:
    """Targets from a workload or a trace: `{critical: {ttft_ms: 100, itl_ms: 50, e2e_ms: 5000}}`.

    A limit of 0 means none.

    Raises:
        InputError: another shape, an unknown dimension, or a limit that is not a time.
    """
    if not isinstance(values, Mapping):
        raise InputError("must map SLO classes to limits", file=file, key=key, value=values)
    limits: dict[str, dict[str, float]] = {}
    in_ms = {METRICS[name].key: name for name in _OF_BLIS}
    for name, own in values.items():
        if not isinstance(own, Mapping):
            raise InputError("must be {ttft_ms: …, itl_ms: …, e2e_ms: …}", file=file, key=f"{key}.{name}")
        for dimension, value in own.items():
            where = f"{key}.{name}.{dimension}"
            if dimension not in in_ms:
                raise InputError("unknown key", file=file, key=where, fix=f"use {', '.join(in_ms)}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError("must be a number of ms", file=file, key=where, value=value)
            if limit_ns := clock_ns(value, 10**6, key=where, file=file):
                limits.setdefault(str(name), {})[in_ms[dimension]] = limit_ns
    return GoodputTargets(limits)


def parse_slo(text: str) -> SloCheck:
    """A check from text: `ttft.p99=500ms`, or for one class `critical.ttft.p99=200ms`.

    Metrics: ttft, tpot, itl, e2e (or e2el), scheduling_delay, and registered ones. Statistics: mean, median,
    min, max, std and any percentile (p50, p99, p99.9). Units of times: ns, us, ms, s.

    Raises:
        InputError: anything else.
    """
    key = "--slo"
    either = "|".join(map(re.escape, names()))
    match = re.fullmatch(
        rf"(?:(?P<slo_class>[^.=]+)\.)?(?P<metric>{either}){_STAT}", text.replace(" ", ""), re.ASCII
    )
    if match is None:
        fix = "write [CLASS.]METRIC.STAT=LIMIT, such as ttft.p99=500ms or critical.e2e.mean=2s"
        raise InputError("not an SLO", key=key, value=text, fix=fix)
    stat = match["stat"]
    if stat.startswith("p") and not _LEAST_PERCENTILE <= float(stat[1:]) <= 100:
        fix = "use p50 to p100, such as p99: a limit on a lower one leaves most requests without"
        raise InputError("no percentile for a limit", key=key, value=text, fix=fix)
    metric = named(match["metric"])
    assert metric is not None  # as it is one of the names
    return SloCheck(
        text=text,
        metric=metric.name,
        stat=stat,
        limit_ns=_limit(match["limit"], metric.unit, key=key, given=text),
        slo_class=match["slo_class"],
    )


def require_known_classes(names: Iterable[str], present: Iterable[str], key: str = "SLO") -> None:
    """Check that each class in a target is in the workload or a standard one.

    Raises:
        InputError: it is neither, so it is probably a typo.
    """
    known = {*present, *SLO_CLASSES, ANY_CLASS}
    for name in names:
        if name not in known:
            fix = f"use one of {', '.join(sorted(filter(None, known)))}"
            raise InputError("no request is of this SLO class", key=key, value=name, fix=fix)


class Goodput(NamedTuple):
    """Requests with targets, and those of them that met all."""

    limits_ns: dict[str, Limits]
    """Limit of each request by dimension; 0 if it has none."""
    covered: NDArray[np.bool_]
    """Whether it has at least one limit."""
    met: dict[str, NDArray[np.bool_]]
    """By dimension: completed, and within the limit if there is one."""
    good: NDArray[np.bool_]
    """Whether it is covered, completed and within every limit."""

    def report(self, rows: NDArray[np.intp], duration_s: float) -> dict[str, Any]:
        """Goodput and attainment of some requests over a window of `duration_s`."""
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
    """Compare every request with its targets; `None` if there are none.

    A request's own target (`slo_target_ns`, a TTFT limit) takes the place of its class's TTFT limit.
    An undefined TPOT or ITL (one token) meets any limit, as in vLLM; a request that did not complete
    meets none.
    """
    limits = limits_of(record.table, targets or GoodputTargets())
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


def limits_of(table: RequestTable, targets: GoodputTargets) -> dict[str, Limits]:
    """Limit of each request by dimension, 0 if it has none; dimensions without a limit are left out.

    Raises:
        InputError: targets of a class that is unknown.
    """
    limits: dict[str, Limits] = {each.name: _no_limits(each.unit, len(table)) for each in main()}
    by_class = rows_by_name(classes_of(table))
    require_known_classes(targets.limits_ns, by_class)
    for slo_class, rows in by_class.items():
        for name, limit_ns in targets.of_class(slo_class).items():
            limits[name][rows] = limit_ns
    own_ns = table.slo_target_ns
    if len(own_ns):
        limits[TTFT.name] = np.where(own_ns > 0, own_ns, limits[TTFT.name])
    return {name: limit for name, limit in limits.items() if limit.any()}


def _no_limits(unit: Unit, requests: int) -> Limits:
    return np.zeros(requests, dtype=np.int64) if unit.is_time else np.zeros(requests)


def verdict(check: SloCheck, measured: float, requests: int) -> dict[str, Any]:
    """Comparison of a measured statistic, of a time in ns, with its limit.

    `met` is False if there were `requests` but none reached the measured point, and None if there were no
    requests at all.
    """
    unit, known = METRICS[check.metric].unit, not np.isnan(measured)
    return {
        "slo": check.text,
        "slo_class": check.slo_class,
        "metric": check.metric,
        "stat": check.stat,
        unit.key("limit"): check.limit_ns / unit.scale,
        unit.key("measured"): measured / unit.scale if known else None,
        "met": measured <= check.limit_ns if known else (False if requests else None),
    }


def limit_and_measured(verdict: Mapping[str, Any]) -> tuple[float, float | None, str]:
    """Limit, measured value and unit of a verdict; the unit is empty for ms, which tables state once.

    Raises:
        LookupError: a verdict on a metric that is not registered here, or of another shape.
    """
    unit = METRICS[verdict["metric"]].unit
    stated = f", {unit.name}" if unit.name and not unit.is_time else ""
    return verdict[unit.key("limit")], verdict[unit.key("measured")], stated


def parse_slos(texts: Sequence[str]) -> list[SloCheck]:
    """`parse_slo` of each."""
    return [parse_slo(text) for text in texts]


def _limit(text: str, unit: Unit, *, key: str, given: str) -> float:
    """A limit from text: of a time in ns, else in the unit, whose name may follow."""
    if unit.is_time:
        return _positive_ns(text, key=key, given=given)
    number = re.fullmatch(rf"(\d+(?:\.\d*)?|\.\d+)(?:{re.escape(unit.name)})?", text, re.ASCII)
    if number is None or not (limit := float(number[1]) * unit.scale) > 0:
        fix = f"write it like 0.5{unit.name}"
        raise InputError("the limit must be a positive number", key=key, value=given, fix=fix)
    return limit


def _positive_ns(text: str, *, key: str, given: str) -> int:
    fix = "write it like 500us, 250ms or 2s"
    match = re.fullmatch(_DURATION, text, re.ASCII)
    if match is None:
        raise InputError("the limit must be a positive time", key=key, value=given, fix=fix)
    try:
        return clock_ns(float(match["number"]), _UNIT_NS[match["unit"]], key=key, least_ns=1)
    except InputError as error:
        raise InputError(f"the limit {error.problem}", key=key, value=given, fix=fix) from None
