"""A log of routing decisions: what the router knew at each."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from blis_py.cluster.routing.router import Router
from blis_py.cluster.routing.scorers import Known, by_instance
from blis_py.cluster.routing.signals import Signals
from blis_py.core.bounds import MAX_INSTANCES
from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.metrics.decisions import Decisions

MAX_CANDIDATES = 20_000_000
"""Maximum number of candidates kept in memory; each takes 60 bytes."""

_OF_DECISION = ("time_ns", "row", "instance", "found_blocks", "missed_blocks")
_OF_CANDIDATE = ("candidates", "queue_depth", "batch_size", "in_flight", "cached_blocks")


class DecisionLog:
    """The candidates of each routing decision, as the router saw them.

    For a router without scores the reference is the smallest effective load.

    Args:
        candidates: number kept of each decision, best first; 0 = all.
        requests: the maximum number of decisions.

    Raises:
        InputError: they would not fit into memory.
    """

    def __init__(self, signals: Signals, router: Router, candidates: int, requests: int) -> None:
        self._most = candidates or MAX_INSTANCES
        kept = min(self._most, signals.count)
        if kept * requests > MAX_CANDIDATES:
            problem = f"{requests:,} decisions about {kept:,} instances are too many to keep"
            raise InputError(problem, key="counterfactual_k", value=candidates, fix="keep fewer candidates")
        self._kept: list[int] = []
        """Number of candidates kept of each decision."""
        signals.watch_kv()
        self._signals, self._router = signals, router
        self._caches = signals.watch_prefixes()
        self._ints = {name: array("q") for name in (*_OF_DECISION, *_OF_CANDIDATE)}
        self._floats = {
            name: array("d") for name in ("score", "regret", "candidate_scores", "kv_utilization")
        }

    def note(self, request: Request, now_ns: int, index: int) -> None:
        """Record the candidates of a request that is about to be sent to an instance."""
        signals, ints, floats = self._signals, self._ints, self._floats
        scores, ready = self._scores(), np.array(signals.ready)
        held = by_instance(self._caches.held(request), signals.count).astype(np.int64)
        places = np.lexsort((ready, -scores))[: self._most]
        best, own = ready[places], scores[signals.ready.index(index)]
        hits = int(held[index])
        missed = int(held[ready].max()) - hits
        for name, value in zip(_OF_DECISION, (now_ns, request.row, index, hits, missed), strict=True):
            ints[name].append(value)
        self._kept.append(len(best))
        floats["score"].append(own)
        floats["regret"].append(max(0.0, float(scores[places[0]] - own)))
        floats["candidate_scores"].frombytes(scores[places].tobytes())
        kv = signals.kv_utilization
        floats["kv_utilization"].extend([kv[i] for i in best])
        ints["candidates"].extend(best.tolist())
        ints["cached_blocks"].extend(held[best].tolist())
        for name in ("queue_depth", "batch_size", "in_flight"):
            values = getattr(signals, name)
            ints[name].extend([values[i] for i in best])

    def _scores(self) -> Any:
        scores = getattr(self._router, "scores", None)
        return -Known(self._signals).load if scores is None else scores

    def record(self) -> Decisions:
        """The log as columns."""
        columns: dict[str, Any] = {name: np.array(column, np.int64) for name, column in self._ints.items()}
        columns |= {name: np.array(column, np.float64) for name, column in self._floats.items()}
        for name in (*_OF_CANDIDATE, "candidate_scores", "kv_utilization"):
            columns[name] = self._in_rows(columns[name])
        return Decisions(**columns, block_size=self._caches.block_size)

    def _in_rows(self, column: Any) -> Any:
        """One row per decision; if the fleet changes, rows with fewer candidates are padded with -1 or
        NaN."""
        kept = np.array(self._kept, np.int64)
        widest = int(kept.max(initial=1))
        if len(column) == len(kept) * widest:
            return column.reshape(-1, widest)
        rows = np.full((len(kept), widest), np.nan if column.dtype == np.float64 else -1, column.dtype)
        rows[np.arange(widest) < kept[:, None]] = column
        return rows
