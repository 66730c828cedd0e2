"""Learn the surfaces of kinds of layers that few models have: sparse and compressed attention, Kimi delta
attention, mixed hidden vectors.

    python benchmarks/accuracy/train_layers.py ../shared/data [--only h200-vllm] [--check]

Tables of attention (NVIDIA AIConfigurator and AISimulate, Apache-2.0) hold whole modules: that of a layer
with its projections. What `operator_list` adds for the projections is taken off first, so that a surface is
of the rest, a tenth of the module at least. `--check` prints how far whole modules are off by model;
DeepSeek-V3.2 is not learned on, but on GLM-5.2 and 5.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from train_operators import OUT, SYSTEMS, fit

from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency import operator_work as work
from blis_py.latency.operator_list import OperatorList
from blis_py.latency.operators import surfaces_for
from blis_py.latency.sparse_layers import sparse_layers
from blis_py.latency.sparse_work import sparse
from blis_py.latency.surfaces import Surface
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import Weights

Array = NDArray[np.float64]
LEAST_SHARE = 0.1
"""Share of a module that remains without its projections, at least."""
WORST_PERCENT = 25.0
"""Mean error of modules, or of kernels, above which a table is of several that sizes do not tell apart."""
LONGEST = 1 << 20
"""Tokens of a step; larger ones exceed any budget."""
CHECKED_ALONE = ("DeepSeek-V3.2",)
"""Models that the surfaces are not learned on."""
_TOKENS, _HEADS = (0, 3, 5, 7, 9, 11, 13, 15, 18), (2, 3, 4, 5, 6, 7)
KNOTS = {
    "context": (_TOKENS, (0, 6, 8, 10, 11, 12, 13, 14, 16, 20), _HEADS),
    "decode": ((0, 2, 4, 6, 8, 10), (0, 6, 9, 10, 11, 12, 13, 15, 17, 20), _HEADS),
    "kda_context": ((0, 4, 7, 9, 11, 13, 15, 17), (2, 3, 4, 5, 6, 7)),
    "kda_decode": ((0, 2, 4, 6, 8, 10), (2, 3, 4, 5, 6, 7)),
    "streams": ((11, 13, 15, 17, 19, 21, 23, 25, 27, 29),),
}
_FORMATS = {
    "bfloat16": Weights(),
    "fp8": Weights.of(1.0, "fp8"),
    "fp8_block": replace(Weights.of(1.0, "fp8"), block_scales=True),
    "nvfp4": Weights.of(0.5625, "fp4"),
}
BUNDLED = {
    "DeepSeek-V3.2": "deepseek-v3.2",
    "GLM-5": "glm-5",
    "GLM-5.2": "glm-5.2",
    "DeepSeek-V4-Flash": "deepseek-v4-flash",
    "DeepSeek-V4-Pro": "deepseek-v4-pro",
    "MiniMax-M3": "minimax-m3",
}


class Modules(NamedTuple):
    """Tables of one kind of attention."""

    version: str
    layer: str
    """Name in `sparse_layers`."""
    context: str
    """Name of the table of prompts; empty if there is none."""
    decode: str


_DSA = "dsa_context_module", "dsa_generation_module"
_CSA = "dsv4_csa_context_module", "dsv4_csa_generation_module"
_HCA = "dsv4_hca_context_module", "dsv4_hca_generation_module"
_MSA = "msa_context_module", "msa_generation_module"
TABLES = {
    "vllm": (
        Modules("vllm_0.24.0", "dsa", *_DSA),
        Modules("vllm_0.25.0", "csa", *_CSA),
        Modules("vllm_0.25.0", "hca", *_HCA),
        Modules("vllm_0.25.0", "msa", *_MSA),
    ),
    "sglang": (Modules("sglang_0.5.14", "dsa", *_DSA), Modules("sglang_0.5.16", "msa", *_MSA)),
    "trtllm": (Modules("trtllm_1.3.0rc20", "dsa", *_DSA),),
}
OTHERS = {"vllm": ("vllm_0.25.0", "vllm_0.31.0"), "sglang": ("sglang_0.5.20", "sglang_0.5.16"), "trtllm": ()}
"""Versions with tables of single kernels; of two with the same table the first one counts."""


class Frames(NamedTuple):
    """Rows of one surface."""

    knots: str
    rows: list[pd.DataFrame]


def _read(data: Path, gpu: str, version: str, table: str) -> pd.DataFrame:
    path = data / "kernels_2026_10" / f"{SYSTEMS[gpu]}_{version}" / f"{table}.parquet"
    rows = pd.read_parquet(path) if table and path.exists() else pd.DataFrame({"latency": []})
    return rows[rows.latency > 0]


# --- modules of attention ----------------------------------------------------------------------------


def of_modules(data: Path, gpu: GpuSpec, engine: str, modules: Modules) -> Iterator[tuple[str, pd.DataFrame]]:
    """Rows of one surface each: whole times, projections, rest, roofline and coordinates."""
    for phase, table in (("context", modules.context), ("decode", modules.decode)):
        rows = _read(data, gpu.name.lower(), modules.version, table)
        if not len(rows):
            continue
        rows = rows[rows.batch_size * rows.isl <= LONGEST]
        rows["short"] = rows.model.str.rpartition("/")[2].str.removesuffix("-FP8")
        rows["reused"] = rows.op_name.str.endswith("skip_indexer")
        keys = ["short", "num_heads", "tp_size", "gemm_type", "kv_cache_dtype", "reused"]
        for (model, heads, tp, form, kv_form, reused), part in rows.groupby(keys):
            if form not in _FORMATS or model not in BUNDLED:
                continue
            shape = _shape(model, heads, tp, form, kv_form)
            name = f"{modules.layer}_reused" if reused else modules.layer
            frame = _rest(gpu, engine, shape, tp, name, phase, part)
            yield f"{name}_{phase}/{kv_form}", frame.assign(model=model)


def _shape(model: str, heads: int, tp: int, form: str, kv_form: str) -> ModelShape:
    """The model with the heads of all ranks."""
    shape = load_model(BUNDLED[model])
    kv_heads = shape.kv_heads * heads * tp // shape.heads
    own = {"heads": heads * tp, "kv_heads": max(kv_heads, 1)} if heads * tp != shape.heads else {}
    kv_bytes = 1 if kv_form == "fp8" else 2
    return replace(shape, weights=_FORMATS[form], kv_dtype_bytes=kv_bytes, **own)  # type: ignore[arg-type]


def _rest(
    gpu: GpuSpec, engine: str, shape: ModelShape, tp: int, name: str, phase: str, rows: pd.DataFrame
) -> pd.DataFrame:
    layer = next(layer for _, layer in sparse_layers(shape, tp) if layer.name == name)
    one = rows.groupby(["batch_size", "isl", "step"], as_index=False)["latency"].min()  # the fastest kernel
    seqs, length, past = (one[key].to_numpy(float) for key in ("batch_size", "isl", "step"))
    if phase == "decode":
        length = np.ones_like(seqs)
    priced = sparse(gpu, layer, seqs, length, past)
    projections = _operators(gpu.name, engine, shape, tp).projections(seqs * length)
    whole = one.latency.to_numpy(float) * 1e6
    frame = _frame(priced, whole - projections)
    return frame.assign(whole=whole, projections=projections)


@cache
def _operators(gpu: str, engine: str, shape: ModelShape, tp: int) -> OperatorList:
    spec = load_gpu(gpu)
    return OperatorList(shape, spec, Layout(tp), surfaces_for(spec, engine)[0])


def _frame(priced: work.Priced, ns: Array) -> pd.DataFrame:
    frame = pd.DataFrame({"ns": ns, "roofline": np.broadcast_to(priced.ns, ns.shape)})
    for i, axis in enumerate(priced.at):
        frame[f"at{i}"] = np.broadcast_to(axis, ns.shape)
    return frame


# --- single kernels ----------------------------------------------------------------------------------


def of_states(gpu: GpuSpec, rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Kimi delta attention: a convolution and the recurrence, the fastest of each."""
    rows = rows.assign(conv=rows.kernel_source.str.contains("conv1d"))
    for phase, part in rows[rows.phase.isin(("context", "generation"))].groupby("phase"):
        keys = ["batch_size", "seq_len", "num_tokens", "num_v_heads"]
        each = part.groupby([*keys, "conv"], as_index=False)["latency"].min()
        both = each.groupby(keys, as_index=False)["latency"].agg(["sum", "count"])
        one = both[both["count"] == 2]
        heads, ns = one["num_v_heads"].to_numpy(float), one["sum"].to_numpy(float) * 1e6
        if phase == "context":
            priced = work.linear_context(gpu, one["num_tokens"].to_numpy(float), heads)
            yield "kda_context", _frame(priced, ns)
        else:
            yield "kda_decode", _frame(work.linear_decode(gpu, one["batch_size"].to_numpy(float), heads), ns)


def of_streams(gpu: GpuSpec, rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Hyper-connections before and after both parts of a layer, by kernels apart."""
    rows = rows[rows.op_name.isin(("pre", "post"))]
    keys = ["num_tokens", "hidden_size", "hc_mult"]
    each = rows.groupby([*keys, "op_name"], as_index=False)["latency"].min()
    one = each.groupby(keys, as_index=False)["latency"].sum()
    tokens, hidden = one.num_tokens.to_numpy(float), one.hidden_size.to_numpy(float)
    priced = work.streams(gpu, tokens, int(one.hc_mult.iloc[0]), hidden)
    yield "streams", _frame(priced, one.latency.to_numpy(float) * 1e6)


KERNELS = {"kda": of_states, "mhc_module": of_streams}
"""Table -> its rows."""


# --- the regression ----------------------------------------------------------------------------------


class _At(NamedTuple):
    ns: Array
    at: tuple[Array, ...]


def _priced(frame: pd.DataFrame) -> _At:
    axes = sorted(name for name in frame if name.startswith("at"))
    return _At(frame.roofline.to_numpy(), tuple(frame[name].to_numpy() for name in axes))


def frames_of(data: Path, name: str, engine: str) -> tuple[dict[str, Frames], set[str]]:
    """Rows by surface, and the folders that they are from."""
    gpu, frames, versions = load_gpu(name), dict[str, Frames](), set[str]()

    def add(surface: str, knots: str, version: str, frame: pd.DataFrame) -> None:
        frames.setdefault(surface, Frames(knots, [])).rows.append(frame)
        versions.add(version)

    for modules in TABLES[engine]:
        for surface, frame in of_modules(data, gpu, engine, modules):
            add(surface, surface.partition("/")[0].rpartition("_")[2], modules.version, frame)
    for table, source in KERNELS.items():
        for version in OTHERS[engine]:
            rows = _read(data, name, version, table)
            if len(rows):
                for surface, frame in source(gpu, rows):
                    add(surface, surface, version, frame)
                break
    return frames, versions


def write(data: Path, name: str, engine: str, check: bool) -> None:
    """Learn the surfaces of one GPU and engine."""
    frames, versions = frames_of(data, name, engine)
    surfaces: dict[str, Any] = {}
    for surface, (knots, parts) in sorted(frames.items()):
        every = pd.concat(parts)
        own = every
        if "model" in every:
            own = every[~every.model.isin(CHECKED_ALONE)]
            own = own.assign(ns=np.maximum(own.ns, LEAST_SHARE * own.whole))
        entry = fit(_priced(own), own.ns.to_numpy(), KNOTS[knots])  # type: ignore[arg-type]
        print(f"{name}-{engine} {surface}: {entry['rows']} rows, {entry['error_percent']} %", flush=True)
        if (_off_percent(entry, own) if "model" in own else entry["error_percent"]) <= WORST_PERCENT:
            surfaces[surface] = entry
        else:
            print("    left out: several kernels under one name; another engine's stand in")
        if check and "model" in every:
            _check(entry, every)
    if not surfaces:
        return
    entries = {key: json.dumps(entry, separators=(",", ":")) for key, entry in surfaces.items()}
    lines = ",\n".join(f"{json.dumps(key)}: {entry}" for key, entry in entries.items())
    folders = ", ".join(f"{SYSTEMS[name]}_{version}" for version in sorted(versions))
    source = f"AIConfigurator and AISimulate, October 2026 (Apache-2.0): {folders}"
    head = f'"gpu": "{name}", "engine": "{engine}-layers", "source": "{source}"'
    path = OUT / f"{name}-{engine}-layers.json"
    path.write_text(f'{{{head}, "surfaces": {{\n{lines}\n}}}}\n', encoding="utf-8")


def _check(entry: dict[str, Any], every: pd.DataFrame) -> None:
    """Print errors of whole modules by model."""
    for model, part in every.groupby("model"):
        error = _errors(entry, part)
        mean, bias = 100 * np.abs(error).mean(), 100 * error.mean()
        print(f"    whole modules of {model}: {len(part)} rows, {mean:.1f} % mean, {bias:+.1f} % bias")


def _off_percent(entry: dict[str, Any], rows: pd.DataFrame) -> float:
    return float(100 * np.abs(_errors(entry, rows)).mean())


def _errors(entry: dict[str, Any], rows: pd.DataFrame) -> Array:
    """Relative errors of whole modules."""
    knots = tuple(np.array(axis, dtype=float) for axis in entry["knots"])
    logs = np.array(entry["percent"], dtype=float).reshape([len(axis) for axis in knots]) / 100.0
    at = _priced(rows)
    ns = at.ns * np.exp(Surface(knots, logs).at(at.at)) + rows.projections.to_numpy()
    return np.asarray(ns / rows.whole.to_numpy() - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="for example h200-vllm")
    parser.add_argument("--check", action="store_true", help="print errors of whole modules by model")
    options = parser.parse_args()
    for gpu in SYSTEMS:
        for engine in TABLES:
            if f"{gpu}-{engine}".startswith(options.only):
                write(options.data, gpu, engine, options.check)


if __name__ == "__main__":
    main()
