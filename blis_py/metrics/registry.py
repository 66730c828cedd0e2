"""The metrics of a request: each is registered here once, with all that is said of it.

From a registration follow the column of requests.csv, the figures of summary.json and the limits on them
(`--slo`), the targets of good requests (`--goodput`), the rows of the tables, and the picture of its
distribution. One of a package's own is another line: `METRICS["mine"] = Metric("mine", …)`. Definitions:
docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import Ints

Floats = NDArray[np.float64]


class Metric(NamedTuple):
    """One metric of a request: a time, in ns within the program and in ms wherever it is shown."""

    name: str
    """In targets and limits."""
    label: str
    """In tables."""
    title: str
    """Of its picture."""
    of: Callable[[RunRecord], Floats]
    """Its value for every request in ns, NaN where a request never got that far."""
    target: bool = True
    """A good request can be held to a limit of it, and it is among the main figures of a run."""
    column_name: str = ""
    """Of its values in the table of requests, where that is not its name."""

    @property
    def column(self) -> str:
        """Without the unit."""
        return self.column_name or self.name

    @property
    def key(self) -> str:
        """In the summary, with the unit."""
        return f"{self.name}_ms"


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


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("ttft", "TTFT", "Time to first token", _ttft_ns),
        Metric("tpot", "TPOT", "Time per output token, by request", _tpot_ns),
        # in a summary those of all tokens, in a table the mean of each request
        Metric("itl", "ITL", "Inter-token latency, all tokens", _itl_mean_ns, column_name="itl_mean"),
        Metric("e2e", "E2E", "End-to-end latency", _e2e_ns),
        Metric(
            "scheduling_delay",
            "scheduling delay",
            "Waiting before the first step",
            _scheduling_delay_ns,
            target=False,
        ),
    )
}
"""By name, in the order in which they are shown."""


def columns() -> list[str]:
    """Names of the columns of requests, without units."""
    return [metric.column for metric in METRICS.values()]


OWN_COLUMNS = tuple(columns())
"""Of the package itself: those that the tables of every result have."""


def limitable() -> list[str]:
    """Metrics that a goodput target can limit; `itl` is the request's own mean."""
    return [metric.name for metric in METRICS.values() if metric.target]


def paired() -> list[str]:
    """Keys of a summary that are also columns of requests, so that two runs can be compared by requests."""
    return [metric.key for metric in METRICS.values() if metric.column == metric.name]


def labels(*, main: bool = False) -> dict[str, str]:
    """The label of each key of a summary.

    Args:
        main: of the main figures alone.
    """
    return {metric.key: metric.label for metric in METRICS.values() if metric.target or not main}
