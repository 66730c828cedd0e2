"""The roofline of BLIS, in its own microseconds; what `--engine blis --latency-model roofline` prices with.

Symbols: L layers, d hidden size, H heads, K KV heads, h = d/H, dKV = K*h, I intermediate size, w bytes per
weight, b bytes per activation and KV element, x new tokens of a sequence at progress s, T = sum of x.

    FLOPs  (2x*(d^2 + 2*d*dKV) + 2x*d^2)*L + 4*H*h*L*x*e + MLP(x) + (5*H*x*e + 2*x*d)*L
           with x*e = x*s + x*(x-1)/2; MLP(x) = 4x*d*(k*I_moe*n_moe + I*n_dense)
    bytes  (2*dKV*b*(x + s) + d*b*x)*L
           + ((d*(d + 2*dKV) + d^2)*L + 2*d*(I_moe*n_eff*n_moe + I*n_dense))*w, once
           with n_eff = N*(1 - ((N-k)/N)^T)
    step = max(FLOPs of prefills/(F*u_p) + of decodes/(F*u_d), bytes/BW) / tp

in us, truncated to a whole microsecond, at least 1: one crossover for the whole step, two matrices in an MLP,
no LM head, no all-reduce, no overhead and no front end. u_p and u_d are its efficiencies, F is the FP8 peak
if weights have one byte and the GPU multiplies in FP8. It prices a decode step at 15 to 50 % of what our own
roofline does.
"""

from __future__ import annotations

from typing import NamedTuple

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.errors import InputError
from blis_py.files.profiles import squeeze
from blis_py.hardware.gpu import GpuSpec
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.decode_line import DecodeLine, run_along
from blis_py.latency.step_run import StepRun
from blis_py.latency.trained_physics import layer_kinds
from blis_py.latency.work import distinct_experts
from blis_py.models.model_shape import ModelShape


class PublishedGpu(NamedTuple):
    """Datasheet of a GPU as BLIS has it."""

    fp16_tflops: float
    fp8_tflops: float
    tb_per_s: float
    prefill_efficiency: float
    decode_efficiency: float


GPUS = {
    "h100": PublishedGpu(989.5, 1979, 3.35, 0.45, 0.30),
    "a10080": PublishedGpu(312, 0, 2.039, 0.38, 0.18),
    "l40s": PublishedGpu(362.05, 1466, 0.864, 0.32, 0.08),
}
_NS_PER_US = 1000


class PublishedRoofline:
    """Step times by the formula above; see `LatencyModel`.

    Raises:
        InputError: BLIS has no figures for the GPU.
    """

    name = "roofline"
    uses_max_context = False

    def __init__(self, shape: ModelShape, gpu: GpuSpec, tp: int = 1) -> None:
        known = GPUS.get(squeeze(gpu.name))
        if known is None:
            fix = "use H100, A100-80 or L40S, or drop --engine blis for the roofline of this program"
            raise InputError("BLIS has no roofline figures for it", key="--gpu", value=gpu.name, fix=fix)
        self.provenance = f"roofline formula of BLIS, {shape.name} on {gpu.name} TP{tp}"
        self.frontend = FrontendDelays()
        self._shape, self._tp = shape, tp
        self._sparse, self._dense = layer_kinds(shape)
        eight_bits = known.fp8_tflops > 0 and shape.weights.dense == 1
        flops_per_us = (known.fp8_tflops if eight_bits else known.fp16_tflops) * 1e6
        self._prefill_per_us = flops_per_us * known.prefill_efficiency * tp
        self._decode_per_us = flops_per_us * known.decode_efficiency * tp
        self._bytes_per_us = known.tb_per_s * 1e6 * tp
        self._set_work()
        self._lines: dict[int, DecodeLine] = {}

    def _set_work(self) -> None:
        shape, layers = self._shape, self._shape.layers
        d, head = shape.hidden, shape.hidden / shape.heads
        d_kv = shape.kv_heads * head
        used = max(1, shape.experts_per_token)
        mlp = 4 * d * (used * shape.moe_intermediate * self._sparse + shape.intermediate * self._dense)
        gemms = (2 * (d * d + 2 * d * d_kv) + 2 * d * d) * layers
        self._token_flops = gemms + mlp + 2 * d * layers
        self._pair_flops = (4 * shape.heads * head + 5 * shape.heads) * layers
        self._kv_bytes = 2 * d_kv * shape.dtype_bytes * layers
        self._token_bytes = self._kv_bytes + d * shape.dtype_bytes * layers
        weights = (d * (d + 2 * d_kv) + d * d) * layers + 2 * d * shape.intermediate * self._dense
        self._weight_bytes = weights * shape.weights.dense
        self._expert_bytes = 2 * d * shape.moe_intermediate * self._sparse * shape.weights.experts

    def _weights_us(self, tokens: int) -> float:
        shape, moved = self._shape, self._weight_bytes
        if self._sparse:
            moved += self._expert_bytes * distinct_experts(shape.experts, shape.experts_per_token, tokens)
        return moved / self._bytes_per_us

    def _line(self, seqs: int) -> DecodeLine:
        line = self._lines.get(seqs)
        if line is None:
            line = self._lines[seqs] = DecodeLine(
                0.0,
                self._token_flops * seqs / self._decode_per_us,
                self._pair_flops / self._decode_per_us,
                self._weights_us(seqs) + self._token_bytes * seqs / self._bytes_per_us,
                self._kv_bytes / self._bytes_per_us,
                _NS_PER_US,
            )
        return line

    def step_ns(self, features: StepFeatures) -> int:
        f = features
        if not f.prefill_seqs:
            return max(1, int(self._line(f.decode_seqs).at(f.decode_kv_tokens))) * _NS_PER_US
        pairs = f.prefill_pairs - f.prefill_tokens
        compute = (self._token_flops * f.prefill_tokens + self._pair_flops * pairs) / self._prefill_per_us
        decode = self._token_flops * f.decode_seqs + self._pair_flops * f.decode_kv_tokens
        compute += decode / self._decode_per_us
        moved = self._token_bytes * f.tokens + self._kv_bytes * (f.prefill_kv_tokens + f.decode_kv_tokens)
        return max(1, int(max(compute, self._weights_us(f.tokens) + moved / self._bytes_per_us))) * _NS_PER_US

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(gpu_ns=self.step_ns(features), host_ns=0)

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        line = self._line(features.decode_seqs)
        return run_along(line, features.decode_kv_tokens, features.decode_seqs, steps, start_ns, until_ns)
