"""One run under every applicable latency model: sensitivity of the answer to the step times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from blis_py.api import Simulation
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.metrics.registry import shown_in

MODELS = ("trained", "roofline", "trained-physics")
"""Latency models that need only a model and a GPU."""

Progress = Callable[[int, int], None]


def cross_check(
    simulation: Simulation, summary: Mapping[str, Any], progress: Progress | None = None
) -> list[dict[str, Any]]:
    """One row for each latency model, that of the run first.

    Args:
        simulation: the run, with its own latency model.
        summary: summary of that run.

    Returns:
        Rows of `latency_model`, `rests_on`, `verdict`, `requests_per_s` and the figures that the registry
        of metrics shows of latency models; or, of a model that does not apply, with `refused`, the reason.
    """
    return [_row(simulation, summary), *_others(simulation, progress)]


def _others(simulation: Simulation, progress: Progress | None) -> Iterator[dict[str, Any]]:
    config, own = simulation.config, {pool.latency.name for pool in simulation.pools}
    for name in MODELS:
        if own == {name}:
            continue
        try:
            other = Simulation.of(_under(config, name))
        except InputError as error:
            yield {"latency_model": name, "refused": str(error)}
            continue
        yield _row(other, other.run(record_steps=False, progress=progress).totals)


def _under(config: RunConfig, name: str) -> RunConfig:
    """All pools under another latency model."""
    pools = tuple(replace(pool, latency={"model": name}) for pool in config.pools)
    return replace(config, latency=config.latency.under(name), pools=pools)


def _row(simulation: Simulation, summary: Mapping[str, Any]) -> dict[str, Any]:
    cluster = summary["cluster"]
    return {
        "latency_model": _each(pool.latency.name for pool in simulation.pools),
        "rests_on": _each(pool.latency.provenance for pool in simulation.pools),
        "verdict": summary["load"]["verdict"],
        "requests_per_s": cluster["throughput"]["requests_per_s"],
        **{f"{metric.key}.{stat}": cluster[metric.key][stat] for metric, stat in shown_in("models")},
    }


def _each(texts: Iterable[str]) -> str:
    """Descriptions of the pools, each once."""
    return "; ".join(dict.fromkeys(texts))
