"""The log of a cluster as one run of each of its instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blis_py.calibrate.fit.server_runs import MIN
from blis_py.calibrate.token_times import TokenTimes
from blis_py.errors import InputError


def by_instance(measured: Sequence[TokenTimes], instances: int) -> tuple[list[TokenTimes], list[str]]:
    """The runs of all instances, and notes on them; a log that does not name instances is that of one.

    Args:
        instances: of the server as it is described.

    Raises:
        InputError: several instances are described, and a log does not name them; or too few requests each.
    """
    runs, notes = [], []
    for one in measured:
        names = () if one.instance is None else one.instance.without_unused().names
        if len(names) > 1:
            parts, few = _parts(one)
            if not parts:
                problem, fix = f"no instance has {MIN} requests", "give a longer run"
                raise InputError(problem, file=one.source, fix=fix)
            runs += parts
            if few:
                notes.append(f"{one.source}: left out, with fewer than {MIN} requests: {', '.join(few)}")
        elif instances > 1 and not names:
            problem = f"does not say which of the {instances} instances served a request"
            fix = "add a column `instance`, or describe one instance and give its log alone"
            raise InputError(problem, file=one.source, fix=fix)
        else:
            runs.append(one)
    return runs, notes


def _parts(measured: TokenTimes) -> tuple[list[TokenTimes], list[str]]:
    """The requests of each instance, and the instances with too few of them. What a client keeps in flight
    is spread over all instances, so the parts are no closed loops: their requests come as recorded."""
    assert measured.instance is not None
    parts, few = [], []
    for code, name in enumerate(measured.instance.names):
        rows = np.flatnonzero(measured.instance.codes == code)
        if len(rows) >= MIN:
            source = f"{measured.source} instance {name}"
            parts.append(replace(measured.take(rows), source=source, concurrency=None))
        elif len(rows):
            few.append(name)
    return parts, few
