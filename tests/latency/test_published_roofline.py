"""The roofline of BLIS, worked out by hand from its definition."""

from __future__ import annotations

from dataclasses import replace
from math import floor

import pytest
from latency_cases import decode, prefill

import blis_py as blis
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import LatencyModel
from blis_py.latency.published_roofline import GPUS
from blis_py.models.model_shape import load_model

D, LAYERS, HEADS, D_KV, WIDTH = 5120, 40, 40, 1024, 17408  # qwen3-14b, heads of 128
F, BW = 989.5e6, 3.35e6  # FLOP/us and bytes/us of the H100
WEIGHTS = ((D * (D + 2 * D_KV) + D * D) * LAYERS + 2 * D * WIDTH * LAYERS) * 2


def model(name: str = "qwen3-14b", gpu: str = "H100", tp: int = 1) -> LatencyModel:
    return build("roofline", shape=load_model(name), gpu=load_gpu(gpu), tp=tp, published=True)


def flops(tokens: int, attended: float) -> float:
    gemms = (2 * tokens * (D * D + 2 * D * D_KV) + 2 * tokens * D * D) * LAYERS
    attention = (4 * D + 5 * HEADS) * attended * LAYERS
    return gemms + attention + 2 * tokens * D * LAYERS + 4 * tokens * D * WIDTH * LAYERS


def moved(tokens: int, cached: int) -> float:
    return (2 * D_KV * 2 * (tokens + cached) + D * 2 * tokens) * LAYERS


def test_a_decode_step_is_bound_by_memory() -> None:
    us = (WEIGHTS + moved(16, 16_000)) / BW
    assert us > flops(16, 16_000) / (F * 0.30)
    assert model().step_ns(decode(16, 16_000)) == floor(us) * 1000


def test_a_prefill_is_bound_by_arithmetic_at_its_own_efficiency() -> None:
    us = flops(512, 512 * 511 / 2) / (F * 0.45)
    assert us > (WEIGHTS + moved(512, 0)) / BW
    assert model().step_ns(prefill(512)) == floor(us) * 1000


def test_a_mixed_step_has_one_crossover_and_both_efficiencies() -> None:
    step = StepFeatures(
        prefill_seqs=1,
        prefill_tokens=512,
        prefill_pairs=512 * 513 // 2,
        decode_seqs=8,
        decode_kv_tokens=8000,
        emitted_rows=9,
    )
    us = flops(512, 512 * 511 / 2) / (F * 0.45) + flops(8, 8000) / (F * 0.30)
    assert model().step_ns(step) == floor(us) * 1000


def test_tensor_parallelism_divides_everything() -> None:
    us = (WEIGHTS + moved(16, 16_000)) / BW / 2
    assert model(tp=2).step_ns(decode(16, 16_000)) == floor(us) * 1000


def test_a_run_of_decode_steps_is_its_single_steps() -> None:
    latency = model()
    run = latency.decode_run(decode(4, 4000), 20)
    singles = [latency.step_ns(decode(4, 4000 + 4 * i)) for i in range(20)]
    assert run.end_ns == sum(singles)


def test_the_preset_of_blis_prices_with_it_and_others_do_not() -> None:
    settings = {"model": "qwen3-14b", "latency_model": "roofline", "num_requests": 2}
    assert blis.build(**settings, engine="blis").latency.provenance.startswith("roofline formula of BLIS")
    assert blis.build(**settings).latency.provenance.startswith("roofline from datasheet")


def test_a_gpu_that_blis_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="BLIS has no roofline figures"):
        model(gpu="H200")


@pytest.mark.parametrize(
    ("gpu", "figures"),
    [
        ("h100", (989.5, 1979, 3.35, 0.45, 0.30)),
        ("a10080", (312, 0, 2.039, 0.38, 0.18)),
        ("l40s", (362.05, 1466, 0.864, 0.32, 0.08)),
    ],
)
def test_a_gpu_has_the_figures_that_blis_publishes(gpu: str, figures: tuple[float, ...]) -> None:
    """Tera-operations in 16 and 8 bits, TB/s, and what prefill and decode reach; of hardware_config.json."""
    assert tuple(GPUS[gpu]) == figures


@pytest.mark.parametrize(
    ("name", "gpu", "step", "us"),
    [
        # weights 19,293,798,400 bytes + 65,601,536·40 of KV + 163,840·40 of activations, over 3.35 TB/s
        ("qwen3-14b", "H100", decode(16, 16_000), 6_544),
        # the same bytes over 0.864 TB/s
        ("qwen3-14b", "L40S", decode(16, 16_000), 25_375),
        # GEMMs 2,576,980,377,600 + attention 108,420,710,400 + MLP 7,301,444,403,200 FLOP at 45 % of the peak
        ("qwen3-14b", "H100", prefill(512), 22_428),
        # 5.46875 of 8 experts: 43,788,533,760 bytes of weights + 525,860,864 of KV and activations
        ("mixtral-8x7b", "H100", decode(4, 4_000), 13_228),
    ],
)
def test_worked_examples(name: str, gpu: str, step: StepFeatures, us: int) -> None:
    assert model(name, gpu).step_ns(step) == us * 1000


def test_weights_of_8_bits_multiply_as_those_of_16_where_the_gpu_has_no_fp8() -> None:
    """The A100 and its 312 TFLOP/s."""
    plain = load_model("qwen3-14b")
    eight_bits = replace(plain, weights=replace(plain.weights, dense=1.0))
    ns = [
        build("roofline", shape=shape, gpu=load_gpu("A100-80"), tp=1, published=True).step_ns(prefill(8192))
        for shape in (plain, eight_bits)
    ]
    assert ns[0] == ns[1]
