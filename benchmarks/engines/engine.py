"""An engine whose scheduler is compared: all that differs from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.engines.child import BARE
from benchmarks.engines.scenario import Scenario
from blis_py.core.config import SchedulerConfig

Release = tuple[int, ...]
"""Major and minor version."""


def release_of(version: str) -> Release:
    """The numbers of a version that tell releases apart."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


class Variant(NamedTuple):
    """A kind of scenarios that is counted by itself.

    Attributes:
        name: shown in the table.
        draw: a random scenario of a release.
        since: first release that has it.
        exact: whether every step has to be the engine's; the others are known to differ, and counted.
    """

    name: str
    draw: Callable[[Random, Release], Scenario]
    since: Release = ()
    exact: bool = True


class Engine(NamedTuple):
    """An engine.

    Attributes:
        package: distribution on the package index, and package.
        kept: beginnings of the paths in its wheel that are unpacked.
        program: script of the child process, see `child_loop.serve`.
        config: settings of our scheduler for a scenario, under the preset of a release.
        variants: kinds of scenarios.
        releases: those of the long comparison.
        gated: those of `make engines`.
        recorded: those whose decisions are kept for the tests.
        settings: modules or folders of its wheel with the classes of its settings.
        sources: modules or folders with what decides a step.
        python: interpreter of the child process; None, and a note on stderr, if it cannot be had.
    """

    package: str
    kept: tuple[str, ...]
    program: Path
    config: Callable[[Scenario, str], SchedulerConfig]
    variants: tuple[Variant, ...]
    releases: tuple[str, ...]
    gated: tuple[str, ...]
    recorded: tuple[str, ...]
    settings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    python: Callable[[], Sequence[str] | None] = lambda: BARE

    def variants_of(self, version: str, exact: bool = True) -> list[Variant]:
        """Kinds of scenarios that a release has.

        Args:
            exact: those alone in which every step has to be the engine's.
        """
        release = release_of(version)
        return [each for each in self.variants if each.since <= release and (each.exact or not exact)]
