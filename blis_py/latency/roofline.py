"""Step time from architecture and datasheet alone: no measurement of the model is needed.

Every group of operators costs the larger of its arithmetic and its memory traffic (one crossover per
group, since they run one after the other and a step is usually bound by different things in different
groups); groups add up. Per rank, with L layers, d hidden size, H and K heads per rank of size h, I width
per rank, b bytes per activation, w bytes per weight; T tokens, D decode sequences with contexts S,
R emitted rows; F and BW are peaks times efficiency:

    projections   L * max(2*T*W_a/F, (w*W_a + b*T*(2d + (2H + 2K)*h))/BW)        W_a = 2*d*(H + K)*h
    dense FFN     L_d * max(2*T*W_f/F, (w*W_f + b*T*(2d + 3I))/BW)               W_f = 3*d*I
    sparse FFN    L_s * max(2*T*(k*W_e + W_s + W_r)/F,
                            (w*(E*W_e + W_s) + b*W_r + b*T*(k + shared)*(2d + 3I))/BW)
                  W_e, W_s, W_r: one expert, the shared ones, the router;
                  E = N*(1 - (1 - k/N)^T) distinct experts under uniform routing
    prefill attn  L * max(4*H*h*pairs/F_a, 2*K*h*b*(cached + 2*new)/BW)
    decode attn   L * max(4*H*h*(S + D)/F_a, 2*K*h*b*(S + 2*D)/BW)
    elementwise   (L*8*d + 3*I of every layer, k-fold in sparse ones)*b*T/BW     norms, activation function
    all-reduce    2*L * (latency + b*T*d*2*(tp-1)/tp / link)                     ring, tp > 1
    LM head       max(2*R*W_v/F, (b*W_v + b*R*(d + V))/BW)                       W_v = V*d, 16 bit
    sampling      6*R*V/BW                                                       logits to 32 bits, top-1
    overheads     L*per layer + per step                                         GPU
                  per step + per sequence                                        host

pairs counts causal query-key pairs, so a chunk pays for what it attends to and not for the whole prompt.
Weights of one byte use the FP8 peak where there is one; 4-bit weights are read as such and multiplied
in 16 bits. Windowed attention layers are priced as full ones. Efficiencies and overheads stand in the
`roofline` section of the GPU's profile, which says where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.capacity import kv_heads_per_rank
from blis_py.latency.decode_line import DecodeLine, run_ns
from blis_py.latency.hardware import GpuSpec
from blis_py.latency.model_shape import ModelShape


class Roofline:
    """Prices a step with the formulas above, to the nearest ns; see `LatencyModel`.

    It has no front-end delays: the datasheet says nothing about them.
    """

    name = "roofline"
    uses_max_context = False

    def __init__(self, shape: ModelShape, gpu: GpuSpec, tp: int = 1) -> None:
        self.provenance = f"roofline from datasheet and architecture, {shape.name} on {gpu.name} TP{tp}"
        self.frontend = FrontendDelays()
        self._shape, self._gpu, self._tp = shape, gpu, tp
        self._bytes_per_ns = gpu.hbm_bytes_per_s * gpu.hbm_efficiency / 1e9
        self._flops16_per_ns = gpu.fp16_flops * gpu.gemm_efficiency / 1e9
        self._active_width = shape.experts_per_token * shape.moe_intermediate + shape.shared_intermediate
        self._set_attention()
        self._token_cache: dict[int, float] = {}
        self._row_cache: dict[int, float] = {}
        self._decodes: dict[tuple[int, int], tuple[DecodeLine, int]] = {}

    def _set_attention(self) -> None:
        """ns per query-key pair and per KV token moved, all layers."""
        shape, tp = self._shape, self._tp
        flops_per_ns = self._gpu.fp16_flops * self._gpu.attention_efficiency / 1e9
        kv_bytes = 2 * kv_heads_per_rank(shape, tp) * shape.head_dim * shape.dtype_bytes
        self._pair_ns = shape.layers * 4 * (shape.heads / tp) * shape.head_dim / flops_per_ns
        self._kv_ns = shape.layers * kv_bytes / self._bytes_per_ns

    # --- groups that depend on the number of tokens only ---------------------------------------------

    def _tokens_ns(self, tokens: int) -> float:
        """Everything but attention and LM head, for `tokens` tokens; half a ns added for rounding."""
        ns = self._token_cache.get(tokens)
        if ns is None:
            shape, gpu = self._shape, self._gpu
            ns = shape.layers * (self._projections_ns(tokens) + self._all_reduce_ns(tokens))
            ns += self._elementwise_ns(tokens)
            ns += (shape.layers - shape.moe_layers) * self._dense_ffn_ns(tokens)
            ns += shape.moe_layers * self._sparse_ffn_ns(tokens) if shape.moe_layers else 0.0
            ns += shape.layers * gpu.layer_overhead_ns + gpu.step_overhead_ns + 0.5
            self._token_cache[tokens] = ns
        return ns

    def _larger(self, flops: float, flops_per_ns: float, bytes_moved: float) -> float:
        return max(flops / flops_per_ns, bytes_moved / self._bytes_per_ns)

    def _gemm_peak(self, weight_bytes: float) -> float:
        """FLOPs per ns of a matrix product with weights of this size."""
        fp8 = weight_bytes == 1.0 and self._gpu.fp8_flops
        return self._gpu.fp8_flops * self._gpu.fp8_gemm_efficiency / 1e9 if fp8 else self._flops16_per_ns

    def _projections_ns(self, tokens: int) -> float:
        shape, tp = self._shape, self._tp
        heads, kv_heads = shape.heads / tp, kv_heads_per_rank(shape, tp)
        weights = 2 * shape.hidden * (heads + kv_heads) * shape.head_dim
        activations = tokens * (2 * shape.hidden + 2 * (heads + kv_heads) * shape.head_dim)
        moved = weights * shape.weight_bytes + activations * shape.dtype_bytes
        return self._larger(2 * tokens * weights, self._gemm_peak(shape.weight_bytes), moved)

    def _elementwise_ns(self, tokens: int) -> float:
        shape = self._shape
        dense = (shape.layers - shape.moe_layers) * shape.intermediate
        sparse = shape.moe_layers * self._active_width
        width = shape.layers * 8 * shape.hidden + 3 * (dense + sparse) / self._tp
        return tokens * width * shape.dtype_bytes / self._bytes_per_ns

    def _all_reduce_ns(self, tokens: int) -> float:
        tp, gpu = self._tp, self._gpu
        if tp == 1:
            return 0.0
        volume = tokens * self._shape.hidden * self._shape.dtype_bytes * 2 * (tp - 1) / tp
        return 2 * (gpu.all_reduce_overhead_ns + volume / (gpu.link_bytes_per_s * gpu.link_efficiency / 1e9))

    def _dense_ffn_ns(self, tokens: int) -> float:
        shape, tp = self._shape, self._tp
        weights = shape.dense_ffn_parameters / tp
        activations = tokens * (2 * shape.hidden + 3 * shape.intermediate / tp)
        moved = weights * shape.weight_bytes + activations * shape.dtype_bytes
        return self._larger(2 * tokens * weights, self._gemm_peak(shape.weight_bytes), moved)

    def _sparse_ffn_ns(self, tokens: int) -> float:
        shape, tp = self._shape, self._tp
        used = shape.experts_per_token
        distinct = distinct_experts(shape.experts, used, tokens)
        expert, shared = shape.expert_parameters / tp, shape.shared_parameters / tp
        router = shape.router_parameters
        activations = tokens * (
            2 * (used + (1 if shared else 0)) * shape.hidden + 3 * self._active_width / tp
        )
        moved = distinct * expert * shape.expert_weight_bytes + shared * shape.weight_bytes
        moved += (router + activations) * shape.dtype_bytes
        flops = 2 * tokens * (used * expert + shared + router)
        return self._larger(flops, self._gemm_peak(shape.expert_weight_bytes), moved)

    # --- the other groups ----------------------------------------------------------------------------

    def _rows_ns(self, rows: int) -> float:
        """LM head for the sequences that emit a token; nothing is read when none does."""
        ns = self._row_cache.get(rows)
        if ns is None:
            shape = self._shape
            weights = shape.embedding_parameters / self._tp
            moved = (weights + rows * (shape.hidden + shape.vocab / self._tp)) * shape.dtype_bytes
            ns = self._larger(2 * rows * weights, self._flops16_per_ns, moved) if rows else 0.0
            ns += 6 * rows * shape.vocab / self._bytes_per_ns
            self._row_cache[rows] = ns
        return ns

    def _host_ns(self, seqs: int) -> int:
        return int(self._gpu.host_step_ns + self._gpu.host_seq_ns * seqs + 0.5)

    def _decode_line(self, base: float, seqs: int) -> DecodeLine:
        return DecodeLine(base, self._pair_ns * seqs, self._pair_ns, self._kv_ns * 2 * seqs, self._kv_ns)

    def _decode(self, seqs: int, rows: int) -> tuple[DecodeLine, int]:
        """GPU and host part of a pure decode step."""
        found = self._decodes.get((seqs, rows))
        if found is None:
            base = self._tokens_ns(seqs) + self._rows_ns(rows)
            found = self._decodes[seqs, rows] = self._decode_line(base, seqs), self._host_ns(seqs)
        return found

    def _parts_ns(self, f: StepFeatures) -> tuple[int, int]:
        if not f.prefill_seqs:
            line, host_ns = self._decode(f.decode_seqs, f.emitted_rows)
            return int(line.at(f.decode_kv_tokens)) or 1, host_ns
        tokens = f.prefill_tokens
        base = self._tokens_ns(tokens + f.decode_seqs) + self._rows_ns(f.emitted_rows)
        ns = self._decode_line(base, f.decode_seqs).at(f.decode_kv_tokens)
        compute = self._pair_ns * f.prefill_pairs
        moved = self._kv_ns * (f.prefill_kv_tokens + 2 * tokens)
        ns += compute if compute > moved else moved
        return int(ns) or 1, self._host_ns(f.prefill_seqs + f.decode_seqs)

    # --- the interface -------------------------------------------------------------------------------

    def step_ns(self, features: StepFeatures) -> int:
        gpu_ns, host_ns = self._parts_ns(features)
        return gpu_ns + host_ns

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(*self._parts_ns(features))

    def decode_run_ns(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> Sequence[int]:
        seqs = features.decode_seqs
        line, host_ns = self._decode(seqs, features.emitted_rows)
        return run_ns(line, features.decode_kv_tokens, seqs, steps, start_ns, until_ns, 1, host_ns)


def distinct_experts(experts: int, per_token: int, tokens: int) -> float:
    """Expected experts that at least one of `tokens` tokens is routed to, routing being uniform.

    Real routing is skewed, so this is an upper bound.
    """
    return experts * (1.0 - (1.0 - per_token / experts) ** tokens)
