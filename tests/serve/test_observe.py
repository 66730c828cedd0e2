"""Measuring a server: `blis observe` against a simulated fleet and against misbehaving servers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from serving import FAST, HANGS_S, config

from blis_py import run
from blis_py.api import configure
from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.observe.answer import ObservedAnswer
from blis_py.observe.driver import MeasuredRequest
from blis_py.observe.findings import late_note, lateness
from blis_py.observe.http import HttpClient, HttpError, Target, Whole
from blis_py.observe.prompts import Counting
from blis_py.observe.session import Measurement
from blis_py.serve.fleet.build import ServedFleet, build_fleet
from blis_py.serve.server import Service
from blis_py.serve.settings import ServeSettings
from blis_py.setup.from_config import requests


@contextmanager
def served(
    settings: ServeSettings | None = None, paths: Sequence[str] = ("",)
) -> Iterator[tuple[Service, ServedFleet]]:
    """A fleet on a port of its own, in a thread; with several paths, one for each."""
    fleets = {path: build_fleet(config(), FAST) for path in paths}
    fleet = fleets[paths[0]]
    backends = {path: one.backend for path, one in fleets.items()}
    service = Service(backends, settings or ServeSettings(port=0))
    loop = asyncio.new_event_loop()
    began = threading.Event()

    async def serve() -> None:
        await service.start()
        began.set()
        await service.serve()
        for backend in backends.values():
            await backend.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert began.wait(HANGS_S)
    try:
        yield service, fleet
    finally:
        loop.call_soon_threadsafe(service.stop)
        thread.join(HANGS_S)
        assert not thread.is_alive()


def observe(url: str, out: Path, *flags: str) -> int:
    return main(["observe", "--server-url", url, "--out", str(out), *flags])


def test_instances_have_paths_of_their_own_on_one_port(tmp_path: Path) -> None:
    with served(ServeSettings(port=0, api_key="k"), ("/instance-0", "/instance-1")) as (service, _):
        assert observe(f"{service.url}/instance-1", tmp_path / "out", *WORK, "--api-key", "k") == 0
        for path in service.backends:
            assert urlopen(f"{service.url}{path}/health").status == 200
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{service.url}/health")
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"{service.url}/instance-1/v1/models")
        assert [backend.live.source.rows > 30 for backend in service.backends.values()] == [False, True]


WORK = ("--rate", "200", "--num-requests", "30", "--prompt-tokens", "60", "--output-tokens", "9")


def test_a_measurement_counts_what_the_server_served(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with served() as (service, fleet):
        assert observe(service.url, out, *WORK, "--scrape-metrics", "/metrics") == 0
    record = fleet.backend.record
    assert record is not None
    own = np.array([not name.startswith("cmpl-") or "request_" in name for name in record.table.ids()])
    again = run(model="qwen3-14b", gpu="h100", trace=str(out / "trace.csv"))
    assert again.record.table.output_tokens.sum() == record.emitted_tokens[own].sum()
    assert again.record.table.prompt_tokens.sum() == record.table.prompt_tokens[own].sum()
    assert again.record.table.streaming.all()
    tokens = (out / "itl.csv").read_text().splitlines()[1:]
    assert len(tokens) == again.record.table.output_tokens.sum()
    assert "vllm:generation_tokens_total" in (out / "metrics.txt").read_text()
    assert not (out / "journal.jsonl").exists()


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with served() as (service, fleet):
        assert observe(service.url, out, *WORK) == 0
        before = (out / "run.yaml").read_text()
        _interrupted(out, WORKLOAD, 10)
        assert observe(service.url, out, *WORK) == 2
        assert observe(service.url, out, *WORK, "--resume") == 0
    assert before != (out / "run.yaml").read_text()
    assert len((out / "trace.csv").read_text().splitlines()) == 31
    assert fleet.backend.record is not None
    assert len(fleet.backend.record.table) == 30 + 20 + 2 * 2  # and the two prompts that show how it counts


WORKLOAD = {"rate": 200.0, "num_requests": 30, "prompt_tokens": 60, "output_tokens": 9}


def _interrupted(out: Path, workload: dict[str, Any], rows: int) -> None:
    """The journal as an interruption after some requests leaves it."""
    table = requests(configure(**workload, model="qwen3-14b"))
    measurement = Measurement(target=Target("", 0), table=table, folder=out)
    out.mkdir(exist_ok=True)
    measured = [MeasuredRequest(row, 0, 10, [20], 30, ("ok", "", "length"), 5, 1) for row in range(rows)]
    lines = [measurement.identity, *map(asdict, measured)]
    (out / "journal.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"row": 11, "du']))


def test_a_finished_measurement_is_replaced_on_demand_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with served() as (service, _):
        assert observe(service.url, out, *WORK) == 0
        before = {file.name: file.read_bytes() for file in out.iterdir()}
        for more in ((), ("--resume",)):
            assert observe(service.url, out, *WORK, *more) == 2
            assert "a finished measurement is there" in capsys.readouterr().err
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
        assert observe(service.url, out, *WORK, "--force", "--resume") == 2
        assert observe(service.url, out, *WORK, "--force") == 0
    assert (out / "run.yaml").read_bytes() != before["run.yaml"]
    assert sorted(file.name for file in out.iterdir()) == sorted(before)


def test_only_the_interrupted_workload_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other lengths with the same sum, other prompts, and another wording are other measurements."""
    with served() as (service, _):
        for n, (workload, more) in enumerate(
            (
                ({**WORKLOAD, "prompt_tokens": 59, "output_tokens": 10}, ()),
                ({**WORKLOAD, "rate": 201.0}, ()),
                (WORKLOAD, ("--prompt-ids", "300:900")),
                (WORKLOAD, ("--unconstrained-output",)),
                (WORKLOAD, ("--model", "qwen3-14b")),
                (WORKLOAD, ("--max-concurrency", "3")),
            )
        ):
            out = tmp_path / str(n)
            _interrupted(out, workload, 10)
            before = (out / "journal.jsonl").read_bytes()
            assert observe(service.url, out, *WORK, *more, "--resume") == 2
            assert "is of another measurement" in capsys.readouterr().err
            assert (out / "journal.jsonl").read_bytes() == before


def test_a_closed_loop_never_has_more_under_way_than_it_may(tmp_path: Path) -> None:
    with served() as (service, fleet):
        flags = (
            "--concurrency",
            "3",
            "--num-requests",
            "25",
            "--prompt-tokens",
            "30",
            "--output-tokens",
            "20",
        )
        assert observe(service.url, tmp_path / "out", *flags) == 0
    record = fleet.backend.record
    assert record is not None
    begins, ends = record.table.arrival_ns[2:], record.finish_ns[2:]
    assert max(((begins <= at) & (ends > at)).sum() for at in begins) <= 3
    assert len(begins) == 25


def test_sessions_grow_by_what_was_answered(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "version: '2'\nseed: 1\naggregate_rate: 50\nnum_requests: 12\nclients:\n"
        "- id: a\n  rate_fraction: 1\n  arrival: {process: poisson}\n  closed_loop: true\n"
        "  input_distribution: {type: constant, params: {value: 40}}\n"
        "  output_distribution: {type: constant, params: {value: 30}}\n"
        "  reasoning: {reason_ratio_distribution: {type: constant, params: {value: 0}},\n"
        "    multi_turn: {max_rounds: 3, think_time_us: 1000, context_growth: accumulate}}\n"
    )
    with served() as (service, fleet):
        flags = ("--workload-spec", str(spec), "--api-format", "chat")
        assert observe(service.url, tmp_path / "out", *flags) == 0
    record = fleet.backend.record
    assert record is not None
    assert len(record.table) >= 12
    assert (record.cached_tokens[2:] >= 64).any()


def test_conversations_of_a_closed_loop_follow_one_another(tmp_path: Path) -> None:
    """Each of the two permits runs a conversation turn by turn, and then the next."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "version: '2'\nseed: 1\nnum_requests: 16\nclients:\n- id: a\n  concurrency: 2\n"
        "  input_distribution: {type: constant, params: {value: 40}}\n"
        "  output_distribution: {type: constant, params: {value: 30}}\n"
        "  reasoning: {multi_turn: {max_rounds: 4, think_time_us: 1000, context_growth: accumulate}}\n"
    )
    with served() as (service, fleet):
        flags = ("--workload-spec", str(spec), "--api-format", "chat")
        assert observe(service.url, tmp_path / "out", *flags) == 0
    record = fleet.backend.record
    assert record is not None
    begins, ends = record.table.arrival_ns[2:], record.finish_ns[2:]
    assert len(begins) == 16
    assert max(((begins <= at) & (ends > at)).sum() for at in begins) <= 2
    trace = pd.read_csv(tmp_path / "out" / "trace.csv")
    turns = trace.groupby("session_id").size()
    assert (turns.sum(), turns.max()) == (16, 4)
    assert (turns < 4).sum() in (0, 2), (
        "the last request may begin a conversation while another has a turn left"
    )
    assert (record.cached_tokens[2:] >= 64).sum() == 16 - len(turns)


def test_errors_are_kept_with_their_requests(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with served() as (service, fleet):
        fleet.backend.failures.settings = fleet.backend.failures.settings.changed({"broken": 1.0})
        with served() as (other, _):  # counts
            assert observe(other.url, tmp_path / "counts", *WORK) == 0
        assert observe(service.url, out, *WORK, "--prompt-ids", "300:900") == 1  # none was answered
    trace = (out / "trace.csv").read_text()
    assert trace.count("injected: the answer has broken off") > 20


def test_frames_of_any_server_are_read() -> None:
    answer = ObservedAnswer()
    answer.head(200, {"content-type": "text/event-stream"})
    chunks = [
        b': ping\r\n\r\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\r\n\r\n',
        b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\ndata: {"choices":[{"delta":{"con',
        b'tent":""}}]}\r\n\r\ndata: {"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3}}\n\ndata: [DONE]\n\n',
    ]
    for time_ns, chunk in enumerate(chunks):
        answer.data(chunk, time_ns)
    answer.ended(9)
    assert answer.times_ns == [1, 2, 2]
    assert "".join(answer.text) == "ab"
    assert (answer.prompt_tokens, answer.completion_tokens, answer.end) == (4, 3, ("ok", "", "stop"))


def _streamed(*events: Any) -> ObservedAnswer:
    """An answer whose events come one per nanosecond."""
    answer = ObservedAnswer()
    answer.head(200, {"content-type": "Text/Event-Stream; charset=utf-8"})
    for time_ns, event in enumerate(events):
        answer.data(b"data: " + json.dumps(event).encode() + b"\n\n", time_ns)
    answer.data(b"data:[DONE]", 99)
    answer.ended(99)
    return answer


def _delta(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


CALL = {"index": 0, "id": "c", "function": {"name": "look", "arguments": ""}}


@pytest.mark.parametrize(
    ("events", "times_ns", "text"),
    [
        (
            [_delta(role="assistant", content=None), _delta(reasoning_content="a"), _delta(content="b")],
            [1, 2],
            "ab",
        ),
        ([_delta(role="assistant", content=""), _delta(reasoning="a"), _delta("stop")], [1], "a"),
        ([_delta(role="assistant", content=""), _delta(content="", reasoning_content="a")], [1], "a"),
        ([_delta(role="assistant", content="a"), _delta(role="assistant", content="b")], [0, 1], "ab"),
        ([_delta(role="assistant", content=""), _delta(role="assistant", content="")], [1], ""),
        (
            [_delta(role="assistant"), _delta(tool_calls=[CALL]), _delta("tool_calls", tool_calls=[CALL])],
            [1, 2],
            "looklook",
        ),
        ([_delta(role="assistant"), _delta(tool_calls=[{"index": 0, "id": "c"}])], [1], " "),
        ([_delta(role="assistant", tool_calls=[]), _delta(function_call={"arguments": "{}"})], [1], "{}"),
        ([_delta(content=[{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}])], [0], "ab"),
        ([_delta(refusal="no"), _delta("stop", content="")], [0], "no"),
        ([_delta(content="a"), {**_delta(content=""), "usage": {"completion_tokens": 1}}], [0, 1], "a"),
        (
            [
                {**_delta(content="a"), "usage": {"completion_tokens": 1}},
                {**_delta(content=""), "usage": {"completion_tokens": 2}},
                {**_delta(content=""), "usage": {"completion_tokens": 2}},
            ],
            [0, 1],
            "a",
        ),
        (
            [{**_delta(content="a"), "error": None}, {"choices": None, "usage": None}, {"choices": [7]}],
            [0],
            "a",
        ),
        (
            [
                {"choices": [{"text": "a", "finish_reason": "length"}]},
                {"choices": [{"text": "", "finish_reason": "stop"}]},
            ],
            [0],
            "a",
        ),
    ],
)
def test_every_kind_of_delta_is_a_token(events: list[Any], times_ns: list[int], text: str) -> None:
    answer = _streamed(*events)
    assert answer.end[0] == "ok"
    assert (answer.times_ns, "".join(answer.text)) == (times_ns, text)


@pytest.mark.parametrize("event", [5, [], "error", None])
def test_an_event_that_is_no_object_is_an_error(event: Any) -> None:
    assert _streamed(event).end[0] == "error"


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": None}, {"completion_tokens": "x"}, 7, {"prompt_tokens": -3}]
)
def test_a_usage_without_counts_says_nothing(usage: Any) -> None:
    assert _streamed({**_delta(content="a"), "usage": usage}).prompt_tokens == -1


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://a:b",
        "http://a:99999",
        "http://a b",
        "http://a/ b",
        "ftp://a",
        "",
        "http://",
        "http://é",
        "http://a:0",
        "http://u:p@a",
        "http://a/?q=1",
        "http://[x]",
        "//[",
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="--server-url"):
        Target.of(url, {})


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    assert b"Host: [::1]:8000\r\n" in Target.of("http://[::1]:8000/v1", {}).request("GET", "/health")


def test_a_stream_without_its_end_is_an_error() -> None:
    answer = ObservedAnswer()
    answer.head(200, {"content-type": "text/event-stream"})
    answer.data(b'data: {"choices":[{"text":"a"}]}\n\n', 1)
    answer.ended(2)
    assert answer.end[0] == "error"


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd", b"abcd"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=1\r\nab\r\n2\r\ncd\r\n0\r\n\r\n",
            b"abcd",
        ),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcd", b"abcd"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"nonsense\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabcd", None),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_responses_are_read_in_any_pieces(response: bytes, body: bytes | None, step: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(response), step):
            writer.write(response[start : start + step])
            await writer.drain()
        writer.close()

    async def use() -> Any:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        whole = Whole()
        client = HttpClient(Target.of(f"http://127.0.0.1:{port}", {}))
        try:
            await client.send(client.target.request("GET", "/"), whole)
        finally:
            client.close()
            server.close()
        return whole.body

    if body is None:
        with pytest.raises(HttpError):
            asyncio.run(use())
    else:
        assert asyncio.run(use()) == body


def test_a_late_client_reports_it_and_by_how_much() -> None:
    def at(late_ms: float) -> list[MeasuredRequest]:
        late_ns = int(late_ms * 1e6)
        return [
            MeasuredRequest(row, 0, late_ns, [late_ns + 50_000_000], late_ns + 60_000_000, ("ok", "", ""))
            for row in range(10)
        ]

    assert late_note(lateness(at(0.2))) == ""
    note = late_note(lateness(at(5.0)))
    assert "p99 of the send error 5.00 ms" in note
    assert "mean TTFT by 10.0 %" in note


def test_lengths_of_prompts_follow_the_count_of_the_server() -> None:
    counting = Counting.of((10, 110), (25, 225))  # 5 of its own, and 2 a word
    assert counting.words(205) == 100
    assert counting.words(1) == 1


def test_the_command_line_of_blis_names_the_two_files_of_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, data = tmp_path / "h.yaml", tmp_path / "d.csv"
    with served(ServeSettings(port=0, api_key="k"), ("/instance-0",)) as (service, _):
        words = ["observe", "--server-url", f"{service.url}/instance-0", "--api-key", "k", *WORK]
        words += ["--trace-header", str(header), "--trace-data", str(data)]
        assert main(words) == 0
        before = data.read_bytes()
        assert main(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert header.read_text().startswith("trace_version")
    assert data.read_bytes() == before == (tmp_path / "d-observed" / "trace.csv").read_bytes()


def test_a_measurement_without_a_place_for_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["observe", "--server-url", "http://127.0.0.1:1", "--trace-data", "d.csv"]) == 2
    assert "--out: is needed; add --out, or --trace-header and --trace-data" in capsys.readouterr().err
