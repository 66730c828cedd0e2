"""Every release of every engine, and many scenarios of the newest that is pinned; `make soak` runs it.

    python tests/soak/engine_decisions.py --scenarios 300 --newest 10000 --seed 1

Exit status 1 if a scenario differs.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.engines import check, wheels
from benchmarks.engines.registry import ENGINES


def main() -> int:
    """Compare; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=300, help="Of each kind and release.")
    parser.add_argument("--newest", type=int, default=10_000, help="Of the newest pinned release, in all.")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    seed = ("--seed", str(flags.seed))
    differs = False
    for package, engine in ENGINES.items():
        every = ("--engines", package, "--versions", *engine.releases, "--scenarios", str(flags.scenarios))
        differs |= bool(check.main([*every, *seed]))
        pins = list(wheels.pinned(package))
        each = -(-flags.newest // len(engine.variants_of(pins[-1])))
        many = ("--engines", package, "--versions", pins[-1], "--scenarios", str(each))
        differs |= bool(check.main([*many, *seed]))
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
