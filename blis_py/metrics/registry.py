"""The metrics of a request: each is registered here once, with all its properties.

From a registration follow the column of requests.csv, the figures of summary.json and the limits on them
(`--slo`), the targets of good requests (`--goodput`), the rows of the tables, and the picture of its
distribution. One of a package's own is another line: `METRICS["mine"] = Metric("mine", …)`. Definitions:
docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import Ints

Floats = NDArray[np.float64]


class Unit(NamedTuple):
    """Unit of the values of a metric."""

    name: str
    """At the end of columns and keys and beside limits; empty = a plain number."""
    scale: float = 1.0
    """Values are divided by it wherever they are shown."""

    @property
    def is_time(self) -> bool:
        """Whether values are in ns and limits are times: `500us`, `250ms`, `2s`."""
        return self == MS

    def key(self, name: str) -> str:
        """A name with the unit behind it."""
        return f"{name}_{self.name}" if self.name else name


MS = Unit("ms", 1e6)


def with_unit(text: str, unit: Unit) -> str:
    """A heading with the unit behind a comma, if it has a name."""
    return f"{text}, {unit.name}" if unit.name else text


class Places(NamedTuple):
    """The statistics of a metric in the places that show few; empty = the metric is left out there.

    The tables of a run show all metrics; these are its parts, and what has other figures beside.
    """

    groups: tuple[str, ...] = ("p99",)
    """Tables of SLO classes and tenants on a terminal."""
    notebook: tuple[str, ...] = ("p99",)
    """The table of SLO classes in a notebook."""
    instances: tuple[str, ...] = ("p99",)
    """The table of instances."""
    models: tuple[str, ...] = ("p99",)
    """Latency models beside each other (`--cross-check`)."""
    disagreement: tuple[str, ...] = ("p99",)
    """Notes on another latency model that disagrees."""
    what_ifs: tuple[str, ...] = ("p99",)
    """The side effects of a change (`blis explain`)."""
    curves: tuple[str, ...] = ("p99",)
    """Curves of a sweep, a panel each."""
    load: tuple[str, ...] = ("p99",)
    """Panels over the throughput; the statistic of an SLO takes its place."""
    compared: tuple[str, ...] = ("mean",)
    """Groups of paired requests, and a panel with the mean change."""
    pages: tuple[str, ...] = ("p99",)
    """Small tables of pages: SLO classes of `blis ui`, latency models of a report, runs of a sweep."""
    axes: tuple[str, ...] = ("p99",)
    """Charts over throughput or cost: a choice in `blis ui`, a chart each in the report of a sweep."""
    layouts: tuple[str, ...] = ("p99",)
    """Reasons for a layout, prefill and decode apart or not."""
    distributions: bool = True
    """A panel in the picture of distributions, of one run and of runs beside each other."""
    overview: bool = False
    """A panel in the picture of a run at a glance."""


NOWHERE = Places((), (), (), (), (), (), (), (), (), (), (), (), distributions=False)


class Metric(NamedTuple):
    """One metric of a request."""

    name: str
    """In targets and limits."""
    label: str
    """In tables."""
    title: str
    """Title of its picture; what follows a comma is left out where other statistics are drawn."""
    of: Callable[[RunRecord], Floats]
    """Function from the record to its value for every request, in ns if the unit is a time; NaN where a
    request never got that far."""
    target: bool = True
    """A good request can be held to a limit of it, and it is among the main figures of a run."""
    column_name: str = ""
    """Name of its column in the table of requests, where that is another."""
    unit: Unit = MS
    shown: Places = Places()
    aliases: tuple[str, ...] = ()
    """Other names in targets and limits."""
    own_label: str = ""
    """Label of the value of one request, where that is another."""
    per_token: bool = False
    """The statistics are over the gaps of all tokens, not over one value per request."""
    reached: str = ""
    """The column of the record with the time at which a wait since the arrival ends, if it is such a wait."""

    @property
    def column(self) -> str:
        """Without the unit."""
        return self.column_name or self.name

    @property
    def column_key(self) -> str:
        """Key in the table of requests, with the unit."""
        return self.unit.key(self.column)

    @property
    def key(self) -> str:
        """Key in the summary, with the unit."""
        return self.unit.key(self.name)

    def heading(self, statistic: str = "") -> str:
        """Label and statistic in a table of ms, with the unit if it is another."""
        text = f"{self.label} {statistic}".rstrip()
        return text if self.unit.is_time else with_unit(text, self.unit)

    def with_unit(self, statistic: str) -> str:
        """Label, statistic and unit: `TTFT p99, ms`."""
        return with_unit(f"{self.label} {statistic}", self.unit)

    @property
    def plain_title(self) -> str:
        """The title without a remark on the values."""
        return self.title.partition(",")[0]


def completed_mask(record: RunRecord) -> NDArray[np.bool_]:
    """Requests that got their whole answer, or all that max_model_len allows."""
    return np.isin(record.outcome, (Outcome.COMPLETED, Outcome.LENGTH_CAPPED))


def _ttft_ns(record: RunRecord) -> Floats:
    return where(record.first_token_ns >= 0, record.first_token_ns - record.table.arrival_ns)


def _tpot_ns(record: RunRecord) -> Floats:
    several = completed_mask(record) & (record.emitted_tokens > 1)
    return where(several, record.finish_ns - record.first_token_ns, record.emitted_tokens - 1)


def _itl_mean_ns(record: RunRecord) -> Floats:
    apart = completed_mask(record) & (record.outputs > 1)
    return where(apart, record.last_token_ns - record.first_token_ns, record.outputs - 1)


def _e2e_ns(record: RunRecord) -> Floats:
    return where(completed_mask(record), record.finish_ns - record.table.arrival_ns)


def _scheduling_delay_ns(record: RunRecord) -> Floats:
    return where(record.scheduled_ns >= 0, record.scheduled_ns - record.table.arrival_ns)


def where(defined: NDArray[np.bool_], value: Ints, divisor: Ints | None = None) -> Floats:
    """The values, NaN where they are not defined."""
    result = np.full(len(value), np.nan)
    if divisor is None:
        result[defined] = value[defined]
    else:
        result[defined] = value[defined] / divisor[defined]
    return result


_ENDS = ("mean", "p99")
_P50_AND_P99 = ("p50", "p99")

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            *("ttft", "TTFT", "Time to first token", _ttft_ns),
            reached="first_token_ns",
            shown=Places(
                groups=_P50_AND_P99,
                notebook=_P50_AND_P99,
                models=_P50_AND_P99,
                disagreement=_ENDS,
                pages=_P50_AND_P99,
                layouts=_ENDS,
                overview=True,
            ),
        ),
        Metric(
            *("tpot", "TPOT", "Time per output token, by request", _tpot_ns),
            shown=Places(
                groups=("p50",),
                notebook=_P50_AND_P99,
                instances=(),
                models=_ENDS,
                disagreement=_ENDS,
                compared=(),
                layouts=(),
            ),
        ),
        # in a summary those of all tokens, in a table the mean of each request
        Metric(
            *("itl", "ITL", "Inter-token latency, all tokens", _itl_mean_ns),
            column_name="itl_mean",
            own_label="mean ITL",
            per_token=True,
            shown=NOWHERE._replace(
                groups=("p99",), instances=("p99",), layouts=_ENDS, distributions=True, overview=True
            ),
        ),
        Metric(
            *("e2e", "E2E", "End-to-end latency", _e2e_ns),
            aliases=("e2el",),
            shown=Places(
                groups=_P50_AND_P99,
                notebook=_P50_AND_P99,
                instances=(),
                disagreement=_ENDS,
                curves=(),
                layouts=_ENDS,
            ),
        ),
        Metric(
            *("scheduling_delay", "scheduling delay", "Waiting before the first step", _scheduling_delay_ns),
            target=False,
            reached="scheduled_ns",
            shown=NOWHERE,
        ),
    )
}
"""By name, in the order in which they are shown."""

TTFT, TPOT, E2E = METRICS["ttft"], METRICS["tpot"], METRICS["e2e"]
"""Those that the program itself asks about."""


def columns() -> list[str]:
    """Names of the columns of requests, without units."""
    return [metric.column for metric in METRICS.values()]


OWN_COLUMNS = tuple(metric.column_key for metric in METRICS.values())
"""Columns of the package itself, which the tables of every result have."""


def paired() -> list[Metric]:
    """Metrics whose statistics are over one value per request: those that pairs of requests can compare."""
    return [metric for metric in METRICS.values() if metric.column == metric.name]


def main() -> list[Metric]:
    """The main figures of a run."""
    return [metric for metric in METRICS.values() if metric.target]


def per_request() -> list[Metric]:
    """The main figures with one value per request."""
    return [metric for metric in main() if not metric.per_token]


def labels(metrics: Iterable[Metric] | None = None) -> dict[str, str]:
    """The label of each key of a summary.

    Args:
        metrics: these alone; None = all.
    """
    return {metric.key: metric.label for metric in (METRICS.values() if metrics is None else metrics)}


def named(name: str) -> Metric | None:
    """The metric of a name or of an alias, if there is one."""
    return METRICS.get(name) or next((each for each in METRICS.values() if name in each.aliases), None)


def names() -> list[str]:
    """All names, and the aliases behind them."""
    return [*METRICS, *(alias for metric in METRICS.values() for alias in metric.aliases)]


def shown_in(place: str) -> list[tuple[Metric, str]]:
    """The metrics and statistics of a place, a field of `Places`."""
    return [(each, statistic) for each in METRICS.values() for statistic in getattr(each.shown, place)]


def headings_in(place: str) -> dict[str, str]:
    """The headings of a place with their units, by path in the summary."""
    return {f"{each.key}.{stat}": each.with_unit(stat) for each, stat in shown_in(place)}


def headings(metrics: Iterable[Metric]) -> dict[str, str]:
    """The headings of median and p99 of some metrics, by path in the summary."""
    return {f"{each.key}.{stat}": each.with_unit(stat) for each in metrics for stat in _P50_AND_P99}
