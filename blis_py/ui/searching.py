"""The search behind the page, in a process of its own: reports every candidate that it has simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_py import native

native.activate()

from blis_py.config.disaggregation import ROLES  # noqa: E402
from blis_py.config.loader import as_dict  # noqa: E402
from blis_py.config.models import RunConfig  # noqa: E402
from blis_py.errors import InputError  # noqa: E402
from blis_py.files.profiles import known_names  # noqa: E402
from blis_py.pages.cost import cost_of  # noqa: E402
from blis_py.planning.axes import Axis, axis  # noqa: E402
from blis_py.planning.disaggregate import layouts_of  # noqa: E402
from blis_py.planning.executors import Serial  # noqa: E402
from blis_py.planning.goal import Goal  # noqa: E402
from blis_py.planning.job import AS_IT_IS, Job, JobOutcome  # noqa: E402
from blis_py.planning.plan import plan  # noqa: E402
from blis_py.planning.prices import Prices  # noqa: E402
from blis_py.planning.report_data import summary  # noqa: E402
from blis_py.planning.report_text import lines  # noqa: E402
from blis_py.planning.runner import OutcomeCallback, Runner  # noqa: E402
from blis_py.planning.store import Folder  # noqa: E402
from blis_py.planning.study import Study  # noqa: E402
from blis_py.ui.points import point_at  # noqa: E402
from blis_py.ui.state import State, shown, with_counts  # noqa: E402

Json = dict[str, Any]
LAYOUTS = "layouts"
VARIED = {"instances": (), "tp": ("tp",), "gpu": ("tp", "gpu"), LAYOUTS: ()}
"""Settings that a search varies beside the number of instances; layouts are compared for the number
that it finds."""
_TP = (1, 2, 4, 8)
_MAX_INSTANCES, _MIN_COUNTS = 64, 4


class ReportingRunner(Runner):
    """A runner that reports the outcome of every candidate at the rate on the screen.

    Args:
        report: called with each candidate.
        goal: judges it.
    """

    def __init__(self, executor: Any, store: Any, report: Callable[[Json], None], goal: Goal) -> None:
        super().__init__(executor, store)
        self._report, self._goal = report, goal
        self._known: dict[tuple[Any, ...], tuple[RunConfig, float]] = {}
        """Configuration and length of the longest run of each candidate."""

    def run(self, jobs: Sequence[Job], on_outcome: OutcomeCallback | None = None) -> list[JobOutcome]:
        """See `Runner`."""

        def both(index: int, outcome: JobOutcome, stored: bool) -> None:
            if outcome.ran and outcome.early_stop is None and self._is_news(jobs[index]):
                self._report(candidate(jobs[index].config, outcome, self._goal))
            if on_outcome is not None:
                on_outcome(index, outcome, stored)

        return super().run(jobs, both)

    def _is_news(self, job: Job) -> bool:
        """Whether a job is a candidate at its own rate for the first time, or longer than before; other
        configurations of the same size are of other models or levers."""
        config, length = job.config, job.variation.length
        key = (config.num_instances, config.tp, config.gpu, *counts_of(config).items())
        known, longest = self._known.get(key, (config, 0.0))
        if replace(job.variation, length=1.0) != AS_IT_IS or config != known or length <= longest:
            return False
        self._known[key] = config, length
        return True


def candidate(config: RunConfig, outcome: JobOutcome, goal: Goal) -> Json:
    """A candidate as a point of the page."""
    settings = as_dict(config)
    return {
        **chosen(config, config.num_instances),
        **point_at(outcome.figures.get, outcome.verdict, settings),
        "holds": goal.judge(outcome).holds,
        "gpus": cost_of(settings).gpus,
    }


def counts_of(config: RunConfig) -> dict[str, int]:
    """Instances by pool; empty without pools."""
    return {pool.name: pool.count for pool in config.all_pools}


def chosen(config: RunConfig, instances: int) -> Json:
    """The choice of a search, as parts of the page's state."""
    if counts := counts_of(config):
        return {"settings": {}, "pools": counts}
    return {"settings": {"num_instances": instances, "tp": config.tp, "gpu": config.gpu}, "pools": {}}


def pool_axes(config: RunConfig) -> list[Axis]:
    """Instances of each pool that has some, up to twice as many as it has."""
    return [
        axis(
            f"pools.{name}.count" if config.pools else ROLES[name],
            list(range(1, min(max(2 * count, _MIN_COUNTS), _MAX_INSTANCES) + 1)),
        )
        for name, count in counts_of(config).items()
        if count
    ]


def axes_of(config: RunConfig, vary: str) -> dict[str, list[Any]]:
    """Values to choose from, for `--vary`.

    Raises:
        InputError: there is no such axis.
    """

    names = VARIED.get(vary)
    if names is None:
        raise InputError("must be one of " + ", ".join(VARIED), key="vary", value=vary)
    known: dict[str, list[Any]] = {"tp": list(_TP)}
    if "gpu" in names:
        known["gpu"] = [name for name in known_names("gpus") if Prices().of(name) is not None]
    return {name: known[name] for name in names}


def searched(base: RunConfig, folder: Path, request: Json, send: Callable[[Json], None]) -> Json:
    """The answer to a request for a plan.

    Args:
        send: called with progress and candidates.

    Raises:
        InputError: no targets, or something else to vary than the instances of pools.
    """
    config, vary = (
        shown(base, State.read(request.get("state")), folder).config,
        request.get("vary", "instances"),
    )
    counts = counts_of(config)
    if counts and vary != "instances":
        fix = "vary their instances"
        raise InputError("is not for a plan of pools to choose", key="vary", value=vary, fix=fix)
    config = with_counts(config, counts) if counts else config
    axes = [axis(name, values) for name, values in axes_of(config, vary).items()] or pool_axes(config)
    varied = {each.key for each in axes} | {"num_instances"}
    if config.given is not None:
        config = replace(config, given=tuple(key for key in config.given if key not in varied))
    goal = Goal({}, 0.0)
    with ReportingRunner(Serial(), Folder(), lambda result: send({"candidate": result}), goal) as runner:
        result = plan(
            Study(None, (), start=config),
            axes,
            runner,
            goal=goal,
            prices=Prices({}),
            sizes=None if counts else range(1, _MAX_INSTANCES + 1),
            draws=0,
            on_progress=lambda line: send({"progress": line}),
        )
    answer = lines(result)
    if vary == LAYOUTS:
        send({"progress": "prefill and decode apart: layouts of as many instances…"})
        with Runner(Serial(), Folder()) as runner:
            answer += layouts_of(result.config, max(result.best.instances, 2), runner).lines()
    best = result.best
    return {
        "holds": result.holds,
        **chosen(best.config, best.instances),
        "answer": answer,
        "plan": summary(result)["best"],
    }
