"""The subject of an explanation: a request, or the one at a statistic such as the p99 of a class."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError
from blis_py.metrics.distribution import Distribution
from blis_py.metrics.groups import rows_by_name, slo_classes
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.registry import METRICS, named, names
from blis_py.metrics.slo import require_known_classes
from blis_py.requests.table import RequestTable

DEFAULT = "ttft.p99"
PER_TOKEN = ("tpot", "itl")
"""Metrics whose parts are stated per token: sums over answers of unlike lengths do not compare."""
_STAT = r"\.(?P<stat>median|min|max|p\d+(?:\.\d+)?)"
_RANKS = {"median": 50.0, "min": 0.0, "max": 100.0}
_MAX_SLOWEST = 100


@dataclass(frozen=True, slots=True)
class Question:
    """A request by name, or a statistic of a metric."""

    request: str | None = None
    metric: str = "ttft"
    rank: float = 99.0
    """Percentile, 0 to 100."""
    slo_class: str | None = None
    """None = all classes."""

    def in_words(self) -> str:
        if self.request is not None:
            return f"request {self.request}"
        named = {value: name for name, value in _RANKS.items()}
        stat = named.get(self.rank, f"p{self.rank:g}")
        of = "" if self.slo_class is None else f" of class {self.slo_class}"
        metric = METRICS[self.metric]
        return f"{metric.own_label or metric.label} {stat}{of}"

    def check(self, table: RequestTable) -> None:
        """Check that requests of a run that is still to come answer it.

        Raises:
            InputError: no such request or class.
        """
        if self.request is not None:
            _row_of(table, self.request)
        if self.slo_class is not None:
            require_known_classes([self.slo_class], table.slo_class.names, key="--class")

    def values(self, record: RunRecord) -> NDArray[np.float64]:
        """The metric of every request, in ns; NaN if undefined or not in question."""
        column = latencies(record).column(self.metric).copy()
        if self.slo_class is not None:
            classes = rows_by_name(slo_classes(record))
            require_known_classes([self.slo_class], classes, key="--class")
            others = np.ones(len(column), dtype=np.bool_)
            others[classes.get(self.slo_class, [])] = False
            column[others] = np.nan
        return column


def question_of(
    request: str | None = None, metric: str | None = None, slo_class: str | None = None
) -> Question:
    """A question from user input.

    Args:
        metric: `[CLASS.]METRIC.STAT`, such as `ttft.p99` or `critical.e2e.max`; `DEFAULT` if neither it nor a
            request is given.
        slo_class: the class, if the metric names none.

    Raises:
        InputError: an invalid metric; both a request and a statistic; two classes.
    """
    if request is not None:
        if metric is not None or slo_class is not None:
            fix = "name a request, or a metric and a class"
            raise InputError(
                "cannot be combined with a metric or a class", key="--request", value=request, fix=fix
            )
        return Question(request)
    text = DEFAULT if metric is None else metric
    either = "|".join(map(re.escape, names()))
    match = re.fullmatch(rf"(?:(?P<slo_class>[^.=]+)\.)?(?P<metric>{either}){_STAT}", text.replace(" ", ""))
    if match is None:
        fix = (
            "write [CLASS.]METRIC.STAT, such as ttft.p99 or critical.e2e.max; a request is at a percentile, "
        )
        fix += "median, min or max, but not at a mean"
        raise InputError("does not identify a request", key="--metric", value=text, fix=fix)
    stat = match["stat"]
    rank = _RANKS[stat] if stat in _RANKS else float(stat[1:])
    if rank > 100:
        raise InputError("no such percentile", key="--metric", value=text, fix="use p0 to p100")
    if slo_class is not None and match["slo_class"] not in (None, slo_class):
        raise InputError("is another class than that of --metric", key="--class", value=slo_class)
    of = named(match["metric"])
    assert of is not None  # as it is one of the names
    return Question(None, of.name, rank, slo_class or match["slo_class"])


@dataclass(frozen=True, slots=True)
class QuestionMatch:
    """The requests that answer a question."""

    row: int | None
    """Row of the request; None if there is none."""
    value_ns: float | None = None
    """The statistic, interpolated as elsewhere; None for a request."""
    count: int = 0
    """Number of requests behind the statistic."""
    slowest: tuple[int, ...] = ()
    """Rows at the statistic or beyond, at most 100, evenly spaced by rank."""
    slower: int = 0
    """Total number of these."""
    typical: int | None = None
    """Row of the median request."""
    no_match: str = ""
    """The reason if no request matches."""


def find(record: RunRecord, question: Question) -> QuestionMatch:
    """Find the request in question.

    Raises:
        InputError: no request has that name; an unknown class.
    """
    if question.request is not None:
        return QuestionMatch(_row_of(record.table, question.request))
    values = question.values(record)
    order = np.argsort(values, kind="stable")
    order = order[: np.count_nonzero(~np.isnan(values))]
    count = len(order)
    if not count:
        return QuestionMatch(None, no_match=_no_match(record, question))
    place = int(np.ceil((count - 1) * question.rank / 100))
    slower = order[place:]
    some = np.unique(np.linspace(0, len(slower) - 1, min(len(slower), _MAX_SLOWEST)).round().astype(int))
    return QuestionMatch(
        row=int(order[place]),
        value_ns=Distribution.of(values[order]).percentile(question.rank),
        count=count,
        slowest=tuple(int(row) for row in slower[some]),
        slower=len(slower),
        typical=int(order[(count - 1) // 2]),
    )


def _row_of(table: RequestTable, name: str) -> int:
    names = list(table.ids())
    if name in names:
        return names.index(name)
    some = f"they are called {names[0]} to {names[-1]}" if names else "the run has no requests"
    raise InputError("no such request", key="--request", value=name, fix=some)


def _no_match(record: RunRecord, question: Question) -> str:
    """The reason why no request has such a latency."""
    classes = rows_by_name(slo_classes(record))
    rows = np.arange(len(record.table))
    of = ""
    if question.slo_class is not None:
        rows, of = classes.get(question.slo_class, rows[:0]), f" of class {question.slo_class}"
    if not len(rows):
        return f"there are no requests{of}"
    counts = np.bincount(record.outcome[rows], minlength=len(Outcome))
    ends = ", ".join(
        f"{counts[end]:,} {end.name.lower().replace('_', ' ')}" for end in Outcome if counts[end]
    )
    if counts[: Outcome.LENGTH_CAPPED + 1].sum():
        return f"none of the {len(rows):,} requests{of} has one: {ends}"
    return f"none of the {len(rows):,} requests{of} got an answer: {ends}"
