"""The step log of an engine as a trace for Perfetto, in the form of a simulated run's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from blis_py.outputs.instance_track import DECODE, PREEMPTED, PREFILL, QUEUED, InstanceTrack, Phase
from blis_py.outputs.perfetto import PerfettoWriter, Value, Window
from blis_py.traces.steplog import StepLog

_COMPOSITION = ("prefill_seqs", "prefill_tokens", "decode_seqs", "decode_kv_tokens", "schedule_ns", "gpu_ns")
MEASURED = "measured"


def write_steps(log: StepLog, file: BinaryIO, window: Window | None = None, source: str = MEASURED) -> None:
    """Write the steps and requests of an engine.

    Args:
        source: name of its process; that of a simulated run is another, so that both fit into one trace.
    """
    writer = PerfettoWriter(file, source, window)
    track = InstanceTrack(writer, "engine")
    steps = log.steps
    for index in range(len(log)):
        told: dict[str, Value] = {name: int(steps[name][index]) for name in _COMPOSITION if name in steps}
        told["admitted"] = len(steps["admitted_ids"][index])
        state = tuple(int(steps[name][index]) for name in ("running", "waiting", "kv_blocks"))
        track.step(*_span(log, index), (state[0], state[1], state[2]), told)
    admitted = _admissions(log)
    numbers = log.requests["number"]
    for row in sorted(range(len(numbers)), key=lambda row: int(log.requests["finish_ns"][row])):
        if numbers[row] % writer.window.sample == 0:
            _request(track, log, row, admitted.get(numbers[row], []))


def _span(log: StepLog, index: int) -> tuple[int, int]:
    """Begin and end of a step; with asynchronous scheduling of its device work: steps themselves overlap."""
    if "forward_start_ns" in log.steps and log.steps["forward_start_ns"][index] >= 0:
        return int(log.steps["forward_start_ns"][index]), int(log.steps["forward_end_ns"][index])
    return int(log.steps["start_ns"][index]), int(log.steps["end_ns"][index])


def _admissions(log: StepLog) -> dict[int, list[tuple[str, int]]]:
    """Admissions and preemptions of each request, in order of time."""
    found: dict[int, list[tuple[str, int]]] = {}
    for index, start_ns in enumerate(log.steps["start_ns"]):
        for name, column in ((PREEMPTED, "preempted_ids"), (PREFILL, "admitted_ids")):
            for number in log.steps[column][index]:
                found.setdefault(number, []).append((name, int(start_ns)))
    return found


def _request(track: InstanceTrack, log: StepLog, row: int, changes: list[tuple[str, int]]) -> None:
    of = {name: column[row] for name, column in log.requests.items()}
    end_ns = int(of["finish_ns"]) if of["finish_ns"] >= 0 else int(log.steps["end_ns"][-1]) if len(log) else 0
    marks = [(QUEUED, int(of["arrival_ns"])), *changes]
    if of["first_token_ns"] >= 0:
        marks.append((DECODE, int(of["first_token_ns"])))
    marks.sort(key=lambda mark: mark[1])
    told: dict[str, Value] = {
        "request": str(of["id"]),
        "prompt tokens": int(of["prompt_tokens"]),
        "output tokens": int(of["output_tokens"]),
        "cached tokens": int(of["cached_tokens"]),
        "preemptions": int(of["preemptions"]),
        "outcome": str(of["finish_reason"]),
    }
    track.request(list(_phases(marks, end_ns)) or [(QUEUED, end_ns, end_ns)], told)


def _phases(marks: list[tuple[str, int]], end_ns: int) -> Iterator[Phase]:
    ends = [start for _, start in marks[1:]] + [end_ns]
    for (name, start), end in zip(marks, ends, strict=True):
        if end > start:
            yield name, start, end
