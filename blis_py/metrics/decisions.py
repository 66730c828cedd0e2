"""Routing decisions: the state visible to the router, and the cost of its choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blis_py.files.packages import data_frame

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Decisions:
    """One row per decision, in order of time; candidate columns have one column per candidate, the best
    first."""

    time_ns: Ints
    row: Ints
    """Row of the request in the table."""
    instance: Ints
    """Index of the chosen instance."""
    score: Floats
    """Score of the chosen instance."""
    regret: Floats
    """Score of the best candidate minus that of the chosen one."""
    found_blocks: Ints
    """Leading blocks of the prompt held by the chosen instance, as far as known to the router."""
    missed_blocks: Ints
    """Blocks of the prompt that the candidate with most of them held beyond these."""
    candidates: Ints
    """Candidate indices, shape (decisions, candidates kept), by score; at equal scores by index."""
    candidate_scores: Floats
    queue_depth: Ints
    batch_size: Ints
    in_flight: Ints
    kv_utilization: Floats
    cached_blocks: Ints
    block_size: int

    def __len__(self) -> int:
        return len(self.time_ns)

    @classmethod
    def merged(cls, parts: Sequence[Decisions]) -> Decisions:
        """The decisions of several routers together. Where one had fewer candidates, -1 or NaN follow."""
        if len(parts) == 1:
            return parts[0]
        widest = max(part.candidates.shape[1] for part in parts)
        columns = {
            column.name: np.concatenate([_widened(getattr(part, column.name), widest) for part in parts])
            for column in fields(cls)
            if column.name != "block_size"
        }
        order = np.lexsort((columns["row"], columns["time_ns"]))
        return cls(
            **{name: column[order] for name, column in columns.items()}, block_size=parts[0].block_size
        )

    def moved(self, place: Ints) -> Decisions:
        """A copy with requests renumbered: -1 for those that are gone."""
        return replace(self, row=place[self.row])

    def summary(self) -> dict[str, Any]:
        """Summary statistics of the decisions."""
        hits, missed = int(self.found_blocks.sum()), int(self.missed_blocks.sum())
        return {
            "decisions": len(self),
            "unique_targets": len(np.unique(self.instance)),
            "mean_regret": float(self.regret.mean()) if len(self) else 0.0,
            "max_regret": float(self.regret.max(initial=0.0)),
            "cached_tokens_at_target": hits * self.block_size,
            "cached_tokens_at_best": (hits + missed) * self.block_size,
        }

    def frame(self, ids: list[str]) -> pd.DataFrame:
        """One row per decision and candidate.

        Args:
            ids: names of the requests, by row.
        """
        return data_frame(self.columns(ids))

    def columns(self, ids: list[str]) -> dict[str, NDArray[Any]]:
        """The columns of `frame`."""
        kept = self.candidates.shape[1]

        def of_each(column: NDArray[Any]) -> NDArray[Any]:
            return np.repeat(column, kept)

        return {
            "time_s": of_each(self.time_ns / 1e9),
            "request_id": of_each(np.array(ids, dtype=object)[self.row]),
            "target": of_each(self.instance),
            "regret": of_each(self.regret),
            "rank": np.tile(np.arange(1, kept + 1), len(self)),
            "candidate": self.candidates.ravel(),
            "score": self.candidate_scores.ravel(),
            "queue_depth": self.queue_depth.ravel(),
            "batch_size": self.batch_size.ravel(),
            "in_flight": self.in_flight.ravel(),
            "kv_utilization": self.kv_utilization.ravel(),
            "cached_tokens": self.cached_blocks.ravel() * self.block_size,
        }


def _widened(column: NDArray[Any], candidates: int) -> NDArray[Any]:
    """A column of candidates with as many of them; other columns as they are."""
    if column.ndim == 1 or column.shape[1] == candidates:
        return column
    blank = np.nan if column.dtype == np.float64 else -1
    return np.pad(column, ((0, 0), (0, candidates - column.shape[1])), constant_values=blank)
