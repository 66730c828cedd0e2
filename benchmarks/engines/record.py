"""Record decisions of releases as `tests/core/engine_decisions`, which tests compare without a wheel.

    python -m benchmarks.engines.record [--versions 0.33]

For every rule that is switched in our scheduler and shows in a release, the smallest scenarios found that
show it; and some more at random. A rule that no scenario shows is named on stderr: its switch changes
nothing in that release.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from benchmarks.engines import decisions, ours, wheels
from benchmarks.engines.child import Child
from benchmarks.engines.compare import first_difference
from benchmarks.engines.decisions import Decision
from benchmarks.engines.engine import Engine, release_of
from benchmarks.engines.registry import ENGINES
from benchmarks.engines.scenario import Scenario, StepTrace
from benchmarks.engines.shrink import shrunk
from benchmarks.engines.switches import shown, switched
from blis_py.core.config import SchedulerConfig

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "core" / "engine_decisions"
_MOST_STEPS = 150
_MOST_REQUESTS = 12
_SHRINK_S = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; returns the exit status, 1 if a scenario differs from ours."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.record", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["vllm"])
    parser.add_argument("--versions", nargs="+", help="Default: those whose decisions are kept.")
    parser.add_argument(
        "--tries", type=int, default=150, help="Scenarios of each kind in which rules are sought."
    )
    parser.add_argument("--random", type=int, default=3, help="Scenarios of each kind at random.")
    parser.add_argument("--seed", type=int, default=1)
    only = "Kinds of scenarios with this text in their names: their decisions join those kept."
    parser.add_argument("--only", default="", help=only)
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
                minor = ".".join(str(number) for number in release_of(wheel.version))
                path = FOLDER / f"{package}-{minor}.jsonl"
                kept = decisions.read(path) if flags.only else []
                found = list(_recorded(engine, wheel.version, child, flags, kept))
            kinds = [each for each in engine.variants_of(wheel.version) if flags.only in each.name]
            differs |= len(found) < len(kinds) * flags.random
            decisions.write(path, [*kept, *found])
    return int(differs)


def _recorded(
    engine: Engine, version: str, child: Child, flags: argparse.Namespace, kept: Sequence[Decision]
) -> Iterator[Decision]:
    known: dict[bool, set[str]] = {False: set(), True: set()}
    done: dict[bool, set[str]] = {False: set(), True: set()}
    """Rules, and those that some scenario has shown, by whether the loop is asynchronous."""
    for scenario, trace in kept:
        config = engine.config(scenario, version)
        done[config.async_scheduling] |= shown(scenario, trace, config)
        done[config.async_scheduling] |= {name for name, happens in EVENTS.items() if happens(trace)}
    for variant in engine.variants_of(version):
        if flags.only not in variant.name:
            continue
        plain = 0
        for number in range(flags.tries):
            rng = Random(f"record/{flags.seed}/{variant.name}/{number}")
            scenario = variant.draw(rng, release_of(version))
            del scenario["requests"][_MOST_REQUESTS:]
            config = engine.config(scenario, version)
            own = ours.trace(scenario, config)
            if isinstance(own, dict) or len(own) > _MOST_STEPS:
                continue
            loop = config.async_scheduling
            known[loop] |= {*switched(config), *EVENTS}
            new = shown(scenario, own, config, done[loop])
            new |= {name for name, happens in EVENTS.items() if happens(own)} - done[loop]
            found = _decision(engine, version, child, scenario) if new or plain < flags.random else None
            if found is None:
                continue
            if not new:
                plain += 1
                yield found
            for name in sorted(new):
                done[loop].add(name)
                least = shrunk(scenario, _Shows(engine, version, child, name), _SHRINK_S)
                yield _decision(engine, version, child, least) or found
        print(f"{version}, {variant.name}", file=sys.stderr)
    for loop in (False, True):
        names, kind = ", ".join(sorted(known[loop] - done[loop])) or "none", "a" if loop else ""
        print(f"{version}, {kind}synchronous: rules that no scenario shows: {names}", file=sys.stderr)


def _finds_blocks_again(trace: list[StepTrace]) -> bool:
    return any(cached for step in trace for cached in step.get("again", {}).values())


def _finds_blocks(trace: list[StepTrace]) -> bool:
    return any(cached for step in trace for cached in step.get("cached", {}).values())


EVENTS: dict[str, Callable[[list[StepTrace]], bool]] = {
    "cached blocks at a repeated admission": _finds_blocks_again,
    "cached blocks": _finds_blocks,
}
"""What is to happen in some scenario besides."""


class _Shows:
    """Whether a scenario shows a rule or an event, and ours is the engine's in it."""

    def __init__(self, engine: Engine, version: str, child: Child, name: str) -> None:
        self._engine, self._version, self._child, self._name = engine, version, child, name

    def __call__(self, scenario: Scenario) -> bool:
        config = self._engine.config(scenario, self._version)
        own = ours.trace(scenario, config)
        if isinstance(own, dict) or not self._happens(scenario, own, config):
            return False  # sooner known than the engine's decisions
        return _decision(self._engine, self._version, self._child, scenario) is not None

    def _happens(self, scenario: Scenario, own: list[StepTrace], config: SchedulerConfig) -> bool:
        if self._name in EVENTS:
            return EVENTS[self._name](own)
        other = switched(config).get(self._name)
        return other is not None and first_difference(own, ours.trace(scenario, other)) is not None


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
