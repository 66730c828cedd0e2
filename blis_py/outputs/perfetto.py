"""Traces for Perfetto (https://ui.perfetto.dev): processes, tracks, slices, flows and counters as packets.

A `.pftrace` file is one protobuf message `Trace`, a repeated field of packets; two files joined end to end
are one trace. Names are interned: a packet refers to them by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO
from zlib import crc32

from blis_py.outputs import protobuf as pb

Value = int | float | str
BEGIN, END, COUNTER = 1, 2, 4

# Fields of the messages, as in perfetto_trace.proto.
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60
_UUID, _NAME, _PROCESS, _PARENT, _COUNTER_DESCRIPTOR = 1, 2, 3, 5, 8
_CLEARED, _NEEDS = 1, 2
_EVENT_NAMES, _ANNOTATION_NAMES = 2, 3


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that is written.

    Args:
        from_ns, until_ns: what ends before or begins after is left out; slices across an edge are cut.
        sample: of the requests every n-th has slices; with n above 1, runs of identical steps are one slice.
    """

    from_ns: int = 0
    until_ns: int = (1 << 62) - 1
    sample: int = 1


class PerfettoWriter:
    """Writer of one source of events, such as a simulated or a measured run.

    Args:
        file: of the trace; packets are appended as they come.
        source: names the processes, and separates them from those of another source in the same trace.
        window: what is written.
    """

    def __init__(self, file: BinaryIO, source: str, window: Window | None = None) -> None:
        self.source, self.window = source, window or Window()
        self._file = file
        self._space = crc32(source.encode()) or 1
        self._next = self._pids = 0
        self._names: dict[tuple[int, str], int] = {}
        self._new: list[tuple[int, str, int]] = []
        self._sequence = pb.number(_SEQUENCE, self._space)
        self._write(self._sequence + pb.number(_FLAGS, _CLEARED | _NEEDS))

    def process(self, name: str) -> int:
        """A process; returns its track."""
        self._pids += 1
        pid = self._pid(self._pids)
        described = pb.number(1, pid) + pb.text(6, f"{self.source}: {name}")
        return self._track(pb.data(_PROCESS, described))

    def lane(self, process: int, name: str) -> int:
        """A row of slices below a process."""
        return self._track(pb.text(_NAME, name) + pb.number(_PARENT, process))

    def counter(self, process: int, name: str) -> int:
        """A curve below a process."""
        described = pb.text(_NAME, name) + pb.number(_PARENT, process)
        return self._track(described + pb.data(_COUNTER_DESCRIPTOR, b""))

    def slice(
        self,
        track: int,
        name: str,
        start_ns: int,
        end_ns: int,
        arguments: Mapping[str, Value] | None = None,
        flow: int | None = None,
        ends_flow: int | None = None,
    ) -> None:
        """A slice; parts outside of the window are left out.

        Args:
            flow: number of an arrow that begins here.
            ends_flow: of one that ends here.
        """
        start_ns, end_ns = max(start_ns, self.window.from_ns), min(end_ns, self.window.until_ns)
        if end_ns < start_ns:
            return
        event = pb.number(9, BEGIN) + pb.number(11, track) + pb.number(10, self._interned(_EVENT_NAMES, name))
        for key, value in (arguments or {}).items():
            event += pb.data(4, self._annotation(key, value))
        if flow is not None:
            event += pb.fixed64(47, self._space << 32 | flow)
        if ends_flow is not None:
            event += pb.fixed64(48, self._space << 32 | ends_flow)
        self._event(start_ns, event)
        self._event(end_ns, pb.number(9, END) + pb.number(11, track))

    def count(self, track: int, time_ns: int, value: float) -> None:
        """A value of a counter from a time on."""
        if self.window.from_ns <= time_ns <= self.window.until_ns:
            field = pb.number(30, value) if isinstance(value, int) else pb.double(44, value)
            self._event(time_ns, pb.number(9, COUNTER) + pb.number(11, track) + field)

    def _pid(self, number: int) -> int:
        return (self._space % 1000 + 1) * 1000 + number

    def _track(self, described: bytes) -> int:
        self._next += 1
        uuid = self._space << 24 | self._next
        self._write(self._sequence + pb.data(_DESCRIPTOR, pb.number(_UUID, uuid) + described))
        return uuid

    def _annotation(self, name: str, value: Value) -> bytes:
        key = pb.number(1, self._interned(_ANNOTATION_NAMES, name))
        if isinstance(value, str):
            return key + pb.text(6, value)
        return key + (pb.number(4, value) if isinstance(value, int) else pb.double(5, value))

    def _interned(self, kind: int, name: str) -> int:
        iid = self._names.get((kind, name))
        if iid is None:
            iid = self._names[kind, name] = len(self._names) + 1
            self._new.append((kind, name, iid))
        return iid

    def _event(self, time_ns: int, event: bytes) -> None:
        packet = pb.number(_TIMESTAMP, time_ns) + self._sequence + pb.number(_FLAGS, _NEEDS)
        if self._new:
            names = (pb.data(kind, pb.number(1, at) + pb.text(2, name)) for kind, name, at in self._new)
            packet += pb.data(_INTERNED, b"".join(names))
            self._new = []
        self._write(packet + pb.data(_EVENT, event))

    def _write(self, packet: bytes) -> None:
        self._file.write(pb.data(_PACKET, packet))
