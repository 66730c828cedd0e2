"""The published step-time formula and coefficients of BLIS, in its own microseconds.

Symbols: L layers, d hidden size, H heads, K KV heads, h = floor(d/H), dKV = K*h, I intermediate size,
w bytes per weight, c bytes per element of the KV cache, bpp bytes per activation, F peak FLOP/us, BW
bytes/us. Per step, sums over the sequences that compute something: P prefill tokens, A = sum of
4*(H/tp)*h*T*(prompt + T/2), D decode sequences, S their contexts, B sequences.

    T_pc = (L*2*P*d*(2d + 2dKV)/tp + L*A + FFN(P)) / F             prefill compute
    T_pk = L*2*(dKV/tp)*P*c / BW                                   prefill KV written
    T_dc = (L*2*D*d*(2d + 2dKV)/tp + L*4*(H/tp)*h*S + FFN(D)) / F  decode compute
    T_dk = L*2*(dKV/tp)*c*(S + D) / BW                             decode KV read and written
    T_w  = weights of a rank / BW                                  weights, read once
    T_tp = (L + n_dense + n_moe)*(P + D)*d*bpp*2*((tp-1)/tp) / BW  all-reduce
    step = b1a*T_pc + b1b*T_pk + b2a*T_dc + b2b*T_dk + b3*T_w + b4*T_tp
         + b5*L + b6*B + b7 + b8*[interleaved MoE]*n_moe

in us, truncated to a whole microsecond, at least 1. FFN(x) = x*6*d*(n_moe*k*I_moe + n_moe*I_shared +
n_dense*I_dense)/tp. The coefficients were fitted with exactly these definitions, so they are kept even where
our own roofline is more accurate: the prompt instead of the progress in A, d/H for the head size, HBM
bandwidth for the all-reduce; every layer of a MoE model sparse or, where the config interleaves them with
step s, every (s+1)-th; no shared experts unless the config mentions them (Llama 4's does not). Only w, of
which BLIS has one, and c, which it takes as 2, are those of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.errors import InputError
from blis_py.hardware.gpu import GpuSpec
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.decode_line import DecodeLine, run_along
from blis_py.latency.step_run import StepRun
from blis_py.models.model_shape import ModelShape

PUBLISHED_ALPHA = (15563.199579, 777.3455, 45.907545)
"""us: before enqueue, at the end, per output token."""
PUBLISHED_BETA = (
    0.152128, 0.0, 1.36252915, 0.752037, 32.09546717, 4.41684444, 126.024825, 481.8613888,
    0.0, 1.94710771, 0.752037,
)  # fmt: skip
"""b1a, b2a, b3, b4, b5, b6, b7, b8, b1b, b2b, b_EP (the last only matters with data parallelism)."""

_PUBLISHED_FP8_FLOPS = {"L40S": 1466e12}
"""FP8 peaks of the formula that differ from the dense datasheet figure of our profile (this one includes
sparsity)."""

_US: Final = 1000


class TrainedPhysics:
    """Step times by the formula above; see `LatencyModel`.

    The published fit covers the step as a whole, so no part of it is host time.

    Args:
        shape: the model.
        gpu: the accelerator.
        tp: tensor-parallel degree.
        alpha: three front-end delays in us (before enqueue, at the end, per output token), each
            truncated to a whole microsecond; None = published.
        beta: 7 to 11 coefficients in the order of `PUBLISHED_BETA`; None = published. With up to 8,
            prefill costs b1*max(T_pc, T_pk); with up to 9, decode costs b2*max(T_dc, T_dk).

    Raises:
        InputError: only one of `alpha` and `beta`, or coefficients out of range.
    """

    name = "trained-physics"
    uses_max_context = False

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuSpec,
        tp: int = 1,
        alpha: Sequence[float] | None = None,
        beta: Sequence[float] | None = None,
    ) -> None:
        if (alpha is None) != (beta is None):
            missing = "--alpha-coeffs" if alpha is None else "--beta-coeffs"
            raise InputError("coefficients come as a pair", key=missing, fix="give alpha and beta together")
        a = _coefficients("--alpha-coeffs", PUBLISHED_ALPHA if alpha is None else alpha, (3, 3), 3.6e9)
        b = _coefficients("--beta-coeffs", PUBLISHED_BETA if beta is None else beta, (7, 11), 1e12)
        whose = "its published" if alpha is None else "custom"
        self.provenance = (
            f"trained-physics formula of BLIS with {whose} coefficients, {shape.name} on {gpu.name} TP{tp}"
        )
        self.frontend = FrontendDelays(int(a[0]) * _US, int(a[2]) * _US, int(a[1]) * _US)
        self._lines: dict[int, DecodeLine] = {}
        self._fold(_terms(shape, gpu, tp), b, shape.layers)

    def _fold(self, terms: _Terms, b: list[float], layers: int) -> None:
        """Reduce the terms to one coefficient per feature, in us.

        Prefill and decode are each the maximum of two lines, (compute, KV). With a separate KV coefficient
        the two add up to one line, which is then used for both.
        """
        b1, b2, b3, b4, b5, b6, b7 = b[:7]
        gemm_us, pair_us, kv_us = terms.gemm_us, terms.pair_us, terms.kv_us
        self._base = b3 * terms.weights_us + b5 * layers + b7
        if len(b) > 7:
            self._base += b[7] * terms.interleaved_layers
        self._per_seq, self._per_token = b6, b4 * terms.reduce_us
        if len(b) > 8:
            prefill = (b1 * gemm_us + b[8] * kv_us, b1 * pair_us)
            self._prefill = (*prefill, *prefill)
        else:
            self._prefill = (b1 * gemm_us, b1 * pair_us, b1 * kv_us, 0.0)
        if len(b) > 9:
            decode = (b2 * gemm_us + b[9] * kv_us, b2 * pair_us + b[9] * kv_us)
            self._decode = (*decode, *decode)
        else:
            self._decode = (b2 * gemm_us, b2 * pair_us, b2 * kv_us, b2 * kv_us)

    def _line(self, decode_seqs: int) -> DecodeLine:
        compute_seq, compute_kv, kv_seq, kv_kv = self._decode
        base = self._base + (self._per_seq + self._per_token) * decode_seqs
        line = DecodeLine(base, compute_seq * decode_seqs, compute_kv, kv_seq * decode_seqs, kv_kv, _US)
        self._lines[decode_seqs] = line
        return line

    def step_ns(self, features: StepFeatures) -> int:
        seqs, kv_tokens = features.decode_seqs, features.decode_kv_tokens
        base, x0, x1, y0, y1, _, _ = self._lines.get(seqs) or self._line(seqs)
        x, y = x0 + x1 * kv_tokens, y0 + y1 * kv_tokens  # `DecodeLine.at`, without the call
        us = base + (x if x > y else y)
        if features.prefill_seqs:
            tokens, pairs = features.prefill_tokens, features.prefill_prompt_pairs
            compute_token, compute_pair, kv_token, kv_pair = self._prefill
            compute = compute_token * tokens + compute_pair * pairs
            kv = kv_token * tokens + kv_pair * pairs
            us += compute if compute > kv else kv
            us += self._per_seq * features.prefill_seqs + self._per_token * tokens
        return max(1, int(us)) * _US

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(gpu_ns=self.step_ns(features), host_ns=0)

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        seqs = features.decode_seqs
        line = self._lines.get(seqs) or self._line(seqs)
        return run_along(line, features.decode_kv_tokens, seqs, steps, start_ns, until_ns)


class _Terms(NamedTuple):
    """The terms of the formula for one unit of their feature, in us."""

    gemm_us: float
    """T_pc or T_dc of one token, without attention."""
    pair_us: float
    """T_pc of one query-key pair, T_dc of one token of context."""
    kv_us: float
    """T_pk or T_dk of one token of KV."""
    weights_us: float
    """T_w."""
    reduce_us: float
    """T_tp of one token."""
    interleaved_layers: int
    """Sparse layers of a model that interleaves them, otherwise 0."""


def _terms(shape: ModelShape, gpu: GpuSpec, tp: int) -> _Terms:
    d, layers = shape.hidden, shape.layers
    head = d // shape.heads
    d_kv = shape.kv_heads * head
    flops, bytes_per_us = _peak_flops(shape, gpu) / 1e6, gpu.hbm_bytes_per_s / 1e6
    n_moe, n_dense = layer_kinds(shape)

    attention = layers * d * (2 * d + 2 * d_kv)
    shared = 0 if shape.shared_unsaid else 3 * d * n_moe * shape.shared_intermediate
    dense = 3 * d * n_dense * shape.intermediate
    expert = 3 * d * n_moe * shape.moe_intermediate
    used, w = max(1, shape.experts_per_token), shape.weights
    stored = (
        attention * w.attention + dense * w.dense + shared * w.shared + shape.experts * expert * w.experts
    )
    reduced = layers + n_dense + n_moe
    return _Terms(
        gemm_us=2 * (attention + dense + shared + used * expert) / tp / flops,
        pair_us=layers * 4 * (shape.heads / tp) * head / flops,
        kv_us=layers * 2 * (d_kv / tp) * shape.kv_dtype_bytes / bytes_per_us,
        weights_us=stored / tp / bytes_per_us,
        reduce_us=reduced * d * shape.dtype_bytes * 2 * ((tp - 1) / tp) / bytes_per_us,
        interleaved_layers=n_moe if shape.interleave_step else 0,
    )


def _coefficients(key: str, values: Sequence[float], count: tuple[int, int], largest: float) -> list[float]:
    fewest, most = count
    if not fewest <= len(values) <= most:
        counts = str(fewest) if fewest == most else f"{fewest} to {most}"
        raise InputError("wrong number of coefficients", key=key, value=len(values), fix=f"give {counts}")
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise InputError("must be finite and not negative", key=key, value=value)
        if value > largest:
            raise InputError("is far too large", key=key, value=value, fix=f"give at most {largest:g}")
    return [float(value) for value in values]


def _peak_flops(shape: ModelShape, gpu: GpuSpec) -> float:
    ffn = shape.weights.experts if shape.is_moe else shape.weights.dense
    if gpu.fp8_flops and shape.weights.format_of(ffn) in ("fp8", "int8"):
        return _PUBLISHED_FP8_FLOPS.get(gpu.name, gpu.fp8_flops)
    return gpu.fp16_flops


def layer_kinds(shape: ModelShape) -> tuple[int, int]:
    """(sparse, dense) layers as counted by the formula."""
    if not shape.is_moe:
        return 0, shape.layers
    sparse = shape.layers // (shape.interleave_step + 1) if shape.interleave_step else shape.layers
    return sparse, shape.layers - sparse
