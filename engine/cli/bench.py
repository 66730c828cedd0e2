"""`blis engine bench`, as the help shows it; its commands are modules of their own."""

from __future__ import annotations

from blis_py.cli.flag import Flags, Group

GROUPS: tuple[Group, ...] = ()


def bench(flags: Flags) -> None:
    """Measure: throughput, latency, or replay of a workload or trace."""
