"""Real runs of an engine that schedules asynchronously, predicted with nothing of the runs themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.models.model_shape import load_model
from blis_py.requests.table import RequestTable

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-2-7b-tp1-roleplay", "codellama-34b-tp2-general"])
def test_planning_a_step_ahead_halves_the_error_of_the_first_token_and_leaves_the_rest(
    shared_data: Path, name: str
) -> None:
    from h100_runs import errors, predict, read

    run = read(shared_data / "vllm_h100_runs", name)
    ahead, in_turn = (errors(run, predict(run, async_scheduling=on)) for on in (True, False))
    assert abs(ahead["TTFT mean"]) < 0.55 * abs(in_turn["TTFT mean"])
    assert abs(ahead["E2E mean"] - in_turn["E2E mean"]) < 0.01
    assert max(abs(ahead["E2E mean"]), abs(ahead["TPOT mean"])) < 0.04


def test_a_planted_front_end_is_found_again_in_calm_times_and_pauses_are_reported() -> None:
    """A quiet half and a busy one; a fiftieth of the requests is held up besides."""
    from h100_runs import TOKEN_MS, Run, front_end_of, served_together, stragglers

    random = np.random.default_rng(4)
    gaps_s = np.concatenate((random.exponential(1 / 2, 400), random.exponential(1 / 12, 2400)))
    sizes = random.integers(100, 300, (2, len(gaps_s)))
    table = RequestTable.build((np.cumsum(gaps_s) * 1e9).astype(np.int64), *sizes)
    config = SchedulerConfig(num_kv_blocks=20_000, max_model_len=4096)
    latency = build("trained", shape=load_model("llama-3.1-8b"), gpu=load_gpu("h100"))
    record = simulate(table, scheduler=config, latency=latency)
    late_ms = 6 + 0.05 * served_together(record) + TOKEN_MS * table.prompt_tokens
    late_ms += random.normal(0, 0.3, len(table))
    late_ms[100::50] += 40
    ttft_ms = (record.first_token_ns - table.arrival_ns) / 1e6 + late_ms
    run = Run("planted", {}, table, ttft_ms, ttft_ms)
    assert tuple(front_end_of([run], [record])) == pytest.approx((6, 0.05, TOKEN_MS), rel=0.05)
    assert set(stragglers(run, record)) == set(range(100, len(table), 50))


@pytest.mark.slow
def test_every_run_is_within_three_percent_of_its_latency_and_six_of_its_first_token(
    shared_data: Path,
) -> None:
    """With the front end that the other runs show. Experts in 16 bits are among them."""
    from h100_runs import errors, front_ends, names, predict, read

    folder = shared_data / "vllm_h100_runs"
    runs = [read(folder, name) for name in names(folder)]
    records = [predict(run) for run in runs]
    ends = front_ends(runs, records)
    for run, record, end in zip(runs, records, ends, strict=True):
        found = errors(run, record, end)
        assert abs(found["E2E mean"]) < 0.03, run.name
        assert abs(found["TTFT mean"]) < 0.06, run.name
