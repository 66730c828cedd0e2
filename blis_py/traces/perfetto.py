"""The steps of an engine as a trace for Perfetto while it runs, in the form of a simulated run's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_py.outputs.instance_track import DECODE, PREEMPTED, PREFILL, QUEUED, InstanceTrack, Phase
from blis_py.outputs.perfetto import PerfettoWriter, Value

_COMPOSITION = ("prefill_seqs", "prefill_tokens", "decode_seqs", "decode_kv_tokens", "schedule_ns", "gpu_ns")
_SUMMED = ("schedule_ns", "gpu_ns")
MEASURED = "measured"
"""Source of a measured run; that of a simulated run is another, so that both fit into one trace."""


@dataclass
class _Joined:
    """Consecutive decode steps of the same number of requests, as one slice."""

    start_ns: int
    end_ns: int
    state: tuple[int, int, int]
    facts: dict[str, Value]
    steps: int = 1


class StepTrace:
    """Writer of the steps and requests of one engine, as they end.

    Args:
        writer: of the trace; with a sample above 1, alike decode steps are one slice.
        name: of the process.
    """

    def __init__(self, writer: PerfettoWriter, name: str = "engine") -> None:
        self._track, self._sample = InstanceTrack(writer, name), writer.window.sample
        self._changes: dict[int, list[tuple[str, int]]] = {}
        """Admissions and preemptions of requests that have not ended, by number."""
        self._joined: _Joined | None = None
        self._end_ns = 0

    def step(
        self,
        row: Mapping[str, float],
        forward: tuple[int, int],
        admitted: Sequence[int],
        preempted: Sequence[int],
    ) -> None:
        """A step that has ended.

        Args:
            row: its numbers, by column of the step log.
            forward: begin and end of its device work with asynchronous scheduling, where steps overlap.
            admitted, preempted: requests by number.
        """
        start_ns, self._end_ns = int(row["start_ns"]), int(row["end_ns"])
        for name, numbers in ((PREEMPTED, preempted), (PREFILL, admitted)):
            for number in numbers:
                if number % self._sample == 0:
                    self._changes.setdefault(number, []).append((name, start_ns))
        facts: dict[str, Value] = {name: int(row[name]) for name in _COMPOSITION if name in row}
        facts["admitted"] = len(admitted)
        state = int(row["running"]), int(row["waiting"]), int(row["kv_blocks"])
        from_ns, until_ns = forward if forward[0] >= 0 else (start_ns, self._end_ns)
        self._write(_Joined(from_ns, until_ns, state, facts))

    def _write(self, step: _Joined) -> None:
        before = self._joined
        if before is not None and _alike(before, step):
            before.end_ns, before.steps = step.end_ns, before.steps + 1
            for name in _SUMMED:
                before.facts[name] = int(before.facts[name]) + int(step.facts[name])
            return
        self._flush()
        self._joined = step
        if self._sample == 1:
            self._flush()

    def _flush(self) -> None:
        step, self._joined = self._joined, None
        if step is not None:
            self._track.step(step.start_ns, step.end_ns, step.state, step.facts, step.steps)

    def request(self, row: Mapping[str, Any]) -> None:
        """A request that has ended, by column of the log's requests."""
        changes = self._changes.pop(row["number"], [])
        if row["number"] % self._sample:
            return
        end_ns = int(row["finish_ns"]) if row["finish_ns"] >= 0 else self._end_ns
        marks = [(QUEUED, int(row["arrival_ns"])), *changes]
        if row["first_token_ns"] >= 0:
            marks.append((DECODE, int(row["first_token_ns"])))
        marks.sort(key=lambda mark: mark[1])
        facts: dict[str, Value] = {
            "request": str(row["id"]),
            "prompt tokens": int(row["prompt_tokens"]),
            "output tokens": int(row["output_tokens"]),
            "cached tokens": int(row["cached_tokens"]),
            "preemptions": int(row["preemptions"]),
            "outcome": str(row["finish_reason"]),
        }
        self._track.request(list(_phases(marks, end_ns)) or [(QUEUED, end_ns, end_ns)], facts)

    def close(self) -> None:
        """Write what is not written yet."""
        self._flush()


def _alike(before: _Joined, step: _Joined) -> bool:
    """Whether both are decode steps of as many requests, with as many waiting."""
    ours, theirs = before.facts, step.facts
    return (
        not (theirs["prefill_tokens"] or theirs["admitted"] or ours["prefill_tokens"])
        and before.state[:2] == step.state[:2]
        and ours["decode_seqs"] == theirs["decode_seqs"]
    )


def _phases(marks: list[tuple[str, int]], end_ns: int) -> Iterator[Phase]:
    ends = [start for _, start in marks[1:]] + [end_ns]
    for (name, start), end in zip(marks, ends, strict=True):
        if end > start:
            yield name, start, end
