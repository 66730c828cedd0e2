"""Results on stdout and in files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blis_py.cli.flags.flag import Flags
from blis_py.cli.flags.out import check_out, draws
from blis_py.errors import InputError
from blis_py.result import Result, to_json


def _table(result: Result) -> None:
    from blis_py.report.table import print_summary

    print_summary(result.summary)
    if result.fitness_weights is not None:
        score, *parts = (f"{name} {value:.6f}" for name, value in result.fitness.items())
        print(f"fitness: {score} ({', '.join(parts)})")
    if result.intervals is not None:
        from blis_py.report.intervals import print_intervals

        print_intervals(result.intervals, result.summary["cluster"])
    if result.cross_check is not None:
        from blis_py.report.cross_check import print_cross_check

        print_cross_check(result.cross_check)
    print()
    print(result.simulation.basis)


def _json(result: Result) -> None:
    sys.stdout.write(to_json(result.summary))


def _vllm(result: Result) -> None:
    sys.stdout.write(to_json(result.vllm(), indent=None))


def _blis(result: Result) -> None:
    sys.stdout.write(to_json(result.blis()))


def _blis_text(result: Result) -> None:
    sys.stdout.write(result.blis_text())


if TYPE_CHECKING:
    from blis_py.outputs.staging import Outputs

_FILES = {"--out", "--metrics-path", "--results-path", "--trace-output", "--saturation-report"}
"""Flags of files that are written besides stdout."""
FORMATS: dict[str, Callable[[Result], None]] = {
    "table": _table,
    "json": _json,
    "vllm": _vllm,
    "blis": _blis,
    "blis-text": _blis_text,
}


def show_and_write(result: Result, style: str, flags: Flags) -> None:
    """The result on stdout, and nothing else there, then in the files given by flags.

    So that it is not lost, it is printed if it cannot be written, and written if it cannot be printed.
    """
    try:
        FORMATS[style](result)
        sys.stdout.flush()
    finally:
        _write_files(result, flags)


def check_writable(flags: Flags) -> None:
    """Refuse outputs that could not be written, before anything is simulated.

    Raises:
        InputError: the format has no place for what is wanted, or a flag needs a folder to write to.
    """
    style = flags.get("--format")
    if "--intervals" in flags and style not in (None, "table", "json"):
        raise InputError(
            "this format has no place for intervals", key="--format", value=style, fix="use json"
        )
    check_out(flags)
    if _FILES & flags.keys():
        _check_places(flags)


def _check_places(flags: Flags) -> None:
    from blis_py.outputs.places import check_file

    for name in sorted(_FILES & flags.keys() - {"--out", "--trace-output"}):
        check_file(flags[name], name)
    for file in _trace_files(flags):
        check_file(file, "--trace-output")
    taken: dict[str, str] = {}
    for name in ("--metrics-path", "--results-path", "--saturation-report"):
        if name in flags:
            other = taken.setdefault(flags[name], name)
            if other != name:
                raise InputError(f"is the file of {other}, too", key=name, value=flags[name])


def _write_files(result: Result, flags: Flags) -> None:
    """All of them, or none."""
    if not _FILES & flags.keys():
        return
    from blis_py.outputs.staging import Outputs
    from blis_py.report.blis import as_go_writes, blis_results

    with Outputs() as outputs:
        if "--out" in flags:
            folder = outputs.folder(flags["--out"], force="--force" in flags)
            result.fill(folder, plots=draws(flags), itl="--record-itl" in flags)
        if "--trace-output" in flags:
            result.save_trace(*(outputs.file(file) for file in _trace_files(flags)))
        if "--metrics-path" in flags:
            _write(outputs, flags["--metrics-path"], result.blis(requests=True))
        if "--results-path" in flags:
            _write(outputs, flags["--results-path"], blis_results(result.record))
        if "--saturation-report" in flags and result.saturation is not None:
            _write(outputs, flags["--saturation-report"], as_go_writes(result.saturation.report()))


def _trace_files(flags: Flags) -> list[str]:
    """The header and the data of `--trace-output PREFIX`."""
    return [f"{flags['--trace-output']}.{ending}" for ending in ("yaml", "csv") if "--trace-output" in flags]


def _write(outputs: Outputs, path: str, data: Any) -> None:
    outputs.file(path).write_text(to_json(data, indent=None), encoding="utf-8")
