"""What a release that was not seen before needs of the preset.

    python -m benchmarks.engines.track 0.34.0 [--engine vllm] [--against 0.33.0]

Prints which settings, defaults and functions of the scheduler changed against the last release that was
compared; how many random scenarios are equal under its preset; and, where some are not, which rule of our
scheduler, switched alone, makes them equal; and flags of its server that `profiles/launch` does not list.
Exit status 1 if differences are left that no rule explains.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

from benchmarks.engines import arguments, check, ours, source_changes, wheels
from benchmarks.engines.child import Child
from benchmarks.engines.compare import first_difference
from benchmarks.engines.engine import Engine, release_of
from benchmarks.engines.outcome import Outcome
from benchmarks.engines.registry import ENGINES
from benchmarks.engines.scenario import Scenario, Trace
from benchmarks.engines.switches import switched
from blis_py.errors import InputError

NO_RULE = "no rule switched alone"


def main(given: Sequence[str] | None = None) -> int:
    """Track a release; returns the exit status.

    Raises:
        InputError: a wheel cannot be had.
    """
    flags = _parser().parse_args(given)
    engine = ENGINES[flags.engine]
    after = _wheel(engine, flags.version)
    before = _wheel(engine, flags.against or last_before(engine, after.version))
    print(f"# {engine.package} {after.version} against {before.version}\n")
    print("## Settings and their defaults\n")
    print("\n".join(_lines(source_changes.defaults(before.root, after.root, engine.settings))))
    print("\n## Functions of the scheduler, in lines\n")
    print("\n".join(_lines(source_changes.functions(before.root, after.root, engine.sources))))
    print("\n## Flags of the server that no launch table lists\n")
    print("\n".join(arguments.unlisted(engine.package, after.root)))
    print(f"\n## Scenarios under the preset of {before.version}\n")
    return _scenarios(engine, before, after, flags.scenarios, flags.seed)


def last_before(engine: Engine, version: str) -> str:
    """The latest pinned release before a version.

    Raises:
        InputError: no release before it is pinned.
    """
    pins = [pin for pin in wheels.pinned(engine.package) if _numbers(pin) < _numbers(version)]
    if not pins:
        raise InputError(
            "no release before it is pinned", key=engine.package, value=version, fix="use --against"
        )
    return max(pins, key=_numbers)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _wheel(engine: Engine, version: str) -> wheels.Wheel:
    wheel = wheels.unpacked(engine.package, version, engine.kept)
    if wheel is None:
        raise InputError(
            "its wheel cannot be had", key=engine.package, value=version, fix="see the line above"
        )
    return wheel


def _lines(changes: source_changes.Changes) -> Iterator[str]:
    for kind, entries in (("new", changes.new), ("gone", changes.gone)):
        yield from (f"{kind}: {name} = {value!r}" for name, value in sorted(entries.items()))
    for name, (old, new) in sorted(changes.changed.items()):
        yield f"changed: {name}: {old!r} -> {new!r}"


def _scenarios(engine: Engine, before: wheels.Wheel, after: wheels.Wheel, count: int, seed: int) -> int:
    """Print outcomes and what explains differences; returns the exit status."""
    outcomes, open_ = [], 0
    with Child(engine.program, after.root, engine.python() or ()) as child:
        for variant in engine.variants_of(after.version):
            outcome = Outcome(engine.package, after.version, variant.name)
            rules: Counter[str] = Counter()
            unexplained: list[Scenario] = []
            for number in range(count):
                scenario = variant.draw(Random(f"{seed}/{variant.name}/{number}"), release_of(after.version))
                theirs, own = check.both(engine, before.version, child, scenario)
                difference = first_difference(theirs, own)
                outcome.add(scenario, theirs, difference)
                if difference is not None:
                    found = explaining(engine, before.version, scenario, theirs)
                    rules.update(found or [NO_RULE])
                    unexplained += [] if found else [scenario]
            outcomes.append(outcome)
            open_ += len(unexplained)
            print(f"{variant.name}: {outcome.equal} of {count} equal{_explained(rules)}")
    print(f"\n{Outcome.table(outcomes)}")
    if open_:
        print(
            f"\n{open_} scenarios differ, and no rule alone makes them equal: make engines shows the smallest"
        )
    return int(open_ > 0)


def explaining(engine: Engine, version: str, scenario: Scenario, theirs: Trace) -> list[str]:
    """Rules that, switched alone, make a scenario equal, as settings of a preset."""
    config = engine.config(scenario, version)
    return [
        f"scheduler.{name}: {str(getattr(other, name)).lower()}"
        for name, other in switched(config).items()
        if first_difference(theirs, ours.trace(scenario, other)) is None
    ]


def _explained(rules: Counter[str]) -> str:
    return "".join(f"\n  {number} of the others with {rule}" for rule, number in rules.most_common())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.track", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    parser.add_argument("--against", help="Default: the latest release with a pinned wheel before it.")
    parser.add_argument("--scenarios", type=int, default=60, help="Of each kind.")
    parser.add_argument("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(str(error))
