"""What every latency model must do."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_cases import decode, decode_steps, mixed_steps, models, prefill

from blis_py.core.features import FEATURE_NAMES, StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import LATENCY_MODELS, build, decode_line, fitted, linear
from blis_py.latency.base import LatencyModel
from blis_py.latency.line_model import LineModel
from blis_py.latency.operators import Operators
from blis_py.models.model_shape import load_model

MODELS = models()
every_model = pytest.mark.parametrize("model", MODELS, ids=[m.provenance for m in MODELS])
FORMULAS = [m for m in MODELS if m.name != "kernel-tables"]  # measurements need not be monotone
LINES = [m for m in MODELS if isinstance(m, LineModel)]
every_formula = pytest.mark.parametrize("model", FORMULAS, ids=[m.provenance for m in FORMULAS])


@every_model
@settings(max_examples=25)
@given(step=decode_steps, length=st.integers(1, 80))
def test_a_run_of_decode_steps_ends_where_single_steps_end(
    model: LatencyModel, step: StepFeatures, length: int
) -> None:
    ends, now = [], 0
    for done in range(length):
        now += model.step(step.after(done)).synchronous_ns
        ends.append(now)
    run = model.decode_run(step, length)
    assert (run.steps, run.end_ns) == (length, now)
    assert run.ends_ns().tolist() == ends


@every_model
@settings(max_examples=25)
@given(step=decode_steps, length=st.integers(1, 80), start_ns=st.integers(0, 10**15), share=st.floats(0, 1.2))
def test_a_run_until_a_time_is_the_same_run_up_to_the_step_in_progress(
    model: LatencyModel, step: StepFeatures, length: int, start_ns: int, share: float
) -> None:
    whole = model.decode_run(step, length, start_ns).ends_ns().tolist()
    assert whole == [start_ns + end for end in model.decode_run(step, length).ends_ns().tolist()]
    end_ns = whole[min(int(share * length), length - 1)]
    for until_ns in (start_ns + int(share * (whole[-1] - start_ns)), end_ns - 1, end_ns, end_ns + 1):
        count = min(bisect_left(whole, until_ns) + 1, length)
        for run in (
            model.decode_run(step, length, start_ns, until_ns),
            model.decode_run(step, length, start_ns).until(until_ns),
        ):
            assert (run.steps, run.end_ns) == (count, whole[count - 1])
            assert run.ends_ns().tolist() == whole[:count]


@every_model
@settings(max_examples=25)
@given(step=decode_steps, length=st.integers(1, 200))
def test_scalar_and_vector_path_agree_to_the_nanosecond(
    model: LatencyModel, step: StepFeatures, length: int
) -> None:
    ends = []
    for limit in (0, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode_line, "SCALAR_STEPS", limit)
            patch.setattr(linear, "SCALAR_STEPS", limit)
            patch.setattr(fitted, "SCALAR_STEPS", limit)
            ends.append(model.decode_run(step, length).ends_ns().tolist())
    assert ends[0] == ends[1]


@every_model
@settings(max_examples=25)
@given(step=mixed_steps)
def test_step_ns_is_the_synchronous_time_of_step(model: LatencyModel, step: StepFeatures) -> None:
    assert model.step_ns(step) == model.step(step).synchronous_ns >= 1


@every_formula
@settings(max_examples=25)
@given(step=mixed_steps, name=st.sampled_from(FEATURE_NAMES), more=st.integers(1, 5000))
def test_more_work_is_never_faster(model: LatencyModel, step: StepFeatures, name: str, more: int) -> None:
    """More prompts with as many tokens and pairs are no more work, but for models that charge for a prompt:
    with measured kernels of attention such a step takes up to 4 % less."""
    least = 0.95 if name == "prefill_seqs" and isinstance(model, Operators) else 1.0
    assert model.step_ns(replace(step, **{name: getattr(step, name) + more})) >= least * model.step_ns(step)


@pytest.mark.parametrize("model", LINES, ids=[m.provenance for m in LINES])
@settings(max_examples=25)
@given(step=decode_steps)
def test_a_prefill_never_makes_the_decodes_beside_it_cheaper(model: LatencyModel, step: StepFeatures) -> None:
    mixed = replace(
        step, prefill_seqs=1, prefill_tokens=1, prefill_pairs=1, emitted_rows=step.emitted_rows + 1
    )
    assert model.step_ns(mixed) >= model.step_ns(step)


@every_model
def test_an_empty_step_still_takes_time(model: LatencyModel) -> None:
    assert model.step_ns(StepFeatures()) >= 1


@every_model
def test_pricing_leaves_no_trace(model: LatencyModel) -> None:
    first = model.step_ns(decode(7, 7000))
    model.step_ns(prefill(2000))
    model.decode_run(decode(9, 100), 50)
    assert model.step_ns(decode(7, 7000)) == first


@pytest.mark.parametrize("limit", [0, 100])
def test_a_step_beyond_the_clock_is_no_short_one(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_line, "SCALAR_STEPS", limit)
    line = decode_line.DecodeLine(1e15, 0.0, 1e15, 0.0, 0.0, unit_ns=1000)
    assert decode_line.run_along(line, 0, 1, 2, 0, NEVER_NS).steps == 2
    with pytest.raises(OverflowError):
        decode_line.run_along(line, 5, 1, 2, 0, NEVER_NS)


def test_each_model_is_built_under_its_own_name() -> None:
    assert {model.name for model in MODELS} == set(LATENCY_MODELS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vidur", {}, "unknown latency model"),
        ("roofline", {"alpha": [1, 2, 3], "beta": [1] * 7}, "--alpha-coeffs: roofline takes no such"),
        ("roofline", {"linear": {}}, "roofline takes no such"),
        ("trained-physics", {"alpha": [1, 2, 3]}, "--beta-coeffs: coefficients come as a pair"),
        ("trained-physics", {"beta": [1] * 7}, "--alpha-coeffs: coefficients come as a pair"),
        ("trained-physics", {"alpha": [1, 2], "beta": [1] * 7}, "--alpha-coeffs: wrong number"),
        ("trained-physics", {"alpha": [1, 2, 3], "beta": [1] * 6}, "give 7 to 11"),
        ("trained-physics", {"alpha": [1, 2, 3], "beta": [1] * 12}, "give 7 to 11"),
        ("trained-physics", {"alpha": [1, 2, 3], "beta": [-1] * 7}, "not negative"),
        ("trained-physics", {"alpha": [1, 2, float("nan")], "beta": [1] * 7}, "finite"),
        ("trained-physics", {"alpha": [1, 2, 4e9], "beta": [1] * 7}, "--alpha-coeffs: is far too large"),
        ("linear", {}, "needs its coefficients"),
        ("linear", {"linear": {"cpu": {}}}, "linear.cpu: unknown key"),
        ("linear", {"linear": {"gpu": {"tokens": 1}}}, "linear.gpu.tokens: unknown key"),
        ("linear", {"linear": {"host": {"step": -1}}}, "linear.host.step: must be"),
        ("linear", {"linear": {"gpu": {"step": "fast"}}}, "linear.gpu.step: must be"),
        ("linear", {"linear": {"gpu": {"step": 1e300}}}, "linear.gpu.step: must be"),
        ("linear", {"linear": {"gpu": 3}}, "linear.gpu: must be a mapping"),
    ],
)
def test_bad_coefficients_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        build(name, shape=load_model("qwen3-14b"), gpu=load_gpu("H100"), tp=1, **options)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_tp_degree_that_splits_a_head_is_refused() -> None:
    with pytest.raises(InputError, match="does not divide the 40 heads"):
        build("roofline", shape=load_model("qwen3-14b"), gpu=load_gpu("H100"), tp=3)


@pytest.mark.parametrize("terms", [(5.0, 2.0, 5.0, 3.0), (5.0, 2.0, 900.0, 2.0), (900.0, 0.0, 5.0, 3.0)])
def test_the_larger_of_two_lines_is_the_same_on_all_paths(
    terms: tuple[float, float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that share their beginning or their slope are two lines."""
    line = decode_line.DecodeLine(10.0, *terms)
    expected = np.cumsum(
        [10 + max(terms[0] + terms[1] * kv, terms[2] + terms[3] * kv) for kv in range(100, 700, 3)]
    )
    for limit in (0, 10_000):
        monkeypatch.setattr(decode_line, "SCALAR_STEPS", limit)
        run = decode_line.run_along(line, 100, 3, 200, 0, NEVER_NS)
        assert run.ends_ns().tolist() == expected.tolist()
