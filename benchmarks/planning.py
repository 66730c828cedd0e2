"""How fast many runs are: a plan, a sweep of a thousand, and two workers against one.

    python benchmarks/planning.py [--only plan sweep dask search] [--quick] [--out FILE]

Whole commands in processes of their own, nothing kept between them. Each case has the wall time that is the
project's target on two cores; a machine that is busy with other things needs longer, and `core_share`,
the CPU time over wall time and cores, shows how much of the machine there was. Everything measured goes to
`results/planning.json`; `benchmarks/README.md` describes how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measure import ROOT, calibrate
from provenance import provenance

TRACE = ROOT.parent / "shared" / "data" / "azure_2023" / "azure2023_conv.csv"
TEN_MINUTES = 3320
"""Requests of the first ten minutes of the trace."""
LOAD = ("--model", "qwen3-14b", "--prompt-tokens", "512", "--output-tokens", "256", "--num-instances", "4")
CORES = 2

Entry = dict[str, Any]


def plan_case(quick: bool) -> Entry:
    """One model, 3 GPUs, TP 1 to 8, 1 to 32 instances, 3 schedulers, ten minutes of a trace."""
    count = 300 if quick else TEN_MINUTES
    report, entry = timed(
        *("plan", "--trace", str(TRACE), "--limit", str(count), "--model", "llama-3.1-8b"),
        *("--vary", "gpu=h100,a100-80,l40s", "tp=1,2,4,8", "scheduler=fcfs,priority-fcfs,lpm"),
        *("--instances", "1:32", "--slo", "ttft.p99=500ms", "--workers", str(CORES)),
    )
    return {
        **entry,
        "wanted_wall_s": 60,
        "candidates": report["search"]["combinations"] * 32,
        "runs": report["search"]["simulated"],
        "best": report["best"]["what"],
    }


def sweep_case(quick: bool, runs: int = 1000) -> Entry:
    """A thousand runs of 10,000 requests; of fewer, what a thousand would take at the same pace."""
    rates = 4 if quick else runs
    rows, entry = timed(
        *("sweep", *LOAD, "--num-requests", "500" if quick else "10000", "--workers", str(CORES)),
        *("--vary", f"rate=20:{20 + (rates - 1) * 0.02:g}:0.02"),
    )
    return {
        **entry,
        "wanted_wall_s": 240,
        "runs": len(rows),
        "ok": sum(row["status"] == "ok" for row in rows),
        "cpu_s_of_a_thousand": entry["cpu_s"] / len(rows) * 1000,
    }


def dask_case(quick: bool) -> Entry:
    """The same sweep over one and over two workers of a Dask cluster on this machine, its start left out."""
    runs = 6 if quick else 30
    one, two = (dask_wall_s(workers, runs, 500 if quick else 10_000) for workers in (1, 2))
    return {
        "runs": runs,
        "wall_s": {"1 worker": one, "2 workers": two},
        "ratio": one / two,
        "load_average": os.getloadavg()[0],
        "wanted_ratio": 1.7,
    }


def dask_wall_s(workers: int, runs: int, requests: int) -> float:
    from blis_py.api import configure
    from blis_py.planning.executors import Dask
    from blis_py.planning.job import Job
    from blis_py.planning.runner import Runner
    from blis_py.planning.store import Nowhere

    def jobs(first: int, count: int) -> list[Job]:
        load = {"model": "qwen3-14b", "num_instances": 4, "num_requests": requests, "prompt_tokens": 512}
        return [
            Job(configure(**load, output_tokens=256, rate=20 + 0.02 * rate))
            for rate in range(first, first + count)
        ]

    with Runner(Dask("local", workers), Nowhere()) as runner:
        runner.run(jobs(2000, 4 * workers))  # imports
        began = time.perf_counter()
        outcomes = runner.run(jobs(0, runs))
        wall_s = time.perf_counter() - began
    assert all(outcome.ran for outcome in outcomes)
    return wall_s


def search_case(quick: bool) -> Entry:
    """The search of a plan without its runs: CPU time against the number of combinations, 32 sizes each; and
    that of the check of an axis of ten times as many values."""
    counts = (50, 100) if quick else (125, 250, 500, 1000, 2000)
    points = []
    for count in counts:
        search_s, axis_s = cpu_s_of_search(count), cpu_s_of_axis(count * 10)
        points.append(
            {"combinations": count, "cpu_s": search_s, "axis_values": count * 10, "axis_cpu_s": axis_s}
        )
    per_combination = [point["cpu_s"] / point["combinations"] for point in points]
    return {"points": points, "growth_of_cost_per_combination": per_combination[-1] / per_combination[0]}


def cpu_s_of_search(combinations: int, sizes: int = 32) -> float:
    """A line holds from one to all sizes on, as its number says; a run is an entry in a table."""
    from blis_py.planning.goal import Judgement, Requirement
    from blis_py.planning.search import Probe, Search, SearchLine

    def evaluate(probes: Sequence[Probe], may_stop: bool) -> list[Judgement]:
        return [judged(size + 1, 1 + (7 * line) % sizes) for line, size in probes]

    def judged(size: int, least: int) -> Judgement:
        slack = size / least - 1
        return Judgement(size >= least, (Requirement("ttft.p99", 1.0, 1 - slack, "ms", slack),))

    began = time.process_time()
    lines = [SearchLine(1.0 + line % 13) for line in range(combinations)]
    search = Search(lines, range(1, sizes + 1), evaluate)
    assert search.best() is not None
    for line in range(combinations):
        search.settled(line)
    return time.process_time() - began


def cpu_s_of_axis(values: int) -> float:
    from blis_py.planning.axes import axis

    began = time.process_time()
    axis("rate", [1 + 0.001 * value for value in range(values)])
    return time.process_time() - began


CASES: dict[str, Callable[..., Entry]] = {
    "plan": plan_case,
    "sweep": sweep_case,
    "dask": dask_case,
    "search": search_case,
}


def timed(*arguments: str) -> tuple[Any, Entry]:
    """What a command says, and what it took."""
    command = [sys.executable, "-m", "blis_py", *arguments, "--no-cache", "--format", "json"]
    before, began = _children_s(), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, check=True)
    wall_s, cpu_s = time.perf_counter() - began, _children_s() - before
    shown = " ".join(arguments).replace(str(TRACE), TRACE.name)
    entry = {
        "command": f"blis {shown}",
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "core_share": cpu_s / wall_s / CORES,
        "calibration_ns": calibrate(),
        "load_average": os.getloadavg()[0],
    }
    return json.loads(done.stdout), entry


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def main() -> None:
    options = _options()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.only:
        if name == "plan" and not TRACE.exists():
            print(f"skipped {name}: {TRACE} is not there", file=sys.stderr)
            continue
        more = {"runs": options.runs} if name == "sweep" else {}
        entry = CASES[name](options.quick, **more)
        found[name] = {
            "what": CASES[name].__doc__,
            **entry,
            "quick": options.quick,
            "provenance": provenance(None),
        }
        print(json.dumps({name: {k: v for k, v in found[name].items() if k != "provenance"}}, indent=1))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing"
    )
    parser.add_argument("--runs", type=int, default=1000, help="of the sweep")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = ROOT / ("out/benchmarks" if options.quick else "benchmarks/results")
    options.out = options.out or folder / "planning.json"
    return options


if __name__ == "__main__":
    from blis_py import native

    native.activate()
    main()
