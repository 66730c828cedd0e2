"""A host and a GPU by simulated events: the engine's own code runs, and its time is made up.

The host spends time launching and on everything else; the GPU does one kernel after another, none before it
has been launched. CUDA's events, streams that sleep, and the engine's clock read this time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from stub_engine import StubModel, StubSizes, stub_engine
from virtual_clock import StepClock

from engine import steps
from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.timing import FlightTimer, GpuTimeline, StepTimer

T = TypeVar("T")
CUDA = torch.device("cuda")
KERNELS = 160
"""Of a step."""
READ_US, WAKE_US = 4.0, 6.0
"""The host's work between two looks at the clock, and its waking up when the GPU is done."""


@dataclass(frozen=True)
class Costs:
    """Times in µs: those of the GPU for a step and for each of its tokens, those of the host for launching,
    what prompts add to that, and for each sequence that it prepares."""

    gpu_step: float
    gpu_token: float
    launching: float
    host_seq: float = 3.0
    gpu_kv: float = 0.02
    launching_prompts: float = 0.0


class Machine:
    """The time of host and GPU in µs.

    Attributes:
        host_us: what time it is for the host.
        free_us: when the GPU will have done all it has been given.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.host_us = self.free_us = 0.0

    def forward(self, tokens: int, kv_tokens: int, prompts: int) -> None:
        """Launch the kernels of a step."""
        costs = self.costs
        gpu_us = costs.gpu_step + costs.gpu_token * tokens + costs.gpu_kv * kv_tokens
        launching_us = costs.launching + (costs.launching_prompts if prompts else 0)
        for _ in range(KERNELS):
            self.host_us += launching_us / KERNELS
            self.free_us = max(self.free_us, self.host_us) + gpu_us / KERNELS

    def sleep(self, cycles: int) -> None:
        """The stream sleeps; a cycle takes a nanosecond."""
        self.free_us = max(self.free_us, self.host_us) + cycles / 1e3

    def wait(self, until_us: float) -> None:
        self.host_us = max(self.host_us, until_us + WAKE_US)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put this machine in place of CUDA."""
        machine = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at_us = -1.0

            def record(self) -> None:
                self.at_us = machine.free_us = max(machine.host_us, machine.free_us)

            def query(self) -> bool:
                return self.at_us <= machine.host_us

            def synchronize(self) -> None:
                if not self.query():
                    machine.wait(self.at_us)

            def elapsed_time(self, end: Event) -> float:
                return float(np.float32((end.at_us - self.at_us) / 1e3))

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr("time.perf_counter_ns", lambda: int(machine.host_us * 1e3))
        monkeypatch.setattr(steps, "FlightTimer", TimerOfGpu)


class TimerOfGpu(FlightTimer):
    """The timer of a step in flight on a GPU."""

    def __init__(self, clock: Any, device: torch.device, timeline: GpuTimeline) -> None:
        super().__init__(clock, CUDA, timeline)


class HostClock(StepClock):
    """The engine's clock: the host's time, which goes on between two looks at it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def now_ns(self) -> int:
        self._machine.host_us += READ_US
        return int(self._machine.host_us * 1e3)

    def wait_until(self, time_ns: int) -> None:
        self._machine.host_us = max(self._machine.host_us, time_ns / 1e3)


class Model(StubModel):
    """The stub model, whose forwards the machine launches."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(StubSizes())
        self._machine = machine

    def __call__(self, input_ids: torch.Tensor, context: Any) -> torch.Tensor:
        meta = context.attention
        decoded = int(meta.seq_lens[: meta.num_decodes].sum())
        self._machine.forward(len(input_ids), decoded, meta.num_seqs - meta.num_decodes)
        return super().__call__(input_ids, context)


class Side:
    """The launching side of the machine: a ticket is there when the GPU has done what came before it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def submit(self, operation: Callable[[], T]) -> Any:
        result, machine = operation(), self._machine
        done_us = machine.free_us

        class Ticket:
            def wait(self) -> T:
                if machine.host_us < done_us:
                    machine.wait(done_us)
                return result

        return Ticket()

    def recover(self) -> None: ...


def simulated_engine(machine: Machine, **settings: Any) -> LLMEngine:
    """An engine on the machine."""
    engine = stub_engine(Model(machine), clock=HostClock(machine), **settings)
    engine.executor.side, engine.timer = Side(machine), StepTimer(engine.clock, CUDA)
    prepare = engine.executor.prepare

    def prepared(step: Any, decoding: Any, *others: Any) -> Any:
        machine.host_us += machine.costs.host_seq * (len(decoding) + len(step.prefills))
        return prepare(step, decoding, *others)

    engine.executor.prepare = prepared  # type: ignore[method-assign]
    engine.recorder.meta["device"] = "a simulated GPU"
    return engine


def of_length(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
