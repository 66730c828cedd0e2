"""Comparison of two or more runs of the same requests.

    comparison = blis.compare("out/fcfs", "out/sjf")
    print(comparison)
    comparison.plot().save("fcfs-sjf.svg")

The first run is the reference. Requests are matched by name; see `pairs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.comparison.groups import Group, as_dict, change_as_dict, groups, overall
from blis_py.comparison.pairs import Pairs, ShownPair, changed, flat, pairs
from blis_py.errors import InputError
from blis_py.metrics.bootstrap import Change, changes
from blis_py.metrics.registry import paired
from blis_py.report.intervals import value_at
from blis_py.report.saved import SavedResult, load
from blis_py.result import Result

if TYPE_CHECKING:
    from blis_py.figures.style import Picture

_STATISTICS = ("mean", "p50", "p90", "p99")
WHOLE = (
    "throughput.requests_per_s",
    "throughput.output_tokens_per_s",
    "output_tokens_per_s_per_gpu",
    "goodput.requests_per_s",
    "goodput.attainment",
    "preemptions",
    "prefix_hit_rate",
    "kv_peak_pct",
    "busy_pct",
    "mean_decode_batch",
)
"""Metrics of the whole run, without pairs."""


@dataclass(frozen=True)
class Pairwise:
    """A run compared with the first."""

    pairs: Pairs
    metrics: Mapping[str, Mapping[str, Change]]
    """Changes by metric and statistic; without metrics that no request has in both."""
    counts: Mapping[str, int]
    """Number of requests behind each metric."""
    overall: Group
    groups: Sequence[Group]


class Comparison:
    """The result of `compare`. `print` shows it as the command does; `as_dict` is the content of the
    command's file.

    Args:
        runs: the runs, the first as reference.
        names: names of the runs.

    Raises:
        InputError: they are not runs of the same requests.
    """

    def __init__(self, runs: Sequence[ShownPair], names: Sequence[str]) -> None:
        self.runs, self.names = tuple(runs), tuple(names)
        self.pairwise = tuple(
            _pairwise(runs[0], run, (names[0], name)) for run, name in zip(runs[1:], names[1:], strict=True)
        )

    def __str__(self) -> str:
        from blis_py.report.compare import text_of

        return text_of(self.as_dict())

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.names)})"

    def plot(self) -> Picture:
        """Latencies of all runs, and the groups that gain and lose."""
        from blis_py.figures.comparison import comparison

        frames = [self.pairwise[0].pairs.first, *(each.pairs.second for each in self.pairwise)]
        return comparison(self.as_dict(), frames, self.runs[0].settings)

    def as_dict(self) -> dict[str, Any]:
        """All results as plain data; times in ms."""
        return {**self._fields}

    @cached_property
    def _fields(self) -> dict[str, Any]:
        return {
            "runs": list(self.names),
            "settings": self._settings(),
            "verdicts": [value_at(run.summary, "load.verdict") for run in self.runs],
            "outcomes": [value_at(run.summary, "cluster.requests") or {} for run in self.runs],
            "whole": self._whole(),
            "compared": [
                _as_dict(name, each) for name, each in zip(self.names[1:], self.pairwise, strict=True)
            ],
        }

    def _settings(self) -> list[dict[str, Any]]:
        """The settings that differ between runs."""
        keys: dict[str, None] = {}
        for run in self.runs[1:]:
            keys |= dict.fromkeys(key for key, *_ in changed(self.runs[0].settings, run.settings))
        all_settings = [dict(flat(run.settings)) for run in self.runs]
        return [
            {"key": key, "values": [_json_value(own.get(key)) for own in all_settings]}
            for key in sorted(keys)
        ]

    def _whole(self) -> list[dict[str, Any]]:
        rows = [
            {"figure": name, "values": [value_at(run.summary, f"cluster.{name}") for run in self.runs]}
            for name in WHOLE
        ]
        return [row for row in rows if any(value is not None for value in row["values"])]


def compare(
    first: str | Path | Result | SavedResult,
    *others: str | Path | Result | SavedResult,
    names: Sequence[str] | None = None,
) -> Comparison:
    """Compare runs of the same requests with the first one.

    Args:
        first, others: results, or the folders of saved ones.
        names: their names; by default those of the folders.

    Raises:
        InputError: a single run, a folder that is not a saved run, or runs of different requests.
    """
    if not others:
        raise InputError("needs two runs or more", key="compare", fix="name the run to compare it with")
    given = (first, *others)
    if names is not None and len(names) != len(given):
        raise InputError(f"{len(names)} names for {len(given)} runs", key="names", fix="give one for each")
    runs = [load(run) if isinstance(run, str | Path) else run for run in given]
    return Comparison(runs, _names(given) if names is None else names)


def _names(given: Sequence[str | Path | Result | SavedResult]) -> list[str]:
    """Folders by their last part, or by as much of the path as distinguishes them; results by number."""
    paths = [Path(each) if isinstance(each, str | Path) else getattr(each, "folder", None) for each in given]
    for parts in range(1, 1 + max((len(path.parts) for path in paths if path), default=1)):
        names = [
            f"run {index}" if path is None else "/".join(path.parts[-parts:])
            for index, path in enumerate(paths, start=1)
        ]
        if len(set(names)) == len(names):
            return names
    return [f"{'run' if path is None else path.name} {index}" for index, path in enumerate(paths, start=1)]


def _pairwise(first: ShownPair, second: ShownPair, names: tuple[str, str]) -> Pairwise:
    both = pairs(first, second, names)
    metrics: dict[str, dict[str, Change]] = {}
    counts: dict[str, int] = {}
    for metric in (each.column_key for each in paired()):
        one, other = both.values(metric)
        there = ~(np.isnan(one) | np.isnan(other))
        counts[metric] = int(there.sum())
        if there.any():
            metrics[metric] = changes(one[there], other[there], _STATISTICS)
    return Pairwise(both, metrics, counts, overall(both), groups(both))


def _as_dict(name: str, each: Pairwise) -> dict[str, Any]:
    return {
        "run": name,
        "pairs": len(each.pairs),
        "only_first": each.pairs.only[0],
        "only_second": each.pairs.only[1],
        "note": each.pairs.note,
        "metrics": {
            metric: {"requests": each.counts[metric]}
            | {name: change_as_dict(change) for name, change in changes.items()}
            for metric, changes in each.metrics.items()
        },
        "everybody": as_dict(each.overall),
        "groups": [as_dict(group) for group in each.groups],
    }


def _json_value(value: Any) -> Any:
    """A setting as a JSON value; the type is arbitrary in files that have not been run since."""
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
