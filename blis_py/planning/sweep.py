"""Many settings, one table: a grid, a list or a random part of a space."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_py.config.layers import did_you_mean
from blis_py.config.loader import as_dict
from blis_py.config.models import RunConfig
from blis_py.core.bounds import MAX_RERUNS, check_count
from blis_py.errors import InputError
from blis_py.files.csv_columns import columns_of, csv_text
from blis_py.files.packages import data_frame, installed
from blis_py.files.yaml_files import dump_yaml
from blis_py.metrics.load import SATURATED
from blis_py.metrics.registry import METRICS
from blis_py.metrics.slo import limit_and_measured
from blis_py.outputs.staging import Outputs
from blis_py.planning import _ranking
from blis_py.planning.axes import Axis, Point, axis, drawn, grid
from blis_py.planning.job import Job, JobOutcome
from blis_py.planning.metric_names import figure_named
from blis_py.planning.runner import Runner
from blis_py.planning.study import Study
from blis_py.sensitivity.reruns import rerun_seed
from blis_py.setup.from_config import DEFAULT_SEED

if TYPE_CHECKING:
    import pandas as pd

    from blis_py.outputs.staging import Outputs

SEED = "seed"
OK, REFUSED, FAILED = "ok", "refused", "failed"
_OUTPUT = "throughput.output_tokens_per_s"
_LARGER_IS_BETTER = ("throughput.", "output_tokens_per_s", "goodput.", "prefix_hit_rate", "jain_fairness")


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a sweep."""

    point: Point
    seed: int
    """Index of the run of its point, from 0; in the table only where the seed itself is not varied."""
    outcome: JobOutcome

    @property
    def status(self) -> str:
        if self.outcome.refused is not None:
            return REFUSED
        return OK if self.outcome.failed is None else FAILED

    def as_dict(self) -> dict[str, Any]:
        """The row of the table."""
        slo = self.outcome.slo
        return {
            **{name: _cell(value) for name, value in self.point.items()},
            **({} if SEED in self.point else {SEED: self.seed}),
            "status": self.status,
            "reason": self.outcome.refused or self.outcome.failed,
            "verdict": self.outcome.verdict or None,
            "slo_met": all(each["met"] for each in slo) if slo and self.outcome.ran else None,
            **{f"slo.{each['slo']}": limit_and_measured(each)[1] for each in slo},
            **{self.column(name): value for name, value in self.outcome.figures.items()},
        }

    def column(self, figure: str) -> str:
        """Column of a figure: its name, unless a varied setting has the same name."""
        return _column(figure, self.point)


class PointCost(NamedTuple):
    """Cost of a point."""

    gpus: int
    dollars_per_hour: float | None
    """None without a price."""
    output_tokens_per_s: float

    @property
    def dollars_per_million(self) -> float | None:
        """Dollars per million output tokens, at the simulated load."""
        if self.dollars_per_hour is None or not self.output_tokens_per_s:
            return None
        return self.dollars_per_hour / (self.output_tokens_per_s * 3600) * 1e6


RowsCallback = Callable[[Sequence[Row], int], None]
"""Called with the rows so far, a list that grows as they are done, and how many there will be."""


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep; rows in the order of the points, seeds within them."""

    first: RunConfig | None
    """Configuration of the first point; None if no point is valid."""
    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]
    simulated: int
    """Runs that were not in the store."""

    def __repr__(self) -> str:
        return f"Sweep({self.size})"

    @property
    def size(self) -> str:
        """Number of runs, the axes, and how many runs gave no result."""
        refused, failed = (sum(row.status == what for row in self.rows) for what in (REFUSED, FAILED))
        lost = "".join(f", {n} {what}" for n, what in ((refused, REFUSED), (failed, FAILED)) if n)
        over = ", ".join(f"{each.name} ({len(each.values)})" for each in self.axes)
        return f"{len(self.rows):,} runs over {over or 'nothing'}{lost}"

    @property
    def seeds(self) -> int:
        """Runs of each point."""
        return max((row.seed for row in self.rows), default=0) + 1

    @property
    def names(self) -> list[str]:
        """The varied settings."""
        return [each.name for each in self.axes]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per run: the settings, the seed, the status, and its figures."""
        table = data_frame([row.as_dict() for row in self.rows])
        for each in self.axes:
            if len({type(_cell(value)) for value in each.values} - {int, float}) > 1:
                table[each.name] = table[each.name].astype(str)
        return table

    def csv(self) -> str:
        """The table as CSV."""
        return csv_text(columns_of(row.as_dict() for row in self.rows))

    def mean(self, metric: str) -> pd.DataFrame:
        """Mean of a metric over the seeds, one row per point that ran: the settings, `mean` and `runs`.

        Raises:
            InputError: unknown metric.
        """
        metric = self.require(metric)
        return data_frame(_ranking.means(self._ran(), self.names, _column(metric, self.names)))

    def best(self, metric: str, count: int = 5) -> pd.DataFrame:
        """The best points by the mean of a metric; points with a run that misses an SLO come last."""
        return data_frame(self.ranked(metric)[:count])

    def ranked(self, metric: str) -> list[dict[str, Any]]:
        """All points in the order of `best`, as plain data.

        Raises:
            InputError: unknown metric.
        """
        metric = self.require(metric)
        column, larger = _column(metric, self.names), larger_is_better(metric)
        return _ranking.ranked(self._ran(), self.names, column, larger=larger)

    def cheapest(self, metric: str) -> list[dict[str, Any]]:
        """All points, the cheapest first: those that miss a target, or do not keep up, come last; equal
        costs are in the order of `ranked`. Costs are dollars per million output tokens in closed loops, else
        dollars per hour; without prices GPUs take their place."""
        costs = self.costs()
        closed = any(row.outcome.facts.get("closed") for row in self.rows if row.status == OK)
        priced = all(cost.dollars_per_hour is not None for cost in costs.values())
        behind = {
            _values(row.point) for row in self.rows if row.status == OK and row.outcome.verdict == SATURATED
        }

        def order(each: Mapping[str, Any]) -> tuple[bool, bool, float]:
            values = _values({name: each[name] for name in self.names})
            cost = costs.get(values)
            return not each.get(_ranking.MET, True), values in behind, _worth(cost, closed, priced)

        return sorted(self.ranked(metric), key=order)

    def _ran(self) -> list[dict[str, Any]]:
        return [row.as_dict() for row in self.rows if row.status == OK]

    def costs(self) -> dict[tuple[str, ...], PointCost]:
        """The cost of each point that ran, by the text of its values; of several seeds that of the first."""
        from blis_py.planning.prices import Prices

        prices, costs = Prices(), dict[tuple[str, ...], PointCost]()
        for row in self.rows:
            gpus = row.outcome.facts.get("gpus")
            if row.status == OK and gpus is not None:
                price = prices.of(str(row.outcome.facts.get("gpu")))
                per_hour = None if price is None else gpus * price.per_hour
                per_s = row.outcome.figures.get(_OUTPUT) or 0.0
                costs.setdefault(_values(row.point), PointCost(gpus, per_hour, per_s))
        return costs

    def order(self, metric: str, *, wanted: bool, targets: bool) -> str:
        """The order of the points, in words.

        Args:
            wanted: whether they are ranked by the metric, else the cheapest first.
            targets: whether there are any.
        """
        mean = f", mean of {self.seeds} seeds" if self.seeds > 1 else ""
        by = f"cheapest first, equal costs by {metric}{mean}"
        if wanted:
            by = f"ranked by {metric}{mean}, {'largest' if larger_is_better(metric) else 'smallest'} first"
        return by + ("; rows that miss a target last" if targets else "")

    def default_metric(self) -> str:
        """Default metric of the ranking: the first target, or else the p99 of TTFT."""
        slo = next((row.outcome.slo for row in self.rows if row.outcome.slo), None)
        known = {name for row in self.rows for name in row.outcome.figures}
        name = f"{METRICS[slo[0]['metric']].key}.{slo[0]['stat']}" if slo else ""
        return name if name in known else "ttft_ms.p99"

    def require(self, metric: str) -> str:
        """The figure that a name means, in the words of other benchmarks, too.

        Raises:
            InputError: no run has this figure.
        """
        known = {name for row in self.rows for name in row.outcome.figures}
        if not known:
            reasons = {row.as_dict()["reason"] for row in self.rows}
            raise InputError(f"no run succeeded: {sorted(map(str, reasons))[0]}", key="--vary")
        figure = figure_named(metric, known)
        if figure not in known:
            raise InputError("no such metric", key="--metric", value=metric, fix=did_you_mean(metric, known))
        return figure

    def save(self, folder: str | Path, *, force: bool = False, plots: bool = True) -> Path:
        """Write `sweep.csv`, `sweep.parquet` (with pandas and pyarrow), `sweep.yaml` and the curves."""
        with Outputs() as outputs:
            self.fill(outputs, folder, force=force, plots=plots)
        return Path(folder)

    def fill(self, outputs: Outputs, folder: str | Path, *, force: bool, plots: bool) -> None:
        """Write the sweep into a folder that is published together with others."""
        place = outputs.folder(folder, force=force)
        (place / "sweep.csv").write_text(self.csv(), encoding="utf-8")
        if installed("pyarrow", "pandas"):
            self.table.to_parquet(place / "sweep.parquet", index=False)
        varied = {each.name: list(each.values) for each in self.axes}
        first = None if self.first is None else as_dict(self.first)
        space = dump_yaml({"vary": varied, "first": first})
        (place / "sweep.yaml").write_text(space, encoding="utf-8")
        if plots:
            from blis_py.planning.curves import save_curves

            save_curves(self.table, self.axes_values(), place, self.foot)

    @property
    def foot(self) -> str:
        """Settings of the first successful run, for the foot of a picture."""
        models = (str(row.outcome.facts.get("models", "")) for row in self.rows if row.status == OK)
        return f"The first run {next(models, '')}"

    def axes_values(self) -> dict[str, tuple[Any, ...]]:
        """Values of the settings that have more than one, by name."""
        return {each.name: each.values for each in self.axes if len(each.values) > 1}


def worth_of(metric: str, figures: Mapping[str, float | None]) -> float | None:
    """A figure of a run by any of its names, negative where larger is better; None without one."""
    figure = figure_named(metric, figures)
    value = figures.get(figure)
    return None if value is None else -value if larger_is_better(figure) else value


def _values(point: Point) -> tuple[str, ...]:
    return tuple(str(_cell(value)) for value in point.values())


def _worth(cost: PointCost | None, closed: bool, priced: bool) -> float:
    """A cost as a number to rank by."""
    if cost is None:
        return math.inf
    if not closed:
        return (cost.dollars_per_hour if priced else None) or float(cost.gpus)
    million = cost.dollars_per_million if priced else None
    return million or cost.gpus / (cost.output_tokens_per_s or 1e-9)


def larger_is_better(metric: str) -> bool:
    return metric.startswith(_LARGER_IS_BETTER)


def sweep(
    study: Study,
    axes: Sequence[Axis],
    runner: Runner,
    *,
    runs: Sequence[Point] = (),
    random: int | None = None,
    seeds: int = 1,
    on_progress: RowsCallback | None = None,
) -> Sweep:
    """Run every point with every seed.

    Seed i is the same for all points, so that they meet the same requests where what is varied allows it
    (common random numbers); the first of several is not the configured one either, see `rerun_seed`.

    Args:
        runs: the points themselves, in place of axes.
        random: number of grid points to draw at random.

    Raises:
        InputError: nothing varied, or too many runs.
    """
    check_count(seeds, least=1, most=MAX_RERUNS, key="--seeds")
    if runs:
        axes = _axes_of(runs)
        points = [dict(run) for run in runs]
    elif random is not None:
        check_count(random, least=1, most=100_000, key="--random")
        points = drawn(axes, random, _seed_of(study))
    else:
        points = grid(axes)
    if not axes and seeds == 1:
        raise InputError("nothing is varied", key="--vary", fix="add --vary scheduler=fcfs,lpm, or --seeds 5")
    study.check(axes)
    if seeds > 1 and any(each.key == SEED for each in axes):
        raise InputError("contradicts seeds that are varied", key="--seeds", value=seeds, fix="drop it")
    cases = [(point, seed) for point in points for seed in range(seeds)]
    rows: dict[int, Row] = {}
    so_far: list[Row] = []
    jobs: dict[int, Job] = {}
    for index, (point, seed) in enumerate(cases):
        try:
            jobs[index] = Job(_seeded(study.config(point, axes), seed, seeds))
        except InputError as error:
            rows[index] = Row(point, seed, JobOutcome(refused=str(error)))
            so_far.append(rows[index])
    where = list(jobs)

    def note(at: int, outcome: JobOutcome, stored: bool) -> None:
        point, seed = cases[where[at]]
        rows[where[at]] = Row(point, seed, outcome)
        so_far.append(rows[where[at]])
        if on_progress is not None:
            on_progress(so_far, len(cases))

    before = runner.done
    runner.run(list(jobs.values()), note)
    ordered = tuple(rows[index] for index in range(len(cases)))
    first = next((job.config for job in jobs.values()), None)
    return Sweep(first, tuple(axes), ordered, runner.done - before)


def _seed_of(study: Study) -> int:
    """Seed of the sweep's own random choices."""
    given = {key: value for _, key, value in study.overrides}.get("seed")
    return DEFAULT_SEED if given is None else int(given)


def _column(figure: str, settings: Collection[str]) -> str:
    return f"measured.{figure}" if figure in settings else figure


def _cell(value: Any) -> Any:
    """A value as one cell."""
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def _seeded(config: RunConfig, index: int, seeds: int) -> RunConfig:
    return config if seeds == 1 else replace(config, seed=rerun_seed(config.seed, index))


def _axes_of(runs: Sequence[Mapping[str, Any]]) -> list[Axis]:
    """Axes of the settings that differ between listed runs, all of which name the same settings."""
    names = list(runs[0])
    for run in runs:
        if set(run) != set(names):
            missing = sorted(set(names) ^ set(run))[0]
            problem = "is given in some runs and not in others"
            raise InputError(problem, key=f"runs.{missing}", fix="give every run the same settings")
    values = {name: list(dict.fromkeys(map(_hashable, (run[name] for run in runs)))) for name in names}
    return [axis(name, values[name], key="runs") for name in names]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
