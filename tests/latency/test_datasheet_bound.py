"""No step that obeys the datasheet is faster than its bound, and a model that is says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import blis_py as blis
from blis_py import latency
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.latency.datasheet_bound import bound_notes, bound_ns
from blis_py.models.model_shape import load_model

LLAMA, H100 = load_model("llama-3.1-8b"), load_gpu("h100")
LONG = {
    **{"model": "llama-3.1-8b", "num_requests": 1, "prompt_tokens": 30000, "prompt_tokens_stdev": 0},
    **{"prompt_tokens_min": 30000, "prompt_tokens_max": 30000, "output_tokens": 3},
}


def test_the_bound_of_a_prompt_is_its_products_and_causal_pairs_at_the_peak() -> None:
    """8B: 6.98e9 weights in layers, 32 heads of 128 in 32 layers, 30,000 tokens, 989.4 TFLOPS."""
    tokens = 30_000
    step = StepFeatures(prefill_seqs=1, prefill_tokens=tokens, prefill_pairs=tokens * (tokens + 1) // 2)
    flops = 2 * tokens * 6_979_321_856 + 32 * 4 * 32 * 128 * step.prefill_pairs
    assert bound_ns(LLAMA, H100, 1, step) == pytest.approx(1e9 * flops / H100.fp16_flops)
    assert bound_ns(LLAMA, H100, 2, step) == pytest.approx(5e8 * flops / H100.fp16_flops)


def test_the_bound_of_a_decode_step_is_its_weights_and_contexts_at_the_bandwidth() -> None:
    step = StepFeatures(decode_seqs=1, decode_kv_tokens=1000, emitted_rows=1)
    moved = 2 * (6_979_321_856 + LLAMA.embedding_parameters) + 131_072 * 1000
    assert bound_ns(LLAMA, H100, 1, step) == pytest.approx(1e9 * moved / H100.hbm_bytes_per_s)


@pytest.mark.parametrize("name", ["trained", "roofline"])
@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "qwen3-32b-fp8", "gpt-oss-120b", "deepseek-r1", "qwen3.5-27b"]
)
@pytest.mark.parametrize("gpu", ["h100", "b200", "l40s"])
def test_our_models_respect_the_datasheet(name: str, model: str, gpu: str) -> None:
    shape, spec = load_model(model), load_gpu(gpu)
    try:
        priced = latency.build(name, shape=shape, gpu=spec, tp=4)
    except InputError:
        pytest.skip("not priced by this model")
    assert bound_notes(priced, shape, spec, 4, 30_000, 8192) == ()


@pytest.mark.parametrize("engine", ["blis", "vllm"])
def test_trained_physics_says_that_it_is_faster_than_the_datasheet(engine: str) -> None:
    notes = blis.run(**LONG, engine=engine, latency_model="trained-physics").summary["notes"]
    (note,) = [note for note in notes if "faster than the hardware" in note]
    assert "a prompt of 30,000 tokens" in note
    assert "datasheet's peak of H100 needs 661.6 ms" in note


def test_given_coefficients_below_the_datasheet_are_named(tmp_path: Path) -> None:
    config = {**{"latency": {"model": "linear", "linear": {"gpu": {"step": 1000.0}}}}}
    path = tmp_path / "fast.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    notes = blis.run(str(path), **LONG).summary["notes"]
    assert sum("linear is faster than the hardware" in note for note in notes) == 2


def test_a_plan_refuses_the_formula_of_blis_as_a_mere_default() -> None:
    small = {"engine": "blis", "model": "llama-3.1-8b", "num_requests": 5, "slo": "e2e.p99=60s"}
    sized = {"instances": [1], "draws": 0, "tune": False, "workers": 1, "cache": False}
    with pytest.raises(InputError, match=r"trained-physics is no basis for sizing.*--latency-model trained"):
        blis.plan(**small, **sized)
