"""How well a profile of the engine predicts whole runs of the engine.

    python benchmarks/accuracy/engine_runs.py --profiles DIR [--case TEXT...] [--keep DIR] [--out FILE]

For each case: `blis engine run` serves a workload, `blis replay` simulates its trace with the profile of the
model (made by `blis engine profile`, which knows nothing of any run; in block diffusion with the rounds that
its blocks took, as with the lengths of its answers), `blis calibrate --autopsy` compares the two and names
the causes of the difference, and `blis parity` replays the measured step times.

`--profile` measures the profiles first, into DIR. A shared machine is faster at one time than at another:
profiles and runs use the steady clock, with the same yardstick. No run is fitted to.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from engine_cases import CASES, MODELS, Case, spelled

sys.path.insert(0, str(Path(__file__).parents[1]))
from provenance import provenance

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    "E2E mean": 0.05,
    "TPOT mean": 0.05,
    "TTFT mean": 0.08,
    "TTFT p99": 0.12,
    "TPOT p99": 0.12,
    "E2E p99": 0.12,
}
"""Largest median over the runs of the absolute error."""
SUMMARY = "summary.json"
HIT_RATE_TARGET, PREEMPTIONS_TARGET = 0.01, 0.02


@dataclass(frozen=True)
class Served:
    """A run of the engine, in `folder`/real."""

    case: Case
    folder: Path
    rate: float
    summary: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One run beside its prediction. Errors are predicted over measured, minus one."""

    case: str
    model: str
    requests_per_s: float
    errors: dict[str, float]
    hit_rate: tuple[float, float]
    """Measured, predicted."""
    preemptions: tuple[int, int]
    """Measured, predicted."""
    identical_steps: float
    """Share of steps with the same batch when the measured step times are injected."""
    step_mape: float
    step_bias: float
    """Of the profile's prices of the steps as the engine composed them."""
    first_cause: str

    @property
    def worst(self) -> str:
        return max(self.errors, key=lambda name: abs(self.errors[name]) / TARGETS[name])


def blis(*words: str) -> dict[str, Any]:
    """Runs a command and returns what it prints."""
    command = [sys.executable, "-m", "blis_py", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    return dict(json.loads(done.stdout)) if done.stdout.startswith("{") else {}


def simulated(case: Case, profiles: Path) -> list[str]:
    """Flags that make the simulator the engine's twin; the profile knows the model and its limits."""
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


def measure(case: Case, profiles: Path, folder: Path) -> Served:
    """The engine serves the case."""
    rate = case.load * capacity(case, profiles, folder)
    spec = write_spec(case, rate, folder / "workload.yaml")
    summary = engine_run(case, spec, profiles, folder / "real")
    (folder / SUMMARY).write_text(json.dumps({"rate": rate, "summary": summary}), encoding="utf-8")
    return Served(case, folder, rate, summary)


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
    )


def measure_profile(name: str, rounds: int, profiles: Path) -> None:
    """Step times of a model; what is there already is kept."""
    blis("engine", "profile", *MODELS[name].flags, "--out", str(profiles / name), "--rounds", str(rounds))


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


def first_cause(compared: dict[str, Any]) -> str:
    autopsy = compared["autopsy"]
    return next(c["title"] for c in autopsy["causes"] if c["cause"] == autopsy["first_cause"])


def table(rows: list[Row]) -> str:
    """Every run with its errors, and what is wanted of their medians; in markdown."""
    names = list(TARGETS)
    lines = [
        f"| run | {' | '.join(names)} | hits, points | preemptions | worst | first cause |",
        "| --- |" + " ---: |" * (len(names) + 2) + " --- | --- |",
    ]
    for row in rows:
        errors = " | ".join(f"{row.errors[name]:+.1%}" for name in names)
        hits = f"{100 * (row.hit_rate[1] - row.hit_rate[0]):+.1f}"
        preempted = f"{row.preemptions[0]} → {row.preemptions[1]}"
        lines.append(
            f"| {row.model}: {row.case} | {errors} | {hits} | {preempted} | {row.worst} | {row.first_cause} |"
        )
    medians = " | ".join(f"{statistics.median(abs(row.errors[n]) for row in rows):.1%}" for n in names)
    hits = f"{100 * statistics.median(abs(row.hit_rate[1] - row.hit_rate[0]) for row in rows):.1f}"
    off = statistics.median(abs(ours - theirs) / max(theirs, 1) for theirs, ours in preemptions(rows))
    lines.append(f"| **median of the absolute errors** | {medians} | {hits} | {off:.1%} | | |")
    wanted = " | ".join(f"{TARGETS[name]:.0%}" for name in names)
    lines.append(
        f"| wanted | {wanted} | {100 * HIT_RATE_TARGET:.0f} | {PREEMPTIONS_TARGET:.0%} | | |",
    )
    mape = statistics.median(row.step_mape for row in rows)
    bias = statistics.median(row.step_bias for row in rows)
    identical = min(row.identical_steps for row in rows)
    return "\n".join(
        [
            *lines,
            "",
            f"Step times: mean absolute error {mape:.1%}, bias {bias:+.1%} (medians over the runs).",
            f"Batches with injected step times: {identical:.2%} of the steps identical in the worst run.",
        ]
    )


def preemptions(rows: list[Row]) -> list[tuple[int, int]]:
    """Measured and predicted, of the runs that have any."""
    return [row.preemptions for row in rows if max(row.preemptions)] or [(0, 0)]


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
            print(f"profile of {name}", file=sys.stderr, flush=True)
            measure_profile(name, options.rounds, options.profiles)
    with tempfile.TemporaryDirectory() as scratch:
        runs = []
        for number, case in enumerate(cases):
            print(f"{number + 1}/{len(cases)} {case.model} {case.name}", file=sys.stderr, flush=True)
            folder = (options.keep or Path(scratch)).resolve() / f"{number:02}"
            if (folder / SUMMARY).exists():
                runs.append(kept(case, folder))
                continue
            shutil.rmtree(folder, ignore_errors=True)  # a run that was cut short
            folder.mkdir(parents=True)
            runs.append(measure(case, options.profiles, folder))
        rows = [predict(served, options.profiles) for served in runs]
    text = table(rows)
    print(text)
    if options.out:
        data = {"provenance": provenance(None), "targets": TARGETS, "runs": [vars(row) for row in rows]}
        options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        options.out.with_suffix(".md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
