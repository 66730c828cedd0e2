"""Means over the seeds of a sweep's points, and the order of the points by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MET = "slo_met"


def means(rows: Sequence[Mapping[str, Any]], names: Sequence[str], column: str) -> list[dict[str, Any]]:
    """One row per point, in order of appearance: the settings, `mean` and `runs`, which counts its values.

    Args:
        rows: of the table of a sweep, those of runs that succeeded.
        names: the varied settings.
    """
    return [
        {
            **dict(zip(names, point, strict=True)),
            "mean": math.fsum(found) / len(found) if found else math.nan,
            "runs": len(found),
        }
        for point, own in _by_point(rows, names).items()
        for found in ([row[column] for row in own if row.get(column) is not None],)
    ]


def ranked(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], column: str, *, larger: bool
) -> list[dict[str, Any]]:
    """The points, best first; where targets were set, with `slo_met`: points that miss one come last."""
    found = means(rows, names, column)
    if names and any(row[MET] is not None for row in rows):
        met = [all(row[MET] is not False for row in own) for own in _by_point(rows, names).values()]
        found = [{**each, MET: all_met} for each, all_met in zip(found, met, strict=True)]
    sign = -1 if larger else 1
    return sorted(
        found, key=lambda each: (not each.get(MET, True), math.isnan(each["mean"]), sign * each["mean"])
    )


def _by_point(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    points: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        points.setdefault(tuple(row[name] for name in names), []).append(row)
    return points
