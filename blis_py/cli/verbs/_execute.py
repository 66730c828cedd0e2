"""Common part of `run` and `replay`: configure, simulate, show, save."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from blis_py.cli.flags import blis_flags, vllm_flags
from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.flag import Flags
from blis_py.cli.flags.formats import format_of
from blis_py.cli.flags.launched import launch_of
from blis_py.cli.flags.perfetto import traced, window_of
from blis_py.cli.progress import Progress
from blis_py.cli.verbs._detectors import requested
from blis_py.cli.verbs.show import FORMATS, check_writable, show_and_write
from blis_py.errors import LONGEST_LINE, InputError, plain

if TYPE_CHECKING:
    from blis_py.api import Simulation
    from blis_py.sensitivity.reruns import Reruns

_SAME_RATE, _FEW = 0.1, 50
"""Deviation of the arrivals from the configured rate above which a note names it, and requests too few for
a rate."""


def execute(flags: Flags, *, needs_trace: bool = False) -> None:
    """One simulation, from flags to output.

    Everything that can be refused is refused before the simulation starts. A missed `--slo` is a result and
    no failure: the exit code stays 0.

    Raises:
        InputError: flags contradict each other, or a replay has no trace.
    """
    blis_flags.refuse(flags)
    vllm_flags.refuse(flags)
    if {"--cross-check", "--no-cross-check"} <= flags.keys():
        raise InputError("contradicts --cross-check", key="--no-cross-check", fix="drop one of the two")
    weights = _fitness_weights(flags)
    style = format_of(flags, FORMATS)
    check_writable(flags)
    window = window_of(flags)
    detectors = requested(flags)
    config = configure(flags)
    if needs_trace and config.workload.trace is None:
        raise InputError("no trace given", key="--trace", fix="name the trace to replay, or use `blis run`")
    from blis_py.api import Simulation

    simulation = Simulation.of(config)
    for line in _beforehand(simulation, style, verbose="--verbose" in flags or "-v" in flags):
        say(line)
    notes = [*simulation.notes, *_other_rate(simulation), *(detectors.notes if detectors else ())]
    if style != "table":
        _print_notes(notes)
    reruns = _reruns(simulation, flags)
    pools = [(pool.section.name, pool.section.count) for pool in simulation.pools]
    with Progress(sys.stderr) as progress, traced(flags, window, pools) as observer:
        result = simulation.run(record_steps="--out" in flags, progress=progress, observer=observer)
    result.fitness_weights = weights
    if detectors is not None:
        result.saturation = detectors.of(result.record)
    if reruns is not None:
        with Progress(sys.stderr) as progress:
            result.intervals = reruns.intervals(progress)
    far_apart: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    if "--cross-check" in flags:
        from blis_py.sensitivity.cross_check import cross_check

        with Progress(sys.stderr) as progress:
            result.cross_check = cross_check(simulation, result.summary, progress)
    elif "--no-cross-check" not in flags:
        from blis_py.sensitivity.disagreement import disagreements, split

        far_apart, others = split(disagreements(simulation, result))
    own = (*result.notes[len(simulation.notes) :], *others)
    launch = launch_of(flags)
    result.notes = (*far_apart, *(launch.lines() if launch else ()), *result.notes, *others)
    _print_notes(far_apart)
    if style != "table":
        _print_notes(own)
    show_and_write(result, style, flags)
    if style == "table":
        _print_notes([*notes, *own])


def _other_rate(simulation: Simulation) -> Iterator[str]:
    """A note where the requests come at another rate than the configured one."""
    rate, offered = simulation.config.workload.rate, simulation.offered_per_s
    enough = len(simulation.table) >= _FEW
    if enough and rate and offered and abs(offered / rate - 1) > _SAME_RATE:
        yield (
            f"these {len(simulation.table):,} requests arrive at {offered:,.3g}/s on average; "
            f"the rate of {rate:g} holds over longer runs"
        )


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        say(f"note: {note}")


def _beforehand(simulation: Simulation, style: str, *, verbose: bool) -> Iterator[str]:
    """Show the basis of the run: in full with `verbose`; else below the table, or here without one."""
    if verbose:
        yield from simulation.capacity.splitlines()
        yield simulation.models
    elif style != "table":
        yield from simulation.basis.splitlines()
    if simulation.source:
        yield simulation.source


def _fitness_weights(flags: Flags) -> dict[str, float] | None:
    if "--fitness-weights" not in flags:
        return None
    from blis_py.metrics.fitness import parse_weights

    return parse_weights(flags["--fitness-weights"])


def _reruns(simulation: Simulation, flags: Flags) -> Reruns | None:
    if "--intervals" not in flags:
        return None
    from blis_py.sensitivity.reruns import Reruns

    return Reruns(simulation, flags["--intervals"])


def say(line: str) -> None:
    """A line of talk, in which names that others gave do nothing to the terminal."""
    print(plain(line, LONGEST_LINE), file=sys.stderr, flush=True)
