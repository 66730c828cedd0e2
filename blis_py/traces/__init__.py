"""Recorded traffic: one reader per format, one writer (TraceV2).

A new format is one module with `recognises(first_line)` and `read(path, header, bad_rows)`, and one line in
`FORMATS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.files.opening import reading
from blis_py.outputs.complete import check_complete
from blis_py.requests.streams import stream
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces import azure, mooncake, tracev2
from blis_py.traces.bad_rows import BadRows

Recognise = Callable[[str], bool]
Read = Callable[[Path, Path | None, BadRows | None], RequestTable]
FORMATS: dict[str, tuple[Recognise, Read]] = {
    "tracev2": (tracev2.recognises, tracev2.read),
    "azure": (azure.recognises, azure.read),
    "mooncake": (mooncake.recognises, mooncake.read),
}


def read_trace(
    path: str | Path,
    *,
    header: str | Path | None = None,
    time_scale: float = 1.0,
    limit: int | None = None,
    slo_shares: Mapping[str, float] | None = None,
    seed: int = 42,
    format: str | None = None,
    bad_rows: BadRows | None = None,
) -> RequestTable:
    """The requests of a recorded trace, in order of arrival.

    Args:
        path: the trace, plain or gzip. Of a TraceV2 either file may be given; the other one is found
            beside it (`x.yaml` with `x.csv` or `x.csv.gz`).
        header: the header YAML of a TraceV2, where it has another name.
        time_scale: factor on all times: 2.0 plays the trace at half its rate, 0.5 at twice its rate.
        limit: only the first so many requests, by arrival.
        slo_shares: class -> weight. Replaces the trace's classes by classes drawn in these proportions.
        seed: of that draw, which has its own random stream.
        format: a key of `FORMATS`; by default the content decides.
        bad_rows: what to do about rows that are no good; they are errors unless it says otherwise.

    Raises:
        InputError: with file, line, column and value where the trace is wrong.
    """
    path = Path(path)
    check_complete(path)
    header = None if header is None else Path(header)
    _check(time_scale, limit, slo_shares)
    if path.suffix in (".yaml", ".yml"):
        path, header = tracev2.data_beside(path), path
    _, read = FORMATS[_format_of(path, format)]
    table = read(path, header, bad_rows).sorted_by_arrival()
    if limit is not None:
        table = table.limited(limit)
    table = table.scaled(time_scale, key="--time-scale", file=path)
    return table if slo_shares is None else _with_classes(table, slo_shares, seed)


def header_of(path: str | Path, header: str | Path | None = None) -> tuple[Path, dict[str, Any]] | None:
    """The file and the content of the header of a trace, if its format has one; arguments as above."""
    path = Path(path)
    if path.suffix not in (".yaml", ".yml"):
        if _format_of(path, None) != "tracev2":
            return None
        path = tracev2.header_beside(path) if header is None else Path(header)
    return path, tracev2.read_header(path)


def of_diffusion(header: Mapping[str, Any]) -> bool:
    """Whether the header of a trace says that its answers came in diffusion blocks."""
    server = header.get("server") or {}
    return str(server.get("type")).endswith(tracev2.DIFFUSION)


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


def _format_of(path: Path, named: str | None) -> str:
    if named is not None:
        if named not in FORMATS:
            raise InputError(
                "unknown trace format", key="format", value=named, fix=f"use {', '.join(FORMATS)}"
            )
        return named
    with reading(path) as text:
        first_line = text.readline().strip()
    for name, (recognises, _) in FORMATS.items():
        if recognises(first_line):
            return name
    raise InputError(
        "not a trace this program knows",
        file=f"{path}:1",
        value=first_line[:80],
        fix="give TraceV2, an Azure LLM trace or Mooncake JSONL",
    )


def _with_classes(table: RequestTable, shares: Mapping[str, float], seed: int) -> RequestTable:
    names = tuple(shares)
    bounds = np.cumsum([shares[name] for name in names])
    drawn = stream(seed, "trace", "slo_class").random(len(table)) * bounds[-1]
    codes = np.searchsorted(bounds, drawn, side="right").astype(np.int32)
    return replace(table, slo_class=Labels(codes, names))
