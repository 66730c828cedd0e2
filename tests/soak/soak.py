"""Thousands of random configurations: jumps equal single steps, and every invariant holds (`make soak`).

Each configuration follows from its seed, which is printed with what differs; a find becomes an example in
`tests/cluster`. Exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from random import Random

os.environ.setdefault("BLIS_INTERPRETED", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from cluster_runs import differences
from routed_runs import routed

from blis_py.metrics.invariants import check


def violations(seed: int) -> list[str]:
    """What does not hold in the configuration of this seed."""
    run = routed(Random(seed))
    record = run.record()
    try:
        check(record)
    except AssertionError as error:
        return [f"invariant: {error}"]
    return differences(record, run.record(single_step=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3000, help="configurations (default: 3000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them (default: 0)")
    options = parser.parse_args()
    found = 0
    for seed in range(options.seed, options.seed + options.runs):
        if wrong := violations(seed):
            found += 1
            print(f"seed {seed}: {', '.join(wrong)}", flush=True)
        if (seed + 1 - options.seed) % 100 == 0:
            print(f"{seed + 1 - options.seed} of {options.runs}", file=sys.stderr, flush=True)
    print(f"{options.runs} configurations, {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
