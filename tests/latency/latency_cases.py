"""Features and models the latency tests share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import kernel_profiles
from hypothesis import strategies as st

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency import build
from blis_py.latency.base import FrontendDelays, LatencyModel
from blis_py.latency.fitted_profile import Correction, FittedProfile, RegimeFit
from blis_py.latency.linear import LinearCoefficients, LinearCosts
from blis_py.latency.trained import Coefficients, Trained, Training
from blis_py.models.model_shape import load_model

PLANTED = Coefficients(
    matmul_arithmetic=1.3,
    traffic=1.1,
    unhidden_arithmetic=0.5,
    sparse_arithmetic=1.6,
    sparse_unhidden=1.1,
    narrow_arithmetic=1.7,
    narrow_traffic=1.2,
    narrow_unhidden=0.8,
    attention_pairs=2.4,
    kv_traffic=1.2,
    narrow_kv_traffic=1.5,
    mixed_decode_tiles=1.9,
    all_reduce_latency=0.7,
    all_reduce_traffic=1.8,
    layer_ns=3.5e4,
    sparse_layer_ns=2e4,
    narrow_layer_ns=1.5e4,
    host_step_ns=1.5e5,
    host_seq_ns=900.0,
    rank_wait_ns=1300.0,
)
"""Prices of `trained` in which every term counts."""

LINEAR = LinearCoefficients(
    gpu=LinearCosts(
        step=5e6, prefill_tokens=1e4, prefill_pairs=3.3, decode_seqs=1234.5, decode_kv_tokens=39.7
    ),
    host=LinearCosts(step=1e5, prefill_seqs=10.5, max_context=0.31, emitted_rows=77.7),
    frontend=FrontendDelays(before_enqueue_ns=5, per_token_ns=6, at_end_ns=7),
)


def models() -> list[LatencyModel]:
    """One of each kind, and the branches of `trained-physics` and `roofline`."""
    h100 = load_gpu("H100")
    dense, sparse = load_model("qwen3-14b"), load_model("mixtral-8x7b")
    alpha = (1000.0, 200.0, 50.0)
    return [
        build("trained-physics", shape=dense, gpu=h100, tp=1),
        build("trained-physics", shape=sparse, gpu=h100, tp=2),
        build(
            "trained-physics",
            shape=dense,
            gpu=h100,
            tp=1,
            alpha=alpha,
            beta=(0.2, 0.9, 1.3, 0.7, 30.0, 4.0, 100.0),
        ),
        build(
            "trained-physics",
            shape=dense,
            gpu=h100,
            tp=1,
            alpha=alpha,
            beta=(0.0, 0.0, 0.0, 0.0, 0.0, 40.0, 6000.0, 0.0, 1000.0, 1.0),
        ),
        build("trained", shape=dense, gpu=h100),
        build("trained", shape=load_model("llama-3.1-8b"), gpu=load_gpu("rtx-4090")),
        build("trained", shape=sparse, gpu=load_gpu("a100"), tp=4),
        Trained(load_model("qwen3-30b-a3b"), load_gpu("l40s"), 2, Training(PLANTED, ("Planted",))),
        build("roofline", shape=dense, gpu=load_gpu("L4"), tp=1),
        build("roofline", shape=sparse, gpu=h100, tp=4),
        build("roofline", shape=load_model("gpt-oss-120b"), gpu=load_gpu("B200"), tp=1),
        build("linear", shape=dense, gpu=h100, tp=1, linear=LINEAR),
        _kernel_tables(h100),
        build("fitted", shape=dense, gpu=None, profile=fitted_profile()),
        build("fitted", shape=dense, gpu=h100, profile=fitted_profile()),
        build("fitted", shape=sparse, gpu=None, profile=fitted_profile(graph=False, table=False)),
    ]


def fitted_profile(*, graph: bool = True, table: bool = True) -> FittedProfile:
    """Prices such as a GPU has them, and a table that bends them wherever it can."""
    prices = {
        "step": 2.1e6,
        "tokens": 1234.5,
        "tokens_beyond_knee": 4321.1,
        "decode_kv_tokens": 3.7,
        "prefill_seqs": 1e5,
        "prefill_pairs": 0.31,
        "prefill_kv_tokens": 1.3,
        "emitted_rows": 777.7,
        "max_context": 11.3,
        "padded_kv_tokens": 0.9,
        "active_experts": 1500.5,
    }
    ratio = ((0.85, 1.15, 0.9), (1.15, 0.85, 1.1), (0.95, 1.05, 1.0))
    fit = RegimeFit(
        gpu=prices,
        host={"step": 3e5, "seqs": 5000.5, "prefill_tokens": 11.1},
        knee=192,
        correction=Correction((1.0, 64.0, 512.0), (0.0, 50_000.0, 400_000.0), ratio) if table else None,
        domain={"decode_seqs": (1, 256), "decode_kv_tokens": (1, 500_000), "prefill_tokens": (1, 4096)},
        gpu_draws=tuple(tuple(price * scale for price in prices.values()) for scale in (0.9, 1.1)),
        host_draws=((3.1e5, 5000.0, 10.0), (2.9e5, 5001.0, 12.0)),
    )
    captured = {name: prices[name] for name in ("step", "tokens", "decode_kv_tokens")}
    drawn = tuple(tuple(price * scale for price in captured.values()) for scale in (0.9, 1.1))
    regimes = (
        {"graph": replace(fit, gpu=captured, gpu_draws=drawn), "eager": fit} if graph else {"eager": fit}
    )
    meta = {"device": "a GPU", "graph_buckets": [1, 2, 4, *range(8, 257, 8)]}
    return FittedProfile(meta, regimes, sources={"decode": 100})


def _kernel_tables(gpu: GpuSpec) -> LatencyModel:
    with TemporaryDirectory() as folder:
        profile = kernel_profiles.write(Path(folder))
        return build("kernel-tables", shape=load_model("llama-3.1-8b"), gpu=gpu, kernel_profile=profile)


def decode(seqs: int, kv_tokens: int, max_context: int = 0) -> StepFeatures:
    return StepFeatures(
        decode_seqs=seqs, decode_kv_tokens=kv_tokens, max_context=max_context, emitted_rows=seqs
    )


def prefill(tokens: int, cached: int = 0) -> StepFeatures:
    """One whole prompt (or what the prefix cache has left of it), which emits a token."""
    return StepFeatures(
        prefill_seqs=1,
        prefill_tokens=tokens,
        prefill_pairs=tokens * cached + tokens * (tokens + 1) // 2,
        prefill_kv_tokens=cached,
        prefill_prompt_pairs=tokens * (cached + tokens + tokens / 2),
        max_context=cached,
        emitted_rows=1,
    )


decode_steps = st.builds(
    lambda seqs, context: decode(seqs, seqs * context, context), st.integers(1, 512), st.integers(1, 130_000)
)
mixed_steps = st.builds(
    lambda step, tokens, cached: StepFeatures(
        **{
            **{name: getattr(prefill(tokens, cached), name) for name in StepFeatures.__slots__},
            "decode_seqs": step.decode_seqs,
            "decode_kv_tokens": step.decode_kv_tokens,
            "emitted_rows": step.decode_seqs + 1,
        }
    ),
    decode_steps,
    st.integers(1, 8192),
    st.integers(0, 8192),
)
