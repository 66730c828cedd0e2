"""Prices of a fitted profile: what a step costs, what lies outside, and redrawn coefficients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_cases import decode, decode_steps, fitted_profile, mixed_steps, prefill

from blis_py.core.diffusion_features import DiffusionFeatures
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.latency import build, fitted
from blis_py.latency.fitted import Fitted, expected_experts
from blis_py.latency.fitted_profile import Correction, FittedProfile, RegimeFit
from blis_py.latency.fitted_surface import FittedSurface, monotone
from blis_py.latency.fitted_terms import SURFACE, TERMS
from blis_py.latency.work import distinct_experts
from blis_py.models.model_shape import load_model

PROFILE = fitted_profile()
PLAIN = fitted_profile(graph=False, table=False)
_EAGER = PLAIN.regimes["eager"]
_CPU_PRICES = _EAGER.gpu | {"padded_kv_tokens": 3.7, "any_decode": 9.0}
CPU = replace(PLAIN, regimes={"eager": replace(_EAGER, gpu=_CPU_PRICES)})


def profile_of(gpu: dict[str, float], **settings: object) -> FittedProfile:
    fit = RegimeFit(gpu=gpu, host={"step": 10.0, "seqs": 2.0}, **settings)  # type: ignore[arg-type]
    return FittedProfile({"device": "cpu", "device_kind": "cpu"}, {"eager": fit})


def test_a_step_costs_what_its_terms_cost() -> None:
    gpu = {"step": 1000.0, "tokens": 10.0, "tokens_beyond_knee": 5.0, "decode_kv_tokens": 2.0}
    model = Fitted(profile_of(gpu | {"prefill_pairs": 1.0, "emitted_rows": 7.0}, knee=64))
    mixed = replace(prefill(100), decode_seqs=3, decode_kv_tokens=600, emitted_rows=4)
    time = model.step(mixed)
    assert time.gpu_ns == 1000 + 10 * 103 + 5 * (103 - 64) + 2 * 600 + 5050 + 7 * 4
    assert time.host_ns == 10 + 2 * 4
    assert model.step(decode(3, 600)).gpu_ns == 1000 + 30 + 1200 + 21


def test_the_cpu_pays_for_padding_to_the_longest_context() -> None:
    model = Fitted(profile_of({"step": 100.0, "padded_kv_tokens": 1.0, "any_decode": 40.0}))
    assert model.uses_max_context
    for seqs, kv, longest in ((4, 400, 100), (2, 200, 160), (1, 600, 600)):
        assert model.step(decode(seqs, kv, longest)).gpu_ns == 140 + seqs * longest
    both = replace(prefill(50), decode_seqs=2, decode_kv_tokens=60, max_context=40)
    assert model.step(both).gpu_ns == 140 + 2 * 40
    assert model.step(replace(prefill(50), max_context=30)).gpu_ns == 100, "a prefill is attended alone"


def test_a_graph_pays_for_its_padding_and_a_larger_batch_runs_eagerly() -> None:
    model = Fitted(PROFILE)
    graph, eager = PROFILE.regimes["graph"], PROFILE.regimes["eager"]
    for seqs, fit, tokens in ((5, graph, 8), (256, graph, 256), (257, eager, 257)):
        alone = Fitted(FittedProfile({}, {"eager": fit}))
        padded = StepFeatures(decode_seqs=tokens, decode_kv_tokens=9000, emitted_rows=tokens)
        assert model.step(decode(seqs, 9000)).gpu_ns == alone.step(padded).gpu_ns


def test_a_round_of_diffusion_blocks_fits_a_graph_by_its_blocks() -> None:
    block = 32
    meta = {"graph_buckets": [4]}
    regime = RegimeFit(gpu={"tokens": 1000.0}, host={})
    model = Fitted(FittedProfile(meta, {"graph": regime, "eager": replace(regime, gpu={"tokens": 7.0})}))
    round_of_3 = DiffusionFeatures(prefill_seqs=3, prefill_tokens=3 * block, denoise_blocks=3)
    with_prompt = DiffusionFeatures(
        prefill_seqs=4, prefill_tokens=4 * block, denoise_blocks=3, prefill_blocks=1
    )
    assert model.step_ns(round_of_3) == 4 * block * 1000
    assert model.step_ns(with_prompt) == 4 * block * 7


def test_the_first_round_of_a_batch_has_a_price_of_its_own() -> None:
    regime = RegimeFit(gpu={"tokens": 1000.0}, host={"step": 50.0, "begins_batch": 7_000.0})
    model = Fitted(FittedProfile({}, {"eager": regime}))
    later = DiffusionFeatures(prefill_seqs=2, prefill_tokens=64, denoise_blocks=2)
    first = replace(later, begins_batch=1)
    prompts = DiffusionFeatures(prefill_seqs=1, prefill_tokens=64, prefill_blocks=2, begins_batch=1)
    assert [model.step(x).host_ns for x in (later, first, prompts)] == [50, 7_050, 7_050]


@pytest.mark.parametrize("profile", [PROFILE, PLAIN, CPU], ids=["graph and table", "eager", "cpu"])
@settings(max_examples=60)
@given(step=decode_steps, length=st.integers(1, 300), tracked=st.booleans())
def test_runs_of_any_length_end_where_single_steps_end(
    profile: FittedProfile, step: StepFeatures, length: int, tracked: bool
) -> None:
    model = Fitted(profile, load_model("mixtral-8x7b"))
    step = step if tracked else replace(step, max_context=-1)
    ends = np.cumsum([model.step_ns(step.after(done)) for done in range(length)]).tolist()
    for limit in (0, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fitted, "SCALAR_STEPS", limit)
            assert model.decode_run(step, length).ends_ns().tolist() == ends


@settings(max_examples=60)
@given(step=decode_steps, length=st.integers(1, 200))
def test_a_run_counts_the_steps_outside_as_single_steps_do(step: StepFeatures, length: int) -> None:
    domain = {"decode_seqs": (1, 300), "decode_kv_tokens": (1, 2_000_000), "max_context": (1, 60_000)}
    regime = replace(PLAIN.regimes["eager"], domain=domain)
    at_once, singly = (Fitted(FittedProfile({}, {"eager": regime})) for _ in range(2))
    at_once.decode_run(step, length)
    for done in range(length):
        singly.step_ns(step.after(done))
    assert at_once.outside == singly.outside
    assert at_once.outside.priced == length


def test_a_note_names_the_share_and_the_feature_that_went_too_far() -> None:
    model = Fitted(PROFILE)
    for tokens in (100, 200, 5000, 300):
        model.step_ns(prefill(tokens))
    assert model.outside.notes() == [
        "25.0 % of the steps lie outside the measured domain: "
        "prefill_tokens up to 5,000, measured up to 4,096"
    ]
    model.outside.clear()
    model.step_ns(prefill(100))
    assert not model.outside.notes()


def test_a_redrawn_model_has_the_prices_of_its_draw() -> None:
    model = Fitted(PROFILE)
    assert PROFILE.draws == 2
    low, middle, high = (m.step(prefill(300)).gpu_ns for m in (model.redrawn(0), model, model.redrawn(1)))
    assert low == pytest.approx(0.9 * middle, rel=1e-6)
    assert high == pytest.approx(1.1 * middle, rel=1e-6)
    assert "bootstrap set 1" in model.redrawn(1).provenance


def test_the_experts_a_batch_reads_are_those_of_even_routing() -> None:
    mixtral = load_model("mixtral-8x7b")
    for tokens in (1, 7, 500):
        even = mixtral.moe_layers * distinct_experts(mixtral.experts, mixtral.experts_per_token, tokens)
        assert expected_experts(mixtral, tokens, 0.0) == pytest.approx(even)
        assert expected_experts(mixtral, tokens, 4.0) < even + 1e-9
    assert expected_experts(load_model("qwen3-14b"), 5, 0.0) == 0.0
    with_experts, without = (Fitted(PLAIN, load_model(name)) for name in ("mixtral-8x7b", "qwen3-14b"))
    assert with_experts.step_ns(prefill(64)) > without.step_ns(prefill(64))


@settings(max_examples=50)
@given(
    ratios=st.lists(st.floats(0.85, 1.15), min_size=12, max_size=12),
    points=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 20_000)), min_size=2, max_size=2),
    knee=st.sampled_from([0, 32, 64]),
)
def test_no_table_makes_more_tokens_or_more_context_cheaper(
    ratios: list[float], points: list[tuple[int, int]], knee: int
) -> None:
    table = Correction(
        (1.0, 32.0, 64.0, 700.0), (0.0, 100.0, 9000.0), tuple(zip(*[iter(ratios)] * 3, strict=True))
    )
    prices = {"step": 500.0, "tokens": 3.0, "tokens_beyond_knee": 2.0, "decode_kv_tokens": 0.1}
    step = RegimeFit(gpu=prices, host={}, knee=knee, correction=table)
    model = Fitted(FittedProfile({}, {"eager": step}))
    (t1, s1), (t2, s2) = points
    low, high = (
        model.step_ns(StepFeatures(prefill_seqs=1, prefill_tokens=t, decode_kv_tokens=s))
        for t, s in ((min(t1, t2), min(s1, s2)), (max(t1, t2), max(s1, s2)))
    )
    assert low <= high


def test_a_table_of_ones_changes_nothing_and_another_holds_at_its_points() -> None:
    prices = {"step": 500.0, "tokens": 3.0, "decode_kv_tokens": 0.1}
    axes = (1.0, 100.0), (0.0, 1000.0)
    for tokens, kv in ((1, 0), (40, 700), (300, 5000)):
        flat = FittedSurface(prices, 0, Correction(*axes, ((1.0, 1.0), (1.0, 1.0)))).curve(tokens)
        i = 0 if kv < 1000 else 1
        assert flat.ns[i] + flat.slopes[i] * (kv - flat.at[i]) == pytest.approx(500 + 3 * tokens + 0.1 * kv)
    bent = FittedSurface(prices, 0, Correction(*axes, ((1.0, 1.1), (1.05, 1.1)))).curve(100)
    assert bent.ns == pytest.approx([800 * 1.05, 900 * 1.1])


def test_monotone_leaves_a_monotone_table_alone() -> None:
    table = np.array([[1.0, 2.0], [1.5, 3.0]])
    assert np.array_equal(monotone(table), table)


def test_the_provenance_states_steps_device_and_error() -> None:
    line = Fitted(fitted_profile()).provenance
    assert line == "fitted: 100 steps measured on a GPU"


@settings(max_examples=30)
@given(step=mixed_steps)
def test_a_mixed_step_never_costs_less_than_its_decodes(step: StepFeatures) -> None:
    model = Fitted(PLAIN)
    pure = StepFeatures(
        decode_seqs=step.decode_seqs,
        decode_kv_tokens=step.decode_kv_tokens,
        max_context=step.max_context,
        emitted_rows=step.decode_seqs,
    )
    assert model.step_ns(step) >= model.step_ns(pure)


def test_a_profile_of_another_tp_degree_is_refused() -> None:
    with pytest.raises(InputError, match=r"--tp: was measured at TP 1 \(found 2\); give --tp 1"):
        build("fitted", shape=load_model("qwen3-14b"), gpu=None, tp=2, profile=PROFILE)


def test_a_model_without_a_profile_is_refused() -> None:
    with pytest.raises(InputError, match="needs a fitted profile"):
        build("fitted", shape=load_model("qwen3-14b"), gpu=None)


@pytest.mark.parametrize("profile", [PROFILE, PLAIN, CPU], ids=["graph and table", "eager", "cpu"])
@settings(max_examples=60)
@given(step=st.one_of(mixed_steps, decode_steps))
def test_a_step_is_priced_by_the_terms_that_a_fit_sees(profile: FittedProfile, step: StepFeatures) -> None:
    model = Fitted(profile, load_model("mixtral-8x7b"))
    bucket = 0 if step.prefill_seqs or profile is not PROFILE or step.decode_seqs > 256 else step.decode_seqs
    bucket = next((size for size in profile.graph_buckets if size >= bucket), 0) if bucket else 0
    fit = profile.regimes["graph" if bucket else "eager"]
    x = model._point(step, bucket, fit)
    curve = FittedSurface(fit.gpu, fit.knee, fit.correction).curve(bucket or step.tokens)
    gpu = np.interp(step.decode_kv_tokens, curve.at, curve.ns)
    gpu += curve.slopes[-1] * max(0, step.decode_kv_tokens - curve.at[-1])
    gpu += sum(price * TERMS[name](x) for name, price in fit.gpu.items() if name not in SURFACE)
    host = sum(price * TERMS[name](x) for name, price in fit.host.items())
    time = model.step(step)
    assert time.gpu_ns == pytest.approx(gpu, abs=1, rel=1e-9)
    assert time.host_ns == pytest.approx(host, abs=1, rel=1e-9)


@settings(max_examples=100)
@given(step=decode_steps, extra=st.integers(0, 600), length=st.integers(2, 300), share=st.floats(0.01, 1.2))
def test_a_run_reaches_the_requested_time(step: StepFeatures, extra: int, length: int, share: float) -> None:
    model = Fitted(CPU)
    step = replace(step, max_context=step.max_context + extra)
    whole = model.decode_run(step, length).ends_ns().tolist()
    until_ns = int(share * whole[-1])
    ends = model.decode_run(step, length, 0, until_ns).ends_ns().tolist()
    assert ends == whole[: len(ends)]
    assert len(ends) == length or ends[-1] >= until_ns


@pytest.mark.parametrize("profile", [PROFILE, PLAIN, CPU], ids=["graph and table", "eager", "cpu"])
@settings(max_examples=40)
@given(step=decode_steps, length=st.integers(2, 60), again=st.integers(1, 10**6))
def test_what_is_read_again_costs_less_and_the_same_less_in_every_step_of_a_run(
    profile: FittedProfile, step: StepFeatures, length: int, again: int
) -> None:
    plain, model = Fitted(profile), Fitted(replace(profile, repeated_read_ns=0.73))
    shared = replace(step, shared_kv_tokens=again)
    full = plain.step(shared)
    assert full == plain.step(step) == model.step(step)
    assert model.step(shared).gpu_ns == max(full.gpu_ns - int(0.73 * again), 1)
    ends, end_ns = model.decode_run(shared, length).ends_ns(), 0
    for done in range(length):
        end_ns += model.step_ns(shared.after(done))
        assert ends[done] == end_ns
