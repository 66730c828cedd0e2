"""Several runs as lines to draw: the settings that differ, and the runs on each line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from blis_py.config.loader import as_dict
from blis_py.config.models import NAMES, RunConfig
from blis_py.config.workload import WorkloadSection
from blis_py.errors import InputError
from blis_py.figures.facts import foot_of_several
from blis_py.files.paths import exists
from blis_py.files.tables import read_table
from blis_py.files.yaml_files import load_mapping
from blis_py.metrics.load import SATURATED
from blis_py.metrics.registry import shown_in

if TYPE_CHECKING:
    import pandas as pd

LOADS = ("workload.rate", "workload.concurrency", "workload.time_scale", "num_instances")
"""Settings that may vary along a line; the first one that differs is used."""
_FIGURES = ("throughput", "output_tokens_per_s", "cluster.")
"""Prefixes of columns with figures of a run, beside the metrics."""
_SECTIONS = frozenset(key.partition(".")[0] for key in NAMES.values() if "." in key)
_NUMBERS = frozenset(
    f"{section}.{one.name}" if section else one.name
    for section, model in (("", RunConfig), ("workload", WorkloadSection))
    for one in fields(model)
    if str(one.type).partition(" ")[0] in ("int", "float")
)
"""Settings with numeric values."""
_RAN = "ok"
"""Status of a run in a sweep that was neither refused nor failed."""
_NO_LINE = ("seed", "slo", "goodput", "goodput_by_class")
"""Keys in which runs on one line may differ."""


class Summarised(Protocol):
    """The part of a result that is needed here."""

    @property
    def summary(self) -> dict[str, Any]: ...

    @property
    def settings(self) -> dict[str, Any]: ...


class SweepLike(Protocol):
    """The part of a sweep that is needed here."""

    @property
    def table(self) -> pd.DataFrame: ...


@dataclass(frozen=True)
class Point:
    """One run: its settings by dotted key, and its figures by the names of `summary.json`."""

    settings: Mapping[str, Any]
    values: Mapping[str, Any]

    def value(self, name: str) -> float:
        """A figure of the whole cluster (`ttft_ms.p99`); NaN if the run has none."""
        for spelling in (name, f"cluster.{name}", name.replace(".", "_")):
            value = self.values.get(spelling)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return float("nan")

    @property
    def saturated(self) -> bool:
        """Whether the run could not keep up, so that its latencies depend on its length."""
        return SATURATED in (self.values.get("load.verdict"), self.values.get("verdict"))


@dataclass(frozen=True)
class FigureGroup:
    """Runs with equal settings except the seed."""

    load: Any
    runs: Sequence[Point]

    def values(self, name: str) -> list[float]:
        """A figure of each run that has it."""
        values = [run.value(name) for run in self.runs]
        return [value for value in values if not np.isnan(value)]

    def middle(self, name: str) -> float:
        values = self.values(name)
        return float(np.median(values)) if values else float("nan")

    @property
    def saturated(self) -> bool:
        """Whether most of the runs could not keep up."""
        return 2 * sum(run.saturated for run in self.runs) > len(self.runs)


@dataclass(frozen=True)
class Series:
    """Runs on one line, in the order of the load."""

    name: str
    groups: Sequence[FigureGroup]


@dataclass(frozen=True)
class Several:
    """All runs of a figure."""

    points: Sequence[Point]
    along: str | None
    """The setting that varies along a line; `None` = every line is a point."""
    by: Sequence[str]
    """The settings that differ between lines."""
    series: Sequence[Series]
    foot: str
    seeds: int = 1
    """Most runs that differ only in their seed."""
    slos: Sequence[str] = field(default_factory=tuple)
    """Limits common to all runs."""

    @property
    def about(self) -> str:
        """Meaning of lines and bands, in words."""
        parts = []
        if self.along:
            loads = [group.load for series in self.series for group in series.groups]
            parts.append(f"along a line: {self.along} from {_word(min(loads))} to {_word(max(loads))}")
        if self.seeds > 1:
            parts.append(f"medians of up to {self.seeds} seeds, bands from the least to the most")
        return "; ".join(parts)


Runs: TypeAlias = "Iterable[Summarised] | SweepLike | pd.DataFrame | str | Path"
"""Results, or a table with a row for each run: of a sweep, a data frame, or its file (CSV, Parquet)."""


def several(runs: Runs, by: Sequence[str] = ()) -> Several:
    """Sort runs into lines.

    Args:
        runs: results, or a table with a row for each run: columns are settings by dotted key or by the name
            of their flag, and figures by their names in `summary.json`.
        by: settings that separate lines; by default all that differ except load and seed.

    Raises:
        InputError: no run, or a setting in `by` does not differ.
    """
    points = points_of(runs)
    if not points:
        raise InputError("there is no run to draw", fix="give result folders or a table with a row per run")
    varied = _varied(points)
    unknown = [key for key in by if all(key not in point.settings for point in points)]
    if unknown:
        fix = f"these differ: {', '.join(varied) or 'none'}"
        raise InputError("no run has this setting", key="by", value=unknown[0], fix=fix)
    along = next((key for key in LOADS if key in varied and key not in by), None)
    lines = tuple(by) or tuple(key for key in varied if key != along)
    made = _series(points, lines, along)
    return Several(
        points=points,
        along=along,
        by=lines,
        series=made,
        foot=foot_of_several(_common(points), varied),
        seeds=max(len(group.runs) for each in made for group in each.groups),
        slos=_shared_slos(points),
    )


def points_of(runs: Any) -> list[Point]:
    """Settings and figures of every run; of a sweep, those that ran. `runs` are `Runs`.

    Raises:
        InputError: the table has no column with a figure of a run.
    """
    if isinstance(runs, str | Path):
        table = read_table(runs)
        prefixes = (*_FIGURES, *(metric.key for metric, _ in shown_in("load")))
        if not any(name.startswith(prefixes) for name in map(str, table.columns)):
            fix = "give the table of a sweep, with columns such as ttft_ms.p99"
            raise InputError("no column is a figure of a run", file=runs, fix=fix)
        return _of_table(table, _beside(Path(runs)))
    if hasattr(runs, "table"):
        first = getattr(runs, "first", None)
        return _of_table(runs.table, {} if first is None else as_dict(first))
    return _of_table(runs, {}) if hasattr(runs, "to_dict") else [_of_result(run) for run in runs]


def _beside(table: Path) -> dict[str, Any]:
    """Common settings of a sweep, from the file beside its table."""
    stated = table.with_name("sweep.yaml")
    first = load_mapping(stated).get("first") if exists(stated) else None
    if not isinstance(first, Mapping | None):
        raise InputError("must be a mapping", file=stated, key="first", value=first)
    return dict(first or {})


def _of_table(table: pd.DataFrame, common: Mapping[str, Any]) -> list[Point]:
    points = [_of_row(row, _flat(common)) for row in table.to_dict("records")]
    for point in points:
        _check_settings(point.settings)
    return [point for point in points if point.values.get("status", _RAN) == _RAN]


def _check_settings(settings: Mapping[str, Any]) -> None:
    """
    Raises:
        InputError: text in place of a number, or a value in place of a section.
    """
    for key, value in settings.items():
        if key in _SECTIONS:
            raise InputError("must be a section", key=key, value=value, fix="is it the table of a sweep?")
        if key in _NUMBERS and not isinstance(value, int | float | None):
            raise InputError("must be a number", key=key, value=value, fix="is it the table of a sweep?")


def _of_result(run: Summarised) -> Point:
    summary = run.summary
    values = {**_flat(summary["cluster"]), "load.verdict": summary["load"]["verdict"]}
    return Point(_flat({key: value for key, value in run.settings.items() if key != "given"}), values)


def _of_row(row: Mapping[Any, Any], common: Mapping[str, Any]) -> Point:
    """A table row as a point: columns named like settings are settings; `slo.TEXT` marks a target."""
    known = {key.partition(".")[0] for key in NAMES.values()}
    settings, values = dict(common), {}
    slos = [str(name).removeprefix("slo.") for name in row if str(name).startswith("slo.")]
    for name, value in row.items():
        key = "workload.preset" if name == "workload" else NAMES.get(name, str(name))
        if not key.startswith("slo.") and key.partition(".")[0] in known:
            settings[key] = None if value != value else value
        else:
            values[key] = value
    return Point(settings | ({"slo": slos} if slos else {}), values)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves


def _common(points: Sequence[Point]) -> dict[str, Any]:
    """Settings common to all runs, nested as in a configuration."""
    tree: dict[str, Any] = {}
    first = points[0].settings
    for key, value in first.items():
        if any(repr(point.settings.get(key)) != repr(value) for point in points):
            continue
        *sections, last = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return tree


def _varied(points: Sequence[Point]) -> list[str]:
    """Settings in which runs differ, except seed and targets."""
    keys = dict.fromkeys(key for point in points for key in point.settings)
    return [
        key
        for key in keys
        if key.partition(".")[0] not in _NO_LINE
        and len({repr(point.settings.get(key)) for point in points}) > 1
    ]


def _series(points: Sequence[Point], by: Sequence[str], along: str | None) -> list[Series]:
    lines: dict[str, dict[str, list[Point]]] = {}
    for point in points:
        name = ", ".join(_setting_text(key, point.settings.get(key)) for key in by) or "all runs"
        load = point.settings.get(along) if along else None
        lines.setdefault(name, {}).setdefault(repr(load), []).append(point)
    made = []
    for name, groups in lines.items():
        series = [
            FigureGroup(runs[0].settings.get(along) if along else None, runs) for runs in groups.values()
        ]
        made.append(Series(name, sorted(series, key=lambda group: _order(group.load))))
    return made


def _order(load: Any) -> tuple[bool, float]:
    """Sort key by load; runs without the setting come first."""
    return (load is not None, float(load) if isinstance(load, int | float) else 0.0)


def _shared_slos(points: Sequence[Point]) -> list[str]:
    texts = [point.settings.get("slo") or () for point in points]
    texts = [[text] if isinstance(text, str) else list(text) for text in texts]
    return [text for text in texts[0] if all(text in others for others in texts)]


def _setting_text(key: str, value: Any) -> str:
    """A setting in a legend: names alone, numbers with their key."""
    return _word(value) if isinstance(value, str) else f"{key.rpartition('.')[2]} {_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, str):
        return Path(value).name or value
    return f"{value:g}" if isinstance(value, float) else str(value)
