"""Steps in which the GPU waited for the host: in a fit, launching is host time."""

from __future__ import annotations

import numpy as np
import pytest
from fit_cases import HOST, KV, PAIR, STEP, gpu_price, made_up

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.accuracy import predict, validate
from blis_py.calibrate.fit.sharing import SHARED, repeated_read_ns
from blis_py.errors import InputError
from blis_py.latency.fitted import Fitted
from blis_py.traces.samples import StepSamples


def launched(launch_ns: float, count: int = 400) -> tuple[StepSamples, np.ndarray]:
    """Steps whose kernels take so long to launch, as an engine notes them; beside them the GPU's own time."""
    samples = made_up(count, device_kind="cuda")
    gpu_ns = samples["gpu_ns"].copy()
    shown_ns = np.maximum(gpu_ns, int(launch_ns))
    samples.table["launch_bound"] = (gpu_ns < launch_ns).astype(np.int64)
    samples.table["gpu_ns"], samples.table["total_ns"] = shown_ns, samples["host_ns"] + shown_ns
    return samples, gpu_ns


def test_a_fit_takes_no_launching_time_for_gpu_time() -> None:
    samples, gpu_ns = launched(1.4 * STEP)
    bound = samples["launch_bound"] == 1
    assert 0.1 < bound.mean() < 0.6
    profile = fit(samples, bootstrap=2)
    found = profile.regimes["eager"]
    for term, price in (("decode_kv_tokens", KV), ("prefill_pairs", PAIR)):
        assert found.gpu[term] == pytest.approx(price, rel=0.01)
    predicted, _ = predict(Fitted(profile), samples)
    off, shown = (np.abs(found_ns[bound] / gpu_ns[bound] - 1) for found_ns in (predicted, samples["gpu_ns"]))
    assert shown.mean() > 0.2, "launching took longer"
    assert off.mean() < 0.07, "and these are predicted from larger steps alone"


def test_launching_is_host_time() -> None:
    """Nearly all steps are launched slower than the GPU works: their whole time is the host's."""
    samples, gpu_ns = launched(1.4 * STEP)
    slow = samples.where((samples["launch_bound"] == 1) | (np.arange(len(samples)) % 8 == 0))
    found = fit(slow, bootstrap=2).regimes["eager"]
    bound = samples["launch_bound"] == 1
    added_ns = float(np.mean(samples["gpu_ns"][bound] - gpu_ns[bound]))
    assert HOST + 0.5 * added_ns < found.host["step"] < HOST + 1.5 * added_ns
    assert found.in_sample is not None
    assert abs(found.in_sample.total) < 0.03, "synchronous steps still take what they took"


def test_launch_bound_steps_are_no_measure_of_predicted_gpu_time() -> None:
    samples, _ = launched(1.4 * STEP)
    (report,) = [line for line in validate(Fitted(fit(samples, bootstrap=0)), samples) if line.kind == "all"]
    assert report.gpu.steps == int((samples["launch_bound"] == 0).sum())
    assert report.gpu.mape < 1e-3
    assert report.synchronous.steps == len(samples)


def test_where_nearly_every_step_is_launch_bound_there_is_no_gpu_time_to_fit() -> None:
    samples, _ = launched(float(np.sort(gpu_price_of(400))[-4]))
    with pytest.raises(InputError, match="launch"):
        fit(samples, bootstrap=0)


def gpu_price_of(count: int) -> np.ndarray:
    samples = made_up(count, device_kind="cuda")
    return np.asarray(gpu_price({name: samples[name] for name in samples.table}))


def test_launch_bound_twins_say_nothing_about_shared_pages() -> None:
    samples, _ = launched(1.4 * STEP)
    regimes = fit(samples, bootstrap=0).regimes
    shared = samples.where(samples["decode_seqs"] > 0)
    twins = shared.where(np.repeat(np.arange(len(shared)), 2))
    twins.table["source"] = np.array([SHARED] * len(twins))
    twins.table["shape"] = np.arange(len(twins))
    twins.table["shared_kv_tokens"] = np.tile([0, 100], len(shared))
    twins.table["gpu_ns"] = twins["gpu_ns"] - np.tile([0, 20_000], len(shared))
    twins.table["launch_bound"][:] = 1
    assert repeated_read_ns(twins, regimes) == 0
