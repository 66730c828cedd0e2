"""Record decisions of SGLang as `tests/core/sglang_decisions`, which tests compare without a wheel.

    python -m benchmarks.engines.sglang_record [--versions 0.5.23]

Of each release and kind of scenarios in which every step has to be SGLang's: small ones at random, and some
in which requests are retracted; and one for each rule that differs without it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.engines import ours, wheels
from benchmarks.engines.child import Child
from benchmarks.engines.compare import first_difference
from benchmarks.engines.decisions import Decision, read, write
from benchmarks.engines.engine import Variant, release_of
from benchmarks.engines.sglang import SGLANG

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "core" / "sglang_decisions"
RELEASES = ("0.5.6", "0.5.14", "0.5.22", "0.5.23")
_PLAIN, _RETRACTING = 3, 1
_MOST_STEPS, _MOST_RETRACTING_STEPS = 150, 1500
_TRIES = 20
_FEW = {"0.5.6": 4, "0.5.22": 4}
"""Tries of releases of which little more than their rules is kept."""
_MOST_DRAWN = 400
SWITCHES: dict[str, tuple[dict[str, Any], ...]] = {
    "0.5.6": (
        {"aborts_at": "output-or-chunk"},
        {"answers_cached": True},
        {"page_reserve": "charged"},
        {"chunks_count_twice": True},
    ),
    "0.5.14": ({"aborts_at": "output"}, {"radix_eviction": "leaves-to-fit"}),
    "0.5.22": ({"page_reserve": "needed"}, {"chunks_count_twice": False}, {"departures_at_decodes": False}),
    "0.5.23": (
        {"aborts_at": "boundary"},
        {"scheduler": "fcfs"},
        {"schedule_conservativeness": 1.1},
        {"radix_eviction": "leaves"},
        {"answers_apart": False},
        {"waiting_prefix_refresh": 0},
    ),
}
"""Settings that are not those of the release."""


def main() -> int:
    """Record; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.sglang_record", description=__doc__)
    parser.add_argument("--versions", nargs="+", choices=RELEASES, default=RELEASES)
    FOLDER.mkdir(exist_ok=True)
    only = "Kinds of scenarios with this text in their names: their decisions join those kept."
    parser.add_argument("--only", default="", help=only)
    flags = parser.parse_args()
    for version in flags.versions:
        wheel, python = wheels.unpacked(SGLANG.package, version, SGLANG.kept), SGLANG.python()
        if wheel is None or python is None:
            return 1
        with Child(SGLANG.program, wheel.root, python) as child:
            found = read(FOLDER / f"{version}.jsonl") if flags.only else []
            for kind in SGLANG.variants_of(version):
                if flags.only in kind.name:
                    found += _decisions(kind, child, version)
            if not flags.only:
                found += [
                    each for switch in SWITCHES[version] for each in _decided_by(switch, child, version)
                ]
        write(FOLDER / f"{version}.jsonl", found)
    return 0


def _decisions(kind: Variant, child: Child, version: str) -> Iterator[Decision]:
    plain = retracting = 0
    most_plain = 1 if version in _FEW else _PLAIN
    for number in range(_FEW.get(version, _TRIES)):
        scenario = kind.draw(Random(f"record/{kind.name}/{number}"), release_of(version))
        child.send(scenario)
        trace = child.receive()
        if isinstance(trace, dict):
            continue
        retracts = any(step["preempted"] for step in trace)
        if retracts and retracting < _RETRACTING and len(trace) <= _MOST_RETRACTING_STEPS:
            retracting += 1
            yield Decision(scenario, trace)
        elif plain < most_plain and len(trace) <= _MOST_STEPS:
            plain += 1
            yield Decision(scenario, trace)
        if (plain, retracting) == (most_plain, _RETRACTING):
            return
    print(f"{version}, {kind.name}: {plain} plain, {retracting} retracting", file=sys.stderr)


def _decided_by(switch: dict[str, Any], child: Child, version: str) -> Iterator[Decision]:
    """A scenario that differs with other settings, if there is one."""
    kinds = SGLANG.variants_of(version)
    for number in range(_MOST_DRAWN):
        kind = kinds[number % len(kinds)]
        scenario = kind.draw(Random(f"{switch}/{kind.name}/{number}"), release_of(version))
        config = SGLANG.config(scenario, version)
        own = ours.trace(scenario, config)
        if len(own) > _MOST_RETRACTING_STEPS:
            continue
        if first_difference(own, ours.trace(scenario, replace(config, **switch))) is not None:
            child.send(scenario)
            trace = child.receive()
            if not isinstance(trace, dict):
                yield Decision(scenario, trace)
                return
    print(f"{version}, {switch}: no scenario differs", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
