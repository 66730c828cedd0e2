"""Learn the operator surfaces of `trained`: how far each kind of kernel stays below the datasheet's roofline.

    python benchmarks/accuracy/train_operators.py ../shared/data [--only b200]

Reads the measured kernel tables (NVIDIA AIConfigurator, Apache-2.0) and writes `profiles/operators`: for each
GPU, engine, kind of operator and number format the logarithm of measured over roofline time, multilinear in
the logarithms of an operator's sizes. Its values at a few knots are a ridge regression over all rows; no
row is stored. Experts of the sizes of bundled models have a curve over the tokens besides: an engine has
several kernels for experts, and which one runs depends on the sizes. It prints the mean absolute error of
each surface.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array

from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency import operator_work as work
from blis_py.latency.operator_work import Priced
from blis_py.latency.surfaces import corners_of, sizes_of
from blis_py.models.model_shape import known_models, load_model

OUT = Path(__file__).resolve().parents[2] / "profiles" / "operators"
SYSTEMS = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "gb300": "gb300",
}
MODULES = {"sglang": "sglang_0.5.10"}
"""Versions whose tables hold the attention of a layer with its launches from Python, outside a graph."""
VERSIONS = {
    "vllm": ("vllm_0.24.0", "vllm_0.14.0"),
    "sglang": ("sglang_0.5.14",),
    "trtllm": ("trtllm_1.3.0rc20",),
}
"""Versions of the tables; the second one supplies what the first one lacks."""
MAX_ROWS = 40_000
"""Of a surface; more are thinned out evenly."""
SMOOTHING = 0.02
MIN_OF_A_CURVE = 10
"""Token counts measured for experts of one size; below, the surface of all sizes has to do."""
MAX_GPUS = 8
"""Of a curve for experts whose matrices are split."""
CURVE_KNOTS = (-3, 0, *range(2, 18))
"""Of the curves of `experts`: logarithms of pairs of a token and an expert on a rank."""
LARGEST_BATCH, ALIKE = 16384, 0.8
"""Tokens at which the work of a group of experts shows, and its share that cannot be that of two groups."""
SHORT_CONTEXT = 256
"""Cached tokens that take no longer to read than a kernel to launch."""
MAX_HEADS_OF_A_KV_HEAD = 16
"""Of models with grouped queries. For more heads TensorRT-LLM has another kernel, up to ten times slower."""
KNOTS = {
    "gemm": ((0, 3, 5, 6, 7, 8, 10, 12, 15), (8, 10, 11, 12, 13, 14, 16), (8, 10, 11, 12, 13, 14, 16)),
    "experts": (
        (-3, 1, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18),
        (0, 3, 5, 7, 9),
        (11, 12, 13),
        (6, 8, 9, 10, 12),
    ),
    "marlin": ((-6, -3, 0, 2, 4, 5, 6, 7, 8, 10, 12), (6, 8, 10, 12)),
    "context": ((0, 4, 7, 9, 10, 11, 12, 13, 14, 17), (0, 2, 4, 6, 8, 10), (0, 2, 4)),
    "decode": ((0, 2, 4, 6, 8, 10), (0, 6, 8, 10, 12, 14, 17), (0, 2, 4), (0, 2, 4)),
    "mla_context": ((0, 4, 7, 9, 10, 11, 12, 14), (0, 2, 4, 6, 8), (2, 4, 5, 6, 7)),
    "mla_decode": ((0, 2, 4, 6, 8, 10), (0, 6, 8, 10, 12, 14, 17), (2, 4, 5, 6, 7)),
    "absorb": ((0, 3, 5, 7, 9, 12, 16), (2, 4, 5, 6, 7)),
    "linear_context": ((0, 4, 7, 9, 11, 13, 15, 17), (2, 3, 4, 5, 6)),
    "linear_decode": ((0, 2, 4, 6, 8, 10), (2, 3, 4, 5, 6)),
    "all_reduce": ((7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29),),
    "all_to_all": ((0, 3, 5, 7, 9, 11, 13), (11, 12, 13)),
}
ROUTINGS = {"balanced": "balanced", "power_law_1.01": "skewed", "power_law_1.2": "steep"}
"""Distribution of tokens over experts in the tables -> its name in surfaces."""
UNGATED = {2688, 1024, 8192}, {(4096, 2688), (2048, 5120)}
"""Hidden sizes, and sizes with widths, of experts without a gate; and of no model that is priced."""

Rows = pd.DataFrame
Measured = tuple[str, Priced, NDArray[np.float64]]


class Tables:
    """The tables of one GPU and engine."""

    def __init__(self, data: Path, gpu: str, engine: str) -> None:
        self._data, self._gpu, self.engine = data, gpu, engine
        self._folders = [
            data / part / f"{SYSTEMS[gpu]}_{version}"
            for version in VERSIONS[engine]
            for part in ("kernels_more", "kernels_h200_h100")
        ]
        self.names = [folder.name for folder in self._folders if folder.is_dir()]

    @property
    def launch_ns(self) -> float:
        """Host time to launch the attention of a layer: what it takes for a few tokens; 0 = not measured."""
        version = MODULES.get(self.engine, "")
        folder = self._data / "kernels_more" / f"{SYSTEMS[self._gpu]}_{version}"
        path = folder / "wideep_context_mla_perf.csv.gz"
        if not version or not path.exists():
            return 0.0
        rows = pd.read_csv(path)
        return float(rows[(rows.batch_size == 1) & (rows.isl <= 64)].latency.median()) * 1e6

    def all_engines(self) -> list[Tables]:
        """The tables of the same GPU under every engine."""
        return [Tables(self._data, self._gpu, engine) for engine in VERSIONS]

    def read(self, name: str) -> Rows:
        """A table; empty if there is none. Keys measured repeatedly have their mean, those measured with
        several kernels the fastest."""
        paths = (folder / f"{name}.csv.gz" for folder in self._folders)
        return next((_table(path) for path in paths if path.exists()), pd.DataFrame())


@cache
def _table(path: Path) -> Rows:
    rows = pd.read_csv(path)
    return rows[rows["latency"] > 0]


def reduced(rows: Rows, keys: list[str]) -> Rows:
    """Mean of repeated measurements, and the fastest kernel. Tables of a single kernel do not name it."""
    keys = [key for key in keys if key in rows]
    if "kernel_source" in rows:
        rows = rows.fillna({"kernel_source": ""})
        rows = rows.groupby([*keys, "kernel_source"], as_index=False)["latency"].mean()
        return rows.groupby(keys, as_index=False)["latency"].min()
    return rows.groupby(keys, as_index=False)["latency"].mean()


def _ns(rows: Rows) -> NDArray[np.float64]:
    return rows["latency"].to_numpy(float) * 1e6


def _column(rows: Rows, name: str, default: float = 0.0) -> NDArray[np.float64]:
    return rows[name].to_numpy(float) if name in rows else np.full(len(rows), default)


def _by(rows: Rows, name: str, default: str) -> Iterator[tuple[str, Rows]]:
    if name not in rows:
        yield default, rows
        return
    for value, part in rows.groupby(name):
        yield str(value), part


def _gemms(tables: Tables, gpu: GpuSpec) -> Iterator[Measured]:
    """The fastest of all engines' measurements: some tables hold the time to launch a product from Python,
    which no captured graph takes (small block-FP8 ones of vLLM: 60 to 260 us), or quantisation as well."""
    rows = pd.concat([each.read("gemm_perf").assign(engine=each.engine) for each in tables.all_engines()])
    rows = rows[(rows.n >= 64) & (rows.k >= 128) & (rows.n <= 51200) & (rows.k <= 51200)]
    for form, part in _by(rows, "gemm_dtype", "bfloat16"):
        if form in work.WEIGHT_BYTES:
            one = reduced(_captured(part), ["m", "n", "k"])
            m, n, k = (_column(one, key) for key in "mnk")
            yield f"gemm/{form}", work.gemm(gpu, form, m, n, k), _ns(one)


def _captured(rows: Rows) -> Rows:
    """Without small products of engines whose fastest one takes more than twice that of another engine."""
    least = rows.groupby("engine")["latency"].transform("min")
    return rows[(least <= 2.0 * least.min()) | (rows.latency > 4.0 * least)]


def _experts(tables: Tables, gpu: GpuSpec) -> Iterator[Measured]:
    """By format and routing; kernels that servers use only where named stand apart, as `nvfp4@cutlass`."""
    own, *others = (
        _divided(each.read("moe_perf"))
        for each in (tables, *(other for other in tables.all_engines() if other.engine != tables.engine))
    )
    own = own[~own.kernel_source.str.contains("nongated")] if "kernel_source" in own else own
    if tables.engine == "sglang" and not gpu.fp4_flops:
        own = _as_served_on_hopper(own, others[0])
    rows = pd.concat([own, _not_in(own, pd.concat(others))])
    yield from _of_experts(rows, gpu, "")
    if not gpu.fp4_flops:
        yield from _on_hopper(tables.engine, own, pd.concat(others), gpu)
    if tables.engine == "sglang":
        formats = own.moe_dtype.isin(("fp8_block", "nvfp4"))
        named = own[formats & own.kernel_source.str.contains("trtllm")]
        yield from _of_experts(named, gpu, "@trtllm") if len(named) else ()
        blocks = own.moe_dtype == "fp8_block"
        named = own[blocks & own.kernel_source.str.contains("triton")] if gpu.fp4_flops else own[:0]
        yield from _of_experts(named, gpu, "@triton", curves=True) if len(named) else ()
    if tables.engine == "trtllm":
        nvfp4 = own[own.moe_dtype == "nvfp4"]
        for kernel, part in (("cutlass", "cutlass"), ("trtllm", "min_latency")):
            named = nvfp4[nvfp4.kernel_source.str.contains(part)]
            yield from _of_experts(named, gpu, f"@{kernel}") if len(named) else ()
        both = pd.concat(others)
        fast = both[both.kernel_source.str.contains("trtllm") & (both.moe_dtype == "fp8_block")]
        yield from _of_experts(fast, gpu, "@trtllm", curves=True) if len(fast) else ()


def _on_hopper(engine: str, own: Rows, others: Rows, gpu: GpuSpec) -> Iterator[Measured]:
    """Kernels that another engine measured: FlashInfer's with block scales under vLLM, which is
    TensorRT-LLM's by CUTLASS (with 2 or 4 groups of experts both tables agree within 5 % in the median), and
    OpenAI's in Triton for 4 bits, which TensorRT-LLM calls as vLLM does.
    """
    named: dict[str, Rows] = {}
    if engine == "vllm":
        yield from _by_marlin(own, gpu)
        named["cutlass"] = others[_is(others, "fp8_block", "torch_flow_cutlass")]
    if engine == "trtllm":
        named["triton"] = others[_is(others, "w4a16_mxfp4", "oaitriton")]
    for kernel, rows in named.items():
        yield from _of_experts(rows, gpu, f"@{kernel}", curves=True) if len(rows) else ()


def _is(rows: Rows, form: str, kernel: str) -> pd.Series[bool]:
    return (rows.moe_dtype == form) & rows.kernel_source.str.contains(kernel)


def _as_served_on_hopper(own: Rows, vllm: Rows) -> Rows:
    """SGLang's experts in MXFP4 by OpenAI's Triton kernels (`server_args.py`: triton_kernel, for undivided
    groups), which vLLM's table has; its own one has a kernel for which weights are expanded to 16 bits."""

    def undivided(rows: Rows) -> pd.Series[bool]:
        return (rows.moe_dtype == "w4a16_mxfp4") & (rows.moe_ep_size == 1)

    return pd.concat([own[~undivided(own)], vllm[undivided(vllm)]])


def _by_marlin(rows: Rows, gpu: GpuSpec) -> Iterator[Measured]:
    """One kernel for weights of 4 bits in both formats. In groups it passes over the tokens of all of them
    between its two products, so that those rows are left out."""
    named = rows.kernel_source.str.contains("marlin") & rows.moe_dtype.isin(work.MARLIN_FORMS)
    keys = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size"]
    for distribution, part in _by(rows[named & (rows.moe_ep_size == 1)], "distribution", "power_law_1.01"):
        one = reduced(part, keys)
        tokens, hidden, inter, top_k, count, tp = (_column(one, key, 1.0) for key in keys)
        priced = work.marlin(gpu, tokens, hidden, inter / tp, top_k, count, 1, distribution == "balanced")
        yield f"marlin/{ROUTINGS[distribution]}", priced, _ns(one)


def _not_in(own: Rows, others: Rows) -> Rows:
    """Rows of other engines for formats, sizes and divisions that the own tables lack: most kernels are
    shared."""
    keys = ["moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    there = set(map(tuple, own[keys].astype(str).to_numpy())) if len(own) else set()
    return others[[tuple(row) not in there for row in others[keys].astype(str).to_numpy()]]


def _divided(rows: Rows) -> Rows:
    """Without rows of experts in groups where two groups take as long as one under even load: kernels that
    choose the experts themselves sent all tokens of the benchmark to the measured rank (TensorRT-LLM's, with
    DeepSeek's groups of experts)."""
    if not len(rows):
        return rows
    rows = rows.fillna({"moe_tp_size": 1, "moe_ep_size": 1, "kernel_source": ""})
    keys = ["kernel_source", "moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size"]
    even = rows[(rows.distribution == "balanced") & (rows.num_tokens == LARGEST_BATCH)]
    ms = even.pivot_table(index=keys, columns="moe_ep_size", values="latency")
    if not {1, 2} <= set(ms.columns):
        return rows
    alike = set(ms.index[ms[2] > ALIKE * ms[1]])
    wrong = [key in alike for key in rows[keys].itertuples(index=False, name=None)]
    return rows[~(np.array(wrong) & (rows.moe_ep_size > 1))]


def _of_experts(rows: Rows, gpu: GpuSpec, kernel: str, curves: bool = False) -> Iterator[Measured]:
    pairs = list(zip(rows.hidden_size, rows.inter_size, strict=True))
    odd = [h in UNGATED[0] or pair in UNGATED[1] for (h, _), pair in zip(pairs, pairs, strict=True)]
    rows = rows[~np.array(odd)]
    keys = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    for form, of_form in _by(rows, "moe_dtype", "bfloat16"):
        for distribution, part in _by(of_form, "distribution", "power_law_1.01"):
            if form not in work.WEIGHT_BYTES or distribution not in ROUTINGS:
                continue
            one = reduced(_served(part), keys)
            tokens, hidden, inter, top_k, count, tp, ep = (_column(one, key, 1.0) for key in keys)
            even = distribution == "balanced"
            priced = work.experts(gpu, form, tokens, hidden, inter / tp, top_k, count / ep, ep, even)
            name = f"experts/{form}{kernel}/{ROUTINGS[distribution]}"
            yield name, priced, _ns(one)
            yield from _of_models(name, one, priced) if curves or not kernel else ()


def _of_models(name: str, one: Rows, priced: Priced) -> Iterator[Measured]:
    """Curves over the tokens, for sizes and routings of bundled models. A kernel chosen by name needs none
    where its surface holds no other kernel and the largest batches.
    """
    routing = name.rpartition("/")[2]
    keys = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    for sizes, rows in one.reset_index(drop=True).groupby(keys):
        hidden, inter, top_k, count, tp, ep = map(float, sizes)
        usual = len(rows) >= MIN_OF_A_CURVE and (tp == 1 or tp * ep <= MAX_GPUS)
        if usual and (hidden, inter, top_k, count, routing) in experts_of_models():
            at = rows.index.to_numpy()
            curve = Priced(np.broadcast_to(priced.ns, len(one))[at], (priced.at[0][at],))
            yield f"{name}/{sizes_of(hidden, inter / tp, count / ep, count, top_k)}", curve, _ns(rows)


@cache
def experts_of_models() -> frozenset[tuple[float, float, float, float, str]]:
    """Hidden size, width, experts of a token and of a layer, and routing of every bundled model."""
    shapes = [load_model(name) for name in known_models()]
    return frozenset(
        (shape.hidden, shape.moe_intermediate, shape.experts_per_token, shape.experts, shape.routing)
        for shape in shapes
        if shape.moe_layers
    )


def _served(rows: Rows) -> Rows:
    """Without the Triton kernel wherever experts of these sizes and division were measured with another one,
    too."""
    if "kernel_source" not in rows:
        return rows
    triton = rows.kernel_source.str.contains("triton")
    keys = ["hidden_size", "inter_size", "num_experts", "moe_tp_size", "moe_ep_size"]
    sizes = rows[keys].astype(str).agg("-".join, axis=1)
    return rows[~(triton & sizes.isin(set(sizes[~triton])))]


def _attention(tables: Tables, gpu: GpuSpec) -> Iterator[Measured]:
    for phase, length in (("context", "isl"), ("generation", "step")):
        plain = tables.read(f"{phase}_attention_perf").assign(head_dim=128, window_size=0)
        rows = pd.concat([plain, tables.read(f"{phase}_attention_other_perf")])
        rows = rows[rows.head_dim.isin((64, 128, 256)) & rows.window_size.isin((0, 128))]
        rows = rows[rows.num_heads % rows.num_key_value_heads == 0]
        rows = rows[rows.num_heads <= MAX_HEADS_OF_A_KV_HEAD * rows.num_key_value_heads]
        for (dim, window, form), part in rows.groupby(["head_dim", "window_size", "kv_cache_dtype"]):
            if form not in work.KV_BYTES:
                continue
            keys = ["batch_size", length, "num_heads", "num_key_value_heads"]
            one = reduced(part, keys)
            seqs, tokens, heads, kv_heads = (_column(one, key) for key in keys)
            if phase == "context":
                priced = work.context(gpu, seqs, tokens, 0.0, heads, kv_heads, dim, window)
                yield f"context/{form}/{dim}/{window}", priced, _ns(one)
            else:
                priced = work.decode(gpu, form, seqs, tokens, heads, kv_heads, dim, window)
                yield f"decode/{form}/{dim}/{window}", priced, _ns(one)


def _mla(tables: Tables, gpu: GpuSpec) -> Iterator[Measured]:
    """SGLang and vLLM call the kernels of others for prompts (FlashAttention's, TensorRT-LLM's): the fastest
    of all engines' measurements. SGLang's own ones on Hopper are of a kernel that takes more than twice as
    long as the whole module in another of its tables; vLLM's hold 0.1 ms and more of launches from Python."""
    for phase, length in (("context", "isl"), ("generation", "step")):
        shared = phase == "context" and tables.engine in ("sglang", "vllm")
        names = tables.all_engines() if shared else [tables]
        rows = pd.concat([_from_engine(each, f"{phase}_mla_perf") for each in names])
        for form, part in _by(rows, "kv_cache_dtype", "bfloat16") if len(rows) else ():
            if form not in work.KV_BYTES:
                continue
            keys = ["batch_size", length, "num_heads"]
            one = reduced(part, keys) if phase == "context" else _replayed(tables, form, keys)
            seqs, tokens, heads = (_column(one, key) for key in keys)
            if phase == "context":
                yield f"mla_context/{form}", work.mla_context(gpu, seqs, tokens, 0.0, heads), _ns(one)
            else:
                yield f"mla_decode/{form}", work.mla_decode(gpu, form, seqs, tokens, heads), _ns(one)
    rows = tables.read("mla_bmm_perf")
    for form, part in _by(rows, "bmm_dtype", "bfloat16") if len(rows) else ():
        one = reduced(part, ["op_name", "num_tokens", "num_heads"])
        yield (
            f"absorb/{form}",
            work.absorb(gpu, _column(one, "num_tokens"), _column(one, "num_heads")),
            _ns(one),
        )


def _replayed(tables: Tables, form: str, keys: list[str]) -> Rows:
    """Decodes as CUDA graphs replay them. Where an engine's table holds launches from Python (vLLM's on
    Hopper: 160 us for any short context), the rows that these decide are the fastest of other engines'."""
    own, *others = (
        reduced(rows[rows.kv_cache_dtype == form], keys)
        for each in (tables, *(other for other in tables.all_engines() if other.engine != tables.engine))
        if len(rows := each.read("generation_mla_perf"))
    )
    launch_ms = _shortest_ms(own)
    if not others or launch_ms <= 2.0 * min(map(_shortest_ms, others)):
        return own
    best = pd.concat(others).groupby(keys, as_index=False)["latency"].min()
    rows = own.merge(best, on=keys, suffixes=("", "_elsewhere"))
    launched = (rows.latency < 1.5 * launch_ms) | (rows.latency_elsewhere < 0.5 * launch_ms)
    return rows.assign(latency=rows.latency.mask(launched, rows.latency_elsewhere))


def _shortest_ms(rows: Rows) -> float:
    """A decode of one sequence over a short context: the time of its launches."""
    return float(rows[(rows.batch_size == 1) & (rows.step <= SHORT_CONTEXT)].latency.median())


def _from_engine(tables: Tables, name: str) -> Rows:
    """A table whose kernels depend on its engine, too."""
    rows = tables.read(name)
    return rows.assign(kernel_source=tables.engine + " " + rows.get("kernel_source", ""))


def _linear(tables: Tables, gpu: GpuSpec) -> Iterator[Measured]:
    rows = tables.read("gdn_perf")
    for phase, part in _by(rows, "phase", "") if len(rows) else ():
        keys = ["batch_size", "seq_len", "num_tokens", "num_v_heads"]
        each = part.groupby([*(key for key in keys if key in part), "kernel_source"], as_index=False)[
            "latency"
        ].mean()
        both = each.groupby([key for key in keys if key in each], as_index=False)["latency"].agg(
            ["sum", "count"]
        )
        one = both[both["count"] == 2].rename(columns={"sum": "latency"})
        heads = _column(one, "num_v_heads")
        if phase == "context":
            tokens = _column(one, "num_tokens")
            yield "linear_context", work.linear_context(gpu, tokens, heads), _ns(one)
        else:
            yield "linear_decode", work.linear_decode(gpu, _column(one, "batch_size"), heads), _ns(one)


def _all_reduces(tables: Tables, gpu: GpuSpec) -> Iterator[Measured]:
    rows = tables.read("custom_allreduce_perf")
    if "backend" in rows:
        rows = rows[rows.backend.str.endswith("graph")]
    for ranks, part in _by(rows, "num_gpus", "2"):
        one = reduced(part, ["message_size"])
        moved = _column(one, "message_size") * 2.0
        yield f"all_reduce/{ranks}", work.all_reduce(gpu, int(ranks), moved), _ns(one)


def _all_to_alls(tables: Tables, gpu: GpuSpec) -> Iterator[Measured]:
    rows = tables.read("moe_a2a_perf")
    for backend, part in _by(rows, "comm_backend", "") if len(rows) else ():
        keys = ["num_tokens", "hidden_size", "topk"]
        each = part.groupby([*keys, "phase"], as_index=False)["latency"].mean()
        both = each.groupby(keys, as_index=False)["latency"].sum()
        both["latency"] /= 1e3
        tokens, hidden, top_k = (_column(both, key) for key in keys)
        kind = "ht" if "ht" in backend else "ll"
        yield f"all_to_all/{kind}", work.all_to_all(gpu, tokens, hidden, top_k), _ns(both)


SOURCES = {
    "gemm": _gemms,
    "experts": _experts,
    "attention": _attention,
    "mla": _mla,
    "linear": _linear,
    "all_reduce": _all_reduces,
    "all_to_all": _all_to_alls,
}
"""Kinds of operators -> their rows."""


# --- the regression ----------------------------------------------------------------------------------


def fit(priced: Priced, ns: NDArray[np.float64], knots: tuple[tuple[float, ...], ...]) -> dict[str, object]:
    """Logarithms at the knots, in hundredths."""
    if not len(ns):
        raise ValueError("no rows to learn from")
    thin = slice(None, None, max(1, len(ns) // MAX_ROWS))
    base, ns = np.broadcast_to(priced.ns, ns.shape)[thin], ns[thin]
    where = [np.broadcast_to(axis, (len(priced.ns),))[thin] for axis in priced.at]
    axes = [np.array(axis, dtype=float) for axis in knots]
    sizes = [len(axis) for axis in axes]
    count = int(np.prod(sizes))
    target = np.log(ns / base)
    corners = [
        (np.ravel_multi_index(np.broadcast_arrays(*place), sizes), np.broadcast_to(weight, target.shape))
        for place, weight in corners_of(axes, where)
    ]
    rows = np.tile(np.arange(len(target)), len(corners))
    places, weights = (np.concatenate([corner[i] for corner in corners]) for i in (0, 1))
    design = csr_array((weights, (rows, places)), shape=(len(target), count))
    gram, right = (design.T @ design).toarray(), design.T @ target
    gram += _roughness(sizes) * SMOOTHING * len(target) / count
    gram[np.diag_indices(count)] += 1e-6
    found = np.linalg.solve(gram, right)
    error = design @ found - target
    percent = [round(float(value) * 100) for value in found]
    return {
        "knots": [list(map(float, axis)) for axis in knots],
        "percent": percent,
        "rows": len(ns),
        "error_percent": round(float(np.abs(np.expm1(error)).mean()) * 100, 1),
    }


def _roughness(sizes: list[int]) -> NDArray[np.float64]:
    """Squares of the first differences between neighbouring knots."""
    count = int(np.prod(sizes))
    total = np.zeros((count, count))
    places = np.arange(count).reshape(sizes)
    for axis, size in enumerate(sizes):
        if size < 2:
            continue
        low = np.take(places, range(size - 1), axis).ravel()
        high = np.take(places, range(1, size), axis).ravel()
        np.add.at(total, (low, low), 1.0)
        np.add.at(total, (high, high), 1.0)
        np.add.at(total, (low, high), -1.0)
        np.add.at(total, (high, low), -1.0)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="for example b200, or b200-sglang")
    parser.add_argument("--kind", default="", choices=("", *SOURCES), help="learn these surfaces alone")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    for gpu in SYSTEMS:
        for engine in VERSIONS:
            if f"{gpu}-{engine}".startswith(options.only):
                write(options.data, gpu, engine, options.kind)


def write(data: Path, gpu: str, engine: str, kind: str) -> None:
    tables, spec = Tables(data, gpu, engine), load_gpu(gpu)
    path = OUT / f"{gpu}-{engine}.json"
    before = json.loads(path.read_text()) if kind else {}
    surfaces, curves = before.get("surfaces", {}), before.get("curves", {})
    if kind in ("", "experts"):
        curves = {}
    for source in [SOURCES[kind]] if kind else SOURCES.values():
        for name, priced, ns in source(tables, spec):
            if len(priced.at) == 1 and source is _experts:
                curves[name] = fit(priced, ns, (CURVE_KNOTS,))["percent"]
                continue
            surfaces[name] = entry = fit(priced, ns, KNOTS[name.partition("/")[0]])
            print(f"{gpu}-{engine} {name}: {entry['rows']} rows, {entry['error_percent']} %", flush=True)
    entries = {name: json.dumps(entry, separators=(",", ":")) for name, entry in surfaces.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {entry}" for name, entry in entries.items())
    source = f"AIConfigurator 095f58a (Apache-2.0): {', '.join(tables.names)}"
    head = f'"gpu": "{gpu}", "engine": "{engine}", "source": "{source}"'
    if tables.launch_ns:
        head += f', "launch_ns": {tables.launch_ns:.0f}'
    head += f', "curve_knots": {json.dumps(CURVE_KNOTS)}'
    bent = ",\n".join(f"{json.dumps(name)}: {json.dumps(curve)}" for name, curve in curves.items())
    text = f'{{{head}, "surfaces": {{\n{lines}\n}}, "curves": {{\n{bent}\n}}}}\n'
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
