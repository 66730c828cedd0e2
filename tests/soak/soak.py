"""Thousands of random configurations (`make soak`), of each kind of `configurations.KINDS`.

Jumps equal single steps, every invariant holds, ledgers of requests add up, and native code comes to the
same where `--native` names a translation (`BLIS_NATIVE=folder python -m blis_py.native`). Each configuration
follows from its kind and seed, which are printed with what differs; a find becomes an example in
`tests/cluster`. Exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "cluster"))
sys.path.insert(1, str(Path(__file__).parents[1] / "ledger"))
sys.path.insert(1, str(Path(__file__).parents[1] / "extension"))
os.environ["BLIS_INTERPRETED"] = "" if os.environ.get("BLIS_NATIVE") else "1"
if __name__ == "__main__":
    from blis_py import native

    native.activate()

from cluster_runs import differences
from configurations import KINDS, Configuration, digest
from ledger_runs import all_ledgers, check_sums

from blis_py.core import kv
from blis_py.metrics.invariants import InternalError, check


def violations(configuration: Configuration) -> list[str]:
    """What does not hold of a configuration."""
    try:
        record = configuration.record()
        check(record)
        if configuration.has_single_steps:
            wrong = differences(record, configuration.record(single_step=True))
            if wrong:
                return wrong
        _, ledgers = all_ledgers(configuration.record, configuration.latency, configuration.diffusion)
        check_sums(record, ledgers)
    except (AssertionError, InternalError) as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def digests(kinds: list[str], seeds: range) -> Iterator[str]:
    """A line for each configuration."""
    for kind in kinds:
        for seed in seeds:
            yield f"{kind} {seed} {digest(KINDS[kind](Random(seed)).record())}"


def native_digests(folder: str, kinds: list[str], seeds: range) -> list[str]:
    """The same lines from one process in native code."""
    own = ["--digests", "--runs", str(len(seeds)), "--seed", str(seeds.start), "--kinds", *kinds]
    command = [sys.executable, __file__, *own]
    environment = {**os.environ, "BLIS_NATIVE": folder}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    where, *lines = done.stdout.splitlines()
    assert where.startswith(folder), f"no native code of these sources in {folder}"
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3000, help="configurations of each kind (default: 3000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them (default: 0)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="(default: all)")
    parser.add_argument("--native", metavar="FOLDER", help="native code to compare with")
    parser.add_argument("--digests", action="store_true", help="only print what each run came to")
    parser.add_argument("--state", type=Path, help="file that keeps how far each kind has come")
    parser.add_argument("--seconds", type=float, default=math.inf, help="the longest time it goes on")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.runs)
    if options.digests:
        print(kv.__file__)
        for line in digests(options.kinds, seeds):
            print(line)
        return 0
    until_s = time.monotonic() + options.seconds
    found, done = 0, 0
    for kind in options.kinds:
        for seed in seeds[_done(options.state, kind) :]:
            if time.monotonic() > until_s:
                break
            if wrong := violations(KINDS[kind](Random(seed))):
                found += 1
                print(f"{kind}, seed {seed}: {', '.join(wrong)}", flush=True)
            done += 1
            if options.state:
                _keep(options.state, kind, seed + 1 - seeds.start)
            if (seed + 1 - seeds.start) % 100 == 0:
                print(f"{kind}: {seed + 1 - seeds.start} of {len(seeds)}", file=sys.stderr, flush=True)
    if options.native:
        compiled = native_digests(options.native, options.kinds, seeds)
        for line, other in zip(digests(options.kinds, seeds), compiled, strict=True):
            if line != other:
                found += 1
                print(f"in native code: {other}, interpreted: {line}", flush=True)
    print(f"{done:,} configurations of {len(options.kinds)} x {options.runs:,}, {found} violations")
    return 1 if found else 0


def _done(state: Path | None, kind: str) -> int:
    """How many configurations of a kind an earlier call has run."""
    return int(_known(state).get(kind, 0)) if state else 0


def _keep(state: Path, kind: str, count: int) -> None:
    new = state.with_suffix(".new")
    new.write_text(json.dumps(_known(state) | {kind: count}))
    new.replace(state)


def _known(state: Path) -> dict[str, int]:
    return json.loads(state.read_text()) if state.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
