"""Sorted samples with integer weights, and their statistics as numpy computes them on the expanded list."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.light_dataclass import dataclass
from blis_py.requests.table import Ints

Numbers = NDArray[np.int64] | NDArray[np.float64]

PERCENTILE_METHOD = "linear"
"""Stated in every output: rank q/100*(N-1), linear interpolation between neighbours (numpy's default)."""

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "min", "max", "std")
NS_PER_MS = 1e6


def in_ms(value_ns: float) -> float:
    """A latency in ms; 0 if undefined, for formats without a null value."""
    return 0.0 if np.isnan(value_ns) else value_ns / NS_PER_MS


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A multiset of values: `values[i]` occurs `weights[i]` times."""

    values: Numbers
    """Sorted ascending."""
    weights: Ints
    """Multiplicity of each value; may be zero."""
    upto: Ints
    """Cumulative sum of the weights."""

    @classmethod
    def of(cls, samples: Numbers) -> Distribution:
        """A distribution of samples with weight 1."""
        values = samples.copy()
        values.sort()
        upto = np.arange(1, len(values) + 1, dtype=np.int64)
        return cls(values, np.broadcast_to(np.int64(1), len(values)), upto)

    @classmethod
    def weighted(cls, values: Numbers, weights: Ints) -> Distribution:
        """A distribution of sorted `values` with the given multiplicities."""
        return cls(values, weights, np.cumsum(weights, dtype=np.int64))

    @property
    def count(self) -> int:
        return int(self.upto[-1]) if len(self.upto) else 0

    def percentile(self, q: float) -> float:
        """The `q`-th percentile (0 to 100) as numpy computes it for the expanded list; NaN if empty."""
        count = self.count
        if not count:
            return float("nan")
        rank = (count - 1) * (q / 100)
        below = int(rank)
        places = self.upto.searchsorted((below, min(below + 1, count - 1)), side="right")
        low, high = (float(value) for value in self.values[places].tolist())
        part = rank - below
        # The two forms are equal in theory; numpy switches at one half so that rounding never overshoots.
        return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)

    def mean(self) -> float:
        if not self.count:
            return float("nan")
        return float(np.sum(self.values * self.weights, dtype=np.float64)) / self.count

    def std(self) -> float:
        """Population standard deviation (numpy's default)."""
        if not self.count:
            return float("nan")
        squares = np.square(self.values - self.mean()) * self.weights
        return float(np.sqrt(np.sum(squares) / self.count))

    def stat(self, name: str) -> float:
        """`mean`, `min`, `max`, `std`, `median` or a percentile such as `p99` or `p99.9`."""
        if name in ("mean", "std"):
            return self.mean() if name == "mean" else self.std()
        named = {"min": 0.0, "median": 50.0, "max": 100.0}
        return self.percentile(named[name] if name in named else float(name.removeprefix("p")))

    def curve(self, points: int = 1000) -> tuple[Numbers, NDArray[np.float64]]:
        """The cumulative distribution: at most `points` values, and the share of samples up to each."""
        ranks = np.unique(np.linspace(0, self.count - 1, min(points, self.count)).astype(np.int64))
        values = self.values[np.searchsorted(self.upto, ranks, side="right")]
        return values, (ranks + 1) / max(self.count, 1)


class Tally:
    """Incremental counts of values; distinct values are stored once."""

    _MAX_PARTS = 1 << 20
    """Values to collect before equal ones are merged."""

    def __init__(self) -> None:
        self._values: list[Ints] = []
        self._counts: list[Ints] = []
        self._kept = 0
        """Number of distinct values at the latest merge."""
        self._parts = 0

    def add(self, values: Ints, counts: Ints) -> None:
        """Add counts of values."""
        self._values.append(values)
        self._counts.append(counts)
        self._parts += len(values)
        if self._parts > self._MAX_PARTS + 2 * self._kept:
            self._put_together()

    def _put_together(self) -> None:
        values = np.concatenate([*self._values, np.zeros(0, np.int64)])
        order = np.argsort(values, kind="stable")  # merges presorted parts, as most are
        values = values[order]
        firsts = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
        counts = np.concatenate([*self._counts, np.zeros(0, np.int64)])[order]
        self._values, self._counts = [values[firsts]], [np.add.reduceat(counts, firsts)]
        self._kept = self._parts = len(firsts)

    def distribution(self) -> Distribution:
        """The distribution of the values so far."""
        self._put_together()
        return Distribution.weighted(self._values[0], self._counts[0])


def statistics(samples: Distribution, scale: float = NS_PER_MS) -> dict[str, Any]:
    """Count and `STATISTICS` of samples, divided by `scale`, ns to ms; all `None` if there are no samples."""
    count = samples.count
    values = {name: samples.stat(name) / scale if count else None for name in STATISTICS}
    return {**values, "count": count}
