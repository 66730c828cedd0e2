"""Confidence of a difference between two runs, from pairs of the same requests.

A simulation with one seed has no noise: every difference is real. The question is whether it would persist
for other requests of the same kind. So requests are resampled, in pairs, with replacement; and since
neighbours share queues and batches, in blocks of consecutive arrivals and not one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.95
STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
"""Percentile by name."""
BLOCKS = 40
MIN = 40
"""Minimum number of pairs for an interval."""
_DRAWS, _DRAWS_OF_MANY, _MANY = 1000, 200, 100_000


@dataclass(frozen=True, slots=True)
class Change:
    """A statistic in both runs, over the requests with the metric in both."""

    first: float
    second: float
    relative: float | None
    """(second - first) / first; None if the first is 0 and the second is not."""
    interval: tuple[float, float] | None
    """95 % interval of `relative`; None if there are too few pairs, or no relative change."""

    @property
    def sure(self) -> bool | None:
        """Whether the interval is on one side of zero; None without an interval."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]


def changes(first: Floats, second: Floats, statistics: tuple[str, ...]) -> dict[str, Change]:
    """The change of each statistic between two runs.

    Args:
        first, second: the metric of the same requests in both runs, by arrival; no NaN, at least one.
        statistics: names from `STATISTICS`.
    """
    with np.errstate(all="ignore"):  # absurd numbers give no meaningful change
        observed = {name: (_statistic(first, name), _statistic(second, name)) for name in statistics}
        ranks = {name: STATISTICS[name] for name in statistics}
        drawn = _drawn(first, second, ranks) if len(first) >= MIN else {}
        return {name: _change(*values, drawn.get(name)) for name, values in observed.items()}


def change_at(first: Floats, second: Floats, rank: float) -> Change:
    """The change of one percentile; see `changes`.

    Args:
        rank: 0 to 100.
    """
    with np.errstate(all="ignore"):
        drawn = _drawn(first, second, {"": rank}).get("") if len(first) >= MIN else None
        return _change(float(np.percentile(first, rank)), float(np.percentile(second, rank)), drawn)


def _change(first: float, second: float, drawn: tuple[Floats, Floats] | None) -> Change:
    relative = second / first - 1 if first else 0.0 if not second else None
    if relative is not None and not np.isfinite(relative):
        relative = None
    if drawn is None or relative is None or not (drawn[0] > 0).all():
        return Change(first, second, relative, None)
    outside = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(drawn[1] / drawn[0] - 1, [outside, 100 - outside])
    return Change(first, second, relative, (float(low), float(high)))


def _statistic(values: Floats, name: str) -> float:
    rank = STATISTICS[name]
    return float(values.mean() if rank is None else np.percentile(values, rank))


Ranks = Mapping[str, float | None]
"""Percentiles by name; None = the mean."""


def _drawn(first: Floats, second: Floats, ranks: Ranks) -> dict[str, tuple[Floats, Floats]]:
    """The statistics of both runs in every resample."""
    count = len(first)
    rng = np.random.default_rng(0)
    block_of = np.arange(count) * BLOCKS // count
    draws = _DRAWS if count <= _MANY else _DRAWS_OF_MANY
    picked = rng.integers(0, BLOCKS, (draws, BLOCKS))
    picks = np.stack([np.bincount(row, minlength=BLOCKS) for row in picked])
    both = [_of_draws(values, block_of, picks, ranks) for values in (first, second)]
    return {name: (both[0][name], both[1][name]) for name in ranks}


def _of_draws(
    values: Floats, block_of: NDArray[np.int64], picks: NDArray[np.int64], ranks: Ranks
) -> dict[str, Floats]:
    """Weighted statistics of every resample.

    Args:
        picks: multiplicity of each block in each draw.
    """
    order = np.argsort(values, kind="stable")
    ranked, blocks = values[order], block_of[order]
    sums = np.bincount(block_of, weights=values, minlength=BLOCKS)
    sizes = np.bincount(block_of, minlength=BLOCKS)
    draws_of: dict[str, Floats] = {name: np.empty(len(picks)) for name in ranks}
    for index, own in enumerate(picks):
        upto = None
        for name, rank in ranks.items():
            if rank is None:
                draws_of[name][index] = float(own @ sums) / float(own @ sizes)
                continue
            upto = np.cumsum(own[blocks]) if upto is None else upto
            place = int(np.searchsorted(upto, rank / 100 * (upto[-1] - 1), side="right"))
            draws_of[name][index] = ranked[place]
    return draws_of
