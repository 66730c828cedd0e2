"""Errors planted into a run are found again from its clients' times alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import blis_py as blis
from blis_py.calibrate.client_autopsy import AutopsyPart, ClientAutopsy, client_autopsies, requests_in_flight
from blis_py.calibrate.token_times import TokenTimes
from blis_py.cli import main
from blis_py.requests.table import Labels

COUNT = 3000


@pytest.fixture(scope="module")
def predicted() -> TokenTimes:
    """Steps of 8 to 24 ms that follow one wave, requests in flight that follow another."""
    random = np.random.default_rng(0)
    sent = np.cumsum(random.exponential(0.1, COUNT))
    steps = 0.016 + 0.008 * np.sin(sent / 17)
    tokens = np.maximum((60 * (1 + 0.9 * np.sin(sent / 41))).astype(np.int64), 2)
    ttft = 0.05 + 2 * steps + random.normal(0, 0.002, COUNT)
    return TokenTimes(
        source="simulated",
        request_id=np.arange(COUNT),
        slo_class=Labels.constant("", COUNT),
        output_tokens=tokens,
        sent_s=sent,
        ttft_s=ttft,
        e2e_s=ttft + steps * (tokens - 1),
        incomplete=0,
    )


def measured(
    predicted: TokenTimes, ttft_s: float | np.ndarray, tpot_s: float | np.ndarray = 0.0
) -> TokenTimes:
    """With so much more than was predicted, and noise."""
    noise = np.random.default_rng(1).normal(0, 0.002, COUNT)
    ttft = predicted.ttft_s + ttft_s + noise
    gaps = predicted.output_tokens - 1
    return replace(predicted, source="real", ttft_s=ttft, e2e_s=ttft + (predicted.tpot_s + tpot_s) * gaps)


def parts(one: ClientAutopsy) -> dict[str, AutopsyPart]:
    return {part.name: part for part in one.parts}


def test_a_front_end_is_a_constant(predicted: TokenTimes) -> None:
    ttft, _ = client_autopsies(measured(predicted, 0.009), predicted)
    found = parts(ttft)
    assert max(found, key=lambda name: abs(found[name].share_s)) == "constant"
    assert found["constant"].share_s == pytest.approx(-0.009, abs=3e-4)
    assert "--frontend-ms" in found["constant"].fix


def test_a_step_ahead_is_a_multiple_of_the_step_time(predicted: TokenTimes) -> None:
    found = parts(client_autopsies(measured(predicted, predicted.tpot_s), predicted)[0])
    assert found["steps"].share_s == pytest.approx(-predicted.tpot_s.mean(), rel=0.1)
    assert "--async-scheduling" in found["steps"].fix


def test_what_each_request_in_flight_costs_is_growth_with_load(predicted: TokenTimes) -> None:
    load = requests_in_flight(predicted)
    found = parts(client_autopsies(measured(predicted, 1e-3 * load), predicted)[0])
    assert found["load"].share_s == pytest.approx(-1e-3 * load.mean(), rel=0.1)


def test_slow_first_seconds_are_warm_up(predicted: TokenTimes) -> None:
    early = predicted.sent_s - predicted.sent_s[0] < 15
    found = parts(client_autopsies(measured(predicted, np.where(early, 0.5, 0.0)), predicted)[0])
    assert found["warm_up"].share_s == pytest.approx(-0.5 * early.mean(), rel=0.05)
    assert found["warm_up"].fix == "--skip-first 20s"


def test_requests_that_waited_in_one_run_alone_queued(predicted: TokenTimes) -> None:
    burst = (predicted.sent_s > 100) & (predicted.sent_s < 120)
    found = parts(client_autopsies(measured(predicted, np.where(burst, 3.0, 0.0)), predicted)[0])
    assert found["queueing"].share_s == pytest.approx(-3.0 * burst.mean(), rel=0.05)
    assert f"{int(burst.sum())} requests waited in the measured run alone, 0" in found["queueing"].found


def test_steps_that_are_longer_by_a_factor_are_reported_as_such(predicted: TokenTimes) -> None:
    _, tpot = client_autopsies(measured(predicted, 0.0, 0.2 * predicted.tpot_s), predicted)
    steps = parts(tpot)["steps"]
    assert steps.share_s == pytest.approx(tpot.error_s, rel=0.1)
    assert "latency.step_scale by 1.2" in steps.fix


def test_shares_sum_to_the_error(predicted: TokenTimes) -> None:
    early = predicted.sent_s - predicted.sent_s[0] < 15
    added = 0.004 + 0.7 * predicted.tpot_s + np.where(early, 0.3, 0.0)
    for one in client_autopsies(measured(predicted, added, 0.001), predicted):
        missing = one.error_s - sum(part.share_s for part in one.parts)
        assert abs(missing) < 0.004 * one.measured_s


def test_a_perfect_prediction_has_no_parts(predicted: TokenTimes) -> None:
    assert all(not one.parts for one in client_autopsies(predicted, predicted))


def test_two_simulated_runs_have_the_autopsy_without_a_step_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of a simulated run are no step log of an engine."""
    for name, gpu in (("measured", "h200"), ("predicted", "h100")):
        run = blis.run(model="qwen3-8b", gpu=gpu, rate=10, num_requests=60)
        run.save(tmp_path / name, plots=False)
    words = ["calibrate", str(tmp_path / "measured"), "--results", str(tmp_path / "predicted")]
    assert main([*words, "--autopsy", "--format", "table"]) == 0
    assert "Error of the mean, predicted minus measured" in capsys.readouterr().out
