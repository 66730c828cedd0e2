"""Learn the operator surfaces of DeepEP: experts and their exchange, for prompts (mode normal) and decodes
(low latency).

    python benchmarks/accuracy/train_deepep.py ../shared/data

Reads SGLang's tables of wide expert parallelism (NVIDIA AIConfigurator, Apache-2.0), measured with the sizes
of DeepSeek-V3, and writes `profiles/operators/GPU-deepep.json`; see `train_operators.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

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
    def read(version: str, name: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"{system}_{version}" / f"wideep_{name}_perf.csv.gz")

    yield from _experts(read(EXPERTS, "context_moe"), gpu, "deepep")
    yield from _experts(read(EXPERTS, "generation_moe"), gpu, "deepep-ll")
    ways = ["dispatch_transmit_us", "combine_transmit_us"]
    yield _exchange(read(EXCHANGE, "deepep_normal"), gpu, "deepep", ways)
    ways = ["dispatch_avg_t_us", "combine_avg_t_us"]
    yield _exchange(read(EXCHANGE, "deepep_ll"), gpu, "deepep-ll", ways)


def _experts(rows: pd.DataFrame, gpu: GpuSpec, mode: str) -> Iterator[Measured]:
    """DeepGEMM's products of contiguous or masked groups, for the tokens of all ranks."""
    for distribution, part in rows.groupby("distribution"):
        if distribution not in NAMES:
            continue
        one = part.groupby(["num_tokens", "moe_ep_size"], as_index=False)["latency"].mean()
        tokens, ep = (one[key].to_numpy(float) for key in ("num_tokens", "moe_ep_size"))
        priced = work.experts(gpu, "fp8_block", tokens, HIDDEN, WIDTH, TOP_K, COUNT / ep, ep)
        yield f"experts/fp8_block@{mode}/{NAMES[distribution]}", priced, one["latency"].to_numpy(float) * 1e6


def _exchange(rows: pd.DataFrame, gpu: GpuSpec, mode: str, ways: list[str]) -> Measured:
    """Dispatch and combine, each with as many multiprocessors as suit it."""
    keys = ["num_token", "hidden_size"]
    one = rows[rows.num_topk == TOP_K].groupby(keys, as_index=False)[ways].min()
    tokens, hidden = (one[key].to_numpy(float) for key in keys)
    ns = one[ways].sum(axis=1).to_numpy(float) * 1e3
    return f"all_to_all/{mode}", work.all_to_all(gpu, tokens, hidden, TOP_K), ns


def write(folder: Path, name: str, system: str) -> None:
    """The file of one GPU."""
    lines = []
    for kind, priced, ns in measured(folder, system, load_gpu(name)):
        entry = fit(priced, ns, OWN_KNOTS[kind.partition("/")[0]])
        print(f"{name} {kind}: {entry['rows']} rows, {entry['error_percent']} %")
        lines.append(f"{json.dumps(kind)}: {json.dumps(entry, separators=(',', ':'))}")
    source = f"AIConfigurator 095f58a (Apache-2.0): {system}_{EXPERTS}, {system}_{EXCHANGE}"
    head = json.dumps({"gpu": name, "engine": "deepep", "source": source})
    text = ",\n".join(lines)
    (OUT / f"{name}-deepep.json").write_text(f'{head[:-1]}, "surfaces": {{\n{text}\n}}}}\n', encoding="utf-8")


def main() -> None:
    folder = Path(sys.argv[1]) / "kernels_more"
    for name, system in SYSTEMS.items():
        if (folder / f"{system}_{EXCHANGE}").is_dir():
            write(folder, name, system)


if __name__ == "__main__":
    main()
