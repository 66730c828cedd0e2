"""KV pools that vLLM servers reported, and what the capacity formula says of them.

    python benchmarks/accuracy/kv_pools.py ../shared/data [--out FILE]

Three coefficients of `memory_overheads` are learned on the pools whose servers are fully specified, and on
the peaks of activations that some of them printed; the memory outside the allocator on one GPU is the median
of what servers printed, whatever their model. Every pool is also predicted with coefficients learned without
its model. Where a source does not say the limits of a step, vLLM's defaults stand in; such pools are listed,
and not learned on, nor are those of several groups of layers (windows, chunks, states), which are counted as
runs count them. Left out are engines other than vLLM, models that cannot be priced, and those of one group
with an encoder of images. From vLLM 0.20 on the typical memory of CUDA graphs is counted, too, which is not
learned.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from blis_py.errors import InputError
from blis_py.hardware.capacity import KvCapacity, kv_capacity
from blis_py.hardware.gpu import GIB, GpuSpec, load_gpu
from blis_py.hardware.memory_overheads import (
    BLIS_OVERHEADS,
    GRAPH_GIB,
    GRAPHS_COUNTED,
    VLLM_OVERHEADS,
    MemoryOverheads,
)
from blis_py.models.kv_pages import KVPages
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.setup.grouped_layers import PoolOfRelease

GPUS = {
    "H100 SXM 80GB": "h100",
    "H100 80GB": "h100",
    "A100 SXM 40GB": "a100-40",
    "A100 40GB (not stated)": "a100-40",
    "A100 SXM/PCIe 80GB": "a100-80",
    "RTX PRO 6000 Blackwell": "rtx-pro-6000",
}
"""As the pools name them; others by their own name."""
CONFIGS = {
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "Llama-3.1-8B class (14.99 GiB)": "meta-llama/Meta-Llama-3.1-8B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": "Qwen/Qwen3-30B-A3B-FP8",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "Qwen/Qwen3-235B-A22B-FP8",
}
"""Models without a configuration of their own, and whose shape they have."""
BUNDLED = {"Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3-next-80b-a3b"}
"""Models whose shape is bundled."""
_LARGE_CARD_GIB = 70
_COLUMNS = (
    *("vLLM", "model", "GPU", "TP", "tokens, sequences"),
    *("reported", "predicted", "model left out", "shipped", "blis"),
)
_NAMES = ("hidden_vectors", "sampling_bytes_per_logit", "rank_gib")


@dataclass(frozen=True)
class Pool:
    """A pool that a server reported."""

    model: str
    version: str
    shape: ModelShape
    gpu: GpuSpec
    tp: int
    utilization: float
    tokens: int
    seqs: int
    blocks: int
    specified: bool
    """Whether the source says all that the pool depends on."""
    peak_gib: float | None
    graphs: bool = False
    """Whether the release counts CUDA graphs before it sizes the pool."""
    pages: KVPages | None = None
    """Groups of layers; None = one."""

    def predict(self, overheads: MemoryOverheads) -> KvCapacity:
        if self.graphs:
            overheads = replace(overheads, graph_gib=GRAPH_GIB)
        return kv_capacity(
            self.shape,
            self.gpu,
            self.tp,
            gpu_memory_utilization=self.utilization,
            max_num_batched_tokens=self.tokens,
            max_num_seqs=self.seqs,
            overheads=overheads,
            block_size=16 if self.pages is None else self.pages.block_size or 16,
            pages=self.pages,
        )

    def error(self, overheads: MemoryOverheads) -> float:
        """Predicted over reported, minus one, before rounding to blocks."""
        found = self.predict(overheads)
        return found.kv_bytes / found.block_bytes / self.blocks - 1


@dataclass(frozen=True)
class Reports:
    """What servers reported."""

    pools: tuple[Pool, ...]
    """Those that can be predicted."""
    outside_gib: tuple[tuple[str, float], ...]
    """Model, and memory outside the allocator, of every server on one GPU that printed it."""

    def without(self, model: str) -> Reports:
        return Reports(
            tuple(pool for pool in self.pools if pool.model != model),
            tuple(found for found in self.outside_gib if found[0] != model),
        )


def read(data: Path) -> Reports:
    with (data / "kernels_more" / "kv_pools.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = (_pool(row, data / "model_configs") for row in rows)
    return Reports(
        tuple(pool for pool in found if pool is not None),
        tuple(
            (_name(row["model"]), float(row["non_torch_gib"]))
            for row in rows
            if row["non_torch_gib"] and row["tp"] == "1"
        ),
    )


def _name(model: str) -> str:
    """What models of one shape have in common."""
    return CONFIGS.get(model, model).split("/")[1].removeprefix("Meta-").removesuffix("-Instruct")


def _pool(row: dict[str, str], configs: Path) -> Pool | None:
    if row["engine"] != "vllm" or not row["kv_tokens"]:
        return None
    try:
        shape = _shape(row["model"], configs)
        gpu = load_gpu(GPUS.get(row["gpu"], row["gpu"]))
    except InputError:
        return None
    release = _release(row["engine_version"])
    pages = PoolOfRelease(release, gpu, shape.linear is None).pages(shape, int(row["tp"]))
    one_group = pages is None
    if one_group and (row["block_size"] != "16" or any("encoder" in note for note in shape.notes)):
        return None
    if pages is not None and int(row["block_size"]) != (pages.block_size or 16):
        return None
    if row["gpu_total_gib"]:
        gpu = replace(gpu, visible_memory_bytes=int(float(row["gpu_total_gib"]) * GIB))
    tokens, seqs = _default_limits(gpu)
    said = "default" in row["other_flags"] or bool(row["max_num_batched_tokens"] and row["max_num_seqs"])
    sure = bool(row["gpu_memory_utilization"]) and "not stated" not in row["gpu"]
    return Pool(
        model=shape.name,
        version=row["engine_version"].split(" ")[0],
        shape=shape,
        gpu=gpu,
        tp=int(row["tp"]),
        utilization=float(row["gpu_memory_utilization"] or _default_utilization(row["engine_version"])),
        tokens=int(row["max_num_batched_tokens"] or tokens),
        seqs=int(row["max_num_seqs"] or seqs),
        blocks=int(row["num_gpu_blocks"]) if pages is None else _blocks(row, pages),
        specified=said and sure and one_group,
        peak_gib=float(row["peak_activation_gib"]) if row["peak_activation_gib"] else None,
        graphs=release >= GRAPHS_COUNTED and row["enforce_eager"].lower() != "true",
        pages=pages,
    )


def _blocks(row: dict[str, str], pages: KVPages) -> int:
    """Blocks of a pool whose tokens are counted in blocks of every group."""
    return int(row["kv_tokens"]) // int(row["block_size"]) * len(pages.groups)


def _release(version: str) -> tuple[int, int]:
    """The first release of those that a version names."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _shape(model: str, configs: Path) -> ModelShape:
    if model in BUNDLED:
        return load_model(BUNDLED[model])
    name = CONFIGS.get(model, model)
    shape = load_model(name, configs / f"{name.replace('/', '--')}_config.json")
    return replace(shape, name=_name(model))


def _default_utilization(version: str) -> float:
    """`gpu_memory_utilization` where none is given, by `vllm/config/cache.py`."""
    return 0.92 if _release(version) >= (0, 20) else 0.9


def _default_limits(gpu: GpuSpec) -> tuple[int, int]:
    """`max_num_batched_tokens` and `max_num_seqs` where none are given, by vLLM's engine arguments."""
    large = gpu.memory_bytes >= _LARGE_CARD_GIB * GIB and "A100" not in gpu.name
    return (8192, 1024) if large else (2048, 256)


def learn(reports: Reports) -> MemoryOverheads:
    """Coefficients by robust least squares of the relative error of pools and peaks."""
    outside = float(np.median([gib for _, gib in reports.outside_gib]))
    base = replace(VLLM_OVERHEADS, single_gpu_gib=outside)

    def residuals(values: Sequence[float]) -> list[float]:
        overheads = replace(base, **dict(zip(_NAMES, values, strict=True)))
        of_pools = [pool.error(overheads) for pool in reports.pools if pool.specified]
        peaks = [pool for pool in reports.pools if pool.peak_gib is not None and pool.pages is None]
        return of_pools + [_peak_error(pool, overheads) for pool in peaks]

    found = least_squares(
        residuals,
        [4.0, 35.0, 0.5],
        bounds=([1.0, 10.0, 0.0], [8.0, 100.0, 3.0]),
        loss="soft_l1",
        f_scale=0.01,
        diff_step=1e-4,  # wider than the steps of whole blocks, which a processor's last digit decides
    )
    return replace(base, **dict(zip(_NAMES, map(float, found.x), strict=True)))


def _peak_error(pool: Pool, overheads: MemoryOverheads) -> float:
    """Of the activations, as a share of the pool."""
    found = overheads.activations(pool.shape, pool.tp, pool.tokens, pool.seqs).bytes
    return (found - (pool.peak_gib or 0.0) * GIB) / (pool.blocks * pool.predict(overheads).block_bytes)


@dataclass(frozen=True)
class Row:
    """A pool and its predictions."""

    pool: Pool
    unseen: float
    """Error with coefficients learned without the model."""
    shipped: float
    blis: float | None
    """Error of the peer's constants; None where by them the model does not fit."""


def evaluate(reports: Reports) -> list[Row]:
    unseen = {model: learn(reports.without(model)) for model in {pool.model for pool in reports.pools}}
    return [
        Row(pool, pool.error(unseen[pool.model]), pool.error(VLLM_OVERHEADS), _blis(pool))
        for pool in reports.pools
    ]


def _blis(pool: Pool) -> float | None:
    try:
        return pool.error(BLIS_OVERHEADS)
    except InputError:
        return None


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Markdown."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        pool = row.pool
        blis = "does not fit" if row.blis is None else f"{row.blis:+.1%}"
        yield (
            f"| {pool.version} | {pool.model} | {pool.gpu.name} | {pool.tp} | {pool.tokens}, {pool.seqs} "
            f"| {pool.blocks:,} | {pool.predict(VLLM_OVERHEADS).blocks:,} | {row.unseen:+.1%} "
            f"| {row.shipped:+.1%} | {blis} |"
        )
    errors = np.abs([row.unseen for row in rows])
    yield ""
    yield f"Model left out: median {np.median(errors):.1%}, worst {errors.max():.1%} of {len(rows)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    reports = read(options.data)
    rows = evaluate(reports)
    lines = ["# KV pools of vLLM servers", "", "Fully specified:", ""]
    lines += table([row for row in rows if row.pool.specified])
    lines += ["", "Limits of a step, utilisation or card not stated, vLLM's defaults assumed:", ""]
    lines += table([row for row in rows if not row.pool.specified and row.pool.pages is None])
    lines += ["", "Several groups of layers, in blocks that any of them may take:", ""]
    lines += table([row for row in rows if row.pool.pages is not None])
    found = learn(reports)
    values = ", ".join(f"{name} {getattr(found, name):.3g}" for name in ("single_gpu_gib", *_NAMES))
    lines += ["", f"Learned on all: {values}."]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
