"""What reuse in place and the re-loop are worth on the engine, measured side by side.

The gains are a few per cent, less than the pace of a shared machine moves within a minute. So engines with
the switches on and off serve the same requests in lockstep, some rounds of one, then the same rounds of the
next, in random order: they see the same machine. Of each such piece the median over the repetitions counts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.diffusion.engine import DiffusionEngine

SWITCHES: dict[str, dict[str, bool]] = {
    "both": {},
    "no_reloop": {"reloop": False},
    "neither": {"reloop": False, "reuse_in_place": False},
}
"""Arguments of `engine.diffusion.settings.DllmSettings`."""
_RESAMPLES = 1000


def switch_gains(
    build: Callable[..., DiffusionEngine],
    add: Callable[[DiffusionEngine], object],
    clock_s: Callable[[], float],
    repeats: int,
) -> dict[str, Any]:
    """Gains of throughput: busy time without over busy time with, minus one, and the 95 % interval of that.

    Args:
        build: makes an engine, given arguments of `SWITCHES`.
        add: gives an engine its requests, always the same.
        clock_s: busy time so far; on a GPU, once its work is done.
    """
    engines = {name: build(**switches) for name, switches in SWITCHES.items()}
    ends = _pieces(engines["both"], add)
    _lockstep(engines, add, ends, clock_s, Random(0))  # warm-up
    rng = Random(1)
    passes = [_lockstep(engines, add, ends, clock_s, rng) for _ in range(repeats)]
    seconds = {name: np.array([spent[name] for spent in passes]) for name in engines}
    return {
        "repeats": repeats,
        "scheduler_calls": {name: engine.scheduler.counters.batches for name, engine in engines.items()},
        "busy_s": {name: _busy(values) for name, values in seconds.items()},
        "reloop_gain": _gain(seconds["no_reloop"], seconds["both"]),
        "reuse_gain": _gain(seconds["neither"], seconds["no_reloop"]),
        "gain_of_both": _gain(seconds["neither"], seconds["both"]),
    }


def _pieces(engine: DiffusionEngine, add: Callable[[DiffusionEngine], object]) -> list[int]:
    """Rounds after which an engine that re-loops returns to its scheduler."""
    add(engine)
    ends = []
    while engine.has_unfinished:
        engine.step()
        ends.append(engine.scheduler.counters.rounds)
    return ends


def _lockstep(
    engines: dict[str, DiffusionEngine],
    add: Callable[[DiffusionEngine], object],
    ends: list[int],
    clock_s: Callable[[], float],
    rng: Random,
) -> dict[str, list[float]]:
    """Seconds that each engine took for each piece.

    Raises:
        RuntimeError: the switches changed how many rounds it takes.
    """
    for engine in engines.values():
        engine.reset()
        add(engine)
    spent: dict[str, list[float]] = {name: [] for name in engines}
    order = list(engines)
    for end in ends:
        rng.shuffle(order)
        for name in order:
            engine, began_s = engines[name], clock_s()
            while engine.scheduler.counters.rounds < end:
                engine.step()
            spent[name].append(clock_s() - began_s)
    if any(e.has_unfinished or e.scheduler.counters.rounds != ends[-1] for e in engines.values()):
        raise RuntimeError("the switches changed the number of rounds")
    return spent


def _busy(seconds: NDArray[np.float64]) -> float:
    return float(np.median(seconds, axis=0).sum())


def _gain(slow: NDArray[np.float64], fast: NDArray[np.float64]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    picks = rng.integers(len(slow), size=(_RESAMPLES, len(slow)))
    resampled = [_busy(slow[pick]) / _busy(fast[pick]) - 1 for pick in picks]
    return {
        "gain": _busy(slow) / _busy(fast) - 1,
        "interval": np.quantile(resampled, (0.025, 0.975)).tolist(),
    }
