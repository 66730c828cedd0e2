"""One instance of a cluster, or an engine, in a trace: its steps, its requests by phase, its counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from blis_py.outputs.perfetto import PerfettoWriter, Value

Phase = tuple[str, int, int]
"""Name, begin and end in ns."""
QUEUED, PREFILL, DECODE, PREEMPTED = "queued", "prefill", "decode", "preempted"
COUNTERS = ("running", "waiting", "KV blocks", "batch tokens")


class InstanceTrack:
    """Tracks of one instance: a process with a row of steps, rows of requests and curves.

    Args:
        name: of the process.
    """

    def __init__(self, writer: PerfettoWriter, name: str) -> None:
        self._writer = writer
        self._process = writer.process(name)
        self._steps = writer.lane(self._process, "steps")
        self._counters = [writer.counter(self._process, each) for each in COUNTERS]
        self._latest: list[int | None] = [None] * len(COUNTERS)
        self._free: list[tuple[int, int]] = []
        """Rows of requests by the time from which they are free."""
        self._rows: list[int] = []

    def step(
        self,
        start_ns: int,
        end_ns: int,
        state: tuple[int, int, int],
        composition: Mapping[str, Value],
        steps: int = 1,
    ) -> None:
        """A step, or several identical ones in one slice.

        Args:
            state: running and waiting requests, and KV blocks in use.
            composition: of its batch: `prefill_tokens`, `decode_seqs` and whatever else is known.
        """
        window = self._writer.window
        if end_ns < window.from_ns or start_ns > window.until_ns:
            return
        prompts, decodes = composition.get("prefill_tokens", 0), composition.get("decode_seqs", 0)
        name = "mixed" if prompts and decodes else PREFILL if prompts else DECODE
        composed = {key: value for key, value in composition.items() if value}
        self._writer.slice(
            self._steps, name, start_ns, end_ns, {**composed, "steps": steps} if steps > 1 else composed
        )
        tokens = int(prompts) + int(decodes)
        self._count(max(start_ns, window.from_ns), (*state, tokens))

    def _count(self, time_ns: int, values: Sequence[int]) -> None:
        for index, value in enumerate(values):
            if value != self._latest[index]:
                self._latest[index] = value
                self._writer.count(self._counters[index], time_ns, value)

    def request(
        self,
        phases: Sequence[Phase],
        arguments: Mapping[str, Value],
        flow: int | None = None,
        ends_flow: int | None = None,
    ) -> None:
        """A request that has left, as slices on a row of its own while it was there.

        Args:
            phases: in order of time.
            arguments: of the request, shown with its first slice.
            flow: number of the hand-over that takes it further.
            ends_flow: of the one that brought it here.
        """
        window = self._writer.window
        there = [each for each in phases if each[2] >= window.from_ns and each[1] <= window.until_ns]
        if not there:
            return
        row = self._row(there[0][1], there[-1][2])
        for index, (name, start_ns, end_ns) in enumerate(there):
            first, last = index == 0, index == len(there) - 1
            own = arguments if first else None
            arrows = flow if last else None, ends_flow if first else None
            self._writer.slice(row, name, start_ns, end_ns, own, *arrows)

    def _row(self, start_ns: int, end_ns: int) -> int:
        if self._free and self._free[0][0] <= start_ns:
            index = heappop(self._free)[1]
        else:
            index = len(self._rows)
            self._rows.append(self._writer.lane(self._process, f"requests {index + 1}"))
        heappush(self._free, (end_ns, index))
        return self._rows[index]
