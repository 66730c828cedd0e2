"""What the host does in some steps alone: how well a profile with a term for it prices steps it has not seen.

    python benchmarks/accuracy/host_features.py [--profiles DIR] [--keep DIR]      # about five minutes

*Lookups*: the engine serves the tiny model on the CPU with `--scheduler lpm`, more requests than it can: two
runs to fit to, and one with other requests and twice their prefixes to predict. *Batches of rounds*: block
diffusion in its two modes, each predicted by a profile that was fitted to the other; a synchronous batch has
many more rounds. Prints the error of the host's time, by a profile with terms for how many requests a step
looks up, or which round begins a batch, and by one that does not. With profiles of both models by the steady
clock, such as `engine_runs.py --profile` makes, the same of what was fitted to them alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from engine_cases import BLOCKS, MODELS, Case, Flags, spelled
from numpy.typing import NDArray

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.accuracy import predict
from blis_py.calibrate.fit.sources import read_steps
from blis_py.latency.base import LatencyModel
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import FittedProfile
from blis_py.latency.host_work import WithHostWork
from blis_py.traces.samples import StepSamples, joined, samples_of
from blis_py.traces.steplog import read_step_log

ROOT = Path(__file__).resolve().parents[2]
LPM: Flags = {"--scheduler": "lpm", "--prefix-cache": "radix", "--num-kv-blocks": "110"}
LPM_RATE, BLOCKS_RATE = 400.0, 6.0
"""Requests per second; the first is more than the engine can serve, so that a queue grows."""
LOOKUPS = ((1, 60), (60, 130), (130, 1 << 40))
"""Requests looked up, from and to."""
MODES: dict[str, Flags] = {"FDFO": {}, "synchronous": {"--no-dllm-fdfo": ""}}

Rows = NDArray[np.bool_]


def serve(case: Case, rate: float, seed: int, folder: Path, profiles: Path | None) -> StepSamples:
    """The steps of a run of the engine, at the pace of its profile if there is one."""
    out = folder / case.name
    if not out.exists():
        spec = folder / f"{case.name}.yaml"
        spec.write_text(yaml.safe_dump({**case.spec(rate), "seed": seed}, sort_keys=False), encoding="utf-8")
        flags = [*MODELS[case.model].flags, *spelled(case.scheduling), "--workload-spec", str(spec)]
        if profiles is not None:
            flags += ["--yardstick", str((profiles / case.model).resolve())]
        command = [sys.executable, "-m", "blis_py", "engine", "run", *flags, "--out", str(out)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return samples_of(read_step_log(out / "steps.csv.gz"), case.name)


def queue(name: str, seed: int, prefixes: int, folder: Path, profiles: Path | None) -> StepSamples:
    """A run in which requests wait."""
    clients = tuple({"prefix_group": f"prompt-{i}", "prefix_length": 128} for i in range(prefixes))
    lengths = {"prompt": (60, 30, 4, 160), "output": (30, 15, 2, 80)}
    case = Case(name, "tiny", 1.0, 300, **lengths, scheduling=LPM, clients=clients)
    return serve(case, LPM_RATE, seed, folder, profiles)


def blind(samples: StepSamples) -> StepSamples:
    """Samples without the record of what the host did."""
    nothing = np.zeros(len(samples), dtype=np.int64)
    unknown = dict.fromkeys(("scanned_requests", "begins_batch"), nothing)
    return replace(samples, table=samples.table | unknown)


def priced(profile: FittedProfile) -> LatencyModel:
    model = Fitted(profile)
    return WithHostWork(model, scan_ns=profile.scan_ns) if profile.scan_ns else model


def table(seen: StepSamples, unseen: StepSamples, groups: dict[str, Rows], alike: Rows) -> list[str]:
    """Bias of the host's time in each group of unseen steps.

    The host is as fast as in the steps `alike` all others: a machine is faster at one time than at another.
    """
    lines = ["".join([f"{'':22}", *(f"{name:>16}" for name in groups)])]
    lines.append("".join([f"{'steps':22}", *(f"{int(rows.sum()):>16,}" for rows in groups.values())]))
    for name, samples in (("not known", blind(seen)), ("known", seen)):
        host_ns = predict(priced(fit(samples, bootstrap=0)), unseen)[1]
        if alike.any():
            host_ns *= unseen["host_ns"][alike].sum() / host_ns[alike].sum()
        cells = [host_ns[rows].sum() / unseen["host_ns"][rows].sum() - 1 for rows in groups.values()]
        lines.append("".join([f"{name:22}", *(f"{cell:>+16.1%}" for cell in cells)]))
    return lines


def lookups(folder: Path, profiles: Path | None) -> list[str]:
    runs = [queue(name, seed, 6, folder, profiles) for name, seed in (("first", 11), ("second", 12))]
    unseen = queue("third", 13, 12, folder, profiles)
    scanned = unseen["scanned_requests"]
    names = [f"{low} to {high - 1}" if high < 1 << 40 else f"{low} and more" for low, high in LOOKUPS]
    groups = {
        name: (scanned >= low) & (scanned < high) for name, (low, high) in zip(names, LOOKUPS, strict=True)
    }
    groups["all of these"] = scanned > 0
    sources = {"two other runs": joined(runs)}
    if profiles is not None:
        sources["the profile"] = read_steps(profiles / "tiny")
    lines = []
    for name, seen in sources.items():
        each_us = (fit(seen, bootstrap=0).scan_ns or 0.0) / 1e3
        lines += [f"a run, fitted to {name}: {each_us:.2f} us for each request; bias of the host's time:"]
        lines += table(seen, unseen, groups, scanned == 0)
    return lines


def batches(folder: Path, profiles: Path | None) -> list[str]:
    few = {**BLOCKS, "requests": 60}
    runs = {
        name: serve(
            Case(name, "tiny-diffusion", 0.7, **few, scheduling=flags), BLOCKS_RATE, 11, folder, profiles
        )
        for name, flags in MODES.items()
    }
    profile = {} if profiles is None else {"the profile": read_steps(profiles / "tiny-diffusion")}
    lines = []
    for unseen, rounds in runs.items():
        begins = rounds["begins_batch"] > 0
        groups = {"first rounds": begins, "all rounds": np.ones(len(rounds), dtype=np.bool_)}
        for seen, samples in {**runs, **profile}.items():
            if seen != unseen:
                lines += [f"{unseen}, fitted to {seen}; bias of the host's time:"]
                lines += table(samples, rounds, groups, np.zeros(len(rounds), dtype=np.bool_))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=Path, help="folder with a profile of each model")
    parser.add_argument("--keep", type=Path, help="keep the runs here, or take those of before")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print("\n".join([*lookups(folder, options.profiles), "", *batches(folder, options.profiles)]))


if __name__ == "__main__":
    main()
