"""Recorded runs of one server beside simulations of the same requests, by slices of time and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.client_autopsy import requests_in_flight
from blis_py.calibrate.token_times import Seconds, TokenTimes, token_times
from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster
from blis_py.errors import InputError
from blis_py.latency.operators import Operators
from blis_py.latency.trained import ServerTerms, Trained
from blis_py.requests.same_prompts import same_prompts
from blis_py.requests.table import Content, RequestTable
from blis_py.setup.setup import Setup

Floats = NDArray[np.float64]

MIN = 100
"""Requests of a run: fewer say too little."""
NAMES = ("step_scale", "gap_us", "gap_seq_us", "frontend_ms")
NUDGE = np.array([0.1, 500.0, 20.0, 3.0])
"""Large enough that the effect of changed batches averages out."""
SCATTER = 0.03
"""Change of a mean latency below which it is no more than the scatter between runs of one server."""
SLICES, GROUPS = 16, 4
METRICS = ("TTFT", "TPOT", "E2E")


@dataclass(frozen=True)
class SimulatedTimes:
    """A simulated run."""

    numbers: Floats
    ttft_s: Seconds
    tpot_s: Seconds
    e2e_s: Seconds


@dataclass(frozen=True)
class ServerRun:
    """The recorded requests, to be simulated again."""

    setup: Setup
    measured: TokenTimes
    table: RequestTable
    counted: NDArray[np.bool_]
    cells: NDArray[np.intp]
    """(TTFT and TPOT, request): slice of time and group; -1 where it does not count."""
    weights: Floats
    """(TTFT and TPOT, slice, group): share of the requests."""

    @classmethod
    def of(cls, setup: Setup, measured: TokenTimes, skip_first_s: float) -> ServerRun:
        """A run without its first seconds.

        Raises:
            InputError: no times of sending, too few requests, or no lengths of prompts.
        """
        if np.isnan(measured.sent_s).all():
            fix = "give a result with the times of sending, such as a trace.csv of --out"
            raise InputError("does not say when requests were sent", file=measured.source, fix=fix)
        measured = measured.take(np.argsort(measured.sent_s, kind="stable"))
        since_s = measured.sent_s - measured.sent_s.min()
        counted = since_s >= skip_first_s
        if counted.sum() < MIN:
            problem = f"{int(counted.sum())} requests are too few to fit a server to"
            raise InputError(problem, file=measured.source, fix=f"give a run of {MIN} or more")
        counted &= ~np.isnan(measured.tpot_s)
        table = _table(measured)
        slices = _groups(np.arange(len(counted)), counted, SLICES)
        by = (table.prompt_tokens, requests_in_flight(measured))
        cells = np.stack([slices * GROUPS + _groups(column, counted, GROUPS) for column in by])
        cells[:, ~counted] = -1
        counts = [np.bincount(row[counted], minlength=SLICES * GROUPS) for row in cells]
        weights = np.stack(counts).reshape(2, SLICES, GROUPS) / counted.sum()
        return cls(setup, measured, table, counted, cells, weights)

    def numbers_of(self, setup: Setup) -> Floats:
        """The numbers in the server's current setup."""
        gap = (*setup.config.latency.step_gap_us, 0.0, 0.0)[:2]
        frontend = setup.latency.frontend.before_enqueue_ns / 1e6
        return np.array([setup.config.latency.step_scale, *gap, frontend])

    def times(self, numbers: Floats) -> SimulatedTimes:
        """Simulate the run with these numbers, in the order of `NAMES`.

        Raises:
            InputError: not all of its requests can be served as described.
        """
        scale, gap_us, seq_us, front_ms = numbers.tolist()
        setup = self.setup
        model = setup.latency
        assert isinstance(model, Trained | Operators)
        priced = model.on_server(ServerTerms(scale, gap_us * 1e3, seq_us * 1e3))
        priced.frontend = replace(setup.latency.frontend, before_enqueue_ns=round(front_ms * 1e6))
        demand: RequestTable | ClosedLoop = self.table
        limit = self.measured.concurrency
        if limit is not None:
            demand = ClosedLoop(self.table.at_once(), limit)
        record = simulate(demand, Cluster.of(scheduler=setup.scheduler, latency=priced))
        served = token_times(record, "simulated")
        if len(served.request_id) < len(self.table):
            problem = f"of {len(self.table):,} requests {len(served.request_id):,} can be served as described"
            raise InputError(problem, file=self.measured.source, fix="describe the server that served them")
        return SimulatedTimes(numbers, served.ttft_s, served.tpot_s, served.e2e_s)

    def misses(self, times: SimulatedTimes) -> Floats:
        """Measured over predicted, minus one: (TTFT and TPOT, slice, group)."""
        return self._means(self.measured) / self._means(times) - 1

    def slopes(self, there: SimulatedTimes) -> Floats:
        """Relative change of these means with each number, which is the last axis."""
        columns = []
        for i, nudge in enumerate(NUDGE):
            step = np.zeros(len(NAMES))
            step[i] = nudge
            moved = self.times(there.numbers + step)
            columns.append((self._means(moved) / self._means(there) - 1) / nudge)
        return np.stack(columns, axis=-1)

    def _means(self, times: TokenTimes | SimulatedTimes) -> Floats:
        """Mean by slice and group; 1 if there is no request."""
        means = []
        for cells, values in zip(self.cells, (times.ttft_s, times.tpot_s), strict=True):
            sums = np.bincount(cells[self.counted], values[self.counted], SLICES * GROUPS)
            counts = np.bincount(cells[self.counted], minlength=SLICES * GROUPS)
            means.append(np.where(counts > 0, sums / np.maximum(counts, 1), 1.0))
        return np.stack(means).reshape(2, SLICES, GROUPS)

    def pairs(self, times: SimulatedTimes, column: str) -> tuple[Seconds, Seconds]:
        """Simulated and measured values of the requests that count."""
        sim, real = getattr(times, column), getattr(self.measured, column)
        known = self.counted & ~np.isnan(sim) & ~np.isnan(real)
        return sim[known], real[known]


@dataclass(frozen=True)
class ServerRuns:
    """Runs of one server; slices of all of them stand side by side."""

    runs: Sequence[ServerRun]

    @property
    def in_flight(self) -> int:
        return max(int(np.nanmax(requests_in_flight(one.measured))) for one in self.runs)

    def times(self, numbers: Floats) -> list[SimulatedTimes]:
        return [one.times(numbers) for one in self.runs]

    def misses(self, times: Sequence[SimulatedTimes]) -> Floats:
        return np.concatenate([r.misses(t) for r, t in zip(self.runs, times, strict=True)], axis=1)

    def slopes(self, there: Sequence[SimulatedTimes]) -> Floats:
        return np.concatenate([r.slopes(t) for r, t in zip(self.runs, there, strict=True)], axis=1)

    def weights(self, times: Sequence[SimulatedTimes]) -> Floats:
        """Shares of the requests, and of the runs by their information."""
        informed = []
        for run, there in zip(self.runs, times, strict=True):
            by_slice = (run.misses(there) * run.weights).sum(axis=2) * SLICES
            own = by_slice.var(axis=1, ddof=1) / SLICES
            informed.append(1 / (SCATTER**2 + own))
        total = np.sum(informed, axis=0)
        shares = [(each / total)[:, None, None] for each in informed]
        return np.concatenate([r.weights * x for r, x in zip(self.runs, shares, strict=True)], axis=1)

    def errors(self, times: Sequence[SimulatedTimes]) -> dict[str, float]:
        """Predicted over measured, minus one, of each mean and 99th percentile over all requests."""
        errors = {}
        for name in METRICS:
            both = [r.pairs(t, f"{name.lower()}_s") for r, t in zip(self.runs, times, strict=True)]
            sim, real = (np.concatenate(values) for values in zip(*both, strict=True))
            errors[f"{name} mean"] = float(sim.mean() / real.mean() - 1)
            errors[f"{name} p99"] = float(np.percentile(sim, 99) / np.percentile(real, 99) - 1)
        return errors


def _groups(values: NDArray[Any], counted: NDArray[np.bool_], groups: int) -> NDArray[np.intp]:
    """Group of each counted value, by rank, out of groups of equal size."""
    rank = np.argsort(np.argsort(np.where(counted, values, values.max() + 1), kind="stable"), kind="stable")
    group_of: NDArray[np.intp] = np.minimum(rank * groups // int(counted.sum()), groups - 1)
    return group_of


def _table(measured: TokenTimes) -> RequestTable:
    if measured.prompt_tokens is None:
        fix = "give a result with the lengths of prompts"
        raise InputError("has no lengths of prompts", file=measured.source, fix=fix)
    sent_ns = np.rint((measured.sent_s - measured.sent_s.min()) * 1e9).astype(np.int64)
    content: NDArray[Any] | None = None
    contents: tuple[Content, ...] = ()
    if measured.same_prompt is not None:
        content, contents = same_prompts(measured.same_prompt, measured.prompt_tokens)
    return RequestTable.build(
        sent_ns,
        np.maximum(measured.prompt_tokens, 1),
        np.maximum(measured.output_tokens, 1),
        content=content,
        contents=contents,
    )
