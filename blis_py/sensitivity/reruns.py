"""Confidence intervals of a result: reruns with other random numbers and coefficients.

Rerun i draws the workload with a seed that depends on the configured one and on i alone, so that compared
configurations have the same requests in their i-th reruns (common random numbers). A latency model with known
coefficient uncertainty uses its i-th set of coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from blis_py.api import Simulation
from blis_py.core.bounds import MAX_RERUNS, check_count
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.metrics.intervals import Intervals
from blis_py.setup.from_config import DEFAULT_SEED
from blis_py.setup.setup import Progress

LEVEL = 0.9
MIN = 10
"""Fewest reruns for a 90 % interval with meaningful ends."""


@runtime_checkable
class Redrawable(Protocol):
    """A fitted latency model, with sets of coefficients from bootstrapped samples."""

    def redrawn(self, index: int) -> LatencyModel:
        """The model with the coefficients of set `index`.

        Raises:
            IndexError: no such set.
        """
        ...


class Reruns:
    """The reruns of a simulation.

    Raises:
        InputError: too few reruns, or all of them would be equal.
    """

    def __init__(self, simulation: Simulation, count: int) -> None:
        if count < MIN:
            raise InputError("too few reruns", key="--intervals", value=count, fix=f"use {MIN} or more")
        check_count(count, least=MIN, most=MAX_RERUNS, key="--intervals")
        self._simulation, self._count = simulation, count
        self._redraw(count - 1)
        self.varied = tuple(_varied(simulation))
        if not self.varied:
            raise InputError(
                f"all reruns would be the same: the requests come from a trace, "
                f"and the latency model {_names(simulation)} has no spread of its own",
                key="--intervals",
                value=count,
                fix="use a generated workload, or a fitted latency model",
            )

    def intervals(self, progress: Progress | None = None) -> Intervals:
        """Simulate all reruns, one after another."""
        metrics: dict[str, list[float | None]] = {}
        slo: dict[str, list[bool]] = {text: [] for text in self._simulation.config.slo}
        for index in range(self._count):
            totals = self._rerun(index).run(record_steps=False, progress=self._part(index, progress)).totals
            for name, value in numbers(totals["cluster"]):
                metrics.setdefault(name, []).append(value)
            for verdict in totals["slo"]:
                if verdict["met"] is not None:
                    slo[verdict["slo"]].append(verdict["met"])
        return Intervals(
            reruns=self._count,
            level=LEVEL,
            varied=self.varied,
            metrics={name: self._interval(values) for name, values in metrics.items()},
            slo={text: sum(met) / len(met) if met else None for text, met in slo.items()},
        )

    def _rerun(self, index: int) -> Simulation:
        simulation = self._simulation
        again = Simulation.of(replace(simulation.config, seed=rerun_seed(simulation.config.seed, index)))
        return again.with_latencies(self._redraw(index))

    def _redraw(self, index: int) -> list[LatencyModel]:
        """The latency models of all pools, redrawn."""
        return [self._redrawn(pool.latency, index) for pool in self._simulation.pools]

    def _redrawn(self, model: LatencyModel, index: int) -> LatencyModel:
        if not isinstance(model, Redrawable):
            return model
        try:
            again = model.redrawn(index)
            again.frontend = model.frontend
            return again
        except IndexError:
            raise InputError(
                "more reruns than the profile has bootstrapped sets of coefficients",
                key="--intervals",
                value=self._count,
                fix="use fewer, or fit the profile with more",
            ) from None

    def _part(self, index: int, progress: Progress | None) -> Progress | None:
        """Progress of one rerun as a part of the whole."""
        if progress is None:
            return None
        return lambda ended, total: progress(index * total + ended, self._count * total)

    def _interval(self, values: list[float | None]) -> tuple[float, float] | None:
        known = [value for value in values if value is not None]
        if len(known) < self._count:
            return None
        outside = 100 * (1 - LEVEL) / 2
        low, high = np.percentile(known, [outside, 100 - outside])
        return float(low), float(high)


def rerun_seed(seed: int | None, index: int) -> int:
    """Seed of rerun `index` of a configuration with this seed."""
    words = np.random.SeedSequence([DEFAULT_SEED if seed is None else seed, index])
    return int(words.generate_state(1, np.uint32)[0])


def _names(simulation: Simulation) -> str:
    """Names of the latency models."""
    return ", ".join(dict.fromkeys(pool.latency.name for pool in simulation.pools))


def _varied(simulation: Simulation) -> Iterator[str]:
    config = simulation.config
    if config.workload.trace is None:
        yield "the requests"
    elif config.workload.slo_shares:
        yield "the SLO classes of the requests"
    if config.instances > 1 and config.routing.policy != "round-robin":
        yield "ties of the router"
    if simulation.kind is not None:
        yield "the steps that blocks take"
    if any(isinstance(pool.latency, Redrawable) for pool in simulation.pools):
        yield "the coefficients of the latency model"


def numbers(values: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, float | None]]:
    """All figures of a nested table, with the path to each."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{inside}{name}.")
        elif value is None or isinstance(value, (int, float)):
            yield f"{inside}{name}", value
