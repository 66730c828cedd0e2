"""How well a profile prices the steps of an engine whose policy looks its waiting requests up in the cache.

    python benchmarks/accuracy/scans.py [--keep DIR]      # about three minutes

The engine serves the tiny model on the CPU with `--scheduler lpm`, more requests than it can: two runs to fit
to, and one with other requests and twice their prefixes to predict. Prints what a request that is looked up
costs, and the error of the host time of the steps of the third run by the number looked up, from a profile
that knows of them and from one that does not.
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
from engine_cases import MODELS, Case, spelled

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.accuracy import predict
from blis_py.calibrate.samples import StepSamples, joined, samples_of
from blis_py.latency.base import LatencyModel
from blis_py.latency.fitted import Fitted
from blis_py.latency.host_work import WithHostWork
from blis_py.traces.steplog import read_step_log

ROOT = Path(__file__).resolve().parents[2]
SCHEDULING = {"--scheduler": "lpm", "--prefix-cache": "radix", "--num-kv-blocks": "110"}
RATE = 400.0
"""Requests per second: more than the engine can serve, so that a queue grows."""
LENGTHS = {"prompt": (60, 30, 4, 160), "output": (30, 15, 2, 80), "requests": 300}
QUEUES = ((1, 60), (60, 130), (130, 1 << 40))
"""Requests looked up, from and to."""


def serve(name: str, seed: int, prefixes: int, folder: Path) -> StepSamples:
    """The steps of a run of the engine."""
    out = folder / name
    if not out.exists():
        clients = tuple({"prefix_group": f"prompt-{i}", "prefix_length": 128} for i in range(prefixes))
        case = Case(name, "tiny", 1.0, **LENGTHS, clients=clients)  # type: ignore[arg-type]
        spec = folder / f"{name}.yaml"
        spec.write_text(yaml.safe_dump({**case.spec(RATE), "seed": seed}, sort_keys=False), encoding="utf-8")
        flags = [*MODELS["tiny"].flags, *spelled(SCHEDULING), "--workload-spec", str(spec), "--out", str(out)]
        command = [sys.executable, "-m", "blis_py", "engine", "run", *flags]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return samples_of(read_step_log(out / "steps.csv.gz"), name)


def blind(samples: StepSamples) -> StepSamples:
    """As if nobody had counted who was looked up."""
    nobody = np.zeros(len(samples), dtype=np.int64)
    return replace(samples, table=samples.table | {"scanned_requests": nobody})


def errors(model: LatencyModel, samples: StepSamples) -> list[str]:
    """Bias of the host's time by the number of requests looked up, and that of all with any.

    The host is as fast as in the steps that look nobody up: a machine is faster at one time than at another.
    """
    host_ns, scanned = predict(model, samples)[1], samples["scanned_requests"]
    host_ns *= samples["host_ns"][scanned == 0].sum() / host_ns[scanned == 0].sum()
    groups = [(scanned >= low) & (scanned < high) for low, high in QUEUES]
    return [
        f"{host_ns[rows].sum() / samples['host_ns'][rows].sum() - 1:+.1%}" for rows in (*groups, scanned > 0)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="keep the runs here, or take those of before")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        seen = joined([serve("first", 11, 6, folder), serve("second", 12, 6, folder)])
        unseen = serve("third", 13, 12, folder)
    known, unknown = fit(seen, bootstrap=0), fit(blind(seen), bootstrap=0)
    print(f"a request looked up takes {(known.scan_ns or 0.0) / 1e3:.2f} us of the host's time")
    heads = [f"{low} to {high - 1:,}" if high < 1 << 40 else f"{low} and more" for low, high in QUEUES]
    counts = [
        int(((unseen["scanned_requests"] >= low) & (unseen["scanned_requests"] < high)).sum())
        for low, high in (*QUEUES, (1, 1 << 40))
    ]
    print("\nbias of the host's time in the steps of a run that was not fitted to")
    print(f"{'requests looked up':24}" + "".join(f"{head:>16}" for head in (*heads, "1 and more")))
    print(f"{'steps':24}" + "".join(f"{count:>16,}" for count in counts))
    with_scans = WithHostWork(Fitted(known), scan_ns=known.scan_ns or 0.0)
    for name, model in (("they are not known", Fitted(unknown)), ("they have a price", with_scans)):
        print(f"{name:24}" + "".join(f"{cell:>16}" for cell in errors(model, unseen)))


if __name__ == "__main__":
    main()
