"""Thousands of random configurations (`make soak`), of each kind of `configurations.KINDS`.

Jumps equal single steps, every invariant holds, ledgers of requests add up, and native code comes to the
same where `--native` names a translation (`BLIS_NATIVE=folder python -m blis_py.native`). Each configuration
follows from its kind and seed, which are printed with what differs; a find becomes an example in
`tests/cluster`. Exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
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
    options = parser.parse_args()
    seeds, found = range(options.seed, options.seed + options.runs), 0
    if options.digests:
        print(kv.__file__)
        for line in digests(options.kinds, seeds):
            print(line)
        return 0
    for kind in options.kinds:
        for seed in seeds:
            if wrong := violations(KINDS[kind](Random(seed))):
                found += 1
                print(f"{kind}, seed {seed}: {', '.join(wrong)}", flush=True)
            if (seed + 1 - seeds.start) % 100 == 0:
                print(f"{kind}: {seed + 1 - seeds.start} of {len(seeds)}", file=sys.stderr, flush=True)
    if options.native:
        compiled = native_digests(options.native, options.kinds, seeds)
        for line, other in zip(digests(options.kinds, seeds), compiled, strict=True):
            if line != other:
                found += 1
                print(f"in native code: {other}, interpreted: {line}", flush=True)
    print(f"{len(options.kinds)} x {options.runs} configurations, {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
