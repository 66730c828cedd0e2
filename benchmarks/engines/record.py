"""Record decisions of releases as `tests/core/engine_decisions`, which tests compare without a wheel.

    python -m benchmarks.engines.record [--versions 0.33]

For every rule that is switched in our scheduler and shows in a release, the smallest scenarios found that
show it; and some more at random. A rule that no scenario shows is named on stderr: its switch changes
nothing in that release.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from benchmarks.engines import decisions, ours, wheels
from benchmarks.engines.child import Child
from benchmarks.engines.compare import first_difference
from benchmarks.engines.decisions import Decision
from benchmarks.engines.engine import Engine, release_of
from benchmarks.engines.registry import ENGINES
from benchmarks.engines.scenario import Scenario
from benchmarks.engines.shrink import shrunk
from benchmarks.engines.switches import shown, switched

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "core" / "engine_decisions"
_MOST_STEPS = 150
_MOST_REQUESTS = 12
_SHRINK_S = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; returns the exit status, 1 if a scenario differs from ours."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.record", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--versions", nargs="+", help="Default: those whose decisions are kept.")
    parser.add_argument(
        "--tries", type=int, default=150, help="Scenarios of each kind in which rules are sought."
    )
    parser.add_argument("--random", type=int, default=3, help="Scenarios of each kind at random.")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args(arguments)
    FOLDER.mkdir(exist_ok=True)
    differs = False
    for package in flags.engines:
        engine = ENGINES[package]
        for version in flags.versions or engine.recorded:
            wheel, python = wheels.unpacked(package, version, engine.kept), engine.python()
            if wheel is None or python is None:
                continue
            with Child(engine.program, wheel.root, python) as child:
                found = list(_recorded(engine, wheel.version, child, flags))
            differs |= len(found) < len(engine.variants_of(wheel.version)) * flags.random
            minor = ".".join(str(number) for number in release_of(wheel.version))
            decisions.write(FOLDER / f"{package}-{minor}.jsonl", found)
    return int(differs)


def _recorded(engine: Engine, version: str, child: Child, flags: argparse.Namespace) -> Iterator[Decision]:
    missing: dict[bool, set[str]] = {}
    """Rules to be shown yet, by loop of the scheduler."""
    for variant in engine.variants_of(version):
        plain = 0
        for number in range(flags.tries):
            rng = Random(f"record/{flags.seed}/{variant.name}/{number}")
            scenario = variant.draw(rng, release_of(version))
            del scenario["requests"][_MOST_REQUESTS:]
            found = _decision(engine, version, child, scenario)
            if found is None or len(found.trace) > _MOST_STEPS:
                continue
            config = engine.config(scenario, version)
            open_ = missing.setdefault(config.async_scheduling, set(switched(config)))
            rules = sorted(open_ & shown(scenario, found.trace, config)) if open_ else []
            if plain < flags.random and not rules:
                plain += 1
                yield found
            for rule in rules:
                open_.discard(rule)
                least = shrunk(scenario, _Shows(engine, version, child, rule), _SHRINK_S)
                yield _decision(engine, version, child, least) or found
        print(f"{version}, {variant.name}", file=sys.stderr)
    for asynchronous, left in sorted(missing.items()):
        names, loop = ", ".join(sorted(left)) or "none", "asynchronous" if asynchronous else "synchronous"
        print(f"{version}, {loop}: rules that no scenario shows: {names}", file=sys.stderr)


class _Shows:
    """Whether a scenario shows a rule, and ours is the engine's with it."""

    def __init__(self, engine: Engine, version: str, child: Child, rule: str) -> None:
        self._engine, self._version, self._child, self._rule = engine, version, child, rule

    def __call__(self, scenario: Scenario) -> bool:
        config = self._engine.config(scenario, self._version)
        other = switched(config).get(self._rule)
        if (
            other is None
            or first_difference(ours.trace(scenario, config), ours.trace(scenario, other)) is None
        ):
            return False
        return _decision(self._engine, self._version, self._child, scenario) is not None


def _decision(engine: Engine, version: str, child: Child, scenario: Scenario) -> Decision | None:
    """A scenario with the engine's decisions; None if ours differ."""
    child.send(scenario)
    own = ours.trace(scenario, engine.config(scenario, version))
    theirs = child.receive()
    if isinstance(theirs, dict) or first_difference(theirs, own) is not None:
        return None
    return Decision(scenario, theirs)


if __name__ == "__main__":
    sys.exit(main())
