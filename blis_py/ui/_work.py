"""Jobs of the page, in a worker process: a sample, the whole run, the ledger, a load curve, a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_py import native

native.activate()

from blis_py.api import Simulation  # noqa: E402
from blis_py.config.models import RunConfig  # noqa: E402
from blis_py.errors import InputError  # noqa: E402
from blis_py.metrics.registry import headings, paired, per_request  # noqa: E402
from blis_py.pages import charts  # noqa: E402
from blis_py.pages.cost import cost_of  # noqa: E402
from blis_py.pages.parts import Cell, Tile  # noqa: E402
from blis_py.pages.run import FILE, findings, report, tiles, verdict  # noqa: E402
from blis_py.planning.worker import cached_demand  # noqa: E402
from blis_py.result import Result  # noqa: E402
from blis_py.setup.setup import Progress  # noqa: E402
from blis_py.ui.controls import controls  # noqa: E402
from blis_py.ui.points import axes, classes, columns, point  # noqa: E402
from blis_py.ui.sample import divisible, runner, sample  # noqa: E402
from blis_py.ui.state import Shown, State, shown  # noqa: E402

Json = dict[str, Any]
_KEPT = 3
"""Whole results that stay in memory."""
_AT_ONCE = 30_000
"""Requests up to which the whole run records its steps; of larger ones the states over time come later."""
_CURVE_AT_ONCE = 10_000
"""Requests up to which a load curve is of whole runs."""
_LOADS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
"""Factors on the rate in a load curve."""


class Desk:
    """Worker for the jobs of one process.

    Args:
        base: what the page was opened with.
        folder: for derived files.
    """

    def __init__(self, base: RunConfig, folder: Path) -> None:
        self._base, self._folder = base, folder
        self._results: dict[str, Result] = {}

    def do(self, job: Json, progress: Progress | None) -> Json:
        """One job: its `kind` is a name of `JOBS`, its `state` what is on the screen.

        Raises:
            InputError: a configuration that cannot be run.
        """
        if job.get("kind") not in JOBS:
            raise InputError("no such job", key="kind", value=job.get("kind"))
        return JOBS[job["kind"]](self, job, progress)

    def start(self, job: Json, progress: Progress | None) -> Json:
        """The controls."""
        where = self._shown(job)
        return {
            "controls": controls(where.config, self._simulation(where)),
            "axes": axes(),
            "columns": columns(),
            "has_pools": bool(where.config.all_pools),
        }

    def sample(self, job: Json, progress: Progress | None) -> Json:
        """A quick answer; the whole run if that is as quick."""
        where = self._shown(job)
        simulation = self._simulation(where)
        if not divisible(simulation):
            return self._whole(where, simulation, job, progress)
        part = sample(simulation, runner(progress))
        count = len(part.result.record.table)
        label = f"Sample: {count:,} consecutive requests of {len(simulation.table):,}, at the true rate"
        return answer(part.result, where, simulation, "sample", label, part.bands)

    def whole(self, job: Json, progress: Progress | None) -> Json:
        """The whole run."""
        where = self._shown(job)
        return self._whole(where, self._simulation(where), job, progress)

    def _whole(self, where: Shown, simulation: Simulation, job: Json, progress: Progress | None) -> Json:
        steps = len(simulation.table) <= _AT_ONCE
        result = self._kept(job["state"], simulation, progress, steps=steps)
        count = len(result.record.table)
        return answer(result, where, simulation, "whole", f"Whole run: {count:,} requests", {})

    def states(self, job: Json, progress: Progress | None) -> Json:
        """States over time of the whole run."""
        simulation = self._simulation(self._shown(job))
        return {
            "over_time": charts.over_time(self._kept(job["state"], simulation, progress, steps=True).view)
        }

    def ledger(self, job: Json, progress: Progress | None) -> Json:
        """The ledger of the request at the p99."""
        from blis_py.ledger.explain import explain
        from blis_py.pages.explained import chart

        simulation = self._simulation(self._shown(job))
        result = self._kept(job["state"], simulation, progress)
        explained = explain(result, metric="ttft.p99", what_if=False).as_dict()
        if explained["request"] is None:
            return {"nothing": f"Nothing to explain: {explained['no_match']}."}
        return {
            "question": explained["question"],
            "chart": {**chart(explained), "title": f"Where the {explained['question']} goes"},
        }

    def curve(self, job: Json, progress: Progress | None) -> Json:
        """Latency over throughput at other rates: of whole runs, or by samples where these are large."""
        points, sampled = [], False
        where = self._shown(job)
        for factor in _LOADS:
            try:
                simulation = self._faster(where, factor)
            except InputError:
                continue
            run = runner(progress, steps=False)
            sampled = divisible(simulation) and len(simulation.table) > _CURVE_AT_ONCE
            result = sample(simulation, run).result if sampled else run(simulation)
            points.append({"factor": factor, **point(result.summary, result.settings)})
        return {"points": points, "sampled": sampled}

    def _faster(self, where: Shown, factor: float) -> Simulation:
        """The simulation of the same requests, closer together."""
        simulation = self._simulation(where)
        return replace(simulation, table=simulation.table.scaled(1 / factor))

    def compare(self, job: Json, progress: Progress | None) -> Json:
        """The run against a pinned one."""
        from blis_py.comparison.compare import compare

        results = []
        for name in ("pinned", "state"):
            at = {"state": job.get(name)}
            results.append(self._kept(at["state"], self._simulation(self._shown(at)), progress))
        try:
            compared = compare(*results, names=["pinned", "now"]).as_dict()
        except InputError as error:
            return {"refused": str(error)}
        return {
            "compared": compared["compared"][0]["metrics"],
            "headings": headings(paired()),
            "settings": compared["settings"],
        }

    def report(self, job: Json, progress: Progress | None) -> Json:
        """The whole run as an HTML report."""
        from blis_py.ledger.explain import explain
        from blis_py.pages.document import html

        where = self._shown(job)
        simulation = self._simulation(where)
        result = self._kept(job["state"], simulation, progress, steps=True)
        explained = None
        if result.summary["cluster"]["ttft_ms"]["count"]:
            explained = explain(result, what_if=False)
        return {"html": html(report(result, explained, command=where.command()))}

    def _shown(self, job: Json) -> Shown:
        return shown(self._base, State.read(job.get("state")), self._folder)

    def _simulation(self, where: Shown) -> Simulation:
        return Simulation.of(where.config, cached_demand)

    def _kept(
        self, state: Any, simulation: Simulation, progress: Progress | None, *, steps: bool = False
    ) -> Result:
        """The whole run of a state, simulated or kept."""
        key = json.dumps(state, sort_keys=True)
        result = self._results.pop(key, None)
        if result is None or (steps and all(one.runs is None for one in result.record.instances)):
            result = runner(progress, steps=steps)(simulation)
        self._results[key] = result
        while len(self._results) > _KEPT:
            del self._results[next(iter(self._results))]
        return result


JOBS: dict[str, Callable[[Desk, Json, Progress | None], Json]] = {
    "start": Desk.start,
    "sample": Desk.sample,
    "whole": Desk.whole,
    "states": Desk.states,
    "ledger": Desk.ledger,
    "curve": Desk.curve,
    "compare": Desk.compare,
    "report": Desk.report,
}


def answer(
    result: Result,
    where: Shown,
    simulation: Simulation,
    kind: str,
    label: str,
    bands: Mapping[str, tuple[float, float]],
) -> Json:
    """A run as the page shows it."""
    summary, settings = result.summary, result.settings
    return {
        "kind": kind,
        "label": label,
        "verdict": _cell(verdict(summary)),
        "findings": [_cell(each) for each in findings(summary)],
        "tiles": [_tile(each, bands) for each in tiles(summary, settings)],
        "distributions": [
            *(charts.distribution(result.view, metric.name) for metric in per_request()),
            *charts.by_pool(result.view),
        ],
        "over_time": charts.over_time(result.view),
        "point": point(summary, settings),
        "classes": classes(summary),
        "capacity": simulation.capacity,
        "command": where.command(),
        "yaml": where.yaml(),
        "cost": cost_of(settings).dollars_per_hour,
    }


def _cell(cell: Cell) -> Json:
    return {"text": cell.text, "value": cell.value, "source": cell.source, "tone": cell.tone}


def _tile(tile: Tile, bands: Mapping[str, tuple[float, float]]) -> Json:
    path = tile.cell.source.removeprefix(f"{FILE}: ")
    band = bands.get(path)
    return {"name": tile.name, "unit": tile.unit, "band": band, **_cell(tile.cell)}
