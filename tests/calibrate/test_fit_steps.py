"""Fitting step times: known prices are found again, and the reported error is the error there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fit_cases import HOST, HOST_SEQ, KV, PAIR, PROMPT, STEP, TOKEN, gpu_price, made_up

from blis_py.calibrate.fit import fit, write_profile
from blis_py.calibrate.fit.accuracy import accuracy, features_of, validate
from blis_py.calibrate.fit.basis import groups, one_row_per_shape
from blis_py.calibrate.fit.bootstrap import interval
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.latency.fitted import Fitted
from blis_py.traces.samples import StepSamples, joined


def test_known_prices_are_found_again() -> None:
    found = fit(made_up(device_kind="cuda"), bootstrap=2).regimes["eager"]
    for term, price in (("step", STEP), ("decode_kv_tokens", KV), ("prefill_pairs", PAIR)):
        assert found.gpu[term] == pytest.approx(price, rel=0.01)
    assert found.gpu["prefill_seqs"] + found.gpu["emitted_rows"] == pytest.approx(PROMPT, rel=0.02)
    per_decode = found.gpu["tokens"] + found.gpu["seqs"] + found.gpu["emitted_rows"]
    assert per_decode == pytest.approx(TOKEN, rel=0.01)
    assert found.host["step"] == pytest.approx(HOST, rel=0.01)
    assert found.host["seqs"] + found.host["emitted_rows"] == pytest.approx(HOST_SEQ, rel=0.01)
    assert found.correction is None
    assert found.in_sample is not None
    assert found.in_sample.mape < 1e-3


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_the_cross_validated_error_is_the_noise_and_unbiased(noise: float) -> None:
    profile = fit(made_up(800, noise=noise), bootstrap=2)
    report = profile.regimes["eager"].cross_validated
    assert report is not None
    expected = noise * np.sqrt(2 / np.pi)  # mean size of a normal deviate
    assert expected * 0.9 < report.mape < expected * 1.15
    assert abs(report.total) < 0.01
    assert abs(report.bias) < 0.01
    held_out = validate(Fitted(profile), made_up(400, noise=noise, source="run", seed=9))[-1]
    assert held_out.kind == "all"
    assert held_out.synchronous.mape == pytest.approx(report.mape, rel=0.2)
    assert abs(held_out.synchronous.bias) < 0.01


def test_a_kink_in_the_price_of_tokens_is_found() -> None:
    def price(c: dict[str, Any]) -> Any:
        tokens = c["prefill_tokens"] + c["decode_seqs"]
        return STEP + 2e5 * np.maximum(0, tokens - 64)

    found = fit(made_up(price=price), bootstrap=0).regimes["eager"]
    assert found.knee == 64
    assert found.gpu["tokens_beyond_knee"] == pytest.approx(2e5, rel=0.01)
    assert found.gpu["tokens"] == pytest.approx(0, abs=100)


@pytest.mark.slow
def test_a_table_is_kept_only_where_it_helps() -> None:
    def wavy(c: dict[str, Any]) -> Any:
        tokens = c["prefill_tokens"] + c["decode_seqs"]
        return gpu_price(c) * (1 + 0.1 * np.sign(np.sin(np.log2(np.maximum(tokens, 1)) * 2)))

    bent, straight = (fit(made_up(600, price=price, noise=0.02), bootstrap=0) for price in (wavy, gpu_price))
    assert straight.regimes["eager"].correction is None
    regime = bent.regimes["eager"]
    assert regime.correction is not None
    assert regime.cross_validated is not None
    assert regime.without_correction is not None
    assert regime.cross_validated.mape < 0.98 * regime.without_correction.mape
    assert all(0.85 <= ratio <= 1.15 for row in regime.correction.ratio for ratio in row)


@pytest.mark.slow
def test_predictions_with_a_table_never_fall_as_tokens_or_context_grow() -> None:
    def wavy(c: dict[str, Any]) -> Any:
        return gpu_price(c) * (1 + 0.12 * np.sin(c["prefill_tokens"] + c["decode_kv_tokens"] / 900))

    model = Fitted(fit(made_up(600, price=wavy), bootstrap=0))
    for kv in (0, 500, 3000, 20_000):
        by_tokens = [
            model.step_ns(StepFeatures(prefill_seqs=1, prefill_tokens=t, decode_kv_tokens=kv))
            for t in range(1, 600)
        ]
        assert by_tokens == sorted(by_tokens)
    by_context = [
        model.step_ns(StepFeatures(decode_seqs=9, decode_kv_tokens=kv)) for kv in range(0, 20_000, 37)
    ]
    assert by_context == sorted(by_context)


def test_graph_and_eager_steps_have_prices_of_their_own() -> None:
    eager = made_up()
    graph = made_up(200, price=lambda c: gpu_price(c) / 4, regime="graph")
    decodes = graph.where((graph["prefill_seqs"] == 0) & (graph["decode_seqs"] > 0))
    buckets = [1, 2, 4, *range(8, 65, 8)]
    decodes.table["bucket"] = np.array([min(b for b in buckets if b >= n) for n in decodes["decode_seqs"]])
    decodes.table["gpu_ns"] = 10**6 + 1000 * decodes["bucket"] + 5 * decodes["decode_kv_tokens"]
    decodes.table["total_ns"] = decodes["gpu_ns"] + decodes["host_ns"]
    meta = {**eager.meta, "device_kind": "cuda", "graph_buckets": buckets}
    profile = fit(joined([eager, decodes], meta), bootstrap=0)
    model = Fitted(profile)
    padded = model.step(StepFeatures(decode_seqs=33, decode_kv_tokens=1000, emitted_rows=33))
    assert padded.gpu_ns == pytest.approx(10**6 + 1000 * 40 + 5000, rel=0.005)
    beyond = model.step(StepFeatures(decode_seqs=70, decode_kv_tokens=1000, emitted_rows=70))
    assert beyond.gpu_ns == pytest.approx(STEP + TOKEN * 70 + KV * 1000, rel=0.01)


def test_one_slow_repetition_of_a_shape_changes_nothing() -> None:
    calm = made_up(60, repetitions=5)
    broken = joined([calm])
    broken.table["gpu_ns"] = np.where(calm["repetition"] == 3, 50 * calm["gpu_ns"], calm["gpu_ns"])
    broken.table["total_ns"] = broken["gpu_ns"] + broken["host_ns"]
    prices = [fit(samples, bootstrap=0).regimes["eager"].gpu for samples in (calm, broken)]
    assert prices[0] == pytest.approx(prices[1])
    assert len(one_row_per_shape(calm)) == 60


def test_interrupted_steps_of_a_run_are_left_out_and_counted() -> None:
    run = made_up(400, noise=0.02)
    run.table["gpu_ns"][::100] *= 20
    run.table["total_ns"] = run["gpu_ns"] + run["host_ns"]
    found = fit(run, bootstrap=0).regimes["eager"]
    assert found.excluded == 4
    assert found.shapes == 400
    assert found.gpu["decode_kv_tokens"] == pytest.approx(KV, rel=0.1)


def test_neighbouring_steps_of_a_run_are_left_out_together() -> None:
    labels = groups(joined([made_up(1000, source="run"), one_row_per_shape(made_up(7, repetitions=2))]))
    assert labels[:1000].tolist() == [i // 50 for i in range(1000)]
    assert len(set(labels[1000:].tolist())) == 7
    assert not set(labels[1000:].tolist()) & set(labels[:1000].tolist())


@pytest.mark.slow
def test_the_bootstrap_covers_the_truth_and_widens_with_noise() -> None:
    widths = []
    for noise in (0.01, 0.1):
        profile = fit(made_up(300, noise=noise), bootstrap=60)
        model = Fitted(profile)
        step = StepFeatures(decode_seqs=10, decode_kv_tokens=700, max_context=70, emitted_rows=10)
        drawn = [model.redrawn(index).step_ns(step) for index in range(profile.draws)]
        low, high = interval(drawn, level=0.99)
        truth = STEP + TOKEN * 10 + KV * 700 + HOST + HOST_SEQ * 10
        assert low < truth < high
        widths.append(high - low)
    assert widths[1] > 4 * widths[0]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(tmp_path: Any) -> None:
    samples = made_up(noise=0.05)
    texts = [
        write_profile(tmp_path / str(i), samples.meta, fit(samples, bootstrap=3, seed=seed)).read_bytes()
        for i, seed in enumerate((1, 1, 2))
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.slow
def test_the_domain_is_what_was_measured() -> None:
    samples = made_up()
    domain = fit(samples, bootstrap=0).regimes["eager"].domain
    assert domain["prefill_tokens"] == (0, samples["prefill_tokens"].max())
    model = Fitted(fit(samples, bootstrap=0))
    for features in features_of(samples):
        model.step_ns(features)
    assert not model.outside.notes()


def test_a_machine_that_was_slower_shows_as_pace_and_not_as_the_rest() -> None:
    model = Fitted(fit(made_up(noise=0.02), bootstrap=0))
    slow = made_up(noise=0.02, source="slow", seed=3)
    for name in ("gpu_ns", "host_ns", "total_ns"):
        slow.table[name] = slow[name] * 12 // 10
    found = validate(model, slow)[-1]
    assert found.pace == pytest.approx(0.2, abs=0.01)
    assert found.synchronous.mape > 0.14
    assert found.mape_at_pace < 0.03


def test_errors_are_relative_to_the_measured_time() -> None:
    found = accuracy(np.array([110.0, 90.0, 5.0]), np.array([100.0, 100.0, 0.0]))
    assert (found.steps, found.total) == (2, 0.0)
    assert found.mape == pytest.approx(0.1)
    assert found.bias == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (made_up(5), "only 5 compositions of eager steps; measure at least 8"),
        (made_up(50, regime="graph"), "no eager steps"),
        (made_up(0), "no eager steps"),
    ],
    ids=["too few", "graphs only", "nothing"],
)
def test_what_cannot_be_fitted_is_refused(samples: StepSamples, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(samples)


def test_experts_that_were_counted_state_how_skewed_the_routing_is() -> None:
    from blis_py.latency.fitted import expected_experts
    from blis_py.latency.fitted_shape import facts_of
    from blis_py.models.model_shape import load_model

    shape = replace(load_model("mixtral-8x7b"), experts=64, experts_per_token=4)

    def price(c: dict[str, Any]) -> Any:
        tokens = c["prefill_tokens"] + c["decode_seqs"]
        return STEP + 1e4 * np.array([expected_experts(shape, int(t), 40.0) for t in tokens])

    samples = made_up(price=price, model_config=facts_of(shape))
    tokens = samples["prefill_tokens"] + samples["decode_seqs"]
    counted = [round(expected_experts(shape, int(t), 40.0)) for t in tokens]
    samples.table["active_experts"] = np.array(counted)
    profile = fit(samples, bootstrap=0)
    assert profile.experts_in_use == pytest.approx(40, abs=1)
    assert profile.regimes["eager"].gpu["active_experts"] == pytest.approx(1e4, rel=0.03)
