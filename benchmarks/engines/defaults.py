"""Defaults that engines derive from a GPU: their own functions, from their wheels, beside presets.

    python -m benchmarks.engines.defaults [--engines vllm sglang] [--versions …]

Every GPU with a profile, and some with the names and memories at which rules change, by number of GPUs,
replicas of attention, limits of a step and kind of attention. Exit status 1 if a value differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.engines import config_defaults, presets, wheels
from benchmarks.engines.child import BARE
from benchmarks.engines.engine import release_of
from benchmarks.engines.registry import ENGINES
from blis_py.config.derived import RULES as OURS
from blis_py.config.derived import LaunchedEngine
from blis_py.config.models import SchedulerSection
from blis_py.core.rank_choice import RANK_CHOICES, RankLoad
from blis_py.core.request import Request
from blis_py.files.bundled import root
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency.graph_sizes import default_sizes

PROGRAM = Path(__file__).with_name("defaults_child.py")
RELEASES = {
    "vllm": ("0.15.1", "0.19.1", "0.24.0", "0.29.0", "0.33.0"),
    "sglang": ("0.5.14", "0.5.22", "0.5.23"),
}
"""Those with pinned wheels that have the rules."""
_TIMEOUT_S = 120
_GIB = 1 << 30
_EDGES_GIB = (19, 20, 34, 35, 59, 60, 69, 70, 89, 90, 159, 160)
_CAPABILITIES = {"b200": (10, 0), "gb200": (10, 0), "b300": (10, 3), "gb300": (10, 3), "gb10": (12, 1)}
"""Compute capabilities that rules tell apart, by name of the GPU."""
_LATENT, _PLAIN = "deepseek-r1", "qwen3-32b"


class Difference(NamedTuple):
    """A default that is another one here."""

    rule: str
    question: dict[str, Any]
    engine: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.rule} {json.dumps(self.question)}: {self.engine} in the engine, {self.ours} here"


def gpus() -> list[GpuSpec]:
    """All that have a profile, and made-up ones at the edges of rules."""
    names = sorted(path.stem for path in (root("profiles") / "gpus").glob("*.yaml") if path.stem != "names")
    known = [load_gpu(name) for name in names]
    h100 = load_gpu("h100")
    edges = [replace(h100, name=f"{gib} GiB", driver_memory_bytes=gib * _GIB) for gib in _EDGES_GIB]
    return [*known, *edges, replace(h100, name="GB10", driver_memory_bytes=119 * _GIB)]


def answers_of(program_root: Path, rule: str, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers of an engine's own functions.

    Raises:
        RuntimeError: they do not run.
    """
    done = subprocess.run(
        [*BARE, str(PROGRAM), str(program_root), rule],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{rule}: {done.stderr.strip()[-800:]}")
    return list(json.loads(done.stdout))


def _capability(gpu: GpuSpec) -> tuple[int, int]:
    return _CAPABILITIES.get(gpu.name.lower().split()[0], (9, 0))


class _Server(LaunchedEngine):
    """An instance on a GPU that need not have a profile."""

    def __init__(self, gpu: GpuSpec, settings: dict[str, Any], release: tuple[int, ...]) -> None:
        super().__init__(settings, release)
        self.__dict__["gpu"] = gpu


def vllm_limits(gpu: GpuSpec, release: tuple[int, ...]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Questions about limits of a step, and our answers."""
    server = _Server(gpu, {}, release)
    tokens, seqs = OURS["vllm-tokens"].value(server), OURS["vllm-requests"].value(server)
    question = {"name": gpu.name, "memory_bytes": gpu.driver_memory_bytes, "capability": _capability(gpu)}
    yield question, {"tokens": tokens, "seqs": seqs}


def vllm_graphs(gpu: GpuSpec, release: tuple[int, ...]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Questions about sizes of CUDA graphs, and our answers."""
    for seqs, tokens in product((1, 20, 128, 250, 256, 300, 512, 700, 1024), (30, 512, 2048, 16384)):
        if seqs <= tokens:
            sizes = default_sizes("vllm", gpu, 1, seqs, None, True, tokens, release).sizes
            question = {"seqs": seqs, "tokens": tokens, "capability": _capability(gpu)}
            yield question, {"sizes": list(sizes)}


def vllm_ranks(release: tuple[int, ...]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Questions about the rank of a new request, and our answers."""
    rng = Random(7)
    choice = OURS["vllm-ranks"].value(LaunchedEngine({}, release))
    for number in range(400):
        loads = [RankLoad() for _ in range(rng.randint(2, 8))]
        for load in loads:
            load.waiting, load.running = rng.choice((0, 0, 1, 5)), rng.randint(0, 9)
            load.kv_use = rng.random()
        turn = number % len(loads) if choice != "least-queued" else 0
        question = {
            "loads": [[load.waiting, load.running, load.kv_use] for load in loads],
            "turn": turn,
            "fields": 3 if choice == "least-loaded" else 2,
        }
        yield question, {"rank": RANK_CHOICES[choice](loads, Request("r", 0, 1), turn)}


def sglang_memory(gpu: GpuSpec, release: tuple[int, ...]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Questions about chunk, share of memory and largest graph, and our answers."""
    mib = gpu.driver_memory_bytes / 2**20
    several = product((1, 2, 4, 8), (1, 2, 8), (False, True), (None, 20))
    for gpus_, replicas, latent, running in several:
        if gpus_ % replicas:
            continue
        given = {"tp": gpus_, "attention_dp": replicas, "model": _LATENT if latent else _PLAIN}
        if running:
            given["scheduler.max_num_seqs"] = running
        server = _Server(gpu, given, release)
        own = {
            "chunk": OURS["sglang-chunk"].value(server) * replicas,
            "share": OURS["sglang-memory-share"].value(server),
            "graph": default_sizes("sglang", gpu, gpus_, running or 4096, None, True, release=release).sizes[
                -1
            ],
        }
        question: dict[str, Any] = {"memory_mib": mib, "gpus": gpus_, "replicas": replicas, "latent": latent}
        question["running"] = running
        yield question, own


BY_GPU = {
    "vllm": {"vllm-limits": vllm_limits, "vllm-graphs": vllm_graphs},
    "sglang": {"sglang-memory": sglang_memory},
}
"""Questions of each engine about a GPU."""
LITERALS = {
    "CacheConfig": ("gpu_memory_utilization", "enable_prefix_caching"),
    "SchedulerConfig": (
        *("scheduler_reserve_full_isl", "watermark", "prefill_schedule_interval", "policy"),
        *("long_prefill_token_threshold", "long_prefill_token_threshold_adaptive"),
    ),
}
"""Fields of vLLM's settings whose defaults are written as literals, under the names that they have here."""


def literals(wheel: wheels.Wheel) -> tuple[int, list[Difference]]:
    """The same for defaults that are literals in vLLM's settings; those absent from a release are left
    out."""
    found = config_defaults.of_path(wheel.root / "vllm" / "config")
    settings = presets.preset_of("vllm", wheel.version).on({})
    count, different = 0, list[Difference]()
    for section, names in LITERALS.items():
        for name in names:
            theirs = found.get(section, {}).get(name)
            if theirs in (None, config_defaults.NO_LITERAL):
                continue
            own = settings.get(f"scheduler.{name}", getattr(SchedulerSection, name))
            count += 1
            if theirs != own:
                different.append(Difference(section, {"field": name}, theirs, own))
    return count, different


def compared(package: str, wheel: wheels.Wheel) -> tuple[int, list[Difference]]:
    """Number of defaults compared for a release, and those that differ."""
    release = tuple(int(part) for part in wheel.version.split(".") if part.isdigit())
    release = release if package == "sglang" else release_of(wheel.version)
    count, different = literals(wheel) if package == "vllm" else (0, list[Difference]())
    every = {
        rule: [pair for gpu in gpus() for pair in ask(gpu, release)] for rule, ask in BY_GPU[package].items()
    }
    if package == "vllm":
        every["vllm-ranks"] = list(vllm_ranks(release))
    for rule, pairs in every.items():
        answers = answers_of(wheel.root, rule, [question for question, _ in pairs])
        count += len(pairs)
        different += [
            Difference(rule, question, answer, own)
            for (question, own), answer in zip(pairs, answers, strict=True)
            if answer != own
        ]
    return count, different


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.defaults", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=RELEASES, default=list(RELEASES))
    parser.add_argument("--versions", nargs="+", help="Default: those with pinned wheels.")
    flags = parser.parse_args(arguments)
    differs = False
    for package in flags.engines:
        for version in flags.versions or RELEASES[package]:
            wheel = wheels.unpacked(package, version, ENGINES[package].kept)
            if wheel is None:
                continue
            count, different = compared(package, wheel)
            print(f"{package} {wheel.version}: {count - len(different)} of {count} derived defaults equal")
            for each in different[:3]:
                print(f"  {each}")
            differs |= bool(different)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
