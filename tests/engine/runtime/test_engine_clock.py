"""The clocks of the engine, on a CPU whose time the test makes up."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
import torch
from stub_engine import stub_engine

from blis_py.errors import InputError
from engine import clock as clocks
from engine import yardstick as yardsticks
from engine.clock import CpuClock, SteadyClock, WallClock, clock_facts
from engine.config import EngineConfig
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import DllmSettings
from engine.sampling_params import SamplingParams
from engine.timing import FlightTimer, GpuTimeline
from engine.tiny import checkpoint
from engine.yardstick import Yardstick

MS = 1_000_000


def test_forwards_of_a_thread_that_is_interrupted_while_it_reads_the_clock_stay_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine takes the CPU away for a millisecond at every third reading or so."""
    now_ns, rng = 0, Random(0)

    def read() -> int:
        nonlocal now_ns
        now_ns += MS if rng.random() < 0.3 else 1000
        return now_ns

    monkeypatch.setattr(clocks.time, "perf_counter_ns", read)
    clock, timeline = WallClock(), GpuTimeline()
    planned_ahead = [FlightTimer(clock, torch.device("cpu"), timeline) for _ in range(200)]
    flights = []
    for timer in planned_ahead:
        timer.gpu_begin()
        timer.gpu_end()
        timer.arrived()
        flights.append(timer.forward())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(flights))


class Cpu:
    """Work takes longer while the machine is slow."""

    def __init__(self) -> None:
        self.spent_ns, self.slowness = 1234, 1.0
        self.arithmetic_slowness = 1.0
        """Of what a step over `tokens` takes more than one over few."""

    def work(self, ns: float, tokens: int = 0) -> float:
        """A step over few tokens, or one of which 1 ms is that and the rest comes with the tokens."""
        rest_ns = ns - MS if tokens else 0.0
        ns = ((ns - rest_ns) + rest_ns * self.arithmetic_slowness) * self.slowness
        self.spent_ns += int(ns)
        return ns

    def thread_time_ns(self) -> int:
        return self.spent_ns


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Cpu:
    cpu = Cpu()
    monkeypatch.setattr(clocks, "time", cpu)
    monkeypatch.setattr(yardsticks, "time", cpu)
    return cpu


FEW, MANY = 10, 110
"""Tokens of the two works of the yardstick, which take 1 ms and 5 ms."""


class Works:
    """One, the other, and so on."""

    def __init__(self, cpu: Cpu) -> None:
        self._cpu, self._which = cpu, 0

    def __call__(self) -> tuple[int, float]:
        self._which = 1 - self._which
        spent_ns = self._cpu.work(5 * MS, FEW + 100) if self._which else self._cpu.work(MS)
        return self._which, spent_ns


def steady(cpu: Cpu, times: float = 1) -> SteadyClock:
    return SteadyClock(Works(cpu), (FEW, MANY), (times * MS, times * 5 * MS))


def test_cpu_time_counts_work_and_waiting_but_nothing_done_elsewhere(cpu: Cpu) -> None:
    clock = CpuClock()
    cpu.work(5)
    with clock.elsewhere():
        cpu.work(100)
    assert clock.now_ns() == 5
    clock.wait_until(40)
    clock.wait_until(20)
    assert clock.now_ns() == 40
    clock.restart()
    assert clock.now_ns() == 0


def test_a_steady_clock_is_the_cpu_time_of_an_even_machine(cpu: Cpu) -> None:
    clock = steady(cpu)
    for _ in range(20):
        cpu.work(2 * MS)
        clock.between_steps()
        with clock.elsewhere():
            cpu.work(MS)
    assert clock.now_ns() == 40 * MS
    clock.wait_until(50 * MS)
    cpu.work(MS)
    assert clock.now_ns() == 51 * MS
    clock.restart()
    assert clock.now_ns() == 0


def test_a_slow_machine_makes_a_steady_clock_slow_by_as_much(cpu: Cpu) -> None:
    even, uneven = steady(cpu), steady(cpu)
    for slowness in (1.0, 1.25, 0.8):
        cpu.slowness = slowness
        for _ in range(60):  # it takes some steps to notice
            cpu.work(3 * MS)
            uneven.between_steps()
        began_ns = uneven.now_ns()
        for _ in range(100):
            cpu.work(3 * MS)
            uneven.between_steps()
        assert uneven.now_ns() - began_ns == pytest.approx(300 * MS, rel=1e-6)
        assert uneven.pace == pytest.approx(slowness)
    assert even.now_ns() > uneven.now_ns()


def test_one_disturbed_measurement_of_the_yardstick_does_not_count(cpu: Cpu) -> None:
    clock = steady(cpu)
    for number in range(30):
        cpu.slowness = 7.0 if number in (20, 21) else 1.0
        clock.between_steps()
        cpu.slowness = 1.0
        cpu.work(15 * MS)
    assert clock.pace == 1.0


@pytest.mark.parametrize(("tokens", "works_ns"), [(FEW, MS), (60, 3 * MS), (MANY, 5 * MS)])
def test_slow_arithmetic_slows_steps_by_their_share_of_it(cpu: Cpu, tokens: int, works_ns: int) -> None:
    clock = steady(cpu)
    cpu.arithmetic_slowness = 1.5
    for _ in range(100):
        cpu.work(15 * MS)
        clock.between_steps()
    began_ns = clock.now_ns()
    clock.computing(tokens)
    cpu.work(works_ns, tokens)
    assert clock.now_ns() - began_ns == pytest.approx(works_ns, rel=1e-6)
    clock.between_steps()
    cpu.work(2 * MS)
    assert clock.now_ns() - began_ns == pytest.approx(works_ns + 2 * MS, rel=1e-6)
    clock.computing(10 * MANY)
    assert clock.pace == pytest.approx((1 + 4 * 1.5) / 5), "no further than what was measured"


def test_times_are_reported_for_the_reference(cpu: Cpu) -> None:
    clock = steady(cpu, times=2)
    cpu.work(10 * MS)
    assert clock.now_ns() == 20 * MS
    assert clock_facts(clock) == {"clock": "steady", "yardstick_us": [2000.0, 10000.0]}
    assert clock_facts(CpuClock()) == {"clock": "cpu"}


def test_a_steady_clock_never_goes_back(cpu: Cpu) -> None:
    clock, last_ns = steady(cpu), -1
    for number in range(200):
        cpu.slowness = 1 + (number % 7) / 5
        clock.computing(number % (2 * MANY))
        cpu.work(MS * (number % 5) / 3)
        if number % 2:
            clock.between_steps()
        assert clock.now_ns() >= last_ns
        last_ns = clock.now_ns()


def test_the_yardstick_has_steps_with_prompts_and_without(cpu: Cpu) -> None:
    """Of those without, the later take longer; each is reported as the mean of them."""
    engine = stub_engine(max_num_seqs=4, max_num_batched_tokens=384)
    step, lengths = engine.step, iter([20, *[1, 2, 3] * 5] * 100)

    def timed(now_ns: int | None = None) -> Any:
        output = step(now_ns)
        cpu.work(next(lengths) * MS)
        return output

    engine.step = timed  # type: ignore[method-assign]
    yardstick = Yardstick(engine)
    assert yardstick.mean_ns == pytest.approx((2 * MS, 20 * MS))
    assert yardstick.tokens == (4, 256)
    cpu.slowness = 1.5
    lines = [yardstick() for _ in range(32)]
    assert [which for which, _ in lines] == [1, *[0] * 15] * 2
    assert [spent_ns for _, spent_ns in lines] == pytest.approx([30 * MS, *[3 * MS] * 15] * 2)


def test_engines_with_a_steady_clock_have_one_pace_if_configured_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardsticks, "_CYCLES", 2)
    settings = {"clock": "steady", "num_kv_blocks": 64, "max_num_seqs": 2}
    autoregressive = {"model": str(checkpoint("ar")), "device": "cpu", **settings}
    first = engine_of(autoregressive)
    assert first.clock.name == "steady"
    report = first.recorder.meta["yardstick_us"]
    assert 0 < report[0] < report[1]
    second = engine_of({**autoregressive, "yardstick_us": tuple(report)})
    assert second.recorder.meta["yardstick_us"] == report
    second.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    while second.has_unfinished:
        second.step()
    assert second.clock.now_ns() > 0


def engine_of(settings: dict[str, Any]) -> Any:
    from engine.build import build_engine

    return build_engine(EngineConfig(**settings))


def test_block_diffusion_has_a_yardstick_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(yardsticks, "_CYCLES", 2)
    config = EngineConfig(
        model=str(checkpoint("diffusion")),
        device="cpu",
        clock="steady",
        block_size=32,
        num_kv_blocks=16,
        max_num_seqs=4,
    )
    engine = build_diffusion_engine(config, DllmSettings(LowConfidence()))
    assert isinstance(engine.clock, SteadyClock)
    measured: list[tuple[int, float]] = []
    stick = engine.clock._yardstick
    engine.clock._yardstick = lambda: measured.append(stick()) or measured[-1]  # type: ignore[func-returns-value]
    engine.add_request([1] * 20, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
    while engine.has_unfinished:
        engine.step()
    assert measured, "it has to be looked at between the rounds of a batch"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"clock": "steady", "device": "cuda"}, "clock"),
        ({"clock": "cpu", "yardstick_us": (5.0, 9.0)}, "yardstick_us"),
        ({"clock": "steady", "yardstick_us": (0.0, 9.0)}, "yardstick_us"),
        ({"clock": "steady", "yardstick_us": (5.0, float("nan"))}, "yardstick_us"),
        ({"clock": "sun"}, "clock"),
    ],
)
def test_clocks_that_cannot_be(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as refusal:
        EngineConfig(model="tiny", **settings)
    assert refusal.value.key == key
