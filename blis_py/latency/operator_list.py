"""The operators of a model's step on one rank, each priced by what was learned of its kernel.

Every operator has its own number format (`_form`), as the checkpoint stores its weights and the GPU
multiplies them. Times are of one rank of a `Layout`, in ns, as arrays over the sizes of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.core.light_dataclass import dataclass
from blis_py.hardware.capacity import kv_heads_per_rank
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency import operator_work as work
from blis_py.latency.expert_kernels import kernel_of_rows
from blis_py.latency.graph_sizes import GraphSizes
from blis_py.latency.operator_work import Priced
from blis_py.latency.sparse_layers import sparse_layers
from blis_py.latency.sparse_work import SparseLayer, sparse
from blis_py.latency.surfaces import Surface, Surfaces, sizes_of
from blis_py.models.compressed_attention import CompressedAttention
from blis_py.models.grouped_heads import GroupedHeads
from blis_py.models.linear_attention import LINEAR_TITLES, LinearAttention
from blis_py.models.model_shape import ModelShape

if TYPE_CHECKING:
    from blis_py.latency.expert_load import ExpertLoad

Array = NDArray[np.float64]
_BLACKWELL_MXFP4, _HOPPER_MXFP4 = "w4a8_mxfp4_mxfp8", "w4a16_mxfp4"
_ALIKE = {
    "fp8": ("fp8", "fp8_block", "bfloat16"),
    "fp8_block": ("fp8_block", "fp8", "bfloat16"),
    "nvfp4": ("nvfp4", "fp8_block", "fp8"),
    "w4a8_mxfp4_mxfp8": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4", "nvfp4"),
    "w4a16_mxfp4": ("w4a16_mxfp4", "int4_wo", "bfloat16"),
    "int4_wo": ("int4_wo", "w4a16_mxfp4", "bfloat16"),
    "bfloat16": ("bfloat16",),
}
"""Formats whose surface stands in for one that was not measured."""


_NO_KERNELS = "no kernels were measured"
_LARGEST_HEAD = 256
"""Elements of the largest head whose attention was measured."""
_MARLIN_TILES = 256, 128
"""Multiples that Marlin's experts need of the hidden size and of the width on a rank."""
_FUSED_TOKENS = 2048
"""Tokens up to which an all-reduce is fused with what follows it (`max_token_num` of FlashInfer's)."""


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Kernels that a server is set to."""

    moe_backend: str = "auto"
    """Kernels of experts: auto, trtllm, cutlass, deepgemm, …."""
    fused_norms: bool = False
    """Whether all-reduces of few tokens add the residual and normalise, too."""
    graphs: GraphSizes | None = None
    """Batch sizes with CUDA graphs; None = every one."""
    load: ExpertLoad | None = None
    """Load of the experts; None = the model's routing."""


class _Reads(NamedTuple):
    """Attention of a layer on one rank."""

    heads: float
    kv_heads: int
    head_dim: int
    window: int
    """Tokens that it sees at most; 0 = all."""


class OperatorList:
    """
    Args:
        learned: surfaces of the GPU and engine; further ones stand in for operators missing there.
        options: kernels that the server is set to.
    """

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuSpec,
        layout: Layout,
        learned: Sequence[Surfaces],
        options: KernelOptions | None = None,
    ) -> None:
        options = options or KernelOptions()
        self._shape, self._gpu, self._layout = shape, gpu, layout
        self._routing = options.load.routing if options.load else shape.routing
        self._chosen = shape.experts_per_token * (options.load.imbalance if options.load else 1)
        """Experts of a token, by the busiest group of ranks."""
        self._kernel = options.moe_backend.removeprefix("flashinfer_")
        self._engine = engine = learned[0].engine if learned else ""
        trtllm = engine == "trtllm"
        if options.moe_backend == "auto" and trtllm:
            self._kernel = self._of_trtllm
        elif options.moe_backend == "auto" and engine == "sglang" and gpu.fp4_flops:
            self._kernel = "trtllm"  # server_args.py: on sm100, without DeepEP
        self._fused = options.fused_norms and layout.attention_tp > 1
        self._kernels_quantise = trtllm
        self._compiled = engine == "vllm"
        self._learned = learned
        self._heads = shape.heads / layout.attention_tp
        self._kv_heads = kv_heads_per_rank(shape, layout.attention_tp)
        self._kv_forms = ("fp8", "bfloat16") if shape.kv_dtype_bytes == 1 else ("bfloat16",)
        self._sparse_layers = sparse_layers(shape, layout.attention_tp)

    # --- what depends on the number of tokens ------------------------------------------------------

    def of_attention(self, tokens: Array) -> Array:
        """Projections, norms and all-reduces around attention, for the tokens of a rank."""
        shape, tp = self._shape, self._layout.attention_tp
        full, linear = shape.cached_layers, shape.layers - shape.cached_layers
        ns = full * self.projections(tokens) + linear * self._linear_projections(tokens)
        norm = self._unfused(tokens, self._move(tokens, 2 * shape.hidden))
        ns = ns + shape.layers * (2.0 * norm) - (shape.bare_layers * norm if shape.bare_layers else 0.0)
        ns = ns + full * self._move(tokens, (self._heads + 2 * self._kv_heads) * shape.head_dim)
        if shape.residual_streams > 1:
            width = shape.residual_streams, shape.hidden
            ns = ns + shape.layers * self._ns(["streams"], lambda gpu: work.streams(gpu, tokens, *width))
        if tp > 1:
            ns = ns + shape.layers * self.all_reduce(tp, tokens)
        if shape.norm_over_heads:
            ns = ns + shape.layers * self._norm_over_heads(tokens)
        return ns

    def of_feed_forward(self, tokens: Array, prompts: bool = False) -> Array:
        """Dense and sparse feed-forward layers with their exchange, for the tokens of all ranks.

        Args:
            prompts: whether tokens of prompts are among them.
        """
        ns = self.of_computed(tokens, prompts)
        if self._layout.gpus > 1:
            ns = ns + (self._shape.layers - self._shape.bare_layers) * self._exchange(tokens, prompts)
        return ns

    def of_computed(self, tokens: Array, prompts: bool = False) -> Array:
        """The same without the exchange."""
        shape = self._shape
        dense = shape.plain_layers
        ns = dense * self._gated(tokens, shape.intermediate / self._layout.gpus, shape.weights.dense)
        return ns + shape.moe_layers * self._sparse(tokens, prompts) if shape.moe_layers else ns

    def of_rows(self, rows: Array) -> Array:
        """LM head and sampling for the sequences of a rank that emit a token."""
        shape, tp = self._shape, self._layout.attention_tp
        head = self._gemm(self._form(shape.weights.head), rows, shape.vocab / tp, shape.hidden)
        return head + self._move(rows, 2.0 * shape.vocab) + self._move(np.ones_like(rows), shape.hidden)

    # --- attention itself --------------------------------------------------------------------------

    def of_chunk(self, chunk: Array, past: Array, prompts: float = 1.0) -> Array:
        """Attention of all layers for `chunk` tokens of each of `prompts` prompts over `past` cached ones."""
        shape = self._shape
        ns = sum(
            count * self._context(prompts, chunk, past, of) for count, of in self._attention if count
        ) + np.zeros(np.broadcast_shapes(chunk.shape, past.shape))
        for count, layer in self._sparse_layers:
            ns = ns + count * self._selective("context", layer, prompts, np.maximum(chunk, 1.0), past)
        if shape.linear is not None:
            heads = self._state_heads(shape.linear)
            ns = ns + shape.linear.layers * self._ns(
                self._linear_names(shape.linear, "context"),
                lambda gpu: work.linear_context(gpu, prompts * chunk, heads),
            )
        return np.asarray(np.where(chunk > 0, ns, 0.0))

    def of_decodes(self, seqs: Array, context: Array) -> Array:
        """Attention of all layers for one token of each of `seqs` sequences."""
        shape = self._shape
        ns = sum(
            count * self._decode(seqs, context, of) for count, of in self._attention if count
        ) + np.zeros(np.broadcast_shapes(seqs.shape, context.shape))
        for count, layer in self._sparse_layers:
            ns = ns + count * self._selective("decode", layer, np.maximum(seqs, 1.0), 1.0, context)
        if shape.linear is not None:
            heads = self._state_heads(shape.linear)
            ns = ns + shape.linear.layers * self._ns(
                self._linear_names(shape.linear, "decode"),
                lambda gpu: work.linear_decode(gpu, seqs, heads),
            )
        return np.asarray(np.where(seqs > 0, ns, 0.0))

    def _state_heads(self, linear: LinearAttention) -> float:
        """Heads of a rank, as many of the measured size as have its states."""
        measured = work.LINEAR_DIM * work.LINEAR_DIM
        heads = linear.value_heads * (linear.key_dim * linear.value_dim / measured)
        return heads / self._layout.attention_tp

    @staticmethod
    def _linear_names(linear: LinearAttention, phase: str) -> list[str]:
        own = [] if linear.kind == "gdn" else [f"{linear.kind}_{phase}"]
        return [*own, f"linear_{phase}"]

    @cached_property
    def _attention(self) -> tuple[tuple[int, _Reads], ...]:
        """Numbers of alike layers that read all of their window, or of the context."""
        shape = self._shape
        own = _Reads(self._heads, self._kv_heads, shape.head_dim, 0)
        chosen = sum(count for count, _ in self._sparse_layers)
        full = own
        if shape.full_heads is not None:
            tp = self._layout.attention_tp
            kv_heads = ceil(shape.full_heads.kv_heads / tp)
            full = _Reads(shape.full_heads.heads / tp, kv_heads, shape.full_heads.head_dim, 0)
        windowed = own._replace(window=shape.sliding_window)
        whole = shape.cached_layers - shape.windowed_layers - chosen
        return (whole, full), (shape.windowed_layers, windowed)

    def _selective(self, phase: str, layer: SparseLayer, seqs: Any, length: Any, past: Array) -> Array:
        """Attention to a part of the context. With a KV cache in 8 bits no longer than in 16."""
        names = [f"{layer.name}_{phase}/{form}" for form in self._kv_forms]
        names += [f"{layer.name}_{phase}/{form}" for form in ("bfloat16", "fp8")]
        ns = [
            self._ns([name, *names], lambda gpu: sparse(gpu, layer, seqs, length, past))
            for name in names[: len(self._kv_forms)]
        ]
        return np.minimum(ns[0], ns[-1])

    def _context(self, prompts: float, chunk: Array, past: Array, of: _Reads) -> Array:
        """With a KV cache in 8 bits no longer than in 16."""
        ns = [self._context_of(form, prompts, chunk, past, of) for form in self._kv_forms]
        return np.minimum(ns[0], ns[-1])

    def _decode(self, seqs: Array, context: Array, of: _Reads) -> Array:
        """The same."""
        ns = [self._decode_of(form, np.maximum(seqs, 1.0), context, of) for form in self._kv_forms]
        return np.minimum(ns[0], ns[-1])

    def _context_of(self, kv_form: str, prompts: float, chunk: Array, past: Array, of: _Reads) -> Array:
        shape, (heads, kv_heads, dim, window) = self._shape, of
        length = np.maximum(chunk, 1.0)
        if shape.latent is not None:
            names = [f"mla_context/{form}" for form in (kv_form, "bfloat16", "fp8")]
            ns = self._ns(names, lambda gpu: work.mla_context(gpu, prompts, length, past, heads))
            expanded = heads * (shape.latent.nope_dim + shape.latent.value_dim)
            rows = prompts * (length + past)
            return ns + self._gemm(self._input_form, rows, expanded, shape.latent.kv_rank)
        return self._ns(
            self._attention_names("context", kv_form, dim, window),
            lambda gpu: work.context(gpu, prompts, length, past, heads, kv_heads, dim, window),
        )

    def _latent_decode(self, kv_form: str, seqs: Array, context: Array, heads: float) -> Array:
        """A part of the heads takes no longer than a larger part, of which another kernel was measured."""
        ns = self._latent_decode_of(kv_form, seqs, context, heads)
        while (heads := 2 * heads) <= self._shape.heads:
            ns = np.minimum(ns, self._latent_decode_of(kv_form, seqs, context, heads))
        return ns

    def _latent_decode_of(self, kv_form: str, seqs: Array, context: Array, heads: float) -> Array:
        names = [f"mla_decode/{other}" for other in (kv_form, "bfloat16", "fp8")]
        return self._ns(names, lambda gpu: work.mla_decode(gpu, kv_form, seqs, context, heads))

    def _decode_of(self, kv_form: str, seqs: Array, context: Array, of: _Reads) -> Array:
        shape, (heads, kv_heads, dim, window) = self._shape, of
        if shape.latent is not None:
            absorbs = ["absorb/bfloat16", "absorb/fp8"]
            absorbed = 2.0 * self._ns(absorbs, lambda gpu: work.absorb(gpu, seqs, heads))
            return self._latent_decode(kv_form, seqs, context, heads) + absorbed
        return self._ns(
            self._attention_names("decode", kv_form, dim, window),
            lambda gpu: work.decode(gpu, kv_form, seqs, context, heads, kv_heads, dim, window),
        )

    @staticmethod
    def _attention_names(phase: str, kv_form: str, head_dim: int, window: int) -> list[str]:
        """Nearest measured head dimension, with or without a window."""
        dims = sorted((64, 128, 256), key=lambda dim: abs(np.log2(dim / head_dim)))
        forms = (kv_form, "bfloat16")
        windows = (128, 0) if window else (0,)
        return [f"{phase}/{form}/{dim}/{w}" for dim in dims for w in windows for form in forms]

    # --- operators ---------------------------------------------------------------------------------

    @property
    def dispatches(self) -> bool:
        """Whether DeepEP brings tokens to their experts."""
        return self._kernel == "deepep" and self.has_experts_by("deepep")

    @property
    def _of_trtllm(self) -> str:
        """Kernel of experts that TensorRT-LLM chooses; for MXFP4 on Hopper `model_config.py`,
        `resolve_moe_backend`."""
        if self._expert_form == _HOPPER_MXFP4:
            return "triton"
        return "cutlass" if self._layout.attention_dp > 1 else "trtllm"

    def has_experts_by(self, kernel: str) -> bool:
        """Whether a kernel of experts was measured in this format, or dispatches tokens."""
        if kernel == kernel_of_rows(self._engine, self._expert_form, bool(self._gpu.fp4_flops)):
            return True
        if kernel == "deepep":
            return self._layout.ep > 1 and self._has_here("all_to_all/deepep")
        if kernel == "marlin":
            return self._expert_form in work.MARLIN_FORMS and self._has_here(f"marlin/{self._routing}")
        return self._has_here(f"experts/{self._priced_form}@{kernel}/{self._routing}")

    @property
    def prices_prompts_apart(self) -> bool:
        """Whether feed-forward layers take another time where tokens of prompts are among the others."""
        return self.dispatches or self._gathers

    def _of_mode(self, prompts: bool) -> str:
        """Kernel of experts; DeepEP has two modes (`--deepep-mode auto`)."""
        return "deepep-ll" if self.dispatches and not prompts else self._kernel

    @property
    def _gathers(self) -> bool:
        """Whether steps with prompts gather the tokens of replicated attention by an all-reduce over a buffer
        with room for all, and the sums of experts by another: SGLang's `DpPaddingMode.SUM_LEN`. Its kernels
        by CUTLASS gather tokens quantised to 4 bits, and scatter the sums."""
        quantised = self._kernel == "cutlass" and self._expert_form == "nvfp4"
        return (
            self._engine == "sglang"
            and self._layout.attention_dp > 1
            and not quantised
            and not self.dispatches
        )

    def projections(self, tokens: Array) -> Array:
        """Matrix products before and behind the attention of one layer with a KV cache."""
        shape, heads, gemm = self._shape, self._heads, self._gemm
        form, latent = self._input_form, shape.latent
        out_form = self._form(shape.weights.output or shape.weights.attention)
        if shape.compressed is not None:
            return self._compressed_projections(shape.compressed, tokens)
        if shape.full_heads is not None:
            return self._mean_projections(shape.full_heads, tokens)
        if latent is None:
            width = (heads * (2 if shape.gated_attention else 1) + 2 * self._kv_heads) * shape.head_dim
            ns = self._normed_gemm(form, tokens, width, shape.hidden)
            return ns + self._fed_gemm(out_form, tokens, shape.hidden, heads * shape.head_dim)
        queries = heads * (latent.nope_dim + latent.rope_dim)
        down, up = latent.cached_elements + latent.query_rank, latent.query_rank
        ns = gemm(form, tokens, down if up else down + queries, shape.hidden)
        ns = ns + (gemm(form, tokens, queries, up) if up else 0.0)
        if shape.gated_attention:
            ns = ns + gemm(form, tokens, heads * latent.value_dim, shape.hidden)
        return ns + gemm(out_form, tokens, shape.hidden, heads * latent.value_dim)

    def _compressed_projections(self, compressed: CompressedAttention, tokens: Array) -> Array:
        """Down to queries and keys, queries, and outputs in groups of heads."""
        shape, tp, gemm = self._shape, self._layout.attention_tp, self._gemm
        form, rank = self._form(shape.weights.attention), compressed.output_rank
        ns = gemm(form, tokens, compressed.query_rank + compressed.head_dim, shape.hidden)
        ns = ns + gemm(form, tokens, self._heads * compressed.head_dim, compressed.query_rank)
        ns = ns + gemm(form, tokens, rank, self._heads * compressed.head_dim)
        return ns + gemm(form, tokens, shape.hidden, max(compressed.output_groups / tp, 1) * rank)

    def _mean_projections(self, full: GroupedHeads, tokens: Array) -> Array:
        """Mean over layers with a window and layers with heads of another shape."""
        shape, tp = self._shape, self._layout.attention_tp
        both = (
            (shape.windowed_layers, self._heads, self._kv_heads, shape.head_dim),
            (self._attention[0][0], full.heads / tp, ceil(full.kv_heads / tp), full.head_dim),
        )
        form, out_form = self._input_form, self._form(shape.weights.output or shape.weights.attention)
        ns = np.zeros_like(tokens)
        for count, heads, kv_heads, dim in both:
            own = self._normed_gemm(form, tokens, (heads + 2 * kv_heads) * dim, shape.hidden)
            own = own + self._fed_gemm(out_form, tokens, shape.hidden, heads * dim)
            ns = ns + count / shape.cached_layers * own
        return ns

    def _norm_over_heads(self, tokens: Array) -> Array:
        """Queries and keys normalised over the heads of all ranks: mean squares, their sums over the ranks,
        and a pass that scales."""
        tp, width = self._layout.attention_tp, (self._heads + self._kv_heads) * self._shape.head_dim
        ns = 2.0 * self._move(tokens, width)
        return ns + 2.0 * self.all_reduce(tp, tokens * (2.0 / self._shape.hidden)) if tp > 1 else ns

    def _linear_projections(self, tokens: Array) -> Array:
        linear, shape, tp = self._shape.linear, self._shape, self._layout.attention_tp
        if linear is None:
            return np.zeros_like(tokens)
        form = self._form(shape.weights.linear)
        ns = self._gemm(form, tokens, linear.projected / tp, shape.hidden)
        if linear.gate_rank:
            values = linear.value_heads * linear.value_dim / tp
            ns = ns + self._gemm("bfloat16", tokens, values, linear.gate_rank)
        return ns + self._gemm(form, tokens, shape.hidden, linear.value_heads * linear.value_dim / tp)

    def _gated(self, tokens: Array, width: float, weight_bytes: float) -> Array:
        """A feed-forward of three matrices, or of two without a gate."""
        form, inputs = self._form(weight_bytes), self._shape.ffn_matrices - 1
        ns = self._normed_gemm(form, tokens, inputs * width, self._shape.hidden)
        ns = ns + self._fed_gemm(form, tokens, self._shape.hidden, width, self._compiled)
        return ns + self._move(tokens, 2 * width)

    def _sparse(self, tokens: Array, prompts: bool) -> Array:
        shape, layout = self._shape, self._layout
        ns = self._by_marlin(tokens) if self._kernel == "marlin" else None
        if ns is None:
            ns = self._experts(tokens, prompts)
        rank_tokens = np.ceil(tokens / layout.attention_dp)
        ns = ns + self._router(rank_tokens)
        if shape.shared_intermediate:
            shared = shape.shared_intermediate / layout.attention_tp
            ns = ns + self._gated(rank_tokens, shared, shape.weights.shared)
        if shape.expert_hidden:  # to and from the width of the experts, on every rank
            form = self._form(shape.weights.shared)
            ns = ns + self._gemm(form, rank_tokens, shape.expert_hidden, shape.hidden)
            ns = ns + self._gemm(form, rank_tokens, shape.hidden, shape.expert_hidden)
        return ns

    def _experts(self, tokens: Array, prompts: bool) -> Array:
        """A part of an expert takes no longer than a larger part, of which another kernel was measured."""
        width, whole = self._shape.moe_intermediate / self._layout.expert_tp, self._shape.moe_intermediate
        ns = self._experts_of(width, tokens, prompts)
        while (width := 2 * width) <= whole:
            ns = np.minimum(ns, self._experts_of(width, tokens, prompts))
        return ns

    def _experts_of(self, width: float, tokens: Array, prompts: bool) -> Array:
        """Experts of which a rank has so much of the width."""
        shape, layout = self._shape, self._layout
        form = self._expert_form
        local, hidden = layout.experts_per_group(shape), self._expert_hidden
        sizes = sizes_of(hidden, width, local, shape.experts, shape.experts_per_token)
        named = f"experts/{self._priced_form}@{self._of_mode(prompts)}/{self._routing}"
        plain = [f"experts/{other}/{self._routing}" for other in _ALIKE[self._priced_form]]
        names = [named] if self._has_here(named) else plain
        names = [f"{names[0]}/{sizes}", *names]
        return self._ns(
            names,
            lambda gpu: work.experts(
                gpu, form, tokens, hidden, width, self._chosen, local, layout.ep, matrices=shape.ffn_matrices
            ),
        )

    @property
    def _expert_hidden(self) -> int:
        """Width of the vectors between which experts map."""
        return self._shape.expert_hidden or self._shape.hidden

    @property
    def _priced_form(self) -> str:
        """Format whose rows price the experts. vLLM's rows of FP8 by tensor on Hopper are those of
        FlashInfer's kernel by CUTLASS for ModelOpt's checkpoints: a median of 2.5 times the time of 16 bits.
        The rows with block scales, of as many bytes and operations, stand in; their median is 1.03 times that
        of the rows by tensor of vLLM 0.19 on H200, which are of its own kernel."""
        doubtful = self._expert_form == "fp8" and self._compiled and not self._gpu.fp4_flops
        return "fp8_block" if doubtful else self._expert_form

    def _by_marlin(self, tokens: Array) -> Array | None:
        """Experts in 4 bits by Marlin, for whose tiles vLLM pads them (`Mxfp4MoEMethod.create_weights`); None
        where it was not measured or they have another format."""
        shape, layout, name = self._shape, self._layout, f"marlin/{self._routing}"
        if self._expert_form not in work.MARLIN_FORMS or not self._has_here(name):
            return None
        sizes = self._expert_hidden, shape.moe_intermediate / layout.expert_tp
        hidden, width = (tile * ceil(size / tile) for size, tile in zip(sizes, _MARLIN_TILES, strict=True))
        chosen, local = self._chosen, layout.experts_per_group(shape)
        return self._ns([name], lambda gpu: work.marlin(gpu, tokens, hidden, width, chosen, local, layout.ep))

    def _router(self, tokens: Array) -> Array:
        """Scores and the choice of the experts. In FP32, tokens are converted first, and partial sums of a
        split product added up behind it (vLLM's `minimax_m2.py`, its pull request 38445)."""
        experts, hidden = self._shape.experts, self._shape.hidden
        ns = self._gemm("bfloat16", tokens, experts, hidden)
        if self._shape.router_fp32:
            ns = np.maximum(ns, work.fp32_arithmetic(self._gpu, tokens, experts, hidden))
            ns = ns + self._move(tokens, hidden) + self._move(tokens, experts)
        return ns + self._move(tokens, experts)

    def _exchange(self, tokens: Array, prompts: bool) -> Array:
        """Sum of a layer's outputs over the ranks; with replicated attention, tokens to all ranks first and
        sums back, or only to the ranks of their experts and back, whichever is faster. The way there takes
        half of an all-reduce, less in 4 bits, in which engines quantise tokens before they gather them."""
        layout = self._layout
        rank_tokens = np.ceil(tokens / layout.attention_dp)
        if self.dispatches:
            return self._sent(f"all_to_all/{self._of_mode(prompts)}", rank_tokens)
        ns = self.all_reduce(layout.gpus, tokens)
        if prompts and self._gathers:
            return 2.0 * ns
        if layout.attention_dp == 1:
            return ns
        if self._expert_form == "nvfp4":
            ns = ns * (0.5 + 0.5 * work.WEIGHT_BYTES["nvfp4"] / 2.0)
        if layout.ep == 1:
            return ns
        for kind in ("all_to_all/ll", "all_to_all/ht"):
            if any(learned.has(kind) for learned in self._learned):
                ns = np.minimum(ns, self._sent(kind, rank_tokens))
        return ns

    def _sent(self, kind: str, tokens: Array) -> Array:
        """The tokens of a rank to the ranks of their experts, and back."""
        hidden, top_k = self._expert_hidden, self._shape.experts_per_token
        return self._over_link([kind], lambda gpu, times: work.all_to_all(gpu, tokens * times, hidden, top_k))

    def all_reduce(self, ranks: int, tokens: Array) -> Array:
        moved = tokens * self._shape.hidden * 2.0
        names = [f"all_reduce/{n}" for n in sorted((2, 4, 8), key=lambda n: abs(np.log2(n / ranks)))]
        return self._over_link(names, lambda gpu, times: work.all_reduce(gpu, ranks, moved * times))

    def _gemm(self, form: str, m: Array, n: float, k: float) -> Array:
        """A matrix product with the quantisation of its input."""
        return self._product(form, m, n, k) + self._quantised(form, m, k)

    def _normed_gemm(self, form: str, m: Array, n: float, k: float) -> Array:
        """The same after a norm, which an all-reduce may hold. Static scales are applied there, too, and
        always by vLLM, whose compiler joins the two."""
        if form == "fp8" and self._compiled:
            return self._product(form, m, n, k)
        quantised = self._quantised(form, m, k)
        return self._product(form, m, n, k) + (self._unfused(m, quantised) if form == "fp8" else quantised)

    def _fed_gemm(self, form: str, m: Array, n: float, k: float, joined: bool = False) -> Array:
        """The same after attention or an activation, which quantise themselves in TensorRT-LLM.

        Args:
            joined: a compiler makes one kernel of the activation and static quantisation.
        """
        fed = form == "fp8" and (self._kernels_quantise or joined)
        return self._product(form, m, n, k) + (0.0 if fed else self._quantised(form, m, k))

    def _product(self, form: str, m: Array, n: float, k: float) -> Array:
        rows = np.maximum(m, 1.0)
        names = [f"gemm/{other}" for other in _ALIKE[form]]
        return self._ns(names, lambda gpu: work.gemm(gpu, form, rows, n, k))

    def _quantised(self, form: str, m: Array, k: float) -> Array:
        return self._move(m, k) if form not in ("bfloat16", "int4_wo", _HOPPER_MXFP4) else np.zeros_like(m)

    def _unfused(self, tokens: Array, ns: Array) -> Array:
        """Operations that an all-reduce with few tokens does on its way at no cost."""
        return np.where(tokens <= _FUSED_TOKENS, 0.0, ns) if self._fused else ns

    def _move(self, rows: Array, width: float) -> Array:
        return self._ns(["move"], lambda gpu: work.move(gpu, np.maximum(rows, 1.0), width))

    def _over_link(self, names: Sequence[str], price: Callable[[GpuSpec, float], Priced]) -> Array:
        """An exchange. Over a link that was not measured it takes as long as what the measured one carries in
        the same time, and what this one takes longer for the smallest.

        Args:
            price: of a GPU, for so many times the bytes.
        """
        operators = self._surface(names)
        if operators is None:
            return price(self._gpu, 1.0).ns
        name, surface = operators
        measured_on = load_gpu(name)
        slower = measured_on.link_bytes_per_s / self._gpu.link_bytes_per_s
        longer_ns = self._gpu.all_reduce_overhead_ns - measured_on.all_reduce_overhead_ns
        return surface.ns(price(measured_on, slower)) + max(longer_ns, 0.0)

    def _ns(self, names: Sequence[str], price: Callable[[GpuSpec], Priced]) -> Array:
        """A kernel. Where it was measured on another GPU, its time beyond the roofline is that of moving
        bytes: it does not grow where arithmetic alone is slower."""
        here, operators = price(self._gpu), self._surface(names)
        if operators is None:
            return here.ns
        name, surface = operators
        if name == self._gpu.name.lower():
            return surface.ns(here)
        measured_on = load_gpu(name)
        there = price(measured_on)
        beyond = surface.ns(there) / there.ns - 1.0
        slower = measured_on.hbm_bytes_per_s / self._gpu.hbm_bytes_per_s
        return np.asarray(here.ns + beyond * np.where(beyond > 0, there.ns * slower, here.ns))

    def _surface(self, names: Sequence[str]) -> tuple[str, Surface] | None:
        """The first that was learned, and the GPU it was learned on."""
        for learned in self._learned:
            for name in names:
                if learned.has(name):
                    return learned.gpu, learned.named(name)
        return None

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Kinds of layers whose kernels were not measured on this GPU, with what stands in."""
        return tuple(self._unmeasured())

    def _unmeasured(self) -> Iterator[str]:
        for count, layer in self._sparse_layers:
            if count and (instead := self._stand_in(f"{layer.name}_decode/")):
                yield f"{layer.title}: {instead}"
        linear, shape = self._shape.linear, self._shape
        if linear is not None and linear.kind != "gdn":
            instead = self._stand_in(f"{linear.kind}_decode")
            if instead == _NO_KERNELS:
                instead += ", the efficiency of gated delta rule stands in"
            if instead:
                yield f"{LINEAR_TITLES[linear.kind]}: {instead}"
        if shape.residual_streams > 1 and (instead := self._stand_in("streams")):
            yield f"mixed hidden vectors (hyper-connections): {instead}"
        if shape.moe_layers and shape.ffn_matrices == 2:
            yield "experts without a gate: the efficiency of gated ones stands in"
        if shape.full_heads is not None and shape.full_heads.head_dim > _LARGEST_HEAD:
            dim = shape.full_heads.head_dim
            yield f"heads of {dim} elements: the efficiency of {_LARGEST_HEAD} stands in"

    def _stand_in(self, start: str) -> str:
        """Origin of the efficiency of a kernel whose name starts so; empty if it is this GPU's own."""
        there = next((of.gpu for of in self._learned if any(name.startswith(start) for name in of.of)), "")
        if there == self._gpu.name.lower():
            return ""
        return f"kernels of {load_gpu(there).name} stand in" if there else _NO_KERNELS

    def _has_here(self, name: str) -> bool:
        """Whether a kernel was measured on this GPU, or the one that stands in for it, under any engine."""
        return any(of.has(name) for of in self._learned if of.gpu == self._learned[0].gpu)

    # --- number formats ----------------------------------------------------------------------------

    @property
    def _input_form(self) -> str:
        """Number format of the projections before attention, which some checkpoints leave alone while
        its output is quantised."""
        w = self._shape.weights
        return self._form(2.0 if w.output and w.output < w.attention else w.attention)

    @property
    def _expert_form(self) -> str:
        return self._form(self._shape.weights.experts)

    def _form(self, weight_bytes: float) -> str:
        """The format in which weights of this size are multiplied."""
        weights, gpu = self._shape.weights, self._gpu
        if weight_bytes >= 2:
            return "bfloat16"
        arithmetic = weights.format_of(weight_bytes)
        if arithmetic == "fp8":
            return "fp8_block" if weights.block_scales else "fp8"
        if arithmetic == "fp4" and weight_bytes == work.WEIGHT_BYTES["w4a16_mxfp4"]:
            return _BLACKWELL_MXFP4 if gpu.fp4_flops else _HOPPER_MXFP4
        if arithmetic == "fp4" and gpu.fp4_flops:
            return "nvfp4"
        return "fp8" if arithmetic == "int8" else "int4_wo"
