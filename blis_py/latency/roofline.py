"""Step time from architecture and datasheet alone; no measurement of the model is needed.

Every group of operators costs the larger of its arithmetic and its memory traffic (one crossover per
group, since they run one after the other and a step is usually bound by different things in different
groups); groups add up. `work` says how many FLOPs and bytes a group has. F, F_a and BW are peaks times
efficiency, L layers, T tokens, D decode sequences with contexts S, B sequences:

    projections, dense or sparse FFN, LM head    max(FLOPs/F, bytes/BW) each
    prefill attn  max(FLOPs of the pairs/F_a, KV bytes*(cached + 2*new)/BW)
    decode attn   max(FLOPs of S + D pairs/F_a, KV bytes*(S + 2*D)/BW)
    elementwise, sampling                        bytes/BW
    all-reduce    2*L * (latency + bytes/link)                           tp > 1
    overheads     L*per layer + per step                                 GPU
                  per step + per sequence                                host

pairs counts causal query-key pairs, so a chunk pays for what it attends to and not for the whole prompt.
FP8 and INT8 weights use the peak of their format where the GPU has one; 4-bit weights are read as such and
multiplied in 16 bits. Windowed attention layers are priced as full ones. Efficiencies and overheads stand
in the `roofline` section of the GPU's profile, which says where they come from.
"""

from __future__ import annotations

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import GpuSpec
from blis_py.latency import work
from blis_py.latency.base import FrontendDelays
from blis_py.latency.line_model import LineModel, decode_line, dense_ns, prefill_ns
from blis_py.latency.work import Work
from blis_py.models.model_shape import ModelShape


class Roofline(LineModel):
    """Step times by the formulas above, to the nearest ns; see `LatencyModel`.

    It has no front-end delays, since the datasheet does not contain them.
    """

    name = "roofline"

    def __init__(self, shape: ModelShape, gpu: GpuSpec, tp: int = 1) -> None:
        super().__init__()
        self._mixes_otherwise = True
        gpu.require_roofline(self.name)
        gpu.require_links(tp)
        self.provenance = f"roofline from datasheet and architecture, {shape.name} on {gpu.name} TP{tp}"
        self.frontend = FrontendDelays()
        self._shape, self._gpu, self._tp = shape, gpu, tp
        self._bytes_per_ns = gpu.hbm_bytes_per_s * gpu.hbm_efficiency / 1e9
        self._flops16_per_ns = gpu.fp16_flops * gpu.gemm_efficiency / 1e9
        self._set_attention()

    def _set_attention(self) -> None:
        """ns per query-key pair and per KV token moved, all layers."""
        shape, tp = self._shape, self._tp
        flops_per_ns = self._gpu.fp16_flops * self._gpu.attention_efficiency / 1e9
        self._pair_ns = work.pair_flops(shape, tp) / flops_per_ns
        self._kv_ns = work.kv_token_bytes(shape, tp) / self._bytes_per_ns

    # --- groups that depend on the number of tokens only ---------------------------------------------

    def _tokens_ns(self, tokens: int) -> float:
        """Everything except attention and LM head, for `tokens` tokens; half a ns added for rounding."""
        shape, gpu = self._shape, self._gpu
        weights = shape.weights
        ns = self._larger(work.projections(shape, self._tp, tokens), self._gemm_peak(weights.attention))
        ns = shape.layers * (ns + self._all_reduce_ns(tokens))
        ns += work.elementwise_bytes(shape, self._tp, tokens) / self._bytes_per_ns
        dense_ns = self._larger(work.dense_ffn(shape, self._tp, tokens), self._gemm_peak(weights.dense))
        ns += (shape.layers - shape.moe_layers) * dense_ns
        if shape.moe_layers:
            sparse = work.sparse_ffn(shape, self._tp, tokens)
            ns += shape.moe_layers * self._larger(sparse, self._gemm_peak(weights.experts))
        return ns + (shape.layers * gpu.layer_overhead_ns + gpu.step_overhead_ns + 0.5)

    def _larger(self, group: Work, flops_per_ns: float) -> float:
        return max(group.flops / flops_per_ns, group.moved_bytes / self._bytes_per_ns)

    def _gemm_peak(self, weight_bytes: float) -> float:
        """FLOPs per ns of a matrix product with weights of this size."""
        peak = self._gpu.narrow_flops(self._shape.weights.format_of(weight_bytes))
        return peak * self._gpu.fp8_gemm_efficiency / 1e9 if peak else self._flops16_per_ns

    def _all_reduce_ns(self, tokens: int) -> float:
        tp, gpu = self._tp, self._gpu
        if tp == 1:
            return 0.0
        volume = work.all_reduce_bytes(self._shape, tp, tokens)
        return 2 * (gpu.all_reduce_overhead_ns + volume / (gpu.link_bytes_per_s * gpu.link_efficiency / 1e9))

    # --- the other groups ----------------------------------------------------------------------------

    def _rows_ns(self, rows: int) -> float:
        peak = self._gemm_peak(self._shape.weights.head)
        ns = self._larger(work.head(self._shape, self._tp, rows), peak)
        return ns + work.sampling_bytes(self._shape, rows) / self._bytes_per_ns

    def _host_ns(self, seqs: int) -> int:
        return int(self._gpu.host_step_ns + self._gpu.host_seq_ns * seqs + 0.5)

    def _mixed_ns(self, f: StepFeatures) -> float:
        line = decode_line(self, dense_ns(self, f), f.decode_seqs)
        return line.at(f.decode_kv_tokens) + prefill_ns(self, f)
