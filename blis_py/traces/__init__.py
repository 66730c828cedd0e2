"""Recorded traffic: one reader per format (`formats`), writers, and common code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.files.paths import exists, is_folder
from blis_py.files.yaml_files import load_mapping
from blis_py.outputs.complete import check_complete
from blis_py.requests.sessions import waits
from blis_py.requests.streams import stream
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces import tracev2
from blis_py.traces._sessions import in_sessions
from blis_py.traces._units import question_unit, since_the_first
from blis_py.traces.formats import choose
from blis_py.traces.reading import Reading

_YAML = (".yaml", ".yml")


def read_trace(
    path: str | Path,
    *,
    time_scale: float = 1.0,
    limit: int | None = None,
    slo_shares: Mapping[str, float] | None = None,
    seed: int = 42,
    format: str | None = None,
    reading: Reading | None = None,
) -> RequestTable:
    """The requests of a recorded trace, in order of arrival.

    Args:
        path: the trace, plain or gzip; `FILE#1` is the second of several runs in a file. Of a TraceV2 either
            file may be given; the other one is found beside it (`x.yaml` with `x.csv` or `x.csv.gz`).
        time_scale: factor on all times: 2.0 halves the trace's rate, 0.5 doubles it.
        limit: use only the first `limit` requests, by arrival.
        slo_shares: class -> weight. Replaces the trace's classes by random ones in these proportions.
        seed: of these classes, and of pauses between turns, which have their own random streams.
        format: a key of `formats.FORMATS`; by default the content decides.
        reading: reading options; afterwards it holds the notes for the user.

    Raises:
        InputError: invalid trace content, with file, line, column and value.
    """
    reading = Reading() if reading is None else reading
    path = _part(Path(path), reading)
    check_complete(path)
    _check(time_scale, limit, slo_shares)
    if path.suffix in _YAML:
        path, reading.header = tracev2.data_beside(path), path
    probed, chosen = choose(path, format, reading)
    if reading.header is not None and chosen.title != "TraceV2":
        raise InputError(f"{chosen.title} has no header file", file=reading.header, fix="leave it out")
    table = since_the_first(chosen.read(probed, reading), reading)
    table = in_sessions(table, reading, path, seed)
    question_unit(table, reading)
    table = _without_answerers(table, reading)
    _note_order(table, reading)
    table = table.sorted_by_arrival()
    if limit is not None:
        table = table.limited(limit)
    table = table.scaled(time_scale, key="--time-scale", file=path)
    return table if slo_shares is None else _with_classes(table, slo_shares, seed)


def _part(path: Path, reading: Reading) -> Path:
    """The file's path without the number of the run."""
    name, hash, number = path.name.rpartition("#")
    if hash and number.isascii() and number.isdecimal() and not exists(path):
        reading.part = int(number)
        return path.with_name(name)
    return path


def _without_answerers(table: RequestTable, reading: Reading) -> RequestTable:
    """The table without models: those that answered the recorded requests are not requested ones."""
    names = sorted(filter(None, table.model.names))
    if reading.requests_models or not names:
        return table
    reading.note(f"it was recorded with {', '.join(names)}; its requests are for any model")
    return replace(table, model=Labels.constant("", len(table)))


def _note_order(table: RequestTable, reading: Reading) -> None:
    late = int((np.diff(table.arrival_ns[~waits(table)]) < 0).sum())
    if late:
        times = "once" if late == 1 else f"{late:,} times"
        reading.note(f"arrivals go back in time {times}; they are played in order of time")


def header_of(path: str | Path, header: str | Path | None = None) -> tuple[Path, dict[str, Any]] | None:
    """The file and the content of the header of a trace, if its format has one; arguments as above."""
    path = _part(Path(path), Reading())
    if path.suffix not in _YAML:
        if not tracev2.is_data(path):
            return None
        path = tracev2.header_beside(path) if header is None else Path(header)
    return path, tracev2.read_header(path)


def is_spec(source: str) -> bool:
    """Whether this is a workload spec, or the name of a bundled one, rather than a recording.

    A ServeGen folder and an inference-perf configuration describe a workload, too.
    """
    path = Path(source)
    if not exists(path):
        return True
    if is_folder(path):
        return any(path.glob("chunk-*-trace.csv"))
    return path.suffix in _YAML and "trace_version" not in load_mapping(path)


def _check(time_scale: float, limit: int | None, slo_shares: Mapping[str, float] | None) -> None:
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise InputError(
            "must be positive", key="--time-scale", value=time_scale, fix="2 plays at half the rate"
        )
    if limit is not None and limit < 1:
        raise InputError("must be at least 1", key="--limit", value=limit)
    for name, share in (slo_shares or {}).items():
        if not (math.isfinite(share) and share >= 0):
            raise InputError("must not be negative", key=f"share of class {name!r}", value=share)
    if slo_shares is not None and sum(slo_shares.values()) <= 0:
        raise InputError(
            "shares of SLO classes must add up to more than 0", fix="write critical=0.2,batch=0.8"
        )


def _with_classes(table: RequestTable, shares: Mapping[str, float], seed: int) -> RequestTable:
    names = tuple(shares)
    bounds = np.cumsum([shares[name] for name in names])
    drawn = stream(seed, "trace", "slo_class").random(len(table)) * bounds[-1]
    codes = np.searchsorted(bounds, drawn, side="right").astype(np.int32)
    return replace(table, slo_class=Labels(codes, names))
