"""`blis.sweep` and `blis.plan`: the Python counterparts of the commands of these names."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_py.api import meant
from blis_py.config.check import duration_ns
from blis_py.config.layers import did_you_mean
from blis_py.config.models import NAMES, RunConfig
from blis_py.core.bounds import MAX_INSTANCES, MAX_REQUESTS, MAX_RERUNS, check_count
from blis_py.errors import InputError
from blis_py.planning._space import LineCallback
from blis_py.planning.axes import MAX_POINTS, Axis, Point, axis, parse_axis, read_space
from blis_py.planning.executors import executor
from blis_py.planning.goal import Goal, parse_at_least, parse_attainment, parse_share
from blis_py.planning.pareto import Pareto
from blis_py.planning.pareto import pareto as find_pareto
from blis_py.planning.plan import DRAWS, TRIALS, Plan
from blis_py.planning.plan import max_rate as find_max_rate
from blis_py.planning.plan import plan as run_plan
from blis_py.planning.prices import Prices
from blis_py.planning.runner import Runner
from blis_py.planning.store import Folder, Nowhere, ResultStore
from blis_py.planning.study import Study
from blis_py.planning.sweep import RowsCallback, Sweep
from blis_py.planning.sweep import sweep as run_sweep
from blis_py.planning.widths import has_load

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
    on_progress: RowsCallback | None = None,
    **settings: Any,
) -> Sweep:
    """Run a grid, a list or a random part of a space of settings: one row each.

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
        cache: the folder of stored outcomes; True = the platform's cache folder, False = none.
        on_progress: callback with the rows so far and the total number of rows.

    Raises:
        InputError: nothing to vary, an unknown setting, or an unreachable cluster. A combination that cannot
        be run is no error: its row gives the reason.
    """
    on_progress = settings.pop("told", on_progress)  # its former name
    axes, listed, _ = spanned(vary, runs, space)
    study = study_of(config, settings)
    with running(workers, dask, cache) as runner:
        return run_sweep(
            study, axes, runner, runs=listed, random=random, seeds=seeds, on_progress=on_progress
        )


@contextmanager
def running(
    workers: int | None, dask: str | None, cache: Cache, seconds: float = math.inf
) -> Iterator[Runner]:
    """The runner of a study, with so much time, closed on exit."""
    store: ResultStore = Nowhere()
    if cache is not False:
        store = Folder(None if cache is True else cache)
    with Runner(executor(workers, dask), store, time.monotonic() + seconds) as runner:
        yield runner


def spanned(
    vary: Vary, runs: Sequence[Point] = (), space: str | Path | None = None, known: Sequence[str] = ()
) -> tuple[list[Axis], list[Point], Mapping[str, Any]]:
    """Axes, points and the other keys of a space file (see `read_space`).

    Raises:
        InputError: the file has both `runs` and axes, or a value that does not fit.
    """
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


def study_of(config: RunConfig | str | Path | None, settings: Mapping[str, Any]) -> Study:
    """The common settings of all runs, from the arguments that `blis.run` takes.

    Raises:
        InputError: a setting is unknown, or its value does not fit.
    """
    for name in settings:
        if name not in NAMES:
            raise InputError("unknown setting", key=name, fix=did_you_mean(name, NAMES))
    overrides = tuple((name, NAMES[name], meant(name, value)) for name, value in settings.items())
    start = config if isinstance(config, RunConfig) else None
    return Study(None if start is not None else config, overrides, start=start)  # type: ignore[arg-type]


def pareto(
    config: RunConfig | Study | str | Path | None = None,
    /,
    *,
    vary: Vary = (),
    space: str | Path | None = None,
    at_least: Sequence[str] | str = (),
    prices: Mapping[str, float] | None = None,
    most_requests: int | None = None,
    workers: int | None = None,
    dask: str | None = None,
    cache: Cache = True,
    **settings: Any,
) -> Pareto:
    """Throughput of a GPU against the speed that a user sees, for every combination at rising concurrency.

    Args:
        config, vary, space, workers, dask, cache, settings: as of `blis.sweep`; points that miss an `slo`
            are not on the front.
        at_least: lower limits, as `"tokens_per_s_per_user=30"`: then the load is searched at which a GPU
            emits the most with them, to 3 %, instead of the front.
        prices: dollars per GPU and hour by GPU, over the bundled ones.
        most_requests: of the longest run, for targets in the steady state; None = 50,000.
    """
    axes, _, _ = spanned(vary, (), space)
    study = config if isinstance(config, Study) else study_of(config, settings)
    with running(workers, dask, cache) as runner:
        least = parse_at_least([at_least] if isinstance(at_least, str) else at_least)
        goal = limited(Goal(at_least=least, unlimited=True), most_requests)
        return find_pareto(study, axes, runner, goal, Prices(prices))


def plan(
    config: RunConfig | Study | str | Path | None = None,
    /,
    *,
    vary: Vary = (),
    space: str | Path | None = None,
    instances: Sequence[int] | str | None = None,
    prices: Mapping[str, float] | None = None,
    attainment: str | float | None = None,
    max_lost: str | float = 0.0,
    at_least: Sequence[str] | str = (),
    confidence: str | float | None = None,
    max_rate: bool = False,
    gpus: int | None = None,
    budget: float | str | None = None,
    quick: bool = False,
    tune: bool = True,
    most_requests: int | None = None,
    trials: int = TRIALS,
    draws: int = DRAWS,
    workers: int | None = None,
    dask: str | None = None,
    cache: Cache = True,
    on_progress: LineCallback | None = None,
    **settings: Any,
) -> Plan:
    """Find the cheapest configuration that meets its targets, its bottleneck, and the certainty of the
    answer.

        blis.plan(trace="day.csv", model="llama-3.1-8b", gpu="h100", slo="ttft.p99=500ms")

    Args:
        config: as of `blis.run`, or common settings of studies, and so are the `settings`; `slo` and
            `goodput` give the targets.
        vary: the settings to choose from, as of `blis.sweep`.
        space: a YAML file with `vary`, `instances`, `prices`.
        instances: numbers of instances to choose from: `"1:32"` (the default) or a list.
        prices: dollars per GPU and hour by GPU, over the bundled ones.
        attainment: least share of the requests that meet all their goodput targets: `"99%"`, or by class.
        max_lost: largest share of the requests that may be rejected, unservable or timed out.
        at_least: lower limits on figures of the run: `"output_tokens_per_s=5000"`, see `goal.AT_LEAST`.
        confidence: least share of the draws in which all targets must be met: `"90%"`.
        max_rate: find the highest rate at which the configuration meets its targets, or at which it keeps up
            if there are none; with `vary`, the combination with the highest.
        gpus: the most GPUs to use; with `max_rate`, or where nothing says how many requests come, all of
            them, at the highest rate.
        budget: with `max_rate`, the dollars per hour that each combination may use; or, as `"60s"`, the time
            after which the cheapest candidate known is the answer.
        quick: end with the first answer: nothing is run for longer, and few settings are tried.
        tune: whether to try settings that cost nothing around the winner.
        most_requests: of the longest run; a shorter workload is extended up to that until the answer no
            longer changes. None = 10,000, or 50,000 where the start of a closed loop counts, or
            a generated load leaves a target undecided.
        trials: combinations to try where there are more of them, of more than three settings.
        draws: runs with other step times, for the probability; 0 = none.
        workers, dask, cache: as of `blis.sweep`.
        on_progress: callback with a line on the progress of the search.

    Raises:
        InputError: no target, an unknown setting, nothing that can be run, or arguments that contradict each
            other.
    """
    on_progress = settings.pop("told", on_progress)  # its former name
    study = config if isinstance(config, Study) else study_of(config, settings)
    axes, listed, more = spanned(vary, (), space, ("instances", "prices"))
    if listed:
        raise InputError("does not apply to a plan", key="runs", fix="use vary, or blis.sweep")
    least = parse_at_least([at_least] if isinstance(at_least, str) else at_least)
    goal = limited(Goal(_attainment(attainment), _share(max_lost), least, unlimited=max_rate), most_requests)
    sure = None if confidence is None else parse_share(str(confidence), key="--confidence")
    chosen = _prices(more.get("prices"), space) | dict(prices or {})
    check_count(draws, least=0, most=MAX_RERUNS, key="--draws")
    check_count(trials, least=1, most=MAX_POINTS, key="--trials")
    sizes = _instances(instances if instances is not None else more.get("instances"))
    dollars, seconds = _budget(budget)
    if gpus is not None and not max_rate and not has_load(study, axes):
        max_rate, goal = True, replace(goal, unlimited=True)
    if max_rate:
        _check_max_rate(sizes, confidence)
        with running(workers, dask, cache, seconds) as runner:
            return _highest(study, axes, runner, gpus, dollars, goal=goal, prices=Prices(chosen), draws=draws)
    if dollars is not None:
        raise InputError("belongs to --max-rate", key="--budget", fix="add --max-rate, or limit --instances")
    if gpus is not None:
        check_count(gpus, least=1, most=MAX_INSTANCES, key="--gpus")
    with running(workers, dask, cache, seconds) as runner:
        return run_plan(
            study,
            axes,
            runner,
            goal=goal,
            prices=Prices(chosen),
            sizes=sizes,
            trials=trials,
            draws=draws,
            confidence=sure,
            knobs=tune,
            gpus=gpus,
            quick=quick,
            on_progress=on_progress,
        )


def _budget(given: float | str | None) -> tuple[float | None, float]:
    """Dollars per hour, and seconds to search: one of the two is given.

    Raises:
        InputError: neither an amount nor a duration.
    """
    text = "" if given is None else str(given).strip()
    if text.endswith(("s", "m")):
        return None, duration_ns(text, "--budget") / 1e9
    try:
        dollars = float(text) if text else None
    except ValueError:
        fix = "write 60s, or dollars an hour: 25"
        raise InputError("neither dollars nor a time", key="--budget", value=given, fix=fix) from None
    return dollars, math.inf


def _check_max_rate(sizes: Sequence[int] | None, confidence: str | float | None) -> None:
    if sizes is not None:
        raise InputError("contradicts --max-rate", key="--instances", fix="use --gpus or --budget")
    if confidence is not None:
        raise InputError("does not apply to --max-rate", key="--confidence", fix="drop it")


def _highest(
    study: Study, axes: Sequence[Axis], runner: Runner, gpus: int | None, budget: float | None, **how: Any
) -> Plan:
    """The highest rate of the configuration, or the combination with the highest."""
    if not axes and gpus is None and budget is None:
        return find_max_rate(study.config(), runner, **how)
    from blis_py.planning._rates import highest

    return highest(study, axes, runner, gpus=gpus, budget=budget, **how)


def limited(goal: Goal, most_requests: int | None) -> Goal:
    """The goal with runs of at most so many requests; None = as it is."""
    if most_requests is None:
        return goal
    check_count(most_requests, least=1, most=MAX_REQUESTS, key="--most-requests")
    return replace(goal, most_requests=most_requests, most_extended=most_requests)


def _attainment(given: str | float | None) -> dict[str, float]:
    return {} if given is None else parse_attainment(str(given))


def _share(given: str | float) -> float:
    return parse_share(str(given), key="--max-lost")


def _prices(given: Any, space: str | Path | None) -> dict[str, float]:
    if not isinstance(given, Mapping | None):
        raise InputError("must map GPUs to dollars per hour", file=space, key="prices", value=given)
    return {str(name): price for name, price in (given or {}).items()}


def _instances(given: Any) -> list[int] | None:
    if given is None:
        return None
    return list(
        axis("num_instances", str(given) if isinstance(given, int) else given, key="--instances").values
    )
