"""`blis parity`: does the simulator form the batches that the engine formed?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from blis_py.calibrate.parity import replay_steps
from blis_py.calibrate.parity_words import explain
from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.cli.flags.formats import FORMAT, format_of
from blis_py.errors import InputError
from blis_py.files.paths import exists, is_folder
from blis_py.result import to_json
from blis_py.traces.steplog import read_step_log

STEPLOG = "steplog"
_FLAGS = (
    Flag(STEPLOG, str, "", "Step log of an engine, or the folder of a run.", metavar="STEPLOG"),
    Flag("--require", float, "", "Fail (exit code 1) below this share of identical steps, in percent."),
    FORMAT,
)
GROUPS: tuple[Group, ...] = (("Parity", _FLAGS),)
_IN_FOLDER = ("steps.csv.gz", "steps.csv", "steps.parquet")


def parity(flags: Flags) -> int:
    """Replay the arrivals and measured step times of an engine, and compare batches step by step.

    The exit code is 0 whenever the comparison ran; with --require, 1 if too few steps are identical.
    """

    style = format_of(flags)
    required = flags.get("--require", 0.0)
    if not 0 <= required <= 100:
        raise InputError("must be 0 to 100", key="--require", value=required)
    if STEPLOG not in flags:
        raise InputError("no step log given", key="STEPLOG", fix="name the step log, or the folder of a run")
    log = read_step_log(_log_at(flags[STEPLOG]))
    outcome = replay_steps(log)
    words = explain(outcome, log)
    if style == "json":
        first = outcome.first
        figures: dict[str, Any] = {
            "steps": outcome.steps,
            "identical": outcome.identical,
            "share": outcome.share,
            "stopped_at": outcome.stopped_at,
            "first_difference": None if first is None else {"step": first.step, "part": first.part},
            "explanation": words,
        }
        sys.stdout.write(to_json(figures))
    else:
        print(f"{outcome.identical:,} of {outcome.steps:,} steps are identical ({_percent(outcome.share)})")
        print(words)
    sys.stdout.flush()
    if 100 * outcome.share < required:
        share = _percent(outcome.share)
        print(f"error: {share} of the steps are identical, {required:g} % required", file=sys.stderr)
        return 1
    return 0


def _log_at(path: str) -> Path:
    folder = Path(path)
    if not is_folder(folder):
        return folder
    for name in _IN_FOLDER:
        if exists(folder / name):
            return folder / name
    raise InputError("no step log in this folder", file=path, fix=f"it would be called {_IN_FOLDER[0]}")


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return f"{int(share * 10_000) / 100:g} %"
