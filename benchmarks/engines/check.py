"""Compare our scheduler with engines' own, release by release, on random scenarios.

    python -m benchmarks.engines.check --engines vllm --versions 0.15 0.24 newest --scenarios 100 --seed 1

A table goes to stdout, progress to stderr. Exit status 1 if a scenario differs; the smallest one that does
is printed as a case to add. Needs no GPU; wheels are downloaded once, see `wheels.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchmarks.engines import ours, wheels
from benchmarks.engines.child import Child, ChildError
from benchmarks.engines.compare import Difference, first_difference
from benchmarks.engines.engine import Engine, Variant, release_of
from benchmarks.engines.outcome import Outcome, add_rows
from benchmarks.engines.registry import ENGINES
from benchmarks.engines.scenario import Scenario, Trace
from benchmarks.engines.shrink import shrunk


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; returns the exit status."""
    flags = _parser().parse_args(arguments)
    outcomes: list[Outcome] = []
    for package in flags.engines:
        engine = ENGINES[package]
        done: set[str] = set()
        for version in flags.versions or engine.gated:
            wheel = wheels.unpacked(package, version, engine.kept)
            if wheel is None or wheel.version in done:
                continue
            done.add(wheel.version)
            outcomes += compared(engine, wheel, flags.scenarios, flags.seed, flags.only, flags.show)
    print(Outcome.table(outcomes))
    if flags.out:
        add_rows(flags.out, [outcome.row(flags.seed) for outcome in outcomes])
    return int(any(outcome.different for outcome in outcomes if outcome.exact))


def compared(
    engine: Engine, wheel: wheels.Wheel, count: int, seed: int, only: str, shown: int
) -> list[Outcome]:
    """Outcomes of a release by kind of scenarios; none if its process does not run here.

    Args:
        only: text in the names of the kinds; empty = those in which every step has to be the engine's.
        shown: differing scenarios that are shrunk and printed, of each kind.
    """
    python = engine.python()
    if python is None:
        return []
    found = []
    for variant in engine.variants_of(wheel.version, exact=not only):
        if only in variant.name:
            outcome = Outcome(engine.package, wheel.version, variant.name, variant.exact)
            began = time.monotonic()
            with Child(engine.program, wheel.root, python) as child:
                _compare(engine, wheel.version, variant, child, count, seed, outcome)
                _show(engine, wheel.version, child, outcome, shown)
            outcome.seconds = time.monotonic() - began
            print(outcome.line(), file=sys.stderr)
            found.append(outcome)
    return found


def _compare(
    engine: Engine, version: str, variant: Variant, child: Child, count: int, seed: int, outcome: Outcome
) -> None:
    for number in range(count):
        scenario = variant.draw(Random(f"{seed}/{variant.name}/{number}"), release_of(version))
        theirs, own = both(engine, version, child, scenario)
        outcome.add(scenario, theirs, first_difference(theirs, own))
        if sys.stderr.isatty():
            print(f"\r{version} {variant.name}: {number + 1} of {count}", end="\r", file=sys.stderr)


def both(engine: Engine, version: str, child: Child, scenario: Scenario) -> tuple[Trace, Trace]:
    """The traces of a scenario, of the engine and ours, which run at the same time."""
    child.send(scenario)
    own = ours.trace(scenario, engine.config(scenario, version))
    return child.receive(), own


def _show(engine: Engine, version: str, child: Child, outcome: Outcome, shown: int) -> None:
    """Print the smallest scenarios that differ."""
    for scenario, difference in outcome.smallest(shown):

        def differs(candidate: Scenario, kind: str = difference.kind) -> bool:
            found = first_difference(*both(engine, version, child, candidate))
            return found is not None and found.kind == kind

        least = shrunk(scenario, differs)
        print(_case(engine, version, child, least))


def _case(engine: Engine, version: str, child: Child, scenario: Scenario) -> str:
    theirs, own = both(engine, version, child, scenario)
    found = first_difference(theirs, own) or Difference(-1, "")
    lines = [f"{engine.package} {version} differs in step {found.step}: {found.kind}", json.dumps(scenario)]
    for name, trace in (("engine", theirs), ("ours", own)):
        part = trace["where"] if isinstance(trace, dict) else trace[max(found.step - 1, 0) : found.step + 1]
        lines.append(f"  {name}: {part}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.check", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--versions", nargs="+", help="Default: those that `make engines` compares.")
    parser.add_argument("--scenarios", type=int, default=17, help="Of each kind and release.")
    parser.add_argument("--seed", type=int, default=1)
    only = "Kinds of scenarios with this text in their names, those that are known to differ among them."
    parser.add_argument("--only", default="", help=only)
    parser.add_argument("--out", type=Path, help="File of results (JSON) to put the counts into.")
    parser.add_argument(
        "--show", type=int, default=1, help="Differing scenarios to shrink and print, of each kind."
    )
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ChildError as error:
        sys.exit(str(error))
