"""Serving a workload: who is sent when, what the client sees, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from stub_engine import StubModel, expected, stub_engine

from blis_py.api import replay
from blis_py.calibrate.parity import replay_steps
from blis_py.calibrate.read_times import read_token_times
from blis_py.cli import main
from blis_py.outputs.complete import check_complete
from blis_py.outputs.stopping import Terminated
from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.observed import ObservedColumns
from blis_py.traces.steplog import read_step_log
from engine.clock import WallClock
from engine.driver import serve
from engine.engine import LLMEngine
from engine.synthetic import as_prompted, synthetic_prompts


def workload(
    count: int = 12, gap_ns: int = 30_000, output: int = 9, **columns: Any
) -> tuple[RequestTable, list[list[int]]]:
    table = RequestTable.build(
        np.arange(count, dtype=np.int64) * gap_ns,
        np.full(count, 20, dtype=np.int64),
        np.full(count, output, dtype=np.int64),
        **columns,
    )
    return table, [[1 + row, *range(2, 21)] for row in range(count)]


def observed(engine: LLMEngine, table: RequestTable, prompts: list[list[int]], **how: Any) -> ObservedColumns:
    observer = ObservedColumns(table)
    serve(engine, table, prompts, observer=observer, **how)
    return observer


def test_an_open_loop_sends_at_the_times_of_the_table() -> None:
    table, prompts = workload()
    engine = stub_engine()
    observer = ObservedColumns(table)
    outcomes = serve(engine, table, prompts, observer=observer)
    assert [r.sent_ns for r in observer.requests] == table.arrival_ns.tolist()
    assert [outcome.output_ids for outcome in outcomes] == [expected(prompt, 9) for prompt in prompts]  # type: ignore[union-attr]
    for request in observer.requests:
        assert len(request.token_ns) == 9
        assert request.sent_ns < request.token_ns[0]
        assert request.token_ns == sorted(set(request.token_ns))
        assert request.ended_ns == request.token_ns[-1]
    assert observer.counts() == {"injected": 12, "ok": 12}


def test_a_step_includes_all_that_arrived_before_it_began() -> None:
    table, prompts = workload(count=30, gap_ns=7_000)
    engine = stub_engine()
    serve(engine, table, prompts)
    log = engine.recorder.log()
    starts = np.array(log.steps["start_ns"])
    for arrival_ns, enqueue_ns in zip(log.requests["arrival_ns"], log.requests["enqueue_ns"], strict=True):
        assert enqueue_ns == starts[starts >= arrival_ns][0]
    assert replay_steps(log).share == 1.0


def test_the_step_that_brings_in_requests_lasts_longer_by_that_work() -> None:
    engine, (table, prompts) = stub_engine(), workload(count=1)
    add, spent_ns = engine.add_request, 123_456

    def slow_add(*args: Any, **kwargs: Any) -> Any:
        engine.clock.wait_until(engine.clock.now_ns() + spent_ns)
        return add(*args, **kwargs)

    engine.add_request = slow_add  # type: ignore[method-assign]
    serve(engine, table, prompts)
    first, *others = engine.recorder.log().steps["schedule_ns"]
    assert first >= spent_ns > max(others)


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_a_closed_loop_sends_the_next_when_one_ends(concurrency: int) -> None:
    table, prompts = workload(gap_ns=10**12)
    observer = observed(stub_engine(), table, prompts, concurrency=concurrency)
    sent = [r.sent_ns for r in observer.requests]
    ended = sorted(r.ended_ns for r in observer.requests)
    assert sent[:concurrency] == [0] * min(concurrency, 12)
    assert sent[concurrency:] == ended[: max(12 - concurrency, 0)]
    assert observer.sent_table().arrival_ns.tolist() == sent


def test_in_a_closed_loop_patience_begins_with_the_sending() -> None:
    table, prompts = workload(gap_ns=1000, deadline_ns=np.arange(12) * 1000 + 10**9)
    observer = observed(stub_engine(), table, prompts, concurrency=2)
    assert observer.counts()["ok"] == 12
    after = observer.sent_table()
    assert (after.deadline_ns - after.arrival_ns == 10**9).all()


def test_every_request_ends_in_one_count() -> None:
    """One is too long, one loses its patience, and the forward of the others breaks at last."""
    table, prompts = workload(count=6, gap_ns=0, output=40)
    table.deadline_ns[1] = 30_000
    prompts[2] = [1] * 600
    engine = stub_engine(StubModel(fail_at=20))
    observer = observed(engine, table, prompts)
    assert observer.counts() == {"injected": 6, "failed": 4, "refused": 1, "timeout": 1}
    assert "out of memory, say" in observer.requests[0].end[1]
    assert not observer.requests[2].token_ns
    assert 0 < len(observer.requests[1].token_ns) < 40


def test_a_refused_request_gives_its_place_in_a_closed_loop_to_the_next() -> None:
    table, prompts = workload(count=4)
    prompts[0] = prompts[1] = [1] * 600
    observer = observed(stub_engine(), table, prompts, concurrency=1)
    assert observer.counts() == {"injected": 4, "ok": 2, "refused": 2}


def test_a_run_that_was_broken_off_states_which_requests_have_no_end(tmp_path: Path) -> None:
    table, _ = workload(count=3)
    observer = ObservedColumns(table)
    observer.sent(0, 0)
    observer.token(0, 5000)
    observer.sent(1, 100)
    observer.write(tmp_path, {"clock": "wall"})
    assert observer.counts() == {"injected": 3, "no end seen": 2, "not sent": 1}
    assert len(read_trace(tmp_path / "trace.csv")) == 3


def test_answers_are_no_part_of_what_prompts_share() -> None:
    table, _ = workload(
        count=3,
        content=np.array([0, 1, -1]),
        contents=((("system", 8), ("talk", 40)), (("system", 8), ("talk", 4))),
    )
    shared = as_prompted(table)
    assert [shared.contents[i] if i >= 0 else () for i in shared.content] == [
        (("system", 8), ("talk", 12)),
        (("system", 8), ("talk", 4)),
        (),
    ]
    assert synthetic_prompts(shared, 97, seed=0) == synthetic_prompts(table, 97, seed=0)


# -- the command -------------------------------------------------------------------------------------


LOAD = ["--num-requests", "14", "--rate", "40", "--prompt-tokens", "60", "--prompt-tokens-max", "90"]
LOAD += ["--output-tokens", "8", "--output-tokens-max", "16", "--prefix-tokens", "40"]

JsonOf = Callable[..., Any]


@pytest.mark.parametrize("loop", [(), ("--concurrency", 3)], ids=["open", "closed"])
def test_a_run_leaves_a_folder_that_can_be_replayed_and_calibrated(
    model: list[str], tmp_path: Path, json_of: JsonOf, loop: tuple[object, ...]
) -> None:
    folder, predicted = tmp_path / "run", tmp_path / "predicted"
    printed = json_of("engine", "run", *model, *LOAD, *loop, "--clock", "cpu", "--out", folder)
    assert printed["cluster"]["requests"]["completed"] == 14

    provenance = yaml.safe_load((folder / "run.yaml").read_text())
    assert provenance["clock"] == "cpu"
    assert provenance["loop"]["kind"] == ("closed" if loop else "open")
    assert provenance["requests"] == {"injected": 14, "ok": 14}
    assert provenance["scheduler"]["num_kv_blocks"] == 200
    assert provenance["threads"] == 1
    assert {"python", "torch", "numpy"} <= provenance["versions"].keys()

    log = read_step_log(folder / "steps.csv.gz")
    times = read_token_times(folder)
    assert times.gaps is not None
    assert (times.gaps.counts + 1).tolist() == log.requests["output_tokens"]
    np.testing.assert_allclose(times.gaps.means(), times.tpot_s, atol=2e-6)
    engine_first = (np.array(log.requests["first_token_ns"]) - np.array(log.requests["arrival_ns"])) / 1e9
    assert (times.ttft_s >= engine_first - 2e-6).all(), "the client sees a token when the step has returned"
    assert json_of("parity", folder, "--require", 100)["share"] == 1.0

    flags = ["--model", "qwen3-0.6b", "--num-kv-blocks", 200, "--no-plots", "--record-itl"]
    simulated = json_of("replay", "--trace", folder / "trace.csv", *flags, "--out", predicted)
    hits = simulated["cluster"]["prefix_hit_tokens"]
    assert hits == printed["cluster"]["prefix_hit_tokens"] == sum(log.requests["cached_tokens"]) >= 11 * 32
    figures = json_of("calibrate", folder, "--results", predicted)
    assert figures["requests"] == 14
    assert [row["latency"] for row in figures["latencies"]] == ["ttft", "itl", "tpot", "e2e"]
    itl = figures["latencies"][1]["seconds"]["mean"]
    assert itl["measured"] == pytest.approx(times.gaps.values.mean())


def test_the_trace_of_a_run_can_be_served_again(model: list[str], tmp_path: Path, json_of: JsonOf) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    json_of("engine", "run", *model, *LOAD, "--clock", "cpu", "--out", first)
    json_of("engine", "run", *model, "--trace", first / "trace.csv", "--clock", "cpu", "--out", second)
    one, two = read_trace(first / "trace.csv"), read_trace(second / "trace.csv")
    for column in ("arrival_ns", "prompt_tokens", "output_tokens", "prefix_tokens"):
        assert getattr(one, column).tolist() == getattr(two, column).tolist()
    cached = [read_step_log(f / "steps.csv.gz").requests["cached_tokens"] for f in (first, second)]
    assert cached[0] == cached[1]


def test_conversations_share_in_the_replay_what_they_shared_in_the_engine(
    model: list[str], tmp_path: Path, json_of: JsonOf
) -> None:
    """The engine's answers are not those that a next turn repeats, so turns share prompts only."""
    spec = tmp_path / "chat.yaml"
    spec.write_text(
        """
version: "2"
seed: 3
aggregate_rate: 20
num_requests: 12
clients:
  - id: chat
    rate_fraction: 1.0
    closed_loop: false
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 40}}
    output_distribution: {type: constant, params: {value: 20}}
    reasoning:
      reason_ratio_distribution: {type: constant, params: {value: 0}}
      multi_turn: {max_rounds: 3, think_time_us: 100000, context_growth: accumulate}
"""
    )
    folder = tmp_path / "run"
    flags = ["--workload-spec", spec, "--max-model-len", 256, "--clock", "cpu"]
    printed = json_of("engine", "run", *model, *flags, "--out", folder)
    assert printed["cluster"]["prefix_hit_tokens"] > 0
    again = replay(folder / "trace.csv", model="qwen3-0.6b", num_kv_blocks=200).summary
    assert again["cluster"]["prefix_hit_tokens"] == printed["cluster"]["prefix_hit_tokens"]


def slices(path: Path) -> dict[str, int]:
    """Number of steps and of requests in a trace for Perfetto."""
    trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    lanes = {packet.track_descriptor.uuid: packet.track_descriptor.name for packet in trace.packet}
    names = {
        each.iid: each.name for packet in trace.packet for each in packet.interned_data.debug_annotation_names
    }
    begins = [packet.track_event for packet in trace.packet if packet.track_event.type == 1]
    lines = [{names[one.name_iid] for one in begin.debug_annotations} for begin in begins]
    steps = sum(lanes[begin.track_uuid] == "steps" for begin in begins)
    return {"steps": steps, "requests": sum("request" in each for each in lines)}


def test_the_trace_is_written_while_the_run_goes_on(
    model: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blis_py.traces.perfetto import StepTrace
    from engine.models.decoder import Decoder

    logits, step, written, seen = Decoder.logits, StepTrace.step, [0], []

    def counted(*args: Any) -> None:
        written[0] += 1
        step(*args)

    def forward(*args: Any) -> Any:
        seen.append(written[0])
        return logits(*args)

    monkeypatch.setattr(StepTrace, "step", counted)
    monkeypatch.setattr(Decoder, "logits", forward)
    flags = [*LOAD, "--no-warm-up", "--clock", "cpu", "--out", str(tmp_path / "x")]
    assert main(["engine", "run", *model, *flags, "--perfetto", str(tmp_path / "run.pftrace")]) == 0
    assert seen == list(range(len(seen)))


def test_a_table_for_people(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-requests", "3", "--rate", "1000", "--output-tokens", "3", "--prompt-tokens", "20"]
    arguments = [*model, *flags, "--output-tokens-max", "5", "--prompt-tokens-max", "40", "--format", "table"]
    trace = tmp_path / "run.pftrace"
    traced = ["--perfetto", str(trace)]
    assert main(["engine", "run", *arguments, *traced, "--out", str(tmp_path / "x")]) == 0
    log = read_step_log(tmp_path / "x" / "steps.csv.gz")
    assert b"measured: engine" in trace.read_bytes()
    assert slices(trace) == {"steps": len(log), "requests": 3}
    captured = capsys.readouterr()
    assert "TTFT" in captured.out
    assert "3 injected, 3 ok" in captured.err


def test_a_broken_forward_fails_the_run_and_keeps_the_folder(
    model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.models.decoder import Decoder

    monkeypatch.setattr(Decoder, "logits", lambda *_: 1 / 0)
    arguments = [*model, *LOAD, "--no-warm-up", "--out", str(tmp_path / "x")]
    assert main(["engine", "run", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "14 failed" in captured.err
    assert "ZeroDivisionError" in (tmp_path / "x" / "trace.csv").read_text()


def test_an_interrupted_run_keeps_what_it_has_seen(
    model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.models.decoder import Decoder

    logits, calls = Decoder.logits, iter(range(100))

    def interrupted(*args: Any) -> Any:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return logits(*args)

    monkeypatch.setattr(Decoder, "logits", interrupted)
    trace = tmp_path / "run.pftrace"
    arguments = [*model, *LOAD, "--no-warm-up", "--clock", "cpu", "--out", str(tmp_path / "x")]
    assert main(["engine", "run", *arguments, "--perfetto", str(trace)]) == 130
    assert slices(trace)["steps"] == len(read_step_log(tmp_path / "x" / "steps.csv.gz"))
    assert capsys.readouterr().out == ""
    counts = yaml.safe_load((tmp_path / "x" / "run.yaml").read_text())["requests"]
    assert counts["injected"] == 14 == sum(counts.values()) - 14
    assert counts["not sent"] > 0
    assert len(read_step_log(tmp_path / "x" / "steps.csv.gz")) >= 5


@pytest.mark.parametrize(
    ("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)], ids=["interrupted", "terminated"]
)
def test_a_run_that_is_broken_off_replaces_nothing_and_loses_nothing(
    stop: type[BaseException],
    code: int,
    model: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from engine.models.decoder import Decoder

    run = ["engine", "run", *model, *LOAD, "--no-warm-up", "--clock", "cpu", "--out", str(tmp_path / "x")]
    assert main(run) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    logits, calls = Decoder.logits, iter(range(100))

    def stopped(*args: Any) -> Any:
        if next(calls) == 5:
            raise stop
        return logits(*args)

    monkeypatch.setattr(Decoder, "logits", stopped)
    assert main([*run, "--force"]) == code
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before
    assert f"{tmp_path / 'x.broken-off'}: 14 injected" in capsys.readouterr().err
    assert len(read_step_log(tmp_path / "x.broken-off" / "steps.csv.gz")) >= 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x.broken-off"]


def test_the_folder_of_a_run_states_what_belongs_to_it(model: list[str], tmp_path: Path) -> None:
    run = ["engine", "run", *model, *LOAD, "--no-warm-up", "--clock", "cpu", "--out", str(tmp_path / "x")]
    assert main(run) == 0
    check_complete(tmp_path / "x")
    (tmp_path / "x" / "itl.csv").unlink()
    for command in (
        ["parity", str(tmp_path / "x")],
        ["calibrate", str(tmp_path / "x"), "--results", str(tmp_path / "x")],
        ["replay", "--trace", str(tmp_path / "x" / "trace.csv"), "--model", "llama-3.1-8b"],
    ):
        assert main(command) == 2


def test_real_time_is_waited_for_to_the_end() -> None:
    clock = WallClock()
    for time_ns in (1_000, 700_000, 2_000_000):
        clock.wait_until(time_ns)
        assert clock.now_ns() >= time_ns


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "--out"),
        (["--out", "{full}"], "not empty"),
        (["--out", "new", "--concurrency", "0"], "at least 1"),
        (["--out", "new", "--format", "vllm"], "one of: json, table"),
        (["--out", "new", "--trace", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_wrong_flags_of_run_are_bad_input(
    model: list[str],
    tmp_path: Path,
    flags: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    arguments = [flag.format(full=tmp_path / "full") for flag in flags]
    assert main(["engine", "run", *model, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err
    assert not (tmp_path / "new").exists()
