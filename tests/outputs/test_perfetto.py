"""Traces for Perfetto, read back by the descriptors of the `perfetto` package."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.cli import main
from blis_py.cluster.recording.trace_observer import TraceObserver
from blis_py.outputs import protobuf
from blis_py.outputs.perfetto import PerfettoWriter, Window
from blis_py.traces.perfetto import MEASURED, StepTrace, _phases
from blis_py.traces.steplog import StepLog, read_step_log

pytest.importorskip("perfetto", reason="the perfetto package is not installed")
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))
from two_visits import handed_over

ROOT = Path(__file__).resolve().parents[2]
_SETTINGS = {
    "model": "llama-3.1-8b",
    "rate": 20,
    "num_requests": 60,
    "num_instances": 2,
    "num_kv_blocks": 900,
}


@dataclass
class Slice:
    track: int
    name: str
    start_ns: int
    end_ns: int = -1
    facts: dict[str, Any] = field(default_factory=dict)
    flows: list[int] = field(default_factory=list)
    ended_flows: list[int] = field(default_factory=list)


class Read:
    """A trace as tables."""

    def __init__(self, data: bytes) -> None:
        trace = Trace()
        trace.ParseFromString(data)
        self.processes: dict[int, str] = {}
        self.tracks: dict[int, tuple[str, int]] = {}
        self.slices: list[Slice] = []
        self.counts: dict[int, list[tuple[int, float]]] = {}
        names: dict[tuple[int, str, int], str] = {}
        open_: dict[int, Slice] = {}
        for packet in trace.packet:
            self._describe(packet)
            source = packet.trusted_packet_sequence_id
            for kind in ("event_names", "debug_annotation_names"):
                for each in getattr(packet.interned_data, kind):
                    names[source, kind, each.iid] = each.name
            event = packet.track_event
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert event.track_uuid not in open_, "slices of a track overlap"
                found = Slice(
                    event.track_uuid, names[source, "event_names", event.name_iid], packet.timestamp
                )
                for one in event.debug_annotations:
                    kind = one.WhichOneof("value")
                    found.facts[names[source, "debug_annotation_names", one.name_iid]] = getattr(one, kind)
                found.flows, found.ended_flows = [*event.flow_ids], [*event.terminating_flow_ids]
                open_[event.track_uuid] = found
                self.slices.append(found)
            elif event.type == TrackEvent.TYPE_SLICE_END:
                open_.pop(event.track_uuid).end_ns = packet.timestamp
            elif event.type == TrackEvent.TYPE_COUNTER:
                self.counts.setdefault(event.track_uuid, []).append((packet.timestamp, event.counter_value))
        assert not open_

    def _describe(self, packet: TracePacket) -> None:
        described = packet.track_descriptor
        if described.HasField("process"):
            self.processes[described.uuid] = described.process.process_name
        elif described.uuid:
            self.tracks[described.uuid] = described.name, described.parent_uuid

    def steps(self) -> list[Slice]:
        return [one for one in self.slices if self.tracks[one.track][0] == "steps"]

    def requests(self) -> list[list[Slice]]:
        """The slices of each request."""
        found: list[list[Slice]] = []
        latest: dict[int, list[Slice]] = {}
        for one in self.slices:
            if self.tracks[one.track][0].startswith("requests"):
                if "request" in one.facts:
                    latest[one.track] = []
                    found.append(latest[one.track])
                latest[one.track].append(one)
        return found


def traced(window: Window | None = None, **settings: Any) -> tuple[Read, blis.Result]:
    file = BytesIO()
    simulation = blis.build(**{**_SETTINGS, **settings})
    pools = [(pool.section.name, pool.section.count) for pool in simulation.pools]
    result = simulation.run(observer=TraceObserver(PerfettoWriter(file, "simulated", window), pools))
    return Read(file.getvalue()), result


@pytest.fixture(scope="module")
def whole() -> tuple[Read, blis.Result]:
    return traced()


def test_instances_are_processes(whole: tuple[Read, blis.Result]) -> None:
    assert [*whole[0].processes.values()] == ["simulated: instance 0", "simulated: instance 1"]


def test_pools_name_their_instances() -> None:
    pools = [{"name": "fast", "count": 1}, {"name": "slow", "count": 2, "gpu": "l40s"}]
    read, _ = traced(pools=pools, num_instances=1)
    assert [*read.processes.values()] == ["simulated: fast 0", "simulated: slow 0", "simulated: slow 1"]


def test_every_step_has_a_slice_with_its_composition(whole: tuple[Read, blis.Result]) -> None:
    read, result = whole
    cluster = result.summary["cluster"]
    steps = read.steps()
    assert len(steps) == cluster["steps"]
    assert sum(step.facts.get("prefill_tokens", 0) for step in steps) == cluster["prefill_tokens"]
    assert sum(step.facts.get("decode_seqs", 0) for step in steps) == cluster["decode_tokens"]
    kinds = {(bool(s.facts.get("prefill_tokens")), bool(s.facts.get("decode_seqs"))): s.name for s in steps}
    assert kinds[True, True] == "mixed"
    assert kinds[False, True] == "decode"


def test_the_phases_of_a_request_are_its_latencies(whole: tuple[Read, blis.Result]) -> None:
    read, result = whole
    table = result.requests.set_index("request_id")
    found = {slices[0].facts["request"]: slices for slices in read.requests()}
    assert found.keys() == set(table.index)
    for name, slices in found.items():
        row = table.loc[name]
        assert slices[0].start_ns == round(row.arrival_s * 1e9)
        if slices[0].name == "queued":
            assert slices[0].end_ns - slices[0].start_ns == round(row.scheduling_delay_ms * 1e6)
        assert all(a.end_ns == b.start_ns for a, b in pairwise(slices))
        assert slices[0].facts["output tokens"] == row.output_tokens
    assert "preempted" in {one.name for slices in found.values() for one in slices}


def test_counters_are_those_of_the_steps(whole: tuple[Read, blis.Result]) -> None:
    read, result = whole
    track = next(uuid for uuid, (name, _) in read.tracks.items() if name == "KV blocks")
    assert (
        max(value for _, value in read.counts[track]) == result.steps.query("instance == 0").kv_blocks.max()
    )
    assert {name for name, _ in read.tracks.values()} >= {"running", "waiting", "KV blocks", "batch tokens"}


def test_an_observed_run_gives_the_same_numbers(whole: tuple[Read, blis.Result]) -> None:
    assert whole[1].summary == blis.run(**_SETTINGS).summary


def test_a_hand_over_is_an_arrow_from_one_instance_to_another() -> None:
    file = BytesIO()
    handed_over(observer=TraceObserver(PerfettoWriter(file, "simulated"), [("prefill", 1), ("decode", 1)]))
    read = Read(file.getvalue())
    first, second = read.requests()
    assert first[-1].flows == second[0].ended_flows != []
    processes = [read.processes[read.tracks[slices[0].track][1]] for slices in (first, second)]
    assert processes == ["simulated: prefill 0", "simulated: decode 0"]
    assert (second[0].name, second[0].start_ns) == ("queued", 17_000)


def test_pools_for_prefill_and_decode_hand_every_request_over_by_an_arrow() -> None:
    read, result = traced(prefill_instances=2, decode_instances=1, num_instances=1)
    names = ("prefill 0", "prefill 1", "decode 0")
    assert [*read.processes.values()] == [f"simulated: {name}" for name in names]
    begins = {flow: one for one in read.slices for flow in one.flows}
    ends = {flow: one for one in read.slices for flow in one.ended_flows}
    assert len(begins) == result.summary["handovers"]["handovers"] == 60
    assert begins.keys() == ends.keys()
    processes = {flow: [read.tracks[one[flow].track][1] for one in (begins, ends)] for flow in begins}
    assert all(
        "prefill" in read.processes[first] and "decode" in read.processes[last]
        for first, last in processes.values()
    )


def test_a_window_bounds_what_is_written(whole: tuple[Read, blis.Result]) -> None:
    window = Window(10**9, 2 * 10**9)
    read, _ = traced(window)
    assert 0 < len(read.slices) < len(whole[0].slices)
    assert min(one.start_ns for one in read.slices) >= window.from_ns
    assert max(one.end_ns for one in read.slices) <= window.until_ns
    assert all(window.from_ns <= t <= window.until_ns for counts in read.counts.values() for t, _ in counts)


def test_a_sample_keeps_every_nth_request_and_joins_identical_steps(whole: tuple[Read, blis.Result]) -> None:
    read, result = traced(Window(sample=10))
    assert len(read.requests()) == 6
    assert sum(step.facts.get("steps", 1) for step in read.steps()) == result.summary["cluster"]["steps"]
    assert len(read.steps()) < len(whole[0].steps())


def test_rounds_of_block_diffusion_are_steps() -> None:
    file = BytesIO()
    settings = {"block_size": 32, "max_num_seqs": 16, "latency_model": "roofline", "num_requests": 8}
    simulation = blis.build(workload="diffusion-tiny", model="llada2.0-mini", gpu="h200", **settings)
    simulation.run(observer=TraceObserver(PerfettoWriter(file, "simulated"), [("default", 1)]))
    read = Read(file.getvalue())
    assert len(read.requests()) == 8
    assert "denoise" in {one.name for slices in read.requests() for one in slices}


@pytest.fixture(scope="module")
def recorded() -> StepLog:
    return read_step_log(ROOT / "docs" / "recorded" / "tiny-run" / "steps.csv.gz")


def of_engine(log: StepLog, window: Window | None = None) -> bytes:
    """The trace of recorded steps, in the order in which an engine hands them over."""
    file = BytesIO()
    trace = StepTrace(PerfettoWriter(file, MEASURED, window))
    requests = {
        number: {name: column[row] for name, column in log.requests.items()}
        for row, number in enumerate(log.requests["number"])
    }
    for index in range(len(log)):
        of = {name: column[index] for name, column in log.steps.items()}
        trace.step(of, (-1, -1), of["admitted_ids"], of["preempted_ids"])
        written = file.tell()
        for number in of["finished_ids"]:
            trace.request(requests.pop(number))
            assert file.tell() > written or window is not None
    for row in requests.values():
        trace.request(row)
    trace.close()
    return file.getvalue()


def test_an_engine_writes_the_same_from_its_steps_and_both_are_one_trace(recorded: StepLog) -> None:
    log, measured, simulated = recorded, of_engine(recorded), BytesIO()
    blis.build(**_SETTINGS).run(
        observer=TraceObserver(PerfettoWriter(simulated, "simulated"), [("default", 2)])
    )
    both = Read(simulated.getvalue() + measured)
    assert set(both.processes.values()) == {
        "simulated: instance 0",
        "simulated: instance 1",
        "measured: engine",
    }
    own = Read(measured)
    assert len(own.steps()) == len(log)
    assert len(own.requests()) == len(log.requests["id"])
    assert sum(s.facts.get("prefill_tokens", 0) for s in own.steps()) == sum(log.steps["prefill_tokens"])


def test_a_sample_of_an_engine_joins_alike_decode_steps(recorded: StepLog) -> None:
    own = Read(of_engine(recorded, Window(sample=5)))
    assert len(own.steps()) < len(recorded)
    assert sum(step.facts.get("steps", 1) for step in own.steps()) == len(recorded)
    assert sum(step.facts.get("gpu_ns", 0) for step in own.steps()) == sum(recorded.steps["gpu_ns"])
    assert len(own.requests()) == sum(number % 5 == 0 for number in recorded.requests["number"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--perfetto-window", "1s:2s"), "add --perfetto FILE"),
        (("--perfetto", "t.pftrace", "--perfetto-window", "2s:1s"), "ends before it begins"),
        (("--perfetto", "t.pftrace", "--perfetto-window", "soon"), "must be FROM:TO"),
        (("--perfetto", "t.pftrace", "--perfetto-sample", "0"), "must be at least 1"),
        (("--perfetto", "none/t.pftrace"), "no such folder"),
    ],
)
def test_bad_input_is_refused(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--model", "llama-3.1-8b", "--num-requests", "3", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    out = tmp_path / "run.pftrace"
    flags = ("--perfetto", str(out), "--perfetto-window", "0s:1m", "--perfetto-sample", "2")
    assert main(["run", "--model", "llama-3.1-8b", "--num-requests", "4", *flags]) == 0
    assert len(Read(out.read_bytes()).requests()) == 2


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63, -1])
def test_numbers_are_those_of_protobuf(value: int) -> None:
    packet = TracePacket()
    packet.ParseFromString(protobuf.number(8, value))
    assert packet.timestamp == value % 2**64


@pytest.mark.parametrize(
    ("field", "data"),
    [("name", protobuf.text(23, "wörter")), ("double_counter_value", protobuf.double(44, 2.5))],
)
def test_texts_and_fractions_are_those_of_protobuf(field: str, data: bytes) -> None:
    event = TrackEvent()
    event.ParseFromString(data)
    assert getattr(event, field) == {"name": "wörter", "double_counter_value": 2.5}[field]


def test_a_phase_that_takes_no_time_is_left_out() -> None:
    assert list(_phases([("waiting", 0), ("running", 0), ("decoding", 5)], 5)) == [("running", 0, 5)]
