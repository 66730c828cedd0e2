"""Recorded runs of one server beside simulations of the same requests, by slices of time and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.client_autopsy import requests_in_flight
from blis_py.calibrate.token_times import Seconds, TokenTimes, token_times
from blis_py.cluster.ingress.closed_loop import ClosedLoop
from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster, Pool
from blis_py.errors import InputError
from blis_py.latency.bounded import Bounded
from blis_py.latency.operators import Operators
from blis_py.latency.trained import ServerTerms, Trained
from blis_py.requests.same_prompts import same_prompts
from blis_py.requests.table import Content, RequestTable
from blis_py.setup.setup import Setup
from blis_py.setup.step_times import frontend_of

Floats = NDArray[np.float64]

MIN = 100
"""Requests of a run: fewer say too little."""
NAMES = ("step_scale", "gap_us", "gap_seq_us", "frontend_ms", "frontend_seq_ms", "frontend_token_ms")
"""Factor on the GPU time of a step; gap of a step and of each of its sequences; delay of the front end, for
each sequence it streams to, and for each token of the prompt."""
NUDGE = np.array([0.1, 500.0, 20.0, 3.0, 0.05, 0.003])
"""Large enough that the effect of changed batches averages out."""
DIGITS = 5
"""Significant digits of a number, in the engine file as well."""
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
    most: int = 0
    """Sequences up to which a gap of each was seen, in any run of the server; 0 = no limit."""

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
        counted = (since_s >= skip_first_s) & ~np.isnan(measured.tpot_s)
        _check_times(measured, counted)
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
        front = (*(setup.config.frontend_ms or ()), 0.0, 0.0, 0.0, 0.0)[:4]
        return np.array([setup.config.latency.step_scale, *gap, front[0], *front[2:]])

    @cached_property
    def most_seqs(self) -> int:
        """Sequences up to which a gap of each is seen: those that the client has in flight."""
        return int(np.nanmax(requests_in_flight(self.measured)))

    def times(self, numbers: Floats) -> SimulatedTimes:
        """Simulate the run with these numbers, in the order of `NAMES`.

        Raises:
            InputError: not all of its requests can be served as described.
        """
        setup, limit = self.setup, self.measured.concurrency
        model = setup.latency
        assert isinstance(model, Trained | Operators | Bounded)
        scale, gap_us, seq_us, *_ = numbers.tolist()
        priced = model.on_server(ServerTerms(scale, gap_us * 1e3, seq_us * 1e3, self.most))
        priced.frontend = frontend_of(frontend_ms(numbers, setup.config.frontend_ms)).plus(priced.frontend)
        demand: RequestTable | ClosedLoop = self.table
        if limit is not None:
            think_ns = round((setup.config.workload.think_time_ms or 0.0) * 1e6)
            demand = ClosedLoop(self.table.at_once(), limit, think_ns)
        spec = replace(setup.only.as_data().spec, latency=priced)
        record = simulate(demand, Cluster(pools=(Pool(spec=spec),)))
        served = token_times(record, "simulated")
        if len(served.request_id) < len(self.table):
            problem = f"of {len(self.table):,} requests {len(served.request_id):,} can be served as described"
            raise InputError(problem, file=self.measured.source, fix="describe the server that served them")
        return SimulatedTimes(numbers, served.ttft_s, served.tpot_s, served.e2e_s)

    def misses(self, times: SimulatedTimes) -> Floats:
        """Measured over predicted, minus one: (TTFT and TPOT, slice, group)."""
        return self._means(self.measured) / self._means(times) - 1

    def slopes(self, there: SimulatedTimes, free: NDArray[np.bool_]) -> Floats:
        """Relative change of these means with each free number, the last axis; 0 for the others."""
        slopes = np.zeros((2, SLICES, GROUPS, len(NAMES)))
        for i in np.flatnonzero(free):
            moved = self._moved(there, i, NUDGE[i])
            slopes[..., i] = (self._means(moved) / self._means(there) - 1) / NUDGE[i]
        return slopes

    def ttft_slopes(self, there: SimulatedTimes, free: NDArray[np.bool_]) -> Floats:
        """Change of the TTFT of each request that counts, in s, with each free number: (request, number)."""
        kept = self.counted & ~np.isnan(there.ttft_s) & ~np.isnan(self.measured.ttft_s)
        moved = [
            (self._moved(there, i, NUDGE[i]).ttft_s - there.ttft_s) / NUDGE[i] for i in np.flatnonzero(free)
        ]
        slopes: Floats = np.stack(moved, axis=1)[kept]
        return slopes

    def _moved(self, there: SimulatedTimes, number: int, nudge: float) -> SimulatedTimes:
        """The run with one number increased. In open loops a front end delays what clients see and changes no
        batch, so that needs no simulation."""
        every = np.ones(len(self.table))
        by_request = {"frontend_ms": every, "frontend_token_ms": self.table.prompt_tokens * every}
        if NAMES[number] in by_request and self.measured.concurrency is None:
            late_s = by_request[NAMES[number]] * nudge / 1e3
            return replace(there, ttft_s=there.ttft_s + late_s, e2e_s=there.e2e_s + late_s)
        step = np.zeros(len(NAMES))
        step[number] = nudge
        return self.times(there.numbers + step)

    def _means(self, times: TokenTimes | SimulatedTimes) -> Floats:
        """Mean by slice and group, of TPOT over tokens: a request of few says little. 1 if there is none."""
        means, kept = [], self.counted
        tokens = self.measured.output_tokens[kept] - 1
        sums = times.ttft_s[kept], (times.e2e_s - times.ttft_s)[kept]
        for cells, values, counts in zip(self.cells, sums, (np.ones_like(tokens), tokens), strict=True):
            by = [np.bincount(cells[kept], column, SLICES * GROUPS) for column in (values, counts)]
            means.append(np.where(by[1] > 0, by[0] / np.maximum(by[1], 1), 1.0))
        return np.stack(means).reshape(2, SLICES, GROUPS)

    def counted_s(self, times: TokenTimes | SimulatedTimes) -> Seconds:
        """(2, requests that count): TTFT, and the time of further tokens."""
        return np.stack([times.ttft_s, times.e2e_s - times.ttft_s])[:, self.counted]

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
        return max(one.most_seqs for one in self.runs)

    @classmethod
    def of(cls, runs: Sequence[ServerRun]) -> ServerRuns:
        """Runs of one server, whose gap per sequence is seen up to the most that any has in flight."""
        most = max(one.most_seqs for one in runs)
        return cls([replace(one, most=most) for one in runs])

    def times(self, numbers: Floats) -> list[SimulatedTimes]:
        return [one.times(numbers) for one in self.runs]

    def misses(self, times: Sequence[SimulatedTimes]) -> Floats:
        return np.concatenate([r.misses(t) for r, t in zip(self.runs, times, strict=True)], axis=1)

    def slopes(self, there: Sequence[SimulatedTimes], free: NDArray[np.bool_]) -> Floats:
        return np.concatenate([r.slopes(t, free) for r, t in zip(self.runs, there, strict=True)], axis=1)

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

    def measured_s(self) -> Seconds:
        """(2, requests of all runs): TTFT, and the time of further tokens."""
        return np.concatenate([one.counted_s(one.measured) for one in self.runs], axis=1)

    def simulated_s(self, times: Sequence[SimulatedTimes]) -> Seconds:
        """The same, simulated."""
        return np.concatenate([r.counted_s(t) for r, t in zip(self.runs, times, strict=True)], axis=1)

    def errors(self, times: Sequence[SimulatedTimes]) -> dict[str, float]:
        """Predicted over measured, minus one, of each mean and 99th percentile over all requests."""
        errors = {}
        for name in METRICS:
            both = [r.pairs(t, f"{name.lower()}_s") for r, t in zip(self.runs, times, strict=True)]
            sim, real = (np.concatenate(values) for values in zip(*both, strict=True))
            errors[f"{name} mean"] = float(sim.mean() / real.mean() - 1)
            errors[f"{name} p99"] = float(np.percentile(sim, 99) / np.percentile(real, 99) - 1)
        return errors


def frontend_ms(numbers: Floats, preset_ms: Sequence[float] | None) -> tuple[float, ...]:
    """The front end as the setting `frontend_ms` has it: what is behind the engine stays the preset's."""
    behind = (*(preset_ms or ()), 0.0, 0.0)[1]
    return (float(numbers[3]), behind, float(numbers[4]), float(numbers[5]))


def _check_times(measured: TokenTimes, counted: NDArray[np.bool_]) -> None:
    """Refuse runs whose times say nothing of a server.

    Raises:
        InputError: too few requests with several tokens, or tokens without time between them.
    """
    of_many = int(counted.sum())
    if of_many < MIN:
        problem = f"{of_many} requests with two or more tokens are too few to fit a server to"
        raise InputError(problem, file=measured.source, fix=f"give a run with {MIN} or more")
    for name, values in (("TTFT", measured.ttft_s), ("TPOT", measured.tpot_s)):
        at_once = int((values[counted] <= 0).sum())
        if at_once:
            problem = (
                f"the {name} of {at_once:,} of {of_many:,} requests is 0: tokens were not timed one by one"
            )
            raise InputError(problem, file=measured.source, fix="measure with a client that streams")


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
