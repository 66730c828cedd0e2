"""How well a profile of the engine predicts whole runs of the engine.

    python benchmarks/accuracy/engine_runs.py --profiles DIR [--case TEXT...] [--keep DIR] [--out FILE]

For each case: `blis engine run` serves a workload, `blis replay` simulates its trace with the profile of the
model (made by `blis engine profile`, which depends on none of the runs; in block diffusion with the rounds
that its blocks took, as with the lengths of its answers), `blis calibrate --autopsy` compares the two and
names the causes of the difference, and `blis parity` replays the measured step times.

`--profile` measures the profiles first, into DIR. A shared machine is faster at one time than at another:
profiles and runs use the steady clock, with the same yardstick. No run is fitted to.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from engine_cases import CASES, MODELS, Case, spelled
from engine_table import TARGETS, Row, table

sys.path.insert(0, str(Path(__file__).parents[1]))
from provenance import provenance

from engine.profile.run import TOLERATED_DRIFT
from engine.revision import revision

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Served:
    """A run of the engine, in `folder`/real."""

    case: Case
    folder: Path
    rate: float
    summary: dict[str, Any]
    provenance: dict[str, str]
    """When, and by which commit of the engine on which torch."""


def blis(*words: str) -> dict[str, Any]:
    """Runs a command and returns what it prints."""
    command = [sys.executable, "-m", "blis_py", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    return dict(json.loads(done.stdout)) if done.stdout.startswith("{") else {}


def simulated(case: Case, profiles: Path) -> list[str]:
    """Flags that make the simulator the engine's twin; the profile holds the model and its limits."""
    return ["--profile", str(profiles / case.model), *spelled(limits(case))]


def limits(case: Case) -> dict[str, str]:
    return {**MODELS[case.model].limits, **case.scheduling}


def capacity(case: Case, profiles: Path, folder: Path) -> float:
    """Requests per second that the simulated engine completes when it is never idle.

    Of block diffusion the engine itself: how many rounds its blocks take is known only afterwards.
    """
    spec = write_spec(case, 1e6, folder / "capacity.yaml")
    if MODELS[case.model].diffusion:
        run = engine_run(case, spec, profiles, folder / "capacity")
        return float(run["cluster"]["throughput"]["requests_per_s"])
    summary = blis("run", "--workload-spec", spec, *simulated(case, profiles), "--format", "json")
    return float(summary["cluster"]["throughput"]["requests_per_s"])


def write_spec(case: Case, rate: float, path: Path) -> str:
    path.write_text(yaml.safe_dump(case.spec(rate), sort_keys=False), encoding="utf-8")
    return str(path)


def serve(case: Case, profiles: Path, folder: Path) -> Served:
    """One run, or what is kept of it."""
    number, began_s = CASES.index(case), time.monotonic()
    folder = folder / f"{number:02}"
    if (folder / SUMMARY).exists():
        return kept(case, folder)
    shutil.rmtree(folder, ignore_errors=True)  # a run that was cut short
    folder.mkdir(parents=True)
    served = measure(case, profiles, folder)
    took_s = time.monotonic() - began_s
    text = f"{number + 1} of {len(CASES)}: {case.model}, {case.name}, {took_s:.0f} s"
    print(text, file=sys.stderr, flush=True)
    return served


def measure(case: Case, profiles: Path, folder: Path) -> Served:
    """The engine serves the case."""
    rate = case.load * capacity(case, profiles, folder)
    spec = write_spec(case, rate, folder / "workload.yaml")
    summary = engine_run(case, spec, profiles, folder / "real")
    report = yaml.safe_load((folder / "real" / "run.yaml").read_text(encoding="utf-8"))
    by = {"started_at": report["started_at"], "commit": revision(), "torch": report["torch"]}
    served = Served(case, folder, rate, summary, by)
    kept = {name: getattr(served, name) for name in ("rate", "summary", "provenance")}
    (folder / SUMMARY).write_text(json.dumps(kept), encoding="utf-8")
    return served


def kept(case: Case, folder: Path) -> Served:
    """A run of before."""
    shutil.rmtree(folder / "sim", ignore_errors=True)
    return Served(case, folder, **json.loads((folder / SUMMARY).read_text(encoding="utf-8")))


def engine_run(case: Case, spec: str, profiles: Path, out: Path) -> dict[str, Any]:
    flags = [*MODELS[case.model].flags, *spelled(case.scheduling), "--yardstick", str(profiles / case.model)]
    return blis("engine", "run", *flags, "--workload-spec", spec, "--out", str(out))


def predict(served: Served, profiles: Path) -> Row:
    """The simulator serves the same requests, and the two are compared."""
    case, real, sim = served.case, str(served.folder / "real"), str(served.folder / "sim")
    trace = ["--trace", f"{real}/trace.csv", "--record-itl", "--out", sim]
    if MODELS[case.model].diffusion:
        trace += ["--dllm-workload", f"{real}/dllm.yaml"]
    predicted = blis("replay", *trace, *simulated(case, profiles), "--format", "json")
    compared = blis("calibrate", real, "--results", sim, "--autopsy", "--format", "json")
    parity = blis("parity", real, "--format", "json")
    steps = blis("profile", "validate", str(profiles / case.model), "--step-log", real, "--format", "json")
    return Row(
        case.name,
        case.model,
        served.rate,
        errors(compared),
        both(served.summary, predicted, "prefix_hit_rate"),
        both(served.summary, predicted, "preemptions"),
        parity["share"],
        *step_errors(steps),
        first_cause(compared),
        injected_errors(compared),
        served.provenance,
    )


def measure_profile(name: str, rounds: int, profiles: Path) -> None:
    """Step times of a model; what is there already is kept."""
    blis("engine", "profile", *MODELS[name].flags, "--out", str(profiles / name), "--rounds", str(rounds))


def profile_facts(name: str, profiles: Path) -> dict[str, Any]:
    """When and on what a profile was measured, how often each shape, and how much the machine drifted."""
    report = yaml.safe_load((profiles / name / "profile.yaml").read_text(encoding="utf-8"))
    names = ("date", "engine_commit", "device", "torch", "clock", "yardstick_us", "rounds", "counts", "drift")
    if report["drift"] > TOLERATED_DRIFT:
        print(f"warning: the machine drifted by {report['drift']:.1%} under {name}", file=sys.stderr)
    return {key: report[key] for key in names if key in report}


def errors(compared: dict[str, Any]) -> dict[str, float]:
    by_latency = {row["latency"]: row["seconds"] for row in compared["latencies"] if row["group"] == "all"}
    result = {}
    for name in TARGETS:
        latency, statistic = name.lower().split()
        result[name] = float(by_latency[latency][statistic]["error"])
    return result


def both(measured: dict[str, Any], predicted: dict[str, Any], name: str) -> tuple[Any, Any]:
    return measured["cluster"][name], predicted["cluster"][name]


def step_errors(validated: dict[str, Any]) -> tuple[float, float]:
    """MAPE and bias over all steps of a run."""
    parts = [part["synchronous"] for part in validated["runs"]]
    steps = sum(part["steps"] for part in parts)
    mape, bias = (sum(part["steps"] * part[name] for part in parts) / steps for name in ("mape", "bias"))
    return mape, bias


def injected_errors(compared: dict[str, Any]) -> dict[str, float]:
    """Of the means, when every step takes what it took."""
    autopsy = compared["autopsy"]
    left = next(cause["value_ns"] for cause in autopsy["causes"] if cause["cause"] == "scatter")
    names = {"TTFT mean": "ttft_mean", "E2E mean": "e2e_mean"}
    return {name: left[key] / autopsy["measured_ns"][key] - 1 for name, key in names.items()}


def first_cause(compared: dict[str, Any]) -> str:
    autopsy = compared["autopsy"]
    return next(c["title"] for c in autopsy["causes"] if c["cause"] == autopsy["first_cause"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=Path, required=True, help="folder with a profile of each model")
    parser.add_argument("--profile", action="store_true", help="measure the profiles first")
    parser.add_argument("--rounds", type=int, default=20, help="repetitions of every shape, with --profile")
    parser.add_argument("--case", nargs="+", default=[""], help="only cases with one of these in their name")
    parser.add_argument(
        "--keep", type=Path, help="keep the runs here; those that are there are not served again"
    )
    parser.add_argument("--out", type=Path, help="JSON file to write, and the table beside it (.md)")
    options = parser.parse_args()
    options.profiles = options.profiles.resolve()
    cases = [case for case in CASES if any(text in f"{case.model} {case.name}" for text in options.case)]
    if options.profile:
        for name in dict.fromkeys(case.model for case in cases):
            began_s = time.monotonic()
            measure_profile(name, options.rounds, options.profiles)
            print(f"profile of {name}, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    where = provenance(None)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        runs = [serve(case, options.profiles, folder) for case in cases]
        rows = [predict(served, options.profiles) for served in runs]
    print(table(rows))
    if options.out:
        names = dict.fromkeys(case.model for case in cases)
        profiles = {name: profile_facts(name, options.profiles) for name in names}
        found = {"provenance": where, "profiles": profiles, "targets": TARGETS, "runs": list(map(vars, rows))}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        options.out.with_suffix(".md").write_text(table(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
