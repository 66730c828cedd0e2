"""A planned fleet with pools as a start script of its engine, which starts every instance."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from blis_py.planning import serving
from blis_py.planning.planned_pools import PlannedPool, one_engine, planned_pools
from blis_py.planning.result import Candidate

_FIRST_PORT, _PORTS_OF_A_POOL = 8000, 100


def fleet_script(best: Candidate) -> tuple[str, str] | None:
    """Name and text of the script; None where pools are of several engines."""
    pools = planned_pools(best)
    engine = one_engine(pools)
    if not engine:
        return None
    title = ", ".join(f"{p.count} {p.name} on {p.config.tp} × {p.config.gpu}" for p in pools)
    lines = ["#!/bin/sh", f"# {title}; a router stands in front of them."]
    for number, pool in enumerate(pools):
        lines += [f"# {line}" for line in serving.cannot(pool.side, engine)]
        lines += _commands(pool, _FIRST_PORT + number * _PORTS_OF_A_POOL)
    text = "\n".join([*lines, "wait", ""])
    return f"{engine}.sh", serving.completed(text, best, engine)


def _commands(pool: PlannedPool, port: int) -> Iterator[str]:
    """The lines that start the instances of a pool."""
    for file, text in pool.options.items():
        yield from (f"cat > {file} <<'EOF'", f"{text}EOF")
    numbers = " ".join(map(str, range(pool.count)))
    command = shlex.join(pool.command(port=False))
    yield f"for number in {numbers}; do {command} --port $(({port} + number)) & done"
