"""Gains of block diffusion's switches, with engines whose costs are known."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from diffusion_switches import switch_gains


@dataclass
class Machine:
    """Slower and slower, with a hiccup now and then."""

    now_s: float = 0.0
    pace: float = 1.0
    calls: int = 0

    def work(self, seconds: float) -> None:
        self.calls += 1
        self.pace *= 1.0005
        self.now_s += seconds * self.pace * (10 if self.calls % 97 == 0 else 1)


@dataclass
class Engine:
    """Does 12 rounds; one that re-loops returns to its scheduler after every third."""

    machine: Machine
    reloop: bool = True
    reuse_in_place: bool = True
    rounds: int = 12
    scheduler: Any = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.scheduler = SimpleNamespace(counters=SimpleNamespace(rounds=0, batches=0))

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.counters.rounds < self.rounds

    def step(self) -> None:
        counters, rounds = self.scheduler.counters, 3 if self.reloop else 1
        counters.rounds += rounds
        counters.batches += 1
        self.machine.work(rounds * 1.0 + 0.1 + (0 if self.reuse_in_place else 0.05))


def gains(machine: Machine, **odd: int) -> dict[str, Any]:
    def build(**switches: bool) -> Any:
        return Engine(machine, **switches, **({} if switches else odd))

    return switch_gains(build, lambda engine: None, lambda: machine.now_s, repeats=15)


def test_gains_are_those_of_the_switches_however_the_machine_feels() -> None:
    found = gains(Machine())
    assert found["scheduler_calls"] == {"both": 4, "no_reloop": 12, "neither": 12}
    for name, gain in {
        "reloop_gain": 3.3 / 3.1,
        "reuse_gain": 3.45 / 3.3,
        "gain_of_both": 3.45 / 3.1,
    }.items():
        low, high = found[name]["interval"]
        assert found[name]["gain"] == pytest.approx(gain - 1, abs=0.01)
        assert low <= found[name]["gain"] <= high
        assert high - low < 0.05


def test_switches_that_change_the_rounds_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="number of rounds"):
        gains(Machine(), rounds=9)
