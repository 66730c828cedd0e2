"""Results on stdout and in files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blis_py.cli.options import Flags
from blis_py.config_layers import did_you_mean
from blis_py.errors import InputError
from blis_py.files.paths import full_path, is_folder
from blis_py.result import Result, to_json, writable


def _table(result: Result) -> None:
    from blis_py.report.table import print_summary

    if not (sys.stdout.isatty() and sys.stderr.isatty()):  # there they have just been read
        print(result.simulation.capacity)
        print(result.simulation.models)
    print_summary(result.summary)
    if result.intervals is not None:
        from blis_py.report.intervals import print_intervals

        print_intervals(result.intervals, result.summary["cluster"])


def _json(result: Result) -> None:
    sys.stdout.write(to_json(result.summary))


def _vllm(result: Result) -> None:
    sys.stdout.write(to_json(result.vllm(), indent=None))


def _blis(result: Result) -> None:
    sys.stdout.write(to_json(result.blis()))


FORMATS: dict[str, Callable[[Result], None]] = {"table": _table, "json": _json, "vllm": _vllm, "blis": _blis}


def check_format(name: str | None) -> str:
    """The format asked for; without one, a table for a terminal and JSON for a pipe."""
    if name is None:
        return "table" if sys.stdout.isatty() else "json"
    if name not in FORMATS:
        raise InputError("unknown format", key="--format", value=name, fix=did_you_mean(name, FORMATS))
    return name


def show(result: Result, style: str) -> None:
    """The result on stdout, and nothing else there."""
    FORMATS[style](result)
    sys.stdout.flush()


def check_writable(flags: Flags) -> None:
    """Refuses, before anything is simulated, what could not be written afterwards."""
    if "--out" in flags:
        writable(flags["--out"], force=flags.get("--force", False))
    style = flags.get("--format")
    if "--intervals" in flags and style not in (None, "table", "json"):
        raise InputError(
            "this format has no place for intervals", key="--format", value=style, fix="use json"
        )
    for name in {"--force", "--no-plots", "--record-itl"} & flags.keys():
        if "--out" not in flags:
            raise InputError("needs a folder to write to", key=name, fix="add --out DIR")
    for name in ("--metrics-path", "--results-path"):
        if name in flags and not is_folder(full_path(flags[name], key=name).parent):
            raise InputError("no such folder", key=name, value=flags[name], fix="make the folder first")


def write_files(result: Result, flags: Flags) -> None:
    """Everything asked for besides stdout."""
    if "--out" in flags:
        result.save(
            flags["--out"],
            force=flags.get("--force", False),
            plots="--no-plots" not in flags,
            itl="--record-itl" in flags,
        )
    if "--metrics-path" in flags:
        _write(flags["--metrics-path"], result.blis(requests=True))
    if "--results-path" in flags:
        from blis_py.report.blis import blis_results

        _write(flags["--results-path"], blis_results(result.record))


def _write(path: str, data: Any) -> None:
    Path(path).write_text(to_json(data, indent=None), encoding="utf-8")
