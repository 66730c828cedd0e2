"""`blis engine bench throughput --compare-overlap`: both loops of the engine, side by side."""

from __future__ import annotations

from collections.abc import Callable

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.errors import InputError
from blis_py.traces.steplog import StepLog
from engine.cli.options import say

Measure = Callable[[Flags], tuple[dict[str, object], StepLog]]
COMPARE = Flag("--compare-overlap", bool, "", "Both loops, synchronous and overlapped, side by side.")
_LOOPS = ("synchronous", "overlapped")
_SWITCHES = ("--async-scheduling", "--overlap", "--no-async-scheduling", "--no-overlap")
_ROWS = {
    "output_tokens_per_second": "output tokens a second",
    "step_period_us": "step period (µs)",
    "forward_us": "forward and sampling (µs)",
    "bubble": "bubble: device idle, of the step period",
    "launch_lead_us": "launch lead (µs)",
    "run_ahead": "steps handed over ahead",
    "schedule_us": "host: schedule (µs)",
    "prepare_us": "host: prepare (µs)",
    "launch_us": "host: launch (µs)",
    "sample_us": "host: wait for tokens (µs)",
    "finish_us": "host: finish (µs)",
}
_SHARES = ("bubble", "run_ahead")


def compare(
    flags: Flags, measured: Callable[[Flags], tuple[dict[str, object], StepLog]]
) -> dict[str, object]:
    """The results of both loops, each with its pipeline figures; a table of them goes to stderr.

    Args:
        measured: serves the requests with one loop; returns its result and step log.

    Raises:
        InputError: a flag that applies to one loop only, or to a single step log.
    """
    from engine.pipeline import summary

    for name in (*_SWITCHES, "--step-log"):
        if name in flags:
            fix = f"drop it, or {COMPARE.name}"
            raise InputError(f"contradicts {COMPARE.name}, which runs both loops", key=name, fix=fix)
    results: dict[str, dict[str, object]] = {}
    for loop in _LOOPS:
        result, log = measured(flags | {"--async-scheduling": True} if loop == "overlapped" else flags)
        results[loop] = result | {"pipeline": summary(log)}
    say(f"{'':42}{_LOOPS[0]:>14}{_LOOPS[1]:>14}")
    for name, words in _ROWS.items():
        cells = [_cell(name, results[loop]) for loop in _LOOPS]
        say(f"{words:42}{cells[0]:>14}{cells[1]:>14}")
    return dict(results)


def _cell(name: str, result: dict[str, object]) -> str:
    pipeline = result["pipeline"]
    assert isinstance(pipeline, dict)
    value = pipeline[name] if name in pipeline else result[name]
    return f"{value:.1%}" if name in _SHARES else f"{value:,.1f}"
