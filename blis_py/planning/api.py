"""`blis.sweep` and `blis.plan`: what the commands of these names do, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blis_py.api import meant
from blis_py.config.layers import did_you_mean
from blis_py.config.models import NAMES, RunConfig
from blis_py.errors import InputError
from blis_py.planning.axes import Axis, Point, axis, parse_axis, read_space
from blis_py.planning.base import Base
from blis_py.planning.executors import executor
from blis_py.planning.runner import Runner
from blis_py.planning.store import Folder, Nowhere, Store
from blis_py.planning.sweep import Sweep, Told
from blis_py.planning.sweep import sweep as run_sweep

Vary = Mapping[str, Any] | Sequence[str]
Cache = bool | str | Path


def sweep(
    config: RunConfig | str | Path | None = None,
    /,
    *,
    vary: Vary = (),
    runs: Sequence[Point] = (),
    space: str | Path | None = None,
    random: int | None = None,
    seeds: int = 1,
    workers: int | None = None,
    dask: str | None = None,
    cache: Cache = True,
    told: Told | None = None,
    **settings: Any,
) -> Sweep:
    """Runs a grid, a list or a random part of a space of settings: one row each.

    Args:
        config: as of `blis.run`, and so are the `settings`.
        vary: values by setting (`{"scheduler": ["fcfs", "lpm"], "rate": "10:100:10"}`), or texts such as
            `"rate=10:100:10"`. All combinations are run.
        runs: instead of it, the combinations themselves.
        space: a YAML file with `vary` or `runs`.
        random: only so many of the combinations, drawn at random.
        seeds: runs of each combination, with seeds that are the same for all.
        workers: processes; None = one for every core.
        dask: the scheduler of a Dask cluster, such as `tcp://10.0.0.1:8786`, or `local`.
        cache: the folder that keeps what has been run; True = this platform's, False = none.
        told: called with the rows so far and how many there will be.

    Raises:
        InputError: nothing to vary, an unknown setting, or a cluster that is not there. A combination that
            cannot be run is no error but a row that says why.
    """
    axes, listed, _ = spanned(vary, runs, space)
    base = base_of(config, settings)
    with running(workers, dask, cache) as runner:
        return run_sweep(base, axes, runner, runs=listed, random=random, seeds=seeds, told=told)


@contextmanager
def running(workers: int | None, dask: str | None, cache: Cache) -> Iterator[Runner]:
    """What runs a study."""
    store: Store = Nowhere()
    if cache is not False:
        store = Folder(None if cache is True else cache)
    with Runner(executor(workers, dask), store) as runner:
        yield runner


def spanned(
    vary: Vary, runs: Sequence[Point] = (), space: str | Path | None = None, known: Sequence[str] = ()
) -> tuple[list[Axis], list[Point], Mapping[str, Any]]:
    """Axes, points and what else the file of a space says (see `read_space`)."""
    if isinstance(vary, str):
        vary = [vary]
    if isinstance(vary, Mapping):
        axes = [axis(name, values) for name, values in vary.items()]
    else:
        axes = [parse_axis(text) for text in vary]
    points, more = [dict(run) for run in runs], {}
    if space is not None:
        read = read_space(space, known)
        axes, points, more = [*read.axes, *axes], [*points, *read.runs], dict(read.more)
    if axes and points:
        raise InputError("cannot be combined with vary", key="runs", fix="give one of the two")
    return axes, points, more


def base_of(config: RunConfig | str | Path | None, settings: Mapping[str, Any]) -> Base:
    """What is given, as `blis.run` would take it."""
    for name in settings:
        if name not in NAMES:
            raise InputError("unknown setting", key=name, fix=did_you_mean(name, NAMES))
    overrides = tuple((name, NAMES[name], meant(name, value)) for name, value in settings.items())
    start = config if isinstance(config, RunConfig) else None
    return Base(None if start is not None else config, overrides, start=start)  # type: ignore[arg-type]
