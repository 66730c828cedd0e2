"""Command lines of `blis run` and `replay` with odd values."""

from __future__ import annotations

from pathlib import Path
from random import Random

from mutate import NUMBERS, TEXTS

from blis_py.cli.flags.flag import Flag
from blis_py.cli.flags.options import COMMON, WORKLOAD

_FLAGS: tuple[Flag, ...] = tuple(flag for _, flags in COMMON for flag in flags) + WORKLOAD
_NOT = ("--config", "--out", "--metrics-path", "--results-path", "--intervals")
_PLAUSIBLE = (
    *(
        "1",
        "2",
        "3",
        "7",
        "16",
        "100",
        "1000",
        "5000",
        "0.5",
        "60s",
        "1e3",
        "10m",
        "500ms",
        "poisson",
        "gamma",
    ),
    *("weibull", "constant", "fcfs", "priority", "sjf", "lpm", "hrrn", "dfs-weight", "radix", "hash", "none"),
    *(
        "least-loaded",
        "round-robin",
        "roofline",
        "trained",
        "linear",
        "chatbot",
        "multidoc",
        "chat",
        "mixed-slo",
    ),
    *("ttft.p99=500ms", "ttft:500ms tpot:50", "critical=100ms,standard=1s", "critical=0.2,gold=0.8", "tp=2"),
    *(
        "admission.slo_priorities.gold=3",
        "scheduler={max_num_seqs: 9}",
        "1,2,3",
        "1,1,1,1,1,1,1",
        "cpu/tiny-ar",
    ),
)
_PATHS = (
    "azure.csv",
    "mooncake.jsonl",
    "trace.csv",
    "trace.yaml",
    "spec.yaml",
    "gpu.yaml",
    "model.json",
    "dllm.yaml",
)
_PATHS += ("parameters.yaml", "bundle.yaml", "kernels", "operators", "fit", "", "nowhere", "engine/steps.csv")


def arguments(rng: Random, folder: Path) -> list[str]:
    """A command line that may make sense or not, of a run of few requests."""
    verb = rng.choice(("run", "run", "replay"))
    line = [verb, "--format", "json"]
    if rng.random() < 0.9:
        line += ["--model", "qwen3-14b"]
    if rng.random() < 0.8:
        line += ["--num-requests", "6"]
    for _ in range(rng.choice((1, 1, 2, 2, 3, 5))):
        flag = rng.choice([flag for flag in _FLAGS if flag.name not in _NOT])
        line.append(rng.choice((flag.name, *flag.aliases)))
        if flag.kind is not bool:
            line.append(_value(rng, flag, folder))
    return [word.replace("\0", "0") for word in line]


def _value(rng: Random, flag: Flag, folder: Path) -> str:
    if flag.metavar in ("FILE", "DIR", "NAME|FILE") and rng.random() < 0.7:
        return str(folder / rng.choice(_PATHS))
    if rng.random() < 0.4:
        return rng.choice(_PLAUSIBLE)
    return rng.choice(NUMBERS if rng.random() < 0.7 else TEXTS)
