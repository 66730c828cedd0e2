"""A run of the real engine on the CPU, fitted, against another run of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.accuracy import validate
from blis_py.calibrate.samples import StepSamples, samples_of
from blis_py.latency.fitted import Fitted
from blis_py.workload.table import RequestTable

TINY = Path(__file__).resolve().parents[2] / "engine" / "tiny" / "checkpoints" / "ar"


def run(seed: int) -> StepSamples:
    """36 requests of a few dozen tokens on the tiny model, by the CPU time of its thread."""
    from engine.build import build_engine
    from engine.config import EngineConfig
    from engine.driver import serve
    from engine.synthetic import synthetic_prompts

    rng = np.random.default_rng(seed)
    count = 36
    table = RequestTable.build(
        np.sort(rng.integers(0, 10**9, count)), rng.integers(8, 100, count), rng.integers(4, 24, count)
    )
    engine = build_engine(EngineConfig(model=str(TINY), device="cpu", clock="cpu", num_kv_blocks=600))
    prompts = synthetic_prompts(table, engine.vocab_size, seed)
    serve(engine, table.limited(3), prompts, at_once=True)
    engine.reset()
    serve(engine, table, prompts)
    return samples_of(engine.recorder.log(), f"run {seed}")


def test_a_fit_to_one_run_tells_the_steps_of_another() -> None:
    profile = fit(run(1), bootstrap=4)
    held_out = validate(Fitted(profile), run(2))[-1]
    assert held_out.synchronous.steps > 30
    # A shared machine may be slower the second time; what remains beside that is the model's own error.
    assert held_out.mape_at_pace < 0.25
    assert "measured on cpu (cpu time)" in profile.describe()
