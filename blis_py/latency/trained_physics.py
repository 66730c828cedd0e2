"""The published step-time formula and coefficients of BLIS, in its own microseconds.

Symbols: L layers, d hidden size, H heads, K KV heads, h = floor(d/H), dKV = K*h, I intermediate size,
w bytes per weight, bpp bytes per activation, F peak FLOP/us, BW bytes/us. Per step, sums over the
sequences that compute something: P prefill tokens, A = sum of 4*(H/tp)*h*T*(prompt + T/2), D decode
sequences, S their contexts, B sequences.

    T_pc = (L*2*P*d*(2d + 2dKV)/tp + L*A + FFN(P)) / F             prefill compute
    T_pk = L*2*(dKV/tp)*P*2 / BW                                   prefill KV written
    T_dc = (L*2*D*d*(2d + 2dKV)/tp + L*4*(H/tp)*h*S + FFN(D)) / F  decode compute
    T_dk = L*2*(dKV/tp)*2*(S + D) / BW                             decode KV read and written
    T_w  = weights of a rank / BW                                  weights, read once
    T_tp = (L + n_dense + n_moe)*(P + D)*d*bpp*2*((tp-1)/tp) / BW  all-reduce
    step = b1a*T_pc + b1b*T_pk + b2a*T_dc + b2b*T_dk + b3*T_w + b4*T_tp
         + b5*L + b6*B + b7 + b8*[interleaved MoE]*n_moe

in us, truncated to a whole microsecond, at least 1. FFN(x) = x*6*d*(n_moe*k*I_moe + n_moe*I_shared +
n_dense*I_dense)/tp. The coefficients were fitted with exactly these definitions, so they are kept where
our own roofline counts better: the prompt instead of the progress in A, d/H for the head size, the
16-bit KV cache, HBM bandwidth for the all-reduce, every layer of a non-interleaved MoE model sparse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.decode_line import DecodeLine, run_ns
from blis_py.latency.hardware import GpuSpec
from blis_py.latency.model_shape import ModelShape

PUBLISHED_ALPHA = (15563.199579, 777.3455, 45.907545)
"""us: before enqueue, at the end, per output token."""
PUBLISHED_BETA = (
    0.152128, 0.0, 1.36252915, 0.752037, 32.09546717, 4.41684444, 126.024825, 481.8613888,
    0.0, 1.94710771, 0.752037,
)  # fmt: skip
"""b1a, b2a, b3, b4, b5, b6, b7, b8, b1b, b2b, b_EP (the last only matters with data parallelism)."""

_PUBLISHED_FP8_FLOPS = {"L40S": 1466e12}
"""FP8 peaks the formula uses where they are not the dense datasheet figure of our profile (this one is
the figure with sparsity)."""

_US = 1000


class TrainedPhysics:
    """Prices a step with the formula above; see `LatencyModel`.

    The published fit covers the step as a whole, so nothing of it is set apart as host time.

    Args:
        shape: the model.
        gpu: the accelerator.
        tp: tensor-parallel degree.
        alpha: three front-end delays in us (before enqueue, at the end, per output token), each
            truncated to a whole microsecond; None = published.
        beta: 7 to 11 coefficients in the order of `PUBLISHED_BETA`; None = published. With up to 8,
            prefill costs b1*max(T_pc, T_pk); with up to 9, decode costs b2*max(T_dc, T_dk).
    """

    name = "trained-physics"

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
        custom = alpha is not None
        a = _coefficients("--alpha-coeffs", PUBLISHED_ALPHA if alpha is None else alpha, 3, 3)
        b = _coefficients("--beta-coeffs", PUBLISHED_BETA if beta is None else beta, 7, 11)
        self.provenance = (
            f"trained-physics formula of BLIS with {'custom' if custom else 'its published'} coefficients, "
            f"{shape.name} on {gpu.name} TP{tp}"
        )
        self.frontend = FrontendDelays(int(a[0]) * _US, int(a[2]) * _US, int(a[1]) * _US)
        self._lines: dict[int, DecodeLine] = {}
        self._set_terms(shape, gpu, tp, b)

    def _set_terms(self, shape: ModelShape, gpu: GpuSpec, tp: int, b: list[float]) -> None:
        """Fold the formula into one coefficient per feature, in us."""
        d, layers = shape.hidden, shape.layers
        head = d // shape.heads
        d_kv = shape.kv_heads * head
        flops = _peak_flops(shape, gpu) / 1e6
        bandwidth = gpu.hbm_bytes_per_s / 1e6
        n_moe, n_dense = _layer_kinds(shape)
        experts_used = max(1, shape.experts_per_token)
        i_moe, i_shared = shape.moe_intermediate, shape.shared_intermediate

        attention_weights = d * (2 * d + 2 * d_kv)
        ffn = (
            6 * d * (n_moe * (experts_used * i_moe + i_shared) + n_dense * shape.intermediate) / tp
        )  # FLOPs per token
        gemm_us = (layers * 2 * attention_weights / tp + ffn) / flops
        pair_us = layers * 4 * (shape.heads / tp) * head / flops
        kv_us = layers * 2 * (d_kv / tp) * 2 / bandwidth

        experts_held = shape.experts * i_moe + i_shared
        ffn_weights = 3 * d * (n_moe * experts_held + n_dense * shape.intermediate)
        weights_us = (layers * attention_weights + ffn_weights) * shape.weight_bytes / tp / bandwidth
        reduced = layers + n_dense + (n_moe if tp > 1 else 0)
        reduce_us = reduced * d * shape.dtype_bytes * 2 * ((tp - 1) / tp) / bandwidth

        b1, b2, b3, b4, b5, b6, b7 = b[:7]
        b8 = b[7] if len(b) > 7 else 0.0
        constant = b3 * weights_us + b5 * layers + b7 + b8 * (n_moe if shape.interleave_step else 0)
        token_us = b4 * reduce_us
        self._base, self._per_seq, self._per_token = constant, b6, token_us
        self._pair_us = pair_us
        # Each half is max(x, y) of two lines; with its own KV coefficient the two add up to one line,
        # which then stands on both sides of the max.
        if len(b) > 8:
            per_token = b1 * gemm_us + b[8] * kv_us
            self._prefill = (per_token, b1 * pair_us, per_token, b1 * pair_us)
        else:
            self._prefill = (b1 * gemm_us, b1 * pair_us, b1 * kv_us, 0.0)
        if len(b) > 9:
            per_seq, per_kv = b2 * gemm_us + b[9] * kv_us, b2 * pair_us + b[9] * kv_us
            self._decode = (per_seq, per_kv, per_seq, per_kv)
        else:
            self._decode = (b2 * gemm_us, b2 * pair_us, b2 * kv_us, b2 * kv_us)

    def _line(self, decode_seqs: int) -> DecodeLine:
        line = self._lines.get(decode_seqs)
        if line is None:
            compute_seq, compute_kv, kv_seq, kv_kv = self._decode
            base = self._base + (self._per_seq + self._per_token) * decode_seqs
            line = DecodeLine(base, compute_seq * decode_seqs, compute_kv, kv_seq * decode_seqs, kv_kv)
            self._lines[decode_seqs] = line
        return line

    def step_ns(self, features: StepFeatures) -> int:
        us = self._line(features.decode_seqs).at(features.decode_kv_tokens)
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

    def decode_run_ns(self, features: StepFeatures, steps: int) -> Sequence[int]:
        seqs = features.decode_seqs
        return run_ns(self._line(seqs), features.decode_kv_tokens, seqs, steps, _US)


def _coefficients(key: str, values: Sequence[float], fewest: int, most: int) -> list[float]:
    if not fewest <= len(values) <= most:
        wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
        raise InputError("wrong number of coefficients", key=key, value=len(values), fix=f"give {wanted}")
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise InputError("must be finite and not negative", key=key, value=value)
    return [float(value) for value in values]


def _peak_flops(shape: ModelShape, gpu: GpuSpec) -> float:
    if shape.weight_bytes == 1.0 and gpu.fp8_flops:
        return _PUBLISHED_FP8_FLOPS.get(gpu.name, gpu.fp8_flops)
    return gpu.fp16_flops


def _layer_kinds(shape: ModelShape) -> tuple[int, int]:
    """(sparse, dense) layers as the formula counts them."""
    if not shape.is_moe:
        return 0, shape.layers
    sparse = shape.layers // (shape.interleave_step + 1) if shape.interleave_step else shape.layers
    return sparse, shape.layers - sparse
