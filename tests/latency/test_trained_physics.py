"""The published formula, worked out by hand from its definition."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace
from math import floor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_cases import decode, prefill

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import LatencyModel
from blis_py.latency.trained_physics import PUBLISHED_BETA
from blis_py.models.model_shape import load_model
from blis_py.models.weights import Weights

BW = 3.35e6  # bytes/us of the H100
F = 989.5e6  # FLOP/us


def model(name: str = "qwen3-14b", tp: int = 1, **options: object) -> LatencyModel:
    shape, gpu = load_model(name), load_gpu("H100")
    return build("trained-physics", shape=shape, gpu=gpu, tp=tp, **options)  # type: ignore[arg-type]


def test_alphas_are_whole_microseconds() -> None:
    delays = model().frontend
    assert (delays.before_enqueue_ns, delays.per_token_ns, delays.at_end_ns) == (15_563_000, 45_000, 777_000)


def test_dense_prefill_of_one_prompt() -> None:
    # qwen3-14b: L 40, d 5120, H 40, h 128, dKV 1024, I 17408
    tokens = 512
    attention = 2 * tokens * 5120 * (2 * 5120 + 2 * 1024) + 4 * 40 * 128 * tokens * (512 + 256)
    t_pc = 40 * (attention + tokens * 6 * 5120 * 17408) / F
    t_w = 40 * (5120 * (2 * 5120 + 2 * 1024) + 3 * 5120 * 17408) * 2 / BW
    us = 0.152128 * t_pc + 1.36252915 * t_w + 32.09546717 * 40 + 4.41684444 + 126.024825
    assert model().step_ns(prefill(tokens)) == floor(us) * 1000


def test_dense_decode_of_a_batch() -> None:
    seqs, context = 64, 64 * 1000
    t_w = 40 * (5120 * (2 * 5120 + 2 * 1024) + 3 * 5120 * 17408) * 2 / BW
    t_dk = 40 * 2 * 1024 * 2 * (context + seqs) / BW
    us = 1.94710771 * t_dk + 1.36252915 * t_w + 32.09546717 * 40 + 4.41684444 * seqs + 126.024825
    assert model().step_ns(decode(seqs, context)) == floor(us) * 1000


def test_tensor_parallel_step_divides_the_work_and_reduces_twice_a_layer() -> None:
    seqs, context, tp = 64, 64 * 1000, 2
    t_w = 40 * (5120 * (2 * 5120 + 2 * 1024) + 3 * 5120 * 17408) * 2 / tp / BW
    t_dk = 40 * 2 * (1024 / tp) * 2 * (context + seqs) / BW
    t_tp = (40 + 40) * seqs * 5120 * 2 * 2 * 0.5 / BW
    us = 1.94710771 * t_dk + 1.36252915 * t_w + 0.752037 * t_tp
    us += 32.09546717 * 40 + 4.41684444 * seqs + 126.024825
    assert model(tp=2).step_ns(decode(seqs, context)) == floor(us) * 1000


def test_sparse_mixed_step_at_tp_2() -> None:
    # mixtral-8x7b: L 32, d 4096, H 32, dKV 1024, 8 experts of 14336, 2 per token, all layers sparse
    tp, tokens, seqs, context = 2, 300, 20, 20 * 500
    pairs = tokens * (300 + 150)
    per_token = 2 * 4096 * (2 * 4096 + 2 * 1024) / tp
    t_pc = (32 * (per_token * tokens + 4 * 16 * 128 * pairs) + 32 * tokens * 2 / tp * 6 * 4096 * 14336) / F
    t_dk = 32 * 2 * (1024 / tp) * 2 * (context + seqs) / BW
    weights = 32 * 4096 * (2 * 4096 + 2 * 1024) * 2 / tp + 32 * (8 / tp) * 3 * 4096 * 14336 * 2
    t_tp = (32 + 0 + 32) * (tokens + seqs) * 4096 * 2 * 2 * 0.5 / BW
    us = 0.152128 * t_pc + 1.94710771 * t_dk + 1.36252915 * weights / BW + 0.752037 * t_tp
    us += 32.09546717 * 32 + 4.41684444 * (seqs + 1) + 126.024825
    step = StepFeatures(
        prefill_seqs=1,
        prefill_tokens=tokens,
        prefill_prompt_pairs=pairs,
        decode_seqs=seqs,
        decode_kv_tokens=context,
    )
    assert model("mixtral-8x7b", tp=2).step_ns(step) == floor(us) * 1000


@given(
    tokens=st.integers(0, 4096),
    seqs=st.integers(0, 256),
    context=st.integers(0, 10**6),
    prompts=st.integers(1, 9),
)
def test_custom_betas_make_a_linear_model(tokens: int, seqs: int, context: int, prompts: int) -> None:
    linear = model(alpha=(1000, 200, 50), beta=(0, 0, 0, 0, 0, 40, 6000, 0, 1000, 1))
    q = 163840 / 3.35e6
    prompts = prompts if tokens else 0
    us = 1000 * q * tokens + q * (context + seqs) + 40 * (seqs + prompts) + 6000
    step = StepFeatures(
        prefill_seqs=prompts, prefill_tokens=tokens, decode_seqs=seqs, decode_kv_tokens=context
    )
    assert linear.step_ns(step) / 1000 in (floor(us - 1e-6), floor(us + 1e-6))


def test_seven_betas_make_a_constant_plus_a_price_per_sequence() -> None:
    simple = model(alpha=(0, 0, 0), beta=(0, 0, 0, 0, 0, 40, 6000))
    assert simple.step_ns(decode(10, 12345)) == 6_400_000
    assert simple.decode_run(decode(10, 12345), 3).ends_ns().tolist() == [6_400_000, 12_800_000, 19_200_000]


def long_decode() -> tuple[StepFeatures, float, float]:
    """A decode step bound by its KV, with its compute and KV time in us before any coefficient."""
    seqs, context = 64, 6_400_000
    per_seq = 2 * 5120 * (2 * 5120 + 2 * 1024) + 6 * 5120 * 17408
    compute_us = 40 * (seqs * per_seq + 4 * 40 * 128 * context) / F
    kv_us = 40 * 2 * 1024 * 2 * (context + seqs) / BW
    assert kv_us > compute_us
    return decode(seqs, context), compute_us, kv_us


@pytest.mark.parametrize("count", [8, 9, 10, 11])
def test_up_to_nine_betas_price_decode_by_the_larger_of_compute_and_kv(count: int) -> None:
    step, compute_us, kv_us = long_decode()
    priced = model(alpha=(0, 0, 0), beta=[0, 1e6, *[0] * 9][:count])
    expected = kv_us if count <= 9 else compute_us
    assert priced.step_ns(step) == pytest.approx(expected * 1e9, rel=1e-7)


@pytest.mark.parametrize("count", [9, 10, 11])
def test_from_nine_betas_prefill_kv_has_its_own(count: int) -> None:
    priced = model(alpha=(0, 0, 0), beta=[0, 0, 0, 0, 0, 0, 0, 0, 1e6, 0, 0][:count])
    assert priced.step_ns(prefill(512)) == pytest.approx(40 * 2 * 1024 * 512 * 2 / BW * 1e9, rel=1e-7)


def test_fp8_weights_use_the_fp8_peak_where_there_is_one() -> None:
    shape = replace(load_model("qwen3-14b"), weights=Weights.of(1.0, "fp8"))
    beta = (1e6, 0, 0, 0, 0, 0, 0)
    times = [
        build("trained-physics", shape=shape, gpu=load_gpu(gpu), tp=1, alpha=(0, 0, 0), beta=beta).step_ns(
            prefill(512)
        )
        for gpu in ("H100", "L40S", "A100-80")
    ]
    full = build(
        "trained-physics",
        shape=load_model("qwen3-14b"),
        gpu=load_gpu("H100"),
        tp=1,
        alpha=(0, 0, 0),
        beta=beta,
    ).step_ns(prefill(512))
    assert full / times[0] == pytest.approx(2, rel=1e-6)
    assert times[1] / times[0] == pytest.approx(1979 / 1466, rel=1e-6)
    assert times[2] / times[0] == pytest.approx(1979 / 312, rel=1e-6)


def test_interleaved_sparse_layers_pay_the_eighth_beta() -> None:
    plain = load_model("mixtral-8x7b")
    interleaved = replace(plain, interleave_step=1, dense_layers=16)
    beta = (0, 0, 0, 0, 0, 0, 0, 100.0)
    options = {"gpu": load_gpu("H100"), "tp": 1, "alpha": (0, 0, 0), "beta": beta}
    assert build("trained-physics", shape=plain, **options).step_ns(decode(1, 1)) == 1000  # type: ignore[arg-type]
    assert build("trained-physics", shape=interleaved, **options).step_ns(decode(1, 1)) == 1_600_000  # type: ignore[arg-type]


def test_shared_experts_that_the_config_does_not_mention_are_not_part_of_the_formula() -> None:
    plain = load_model("mixtral-8x7b")
    said = replace(plain, shared_intermediate=8192)
    unsaid = replace(said, shared_unsaid=True)
    for step in (decode(1, 1), prefill(512)):
        ns = [
            build("trained-physics", shape=shape, gpu=load_gpu("H100"), tp=1).step_ns(step)
            for shape in (plain, unsaid, said)
        ]
        assert ns[0] == ns[1] < ns[2]


def test_an_eight_bit_kv_cache_is_read_in_half_the_time() -> None:
    shape = load_model("qwen3-14b")
    beta = (0, 0, 0, 0, 0, 0, 0, 0, 0, 1e3)
    options = {"gpu": load_gpu("H100"), "tp": 1, "alpha": (0, 0, 0), "beta": beta}
    shapes = (shape, replace(shape, kv_dtype_bytes=1))
    full, half = (build("trained-physics", shape=s, **options).step_ns(decode(9, 90_000)) for s in shapes)  # type: ignore[arg-type]
    assert full == pytest.approx(2 * half, rel=1e-6)


def test_published_coefficients_are_all_there() -> None:
    assert len(PUBLISHED_BETA) == 11


def test_first_token_of_a_lone_request_is_the_peers(shared_data: Path) -> None:
    path = shared_data / "bench_traces" / "a_1k_rate10.peer.csv.gz"
    with gzip.open(path, "rt") as rows:
        first = next(csv.DictReader(rows))
    priced = model()
    step = priced.step_ns(prefill(int(first["input_tokens"])))
    ttft = priced.frontend.before_enqueue_ns + step + priced.frontend.per_token_ns
    assert ttft / 1e6 == pytest.approx(float(first["ttft_ms"]), abs=1e-9)


def test_weights_of_4_bit_experts_are_read_as_such() -> None:
    # gpt-oss-120b: L 36, d 2880, H 64, h 45, K 8, 128 experts of 2880
    attention = 36 * 2880 * (2 * 2880 + 2 * 8 * 45)
    weight_bytes = 2 * attention + 0.53125 * 36 * 128 * 3 * 2880 * 2880
    priced = model("gpt-oss-120b", alpha=(0, 0, 0), beta=(0, 0, 1, 0, 0, 0, 0))
    assert priced.step_ns(decode(1, 1)) == floor(weight_bytes / BW) * 1000
