"""The commands that are timed as whole processes, and what they are held against."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from measure import ROOT, run

MILLION_PROMPT_TOKENS = 512
MILLION_OUTPUT_TOKENS = 256
MILLION_INSTANCES = 64
MILLION_SHARE_OF_CAPACITY = 0.8


@dataclass(frozen=True, slots=True)
class Peer:
    """Published figures of the compiled peer: quiet 2-vCPU EPYC, whole process, two cores to use."""

    wall_s: float
    rss_mb: float


@dataclass(frozen=True, slots=True)
class Goal:
    """The project's target; printed beside the figure, never enforced."""

    wall_s: float
    rss_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One command of `blis`."""

    what: str
    arguments: tuple[str, ...]
    files: tuple[str, ...] = ()
    """What has to be there, relative to the repository root."""
    simulates: bool = True
    """Its standard output is the summary of a simulation, as JSON."""
    peer: Peer | None = None
    goal: Goal | None = None

    def missing(self) -> list[str]:
        return [file for file in self.files if not (ROOT / file).exists()]


def startup(quick: bool) -> Case:
    """What every run costs, whatever it simulates."""
    arguments = "run --engine blis --model qwen3-14b --num-requests 1 --format json"
    return Case("one request", tuple(arguments.split()), simulates=False)


def make_run(quick: bool) -> Case:
    """What `make run` does once everything is installed, table included."""
    arguments = "run --workload-spec workloads/mixed-slo.yaml --model qwen3-14b --gpu h100"
    arguments += " --num-instances 4 --scheduler priority-fcfs --format table"
    return Case("the job of `make run`", tuple(arguments.split()), simulates=False, goal=Goal(2.0))


def b_10k_rate100(quick: bool) -> Case:
    peer = Peer(1.72, 267)
    return _bench_trace("b_10k_rate100", 4, "10,000 requests, 512 / 256", peer, Goal(1.5), quick)


def c_100k_rate400(quick: bool) -> Case:
    peer = Peer(23.8, 2733)
    goal = Goal(peer.wall_s / 5, peer.rss_mb / 5)
    return _bench_trace("c_100k_rate400", 16, "100,000 requests, 512 / 256", peer, goal, quick)


def azure_conversation(quick: bool) -> Case:
    return _azure("conv", "an hour of Azure conversations, 19,366 requests", quick)


def azure_code(quick: bool) -> Case:
    return _azure("code", "an hour of Azure code completion, 8,819 requests", quick)


def million(quick: bool) -> Case:
    """Poisson arrivals at four fifths of what the instances could complete."""
    rate = MILLION_SHARE_OF_CAPACITY * MILLION_INSTANCES * _capacity()
    count = 20_000 if quick else 1_000_000
    arguments = [
        *("run", "--engine", "blis", "--model", "llama-3.1-8b", "--gpu", "h100"),
        *("--num-instances", str(MILLION_INSTANCES)),
        *("--rate", f"{rate:.1f}", "--num-requests", str(count)),
        *("--prompt-tokens", str(MILLION_PROMPT_TOKENS), "--prompt-tokens-stdev", "0"),
        *("--output-tokens", str(MILLION_OUTPUT_TOKENS), "--output-tokens-stdev", "0"),
        *("--format", "json"),
    ]
    what = f"{count:,} requests, 512 / 256, {MILLION_INSTANCES} instances at 80 % of capacity"
    return Case(what, tuple(arguments), goal=None if quick else Goal(60.0, 500))


def week(quick: bool) -> Case:
    """A little traffic for a long time: memory follows requests, not steps."""
    count = 2_000 if quick else 200_000
    arguments = [
        *("run", "--engine", "blis", "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "0.33"),
        *("--num-requests", str(count), "--output-tokens", "300", "--format", "json"),
    ]
    what = f"{count:,} requests in a week, one Llama-3.1-8B / H100"
    return Case(what, tuple(arguments), goal=None if quick else Goal(120.0, 500))


def many_instances(policy: str) -> Callable[[bool], Case]:
    """What routing costs where there are many to choose from."""

    def case(quick: bool) -> Case:
        count = 2_000 if quick else 1_000_000
        arguments = [
            *("run", "--engine", "blis", "--model", "llama-3.1-8b", "--gpu", "h100"),
            *("--num-instances", "64" if quick else "1024", "--rate", "500" if quick else "8000"),
            *("--num-requests", str(count), "--prompt-tokens-stdev", "0"),
            *("--output-tokens", "256", "--output-tokens-stdev", "0"),
            *("--routing-policy", policy, "--format", "json"),
        ]
        what = f"{count:,} requests, {policy} over {64 if quick else 1024:,} instances"
        return Case(what, tuple(arguments), goal=None if quick else Goal(60.0, 1500))

    return case


def shared_prefixes(policy: str) -> Callable[[bool], Case]:
    """What scoring costs, where prompts share prefixes."""

    def case(quick: bool) -> Case:
        count = 1_000 if quick else 100_000
        arguments = [
            *("run", "--engine", "blis", "--model", "llama-3.1-8b", "--gpu", "h100"),
            *("--workload", "hot-prefix", "--rate", "800", "--num-requests", str(count)),
            *("--num-instances", "64", "--num-kv-blocks", "8000"),
            *("--routing-policy", policy, "--format", "json"),
        ]
        return Case(f"{count:,} requests of `hot-prefix`, {policy} over 64 instances", tuple(arguments))

    return case


CASES: dict[str, Callable[[bool], Case]] = {
    "startup": startup,
    "make_run": make_run,
    "b_10k_rate100": b_10k_rate100,
    "c_100k_rate400": c_100k_rate400,
    "azure_conversation": azure_conversation,
    "azure_code": azure_code,
    "million": million,
    "week": week,
    "instances_round_robin": many_instances("round-robin"),
    "instances_least_loaded": many_instances("least-loaded"),
    "prefixes_round_robin": shared_prefixes("round-robin"),
    "prefixes_weighted": shared_prefixes("weighted"),
}
"""Name -> case; the argument asks for a small one that only shows that it runs."""

_QUICK_LIMIT = ("--limit", "500")


def _bench_trace(name: str, instances: int, what: str, peer: Peer, goal: Goal, quick: bool) -> Case:
    header, data = (f"../shared/data/bench_traces/{name}{end}" for end in (".yaml", ".csv.gz"))
    arguments = [
        *("replay", "--engine", "blis", "--trace-header", header, "--trace-data", data),
        *("--model", "qwen/qwen3-14b", "--hardware", "H100", "--tp", "1"),
        *("--num-instances", str(instances), "--format", "json"),
    ]
    what = f"{what}, {instances} × Qwen3-14B / H100"
    if quick:
        return Case(what, (*arguments, *_QUICK_LIMIT), (header, data))
    return Case(what, tuple(arguments), (header, data), peer=peer, goal=goal)


def _azure(name: str, what: str, quick: bool) -> Case:
    trace = f"../shared/data/azure_2023/azure2023_{name}.csv"
    arguments = [
        *("replay", "--engine", "blis", "--trace", trace, "--model", "llama-3.1-8b", "--gpu", "h100"),
        *("--num-instances", "4", "--format", "json", *(_QUICK_LIMIT if quick else ())),
    ]
    what = f"{what}, 4 × Llama-3.1-8B / H100"
    return Case(what, tuple(arguments), (trace,), goal=None if quick else Goal(3.0))


def _capacity() -> float:
    """Requests per second of one instance, found by a process of its own to keep this one small."""
    _, text = run((sys.executable, "benchmarks/capacity.py", str(MILLION_OUTPUT_TOKENS)))
    return float(json.loads(text)["requests_per_s"])
