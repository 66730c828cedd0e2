"""Learn the operator surfaces of prompts under DeepEP: the experts and their exchange.

    python benchmarks/accuracy/train_deepep.py ../shared/data

Reads SGLang's tables of wide expert parallelism (NVIDIA AIConfigurator, Apache-2.0), measured with the sizes of
DeepSeek-V3, and writes `profiles/operators/GPU-deepep.json`; see `train_operators.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from train_operators import KNOTS, OUT, ROUTINGS, SYSTEMS, Measured, fit

from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency import operator_work as work

EXPERTS, EXCHANGE = "sglang_0.5.10", "sglang_0.5.12"
"""Versions of the tables."""
HIDDEN, WIDTH, TOP_K, COUNT = 7168, 2048, 8, 256
OWN_KNOTS = {
    "experts": (KNOTS["experts"][0], (0, 2, 4, 5, 6, 7), (13,), (11,)),
    "all_to_all": KNOTS["all_to_all"],
}
NAMES = {**ROUTINGS, "uniform": "balanced"}


def measured(folder: Path, system: str, gpu: GpuSpec) -> Iterator[Measured]:
    yield from _experts(pd.read_csv(folder / f"{system}_{EXPERTS}" / "wideep_context_moe_perf.csv.gz"), gpu)
    yield from _exchange(pd.read_csv(folder / f"{system}_{EXCHANGE}" / "wideep_deepep_normal_perf.csv.gz"), gpu)


def _experts(rows: pd.DataFrame, gpu: GpuSpec) -> Iterator[Measured]:
    """DeepGEMM's products of contiguous groups, for the tokens of all ranks."""
    for distribution, part in rows.groupby("distribution"):
        if distribution not in NAMES:
            continue
        one = part.groupby(["num_tokens", "moe_ep_size"], as_index=False)["latency"].mean()
        tokens, ep = (one[key].to_numpy(float) for key in ("num_tokens", "moe_ep_size"))
        priced = work.experts(gpu, "fp8_block", tokens, HIDDEN, WIDTH, TOP_K, COUNT / ep, ep)
        yield f"experts/fp8_block@deepep/{NAMES[distribution]}", priced, one["latency"].to_numpy(float) * 1e6


def _exchange(rows: pd.DataFrame, gpu: GpuSpec) -> Iterator[Measured]:
    """Dispatch and combine (mode normal), each with as many multiprocessors as suit it."""
    keys, ways = ["num_token", "hidden_size"], ["dispatch_transmit_us", "combine_transmit_us"]
    one = rows[rows.num_topk == TOP_K].groupby(keys, as_index=False)[ways].min()
    tokens, hidden = (one[key].to_numpy(float) for key in keys)
    ns = one[ways].sum(axis=1).to_numpy(float) * 1e3
    yield "all_to_all/deepep", work.all_to_all(gpu, tokens, hidden, TOP_K), ns


def main() -> None:
    data = Path(sys.argv[1])
    for name, system in SYSTEMS.items():
        folder = data / "kernels_more"
        if not (folder / f"{system}_{EXCHANGE}").is_dir():
            continue
        surfaces = {}
        for kind, priced, ns in measured(folder, system, load_gpu(name)):
            where = np.broadcast_arrays(*priced.at)
            surfaces[kind] = entry = fit(
                work.Priced(priced.ns, tuple(where)), ns, OWN_KNOTS[kind.partition("/")[0]]
            )
            print(f"{name} {kind}: {entry['rows']} rows, {entry['error_percent']} %")
        source = f"AIConfigurator 095f58a (Apache-2.0): {system}_{EXPERTS}, {system}_{EXCHANGE}"
        head = {"gpu": name, "engine": "deepep", "source": source}
        lines = ",\n".join(
            f"{json.dumps(kind)}: {json.dumps(entry, separators=(',', ':'))}" for kind, entry in surfaces.items()
        )
        text = json.dumps(head)[:-1] + f', "surfaces": {{\n{lines}\n}}}}\n'
        (OUT / f"{name}-deepep.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
