"""`plan` behind the page: a process of its own that reports every candidate it has simulated."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.planning.goal import Goal
from blis_py.planning.job import AS_IT_IS, Job, JobOutcome
from blis_py.planning.orphans import end_with
from blis_py.planning.runner import OutcomeCallback, Runner
from blis_py.ui.state import State, shown

Json = dict[str, Any]
VARIED = {"instances": (), "tp": ("tp",), "gpu": ("tp", "gpu")}
"""What a search varies beside the number of instances."""
_TP, _POLL_S = (1, 2, 4, 8), 0.2
_MAX_INSTANCES = 64


class ReportingRunner(Runner):
    """A runner that reports the outcome of every candidate at the rate on the screen.

    Args:
        report: called with each candidate.
        goal: judges it.
    """

    def __init__(self, executor: Any, store: Any, report: Callable[[Json], None], goal: Goal) -> None:
        super().__init__(executor, store)
        self._report, self._goal = report, goal
        self._known: set[tuple[Any, ...]] = set()

    def run(self, jobs: Sequence[Job], on_outcome: OutcomeCallback | None = None) -> list[JobOutcome]:
        """See `Runner`."""

        def both(index: int, outcome: JobOutcome, stored: bool) -> None:
            config = jobs[index].config
            key = (config.num_instances, config.tp, config.gpu)
            whole = outcome.ran and outcome.early is None and jobs[index].variation == AS_IT_IS
            if whole and key not in self._known:  # later ones of the same size are of other models or levers
                self._known.add(key)
                self._report(candidate(config, outcome, self._goal))
            if on_outcome is not None:
                on_outcome(index, outcome, stored)

        return super().run(jobs, both)


def candidate(config: RunConfig, outcome: JobOutcome, goal: Goal) -> Json:
    """A candidate as a point of the page."""
    from blis_py.config.loader import as_dict
    from blis_py.pages.cost import cost_of

    figures, cost = outcome.figures, cost_of(as_dict(config))
    return {
        "settings": {"num_instances": config.num_instances, "tp": config.tp, "gpu": config.gpu},
        "holds": goal.judge(outcome).holds,
        "throughput": figures.get("throughput.output_tokens_per_s"),
        "ttft": figures.get("ttft_ms.p99"),
        "tpot": figures.get("tpot_ms.p99"),
        "e2e": figures.get("e2e_ms.p99"),
        "dollars": cost.dollars_per_hour,
        "gpus": cost.gpus,
        "saturated": outcome.verdict == "saturated",
    }


def axes_of(config: RunConfig, vary: str) -> dict[str, list[Any]]:
    """Values to choose from, for `--vary`.

    Raises:
        InputError: there is no such axis.
    """
    from blis_py.planning.prices import Prices

    names = VARIED.get(vary)
    if names is None:
        raise InputError("must be one of " + ", ".join(VARIED), key="vary", value=vary)
    known: dict[str, list[Any]] = {"tp": list(_TP)}
    if "gpu" in names:
        from blis_py.files.profiles import known_names

        known["gpu"] = [name for name in known_names("gpus") if Prices().of(name) is not None]
    return {name: known[name] for name in names}


def search(pipe: Any, base: RunConfig, folder: Path, request: Json, parent_pid: int) -> None:
    """The process: a plan, message by message."""
    from blis_py import native

    end_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    native.activate()
    try:
        pipe.send({"done": _plan(base, folder, request, pipe.send)})
    except InputError as error:
        pipe.send({"refused": str(error)})
    except Exception as error:
        pipe.send({"failed": f"{type(error).__name__}: {error}"})


def _plan(base: RunConfig, folder: Path, request: Json, send: Callable[[Json], None]) -> Json:
    from blis_py.planning.axes import axis
    from blis_py.planning.executors import Serial
    from blis_py.planning.plan import plan
    from blis_py.planning.prices import Prices
    from blis_py.planning.report_text import lines, summary
    from blis_py.planning.store import Folder
    from blis_py.planning.study import Base

    config = shown(base, State.read(request.get("state")), folder).config
    axes = [axis(name, values) for name, values in axes_of(config, request.get("vary", "instances")).items()]
    varied = {each.key for each in axes} | {"num_instances"}
    if config.given is not None:
        config = replace(config, given=tuple(key for key in config.given if key not in varied))
    goal = Goal({}, 0.0)
    with ReportingRunner(Serial(), Folder(), lambda found: send({"candidate": found}), goal) as runner:
        found = plan(
            Base(None, (), start=config),
            axes,
            runner,
            goal=goal,
            prices=Prices({}),
            sizes=range(1, _MAX_INSTANCES + 1),
            draws=0,
            on_progress=lambda line: send({"progress": line}),
        )
    best = found.best
    chosen = {"num_instances": best.instances, "tp": best.config.tp, "gpu": best.config.gpu}
    return {"holds": found.holds, "settings": chosen, "answer": lines(found), "plan": summary(found)["best"]}


async def stream(
    base: RunConfig, folder: Path, request: Json, gone: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """The messages of a plan as lines of JSON; its process ends when the client leaves."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=search, args=(theirs, base, folder, request, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    try:
        while not await gone():
            if not ours.poll():
                if not process.is_alive() and not ours.poll():
                    yield _line({"failed": "the process of the plan died"})
                    return
                await anyio.sleep(_POLL_S)
                continue
            try:
                message = ours.recv()
            except EOFError:
                yield _line({"failed": "the process of the plan died"})
                return
            yield _line(message)
            if message.keys() & {"done", "refused", "failed"}:
                return
    finally:
        process.terminate()
        ours.close()


def _line(message: Json) -> bytes:
    return json.dumps(message).encode() + b"\n"
