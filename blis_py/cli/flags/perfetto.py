"""`--perfetto`: what of a run goes into a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.errors import InputError

if TYPE_CHECKING:
    from blis_py.outputs.perfetto import Window

FILE, WINDOW, SAMPLE = "--perfetto", "--perfetto-window", "--perfetto-sample"
FLAGS = (
    Flag(FILE, str, "", "Trace of steps and requests for ui.perfetto.dev (.pftrace).", metavar="FILE"),
    Flag(WINDOW, str, "", "Only this part of the run: 60s:90s.", metavar="FROM:TO"),
    Flag(SAMPLE, int, "", "Every N-th request, and identical steps as one.", metavar="N"),
)


def window_of(flags: Flags) -> Window | None:
    """The part to be written; None without a trace.

    Raises:
        InputError: a window or a sample that is none, or without a trace; a file that cannot be written.
    """
    for name in (WINDOW, SAMPLE):
        if name in flags and FILE not in flags:
            raise InputError("is a part of a trace", key=name, fix=f"add {FILE} FILE")
    if FILE not in flags:
        return None
    from blis_py.outputs.perfetto import Window
    from blis_py.outputs.places import check_file

    check_file(flags[FILE], FILE)
    sample = flags.get(SAMPLE, 1)
    if sample < 1:
        raise InputError("must be at least 1", key=SAMPLE, value=sample)
    whole = Window(sample=sample)
    return Window(*_span(flags[WINDOW], whole), sample) if WINDOW in flags else whole


def _span(text: str, whole: Window) -> tuple[int, int]:
    from blis_py.config.check import duration_ns

    first, colon, last = (part.strip() for part in text.partition(":"))
    if not colon or not (first or last):
        raise InputError("must be FROM:TO", key=WINDOW, value=text, fix="write 60s:90s")
    from_ns = 0 if first in ("", "0", "0s") else duration_ns(first, WINDOW)
    until_ns = duration_ns(last, WINDOW) if last else whole.until_ns
    if from_ns >= until_ns:
        raise InputError("ends before it begins", key=WINDOW, value=text, fix="write 60s:90s")
    return from_ns, until_ns


@contextmanager
def traced(flags: Flags, window: Window | None, pools: list[tuple[str, int]]) -> Iterator[Any]:
    """The observer that writes the trace of a simulation; None without one."""
    if window is None:
        yield None
        return
    from blis_py.cluster.recording.trace_observer import TraceObserver
    from blis_py.outputs.perfetto import PerfettoWriter
    from blis_py.outputs.staging import replacing

    with replacing(flags[FILE]) as path, path.open("wb") as file:
        yield TraceObserver(PerfettoWriter(file, "simulated", window), pools)
