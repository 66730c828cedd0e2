"""A run of the real engine by a clock that is made up, fitted, against another run of it."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.accuracy import validate
from blis_py.latency.fitted import Fitted
from blis_py.requests.table import RequestTable
from blis_py.traces.samples import StepSamples, samples_of

TINY = Path(__file__).resolve().parents[2] / "engine" / "tiny" / "checkpoints" / "ar"

FORWARD_NS, TOKEN_NS, LOOK_NS = 400_000, 9_000, 2_000
NOISE = 0.05
"""A forward takes so much more or less."""


class MadeUpClock:
    """Time passes by what is computed, and a little at every reading; that of the machine does not."""

    name = "cpu"

    def __init__(self, seed: int) -> None:
        self._noise = np.random.default_rng(seed)
        self.restart()

    def restart(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        self._now_ns += LOOK_NS
        return self._now_ns

    def perf_counter_origin_ns(self) -> int:
        return self.now_ns() - time.perf_counter_ns()

    def wait_until(self, time_ns: int) -> None:
        self._now_ns = max(self._now_ns, time_ns)

    def elsewhere(self) -> AbstractContextManager[None]:
        return nullcontext()

    def computing(self, tokens: int) -> None:
        self._now_ns += int((FORWARD_NS + TOKEN_NS * tokens) * self._noise.uniform(1 - NOISE, 1 + NOISE))

    def between_steps(self) -> None:
        pass


def run(seed: int) -> StepSamples:
    """36 requests of a few dozen tokens on the tiny model."""
    from engine.build import build_engine
    from engine.config import EngineConfig
    from engine.driver import serve
    from engine.synthetic import synthetic_prompts

    rng = np.random.default_rng(seed)
    count = 36
    table = RequestTable.build(
        np.sort(rng.integers(0, 10**9, count)), rng.integers(8, 100, count), rng.integers(4, 24, count)
    )
    config = EngineConfig(model=str(TINY), device="cpu", clock="cpu", num_kv_blocks=600)
    engine = build_engine(config, clock=MadeUpClock(seed))
    serve(engine, table, synthetic_prompts(table, engine.vocab_size, seed))
    return samples_of(engine.recorder.log(), f"run {seed}")


@pytest.mark.slow
def test_a_fit_to_one_run_states_the_steps_of_another() -> None:
    profile = fit(run(1), bootstrap=4)
    held_out = validate(Fitted(profile), run(2))[-1]
    assert held_out.synchronous.steps > 30
    assert held_out.synchronous.mape < NOISE
    assert abs(held_out.pace) < NOISE / 2
    assert "measured on cpu (cpu time)" in profile.describe()


@pytest.mark.slow
def test_the_same_run_by_the_same_clock_gives_the_same_samples() -> None:
    one, other = run(3), run(3)
    for name in one.table:
        assert one[name].tolist() == other[name].tolist(), name
