"""Step time from architecture and datasheet, corrected by coefficients learned on measured kernels and steps.

The terms are those of `work` at the datasheet's peaks (F FLOP/ns, BW byte/ns, no efficiency assumed). Every
coefficient below is learned once for all models, GPUs and TP degrees, and none is negative. L layers, R
ranks, T tokens, B sequences, D decode sequences with contexts S:

    matrix products   max(matmul_arithmetic*FLOPs/F, traffic*bytes/BW + unhidden_arithmetic*FLOPs/F)
                      each of projections, dense FFN, LM head, all layers; sparse_arithmetic and
                      sparse_unhidden for the experts of a sparse FFN; narrow_arithmetic, narrow_traffic
                      and narrow_unhidden where weights and activations have 8 bits
    elementwise, sampling   traffic*bytes/BW
    prefill attention max(attention_pairs*pair FLOPs/F, kv_traffic*KV bytes*(cached + 2*new)/BW)
                      narrow_kv_traffic where the KV cache has 8 bits
    decode attention  max(attention_pairs*FLOPs of S + D pairs/F, kv_traffic*KV bytes*(S + 2*D)/BW)
                      beside a prefill, on GPUs without packed attention, instead of the former:
                      mixed_decode_tiles*FLOPs of 64*(S + 128*D) pairs/F
    all-reduce        2*L*(all_reduce_latency*P*the profile's latency + all_reduce_traffic*bytes/link)
                      and rank_wait_ns*2*L*P*(R - 1), P stages
    launches          layer_ns*L + sparse_layer_ns*sparse layers
                      narrow_layer_ns*L more where activations are quantised to 8 bits
    host              host_step_ns + host_seq_ns*B

`unhidden_arithmetic` is the share of arithmetic that a product bound by memory does not hide behind it. A
mixed batch is one attention launch, in which an unpacked kernel gives a decode's only query a tile of 64 rows
by 128 keys, the last one almost empty; FlashAttention 3 and FlashInfer pack the query heads of a KV head into
the tile instead. Experts have fewer rows each than a dense layer, so their products reach less of the peak.
With R ranks each of the two all-reduces of a layer waits for the last of them, which kernels measured alone
do not show.

FP8 and INT8 products count with the peak of their format; measured were FP8 ones of dense models. 4-bit
weights count as expanded to 16 bits, with their own bytes. Windowed attention layers are priced as full ones.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.yaml_files import load_mapping
from blis_py.hardware.capacity import check_tp
from blis_py.hardware.gpu import GpuSpec
from blis_py.latency import work
from blis_py.latency.base import FrontendDelays
from blis_py.latency.learned import NOTHING_KNOWN, Learned, kind_of, read_learned
from blis_py.latency.line_model import LineModel
from blis_py.latency.notes import LargestBatch
from blis_py.latency.work import AllReduce, Work
from blis_py.models.model_shape import ModelShape

PACKED_ATTENTION_GPUS = frozenset({"H100", "H200", "B200"})
"""GPUs on which vLLM runs FlashAttention 3 (Hopper) or FlashInfer's kernels (B200) by default."""
TILE_ROWS, TILE_KEYS = 64, 128


@dataclass(frozen=True, slots=True)
class Coefficients:
    """See the formulas above. Coefficients without a unit are multiples of the datasheet's time."""

    matmul_arithmetic: float
    traffic: float
    unhidden_arithmetic: float
    sparse_arithmetic: float
    sparse_unhidden: float
    narrow_arithmetic: float
    narrow_traffic: float
    narrow_unhidden: float
    attention_pairs: float
    kv_traffic: float
    narrow_kv_traffic: float
    mixed_decode_tiles: float
    all_reduce_latency: float
    all_reduce_traffic: float
    layer_ns: float
    sparse_layer_ns: float
    narrow_layer_ns: float
    host_step_ns: float
    host_seq_ns: float
    rank_wait_ns: float


COEFFICIENT_NAMES = tuple(field.name for field in fields(Coefficients))


@dataclass(frozen=True, slots=True)
class Training:
    """Coefficients and their training data."""

    coefficients: Coefficients
    gpus: tuple[str, ...]
    """GPUs with measurements among the training data, as named in their profiles."""
    learned: Learned = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class ServerTerms:
    """Deviation of one server's step times from those learned on others."""

    scale: float = 1.0
    """Factor of the GPU's part."""
    gap_ns: float = 0.0
    """Time between two steps."""
    gap_seq_ns: float = 0.0
    """The same per sequence of the step."""
    most_seqs: int = 0
    """Sequences up to which that was seen; more count as so many. 0 = no limit."""

    def on(self, c: Coefficients) -> Coefficients:
        """The coefficients for that server."""
        scaled = {name: getattr(c, name) * self.scale for name in COEFFICIENT_NAMES}
        scaled["host_step_ns"] = c.host_step_ns + self.gap_ns
        scaled["host_seq_ns"] = c.host_seq_ns + self.gap_seq_ns
        scaled["rank_wait_ns"] = c.rank_wait_ns
        return Coefficients(**scaled)

    def beyond_ns(self, seqs: int) -> float:
        """Time of sequences that do not count."""
        return self.gap_seq_ns * max(seqs - self.most_seqs, 0) if self.most_seqs else 0.0

    def describe(self) -> str:
        parts = [] if self.scale == 1 else [f"x {self.scale:.4g}"]
        parts += [f"+ {self.gap_ns / 1e3:.4g} us a step"] if self.gap_ns else []
        parts += [f"+ {self.gap_seq_ns / 1e3:.4g} us a sequence"] if self.gap_seq_ns else []
        return f" {', '.join(parts)}" if parts else ""


class Trained(LineModel):
    """Step times by the formulas above, to the nearest ns; see `LatencyModel`.

    Args:
        shape, gpu, tp: model, accelerator, tensor-parallel degree.
        training: coefficients to use instead of the bundled ones.
        server: deviation of one server.

    Raises:
        InputError: a TP degree that does not divide the model, or exceeds the number of GPUs joined by the
            link.
    """

    name = "trained"

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuSpec,
        tp: int = 1,
        training: Training | None = None,
        server: ServerTerms | None = None,
    ) -> None:
        super().__init__()
        check_tp(shape, tp)
        gpu.require_links(tp)
        self._made_of = shape, gpu, tp, training
        training = training or bundled_training()
        self._learned = training.learned
        unseen = "" if gpu.name in training.gpus else f" (none of them on {gpu.name})"
        self.provenance = (
            f"roofline trained on kernels and steps measured on {', '.join(training.gpus)}{unseen}, "
            f"{shape.name} on {gpu.name} TP{tp}{server.describe() if server else ''}"
        )
        self.frontend = FrontendDelays()
        self._basis, self._c = Basis(shape, gpu, tp), training.coefficients
        self._server = server or ServerTerms()
        if server is not None:
            self._c = server.on(self._c)
        limit = self._server.most_seqs
        self.outside = LargestBatch(limit, (self._by_seqs, self._decodes) if limit else ())
        self._pair_ns = self._c.attention_pairs * self._basis.pair_ns
        self._by_tokens, self._by_rows = _prices(shape, gpu, tp, self._c)
        self._kv_ns = self._basis.kv_ns
        self._kv_ns *= self._c.narrow_kv_traffic if self._basis.narrow_kv else self._c.kv_traffic
        self._mixed_pair_ns, self._mixed_seq_pairs = self._pair_ns, 1
        if not self._basis.packed_attention:
            tile_ns = self._c.mixed_decode_tiles * TILE_ROWS * self._basis.pair_ns
            self._mixed_pair_ns, self._mixed_seq_pairs = max(tile_ns, self._pair_ns), TILE_KEYS

    def beyond(self, longest_tokens: int = 0) -> str:
        """Aspects of a run with sequences of this length that are outside the training data, in one line; may
        be empty."""
        shape, gpu, tp, _ = self._made_of
        return self._learned.beyond(shape, gpu, tp, longest_tokens)

    def on_server(self, server: ServerTerms) -> Trained:
        """The same model for another server."""
        return Trained(*self._made_of, server)

    # --- groups --------------------------------------------------------------------------------------

    def _tokens_ns(self, tokens: int) -> float:
        """Everything except attention and LM head, for `tokens` tokens; half a ns added for rounding."""
        c, basis = self._c, self._basis
        ns = sum(map(self._product_ns, basis.products(tokens)))
        ns += c.traffic * basis.elementwise_ns(tokens)
        ns += c.all_reduce_latency * basis.all_reduce_latency_ns(tokens)
        ns += c.all_reduce_traffic * basis.all_reduce_ns(tokens)
        ns += c.rank_wait_ns * basis.waits(tokens)
        ns += c.layer_ns * basis.shape.layers + c.sparse_layer_ns * basis.shape.moe_layers
        return ns + (c.narrow_layer_ns * basis.narrow_layers + 0.5)

    def _rows_ns(self, rows: int) -> float:
        return self._product_ns(self._basis.head(rows)) + self._c.traffic * self._basis.sampling_ns(rows)

    def _product_ns(self, product: Product) -> float:
        c, (arithmetic, traffic, kind) = self._c, product
        if kind == "narrow":
            return max(
                c.narrow_arithmetic * arithmetic, c.narrow_traffic * traffic + c.narrow_unhidden * arithmetic
            )
        if kind == "sparse":
            return max(c.sparse_arithmetic * arithmetic, c.traffic * traffic + c.sparse_unhidden * arithmetic)
        return max(c.matmul_arithmetic * arithmetic, c.traffic * traffic + c.unhidden_arithmetic * arithmetic)

    def _host_ns(self, seqs: int) -> int:
        c = self._c
        self.outside.record(seqs)
        return int(c.host_step_ns + c.host_seq_ns * seqs - self._server.beyond_ns(seqs) + 0.5)


@lru_cache(maxsize=16)
def _prices(
    shape: ModelShape, gpu: GpuSpec, tp: int, c: Coefficients
) -> tuple[dict[int, float], dict[int, float]]:
    """Prices by number of tokens and of rows, shared by all models with the same formula."""
    return {}, {}


Kind = Literal["dense", "sparse", "narrow"]
"""Kind of matrix products: in 16 bits, those of experts, and of any layer with 8-bit numbers."""
Product = tuple[float, float, Kind]
"""ns of arithmetic and of memory traffic that a group of matrix products takes at the datasheet's peaks."""


class Basis:
    """The terms of a step before any coefficient: ns at the datasheet's peaks, all layers, one rank."""

    def __init__(self, shape: ModelShape, gpu: GpuSpec, tp: int) -> None:
        self.shape, self._gpu, self._tp = shape, gpu, tp
        self._flops_per_ns = gpu.fp16_flops / 1e9
        self._bytes_per_ns = gpu.hbm_bytes_per_s / 1e9
        self.pair_ns = work.pair_flops(shape, tp) / self._flops_per_ns
        self.kv_ns = work.kv_token_bytes(shape, tp) / self._bytes_per_ns
        self.narrow_kv = shape.kv_dtype_bytes == 1
        narrow = bool(gpu.narrow_flops(shape.weights.arithmetic))
        self.narrow_layers = shape.layers if narrow else 0
        self.packed_attention = gpu.name in PACKED_ATTENTION_GPUS

    def products(self, tokens: int) -> list[Product]:
        """Projections and feed-forward layers."""
        shape, tp = self.shape, self._tp
        weights = shape.weights
        groups = [self._product(shape.layers, work.projections(shape, tp, tokens), weights.attention)]
        dense_layers = shape.layers - shape.moe_layers
        if dense_layers:
            groups.append(self._product(dense_layers, work.dense_ffn(shape, tp, tokens), weights.dense))
        if shape.moe_layers:
            sparse = work.sparse_ffn(shape, tp, tokens)
            groups.append(self._product(shape.moe_layers, sparse, weights.experts, "sparse"))
        return groups

    def head(self, rows: int) -> Product:
        return self._product(1, work.head(self.shape, self._tp, rows), self.shape.weights.head)

    def elementwise_ns(self, tokens: int) -> float:
        return work.elementwise_bytes(self.shape, self._tp, tokens) / self._bytes_per_ns

    def sampling_ns(self, rows: int) -> float:
        return work.sampling_bytes(self.shape, rows) / self._bytes_per_ns

    def waits(self, tokens: int) -> int:
        """Ranks that are waited for, over all stages of all all-reduces."""
        return 2 * self.shape.layers * self._all_reduce(tokens).stages * (self._tp - 1)

    def all_reduce_latency_ns(self, tokens: int) -> float:
        """Latency of all stages of the all-reduces."""
        return 2 * self.shape.layers * self._all_reduce(tokens).stages * self._gpu.all_reduce_overhead_ns

    def all_reduce_ns(self, tokens: int) -> float:
        """Time of the all-reduces without the latency."""
        volume = 2 * self.shape.layers * self._all_reduce(tokens).read_bytes
        return volume / (self._gpu.link_bytes_per_s / 1e9)

    def _all_reduce(self, tokens: int) -> AllReduce:
        return work.all_reduce(self.shape, self._tp, tokens, self._gpu.has_fabric)

    def _product(self, count: int, group: Work, weight_bytes: float, kind: Kind = "dense") -> Product:
        peak = self._gpu.narrow_flops(self.shape.weights.format_of(weight_bytes))
        flops_per_ns = peak / 1e9 if peak else self._flops_per_ns
        kind = "narrow" if peak else kind
        return count * group.flops / flops_per_ns, count * group.moved_bytes / self._bytes_per_ns, kind


@cache
def bundled_training() -> Training:
    """The coefficients in `profiles/trained`."""
    return read_training(bundled.root("profiles") / "trained" / "coefficients.yaml")


def learned_experts(shape: ModelShape, gpu: GpuSpec) -> bool:
    """Whether the bundled coefficients were learned on experts of this format on this GPU."""
    weights = shape.weights
    if min(weights.experts, weights.dense, weights.attention) < 2:
        return False
    return gpu.name in bundled_training().learned.tp.get(kind_of(shape), {})


def read_training(path: Path) -> Training:
    """Read a file written by `benchmarks/accuracy/train.py`.

    Raises:
        InputError: unreadable, or a coefficient missing, unknown, negative or not a number.
    """
    top = load_mapping(path)
    try:
        coefficients, gpus = dict(top["coefficients"]), tuple(map(str, top["gpus"]))
        learned = read_learned(top.get("learned_on") or {})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        fix = "write it with benchmarks/accuracy/train.py"
        raise InputError("no trained coefficients", file=path, value=str(error), fix=fix) from None
    for name in COEFFICIENT_NAMES:
        value = coefficients.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            key = f"coefficients.{name}"
            raise InputError("must be a number, not negative", file=path, key=key, value=value)
    unknown = [name for name in coefficients if name not in COEFFICIENT_NAMES]
    if unknown:
        raise InputError("unknown key", file=path, key=f"coefficients.{unknown[0]}")
    return Training(Coefficients(**coefficients), gpus, learned)
