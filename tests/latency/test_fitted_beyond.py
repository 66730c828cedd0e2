"""Beyond what was measured, a fitted price goes on as that of a model that knows the GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_cases import decode, prefill

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import LatencyModel
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import FittedProfile, RegimeFit
from blis_py.latency.notes import Outside
from blis_py.models.model_shape import load_model

SHAPE, GPU = load_model("llama-3.1-8b"), load_gpu("h100")
GUIDE = build("trained", shape=SHAPE, gpu=GPU)
DOMAIN = {
    "prefill_seqs": (0, 2),
    "prefill_tokens": (0, 64),
    "prefill_pairs": (0, 2080),
    "prefill_kv_tokens": (0, 0),
    "decode_seqs": (1, 32),
    "decode_kv_tokens": (0, 16_000),
    "emitted_rows": (1, 34),
}
PROFILE = FittedProfile(
    {"device": "H100", "device_kind": "cuda"},
    {
        "eager": RegimeFit(
            gpu={"step": 8e6, "tokens": 0.0, "decode_kv_tokens": 90.0, "prefill_pairs": 400.0},
            host={"step": 1e5},
            domain=DOMAIN,
        )
    },
)


def fitted(known_gpu: bool = True) -> LatencyModel:
    return build("fitted", shape=SHAPE, gpu=GPU if known_gpu else None, profile=PROFILE)


@settings(max_examples=40)
@given(seqs=st.integers(1, 32), kv=st.integers(0, 16_000), tokens=st.integers(0, 64))
def test_inside_the_prices_are_those_of_the_fit(seqs: int, kv: int, tokens: int) -> None:
    step = decode(seqs, kv)
    if tokens:
        step = replace(prefill(tokens), decode_seqs=seqs, decode_kv_tokens=kv, emitted_rows=seqs)
    assert fitted().step(step) == fitted(known_gpu=False).step(step)


def test_a_longer_prompt_costs_what_the_hardware_takes_for_the_rest() -> None:
    edge, beyond = prefill(64), prefill(2000)
    grown = fitted().step_ns(beyond) - fitted().step_ns(edge)
    assert grown == GUIDE.step_ns(beyond) - GUIDE.step_ns(edge)
    along_its_own_prices = fitted(known_gpu=False).step_ns(beyond)
    assert along_its_own_prices > 5 * fitted().step_ns(beyond)  # 400 ns a pair, learned on 64 tokens


def test_shared_reads_stay_cheaper_beyond() -> None:
    """The domain says nothing of them, so nothing of them is cut away."""
    model = build("fitted", shape=SHAPE, gpu=GPU, profile=replace(PROFILE, repeated_read_ns=50.0))
    alone = replace(prefill(2000), decode_seqs=4, decode_kv_tokens=8000, emitted_rows=5)
    shared = replace(alone, shared_kv_tokens=1000)
    assert model.step_ns(alone) - model.step_ns(shared) == 50 * 1000


def test_longer_contexts_cost_what_the_hardware_takes_to_read_them() -> None:
    at_edge, beyond = decode(32, 16_000), decode(32, 64_000)
    grown = fitted().step_ns(beyond) - fitted().step_ns(at_edge)
    assert grown == pytest.approx(GUIDE.step_ns(beyond) - GUIDE.step_ns(at_edge), rel=0.01)
    assert fitted(known_gpu=False).step_ns(beyond) - fitted(known_gpu=False).step_ns(at_edge) > 2 * grown


def test_more_decodes_than_were_measured_are_not_free() -> None:
    few, many = decode(32, 8000), decode(200, 8000)
    assert fitted(known_gpu=False).step_ns(many) == fitted(known_gpu=False).step_ns(few)
    grown = fitted().step_ns(many) - fitted().step_ns(few)
    assert grown == pytest.approx(GUIDE.step_ns(many) - GUIDE.step_ns(few), rel=0.02)


@settings(max_examples=60)
@given(seqs=st.integers(1, 80), kv=st.integers(0, 40_000), steps=st.integers(1, 60))
def test_a_run_of_steps_beyond_is_its_single_steps(seqs: int, kv: int, steps: int) -> None:
    model, step = fitted(), decode(seqs, kv)
    singly, end = [], 0
    for done in range(steps):
        end += model.step_ns(step.after(done))
        singly.append(end)
    assert model.decode_run(step, steps).ends_ns().tolist() == singly


def test_the_note_states_how_prices_go_on() -> None:
    model = fitted()
    assert isinstance(model, Fitted)
    for step in (decode(4, 400), prefill(500), decode(8, 800), decode(9, 900)):
        model.step_ns(step)
    (note,) = model.outside.notes()
    assert note.startswith("25.0 % of the steps lie outside the measured domain: prefill_pairs up to 125,250")
    assert note.endswith(", where prices go on as those of `trained`")


def test_an_overlapped_model_goes_on_alike() -> None:
    model = fitted()
    assert isinstance(model, Fitted)
    far = StepFeatures(decode_seqs=200, decode_kv_tokens=64_000, emitted_rows=200)
    assert model.overlapped().step(far).gpu_ns == model.step(far).gpu_ns


def test_steps_that_an_overlapped_model_priced_are_counted_with_the_others() -> None:
    model = fitted()
    assert isinstance(model, Fitted)
    for step in (decode(4, 400), prefill(500), decode(200, 800), decode(9, 900)):
        model.overlapped().step_ns(step)
    assert (model.outside.priced, model.outside.steps) == (4, 2)


def test_the_largest_measured_value_is_not_beyond_what_was_measured() -> None:
    outside = Outside(steps=1, priced=2000)
    for value in (256, 256, 300, 299):
        outside.record("decode_seqs", value, 256)
    outside.record("tokens", 4096, 4096)
    assert outside.farthest == {"decode_seqs": (300, 256)}
    (note,) = outside.notes()
    assert note == (
        "less than 0.1 % of the steps lie outside the measured domain: "
        "decode_seqs up to 300, measured up to 256"
    )
