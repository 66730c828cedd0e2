"""Learn the surfaces of kinds of layers that few models have: sparse attention of an indexer.

    python benchmarks/accuracy/train_layers.py ../shared/data [--only h200-vllm] [--check]

The tables (NVIDIA AIConfigurator and AISimulate, Apache-2.0) hold whole modules: the attention of a layer
with its projections. What `operator_list` adds for the projections is taken off first, so that a surface is
of the rest; rows of which less than a fifth remains are left out. `--check` prints how far whole modules are
off that were not learned on: DeepSeek-V3.2 by the surfaces of GLM-5.2.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from train_operators import OUT, SYSTEMS, fit

from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency.operator_list import OperatorList
from blis_py.latency.operators import surfaces_for
from blis_py.latency.sparse_layers import sparse_layers
from blis_py.latency.sparse_work import SparseLayer, sparse
from blis_py.latency.surfaces import Surface
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import Weights

Array = NDArray[np.float64]
LEAST_SHARE = 0.2
"""Share of a module that has to remain without its projections."""
WORST_PERCENT = 25.0
"""Mean error above which a table is of several kernels that its sizes do not tell apart."""
LONGEST = 1 << 20
"""Tokens of a step; larger ones exceed any budget."""
KNOTS = {
    "context": ((0, 3, 5, 7, 9, 11, 13, 15, 18), (0, 6, 8, 10, 11, 12, 13, 14, 16, 20), (2, 3, 4, 5, 6, 7)),
    "decode": ((0, 2, 4, 6, 8, 10), (0, 6, 9, 10, 11, 12, 13, 15, 17, 20), (2, 3, 4, 5, 6, 7)),
}
_FORMATS = {
    "bfloat16": Weights(),
    "fp8": Weights.of(1.0, "fp8"),
    "fp8_block": replace(Weights.of(1.0, "fp8"), block_scales=True),
    "nvfp4": Weights.of(0.5625, "fp4"),
}


TABLES = {"vllm": "vllm_0.24.0", "sglang": "sglang_0.5.14", "trtllm": "trtllm_1.3.0rc20"}
"""Engine -> version."""
LEARNED = "GLM"
"""Models that the surfaces are learned on; others are a check."""
BUNDLED = {"DeepSeek-V3.2": "deepseek-v3.2", "GLM-5": "glm-5", "GLM-5.2": "glm-5"}


def modules(data: Path, gpu: str, engine: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Phase, and its rows."""
    version = TABLES[engine]
    for phase, file in (("context", "dsa_context_module"), ("decode", "dsa_generation_module")):
        path = data / "kernels_2026_10" / f"{SYSTEMS[gpu]}_{version}" / f"{file}.parquet"
        if path.exists():
            rows = pd.read_parquet(path)
            rows["short"] = rows.model.str.rpartition("/")[2].str.removesuffix("-FP8")
            rows["reused"] = rows.op_name.str.endswith("skip_indexer")
            yield phase, rows[(rows.latency > 0) & (rows.batch_size * rows.isl <= LONGEST)]


def shape_of(model: str, heads: int, form: str, kv_form: str) -> ModelShape:
    """The model with the heads of a rank."""
    shape = load_model(BUNDLED[model])
    kv_bytes = 1 if kv_form == "fp8" else 2
    return replace(shape, heads=heads, kv_heads=heads, weights=_FORMATS[form], kv_dtype_bytes=kv_bytes)


def layer_of(shape: ModelShape, reused: bool) -> SparseLayer:
    return next(layer for _, layer in _layers(shape) if (layer.name == "dsa_reused") == reused)


def _layers(shape: ModelShape) -> tuple[tuple[int, SparseLayer], ...]:
    return sparse_layers(shape, float(shape.heads))


def rest(gpu: GpuSpec, engine: str, rows: pd.DataFrame, phase: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Rows of one surface each, with `ns` beyond the projections, the roofline and the coordinates."""
    learned, _ = surfaces_for(gpu, engine)
    keys = ["short", "num_heads", "gemm_type", "kv_cache_dtype", "reused"]
    for (model, heads, form, kv_form, reused), part in rows.groupby(keys):
        if form not in _FORMATS or model not in BUNDLED:
            continue
        shape = shape_of(model, heads, form, kv_form)
        layer = layer_of(shape, reused)
        # one measurement is left per size: the fastest kernel
        one = part.groupby(["batch_size", "isl", "step"], as_index=False)["latency"].min()
        seqs, length, past = (one[key].to_numpy(float) for key in ("batch_size", "isl", "step"))
        if phase == "decode":
            length = np.ones_like(seqs)
        projections = OperatorList(shape, gpu, Layout(), learned).projections(seqs * length)
        priced = sparse(gpu, layer, seqs, length, past)
        whole = one.latency.to_numpy(float) * 1e6
        frame = pd.DataFrame({"whole": whole, "ns": whole - projections, "projections": projections})
        frame["roofline"] = priced.ns
        for i, axis in enumerate(priced.at):
            frame[f"at{i}"] = np.broadcast_to(axis, whole.shape)
        frame["model"] = model
        yield f"{layer.name}_{phase}/{kv_form}", frame


class _At(NamedTuple):
    ns: Array
    at: tuple[Array, ...]


def _priced(frame: pd.DataFrame) -> _At:
    return _At(frame.roofline.to_numpy(), tuple(frame[f"at{i}"].to_numpy() for i in range(3)))


def write(data: Path, name: str, engine: str, check: bool) -> None:
    """Learn the surfaces of one GPU and engine."""
    gpu = load_gpu(name)
    frames: dict[str, list[pd.DataFrame]] = {}
    for phase, rows in modules(data, name, engine):
        for surface, frame in rest(gpu, engine, rows, phase):
            frames.setdefault(surface, []).append(frame)
    if not frames:
        return
    surfaces = {}
    for surface, parts in sorted(frames.items()):
        every = pd.concat(parts)
        own = every[every.model.str.startswith(LEARNED)]
        own = own[own.ns >= LEAST_SHARE * own.whole]
        phase = surface.partition("/")[0].rpartition("_")[2]
        entry = fit(_priced(own), own.ns.to_numpy(), KNOTS[phase])  # type: ignore[arg-type]
        kept = float(str(entry["error_percent"])) <= WORST_PERCENT
        print(f"{name}-{engine} {surface}: {entry['rows']} rows, {entry['error_percent']} %", flush=True)
        if kept:
            surfaces[surface] = entry
        else:
            print("    left out: several kernels under one name; another engine's stand in")
        if check:
            _check(surface, entry, every)
    lines = ",\n".join(
        f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in sorted(surfaces.items())
    )
    source = f"AIConfigurator and AISimulate, October 2026 (Apache-2.0): {SYSTEMS[name]}_{TABLES[engine]}"
    head = f'"gpu": "{name}", "engine": "{engine}-layers", "source": "{source}"'
    path = OUT / f"{name}-{engine}-layers.json"
    path.write_text(f'{{{head}, "surfaces": {{\n{lines}\n}}}}\n', encoding="utf-8")


def _check(surface: str, entry: dict[str, object], every: pd.DataFrame) -> None:
    """Print errors of whole modules by model."""
    knots = tuple(np.array(axis, dtype=float) for axis in entry["knots"])  # type: ignore[attr-defined]
    logs = np.array(entry["percent"], dtype=float).reshape([len(axis) for axis in knots]) / 100.0
    learned = Surface(knots, logs)
    for model, part in every.groupby("model"):
        at = _priced(part)
        ns = at.ns * np.exp(learned.at(at.at)) + part.projections.to_numpy()
        error = ns / part.whole.to_numpy() - 1
        mean, bias = 100 * np.abs(error).mean(), 100 * error.mean()
        print(f"    whole modules of {model}: {len(part)} rows, {mean:.1f} % mean, {bias:+.1f} % bias")


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
