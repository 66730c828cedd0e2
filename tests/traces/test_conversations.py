"""Conversations of every format are sessions whose prompts begin with the turn before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blis_py as blis
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.reading import Reading


def lines(folder: Path, *rows: dict[str, Any], name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, **settings: Any) -> tuple[RequestTable, Reading]:
    reading = Reading(**settings)
    return read_trace(path, reading=reading), reading


def text_of(table: RequestTable, row: int) -> list[tuple[str | int, int]]:
    """Every token of a prompt that may be shared, by its segment and place."""
    runs = table.contents[table.content[row]] if table.content[row] >= 0 else ()
    tokens = [(segment, place) for segment, length in runs for place in range(length)]
    return tokens[: table.prompt_tokens[row]]


def shared(table: RequestTable, one: int, other: int) -> int:
    """Leading tokens that two prompts have in common."""
    pairs = list(zip(text_of(table, one), text_of(table, other), strict=False))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))


def aiperf(at_s: float, turn: int, prompt: int, output: int = 10, **metadata: Any) -> dict[str, Any]:
    identity = {"conversation_id": "k", "x_correlation_id": "c", "turn_index": turn} | metadata
    start_ns = round(at_s * 1e9) + 10**18
    sizes = {"input_sequence_length": prompt, "output_sequence_length": output}
    times = {"request_start_ns": start_ns, "request_end_ns": start_ns + 10**9}
    return {
        "metadata": identity | times | {"benchmark_phase": "profiling"},
        "metrics": {name: {"value": value, "unit": "tokens"} for name, value in sizes.items()},
    }


def test_turns_of_aiperf_are_one_session_and_each_prompt_begins_with_the_one_before(tmp_path: Path) -> None:
    path = lines(tmp_path, aiperf(0, 0, 100), aiperf(5, 1, 150), aiperf(9, 2, 190))
    table, reading = read(path)
    assert table.session_ids() == ["c", "c", "c"]
    assert table.round_index is not None
    assert table.round_index.tolist() == [0, 1, 2]
    assert [shared(table, 0, 1), shared(table, 1, 2)] == [100, 150]
    assert text_of(table, 1)[100:110] == text_of(table, 2)[100:110] != []  # the answer, too
    assert "1 conversation of several turns: each prompt begins with the one before" in reading.notes
    waiting, _ = read(path, session_mode="closed-loop")
    assert waiting.think_ns is not None
    assert waiting.think_ns.tolist() == [0, 4 * 10**9, 3 * 10**9]  # an answer takes a second


def test_a_conversation_of_aiperf_that_begins_again_is_another_session(tmp_path: Path) -> None:
    rows = [
        aiperf(at, turn, 100 + 50 * turn, x_correlation_id=None)
        for at, turn in ((0, 0), (1, 1), (8, 0), (9, 1))
    ]
    table, _ = read(lines(tmp_path, *rows))
    assert table.session is not None
    assert table.session.tolist() == [0, 0, 1, 1]


def test_requests_of_a_single_turn_are_no_sessions(tmp_path: Path) -> None:
    rows = [aiperf(at, 0, 100, conversation_id=f"k{at}", x_correlation_id=f"c{at}") for at in range(3)]
    assert read(lines(tmp_path, *rows))[0].session is None


def test_a_turn_is_where_its_index_is_even_if_it_arrived_out_of_order(tmp_path: Path) -> None:
    table, _ = read(lines(tmp_path, aiperf(1, 1, 150), aiperf(0, 0, 100)))
    assert table.prompt_tokens.tolist() == [100, 150]
    assert shared(table, 0, 1) == 100


def test_a_shorter_prompt_begins_anew_and_is_counted(tmp_path: Path) -> None:
    prompts = (100, 150, 190, 230, 90, 140)
    table, reading = read(lines(tmp_path, *(aiperf(at, at, prompt) for at, prompt in enumerate(prompts))))
    assert shared(table, 3, 4) == 0
    assert shared(table, 4, 5) == 90
    assert "1 shorter prompts begin anew" in reading.notes[0]


def test_one_line_says_that_prompts_do_not_grow(tmp_path: Path) -> None:
    table, reading = read(lines(tmp_path, *(aiperf(at, at, 100 - at) for at in range(4))))
    assert (table.content < 0).all()
    assert table.session_ids() == ["c"] * 4
    assert "prompts of 1 conversation of several turns do not grow" in reading.notes[0]


def burstgpt(*rows: Sequence[Any]) -> str:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    return head + "".join(f"{at},{who},1,GPT-4,{prompt},10,0,Conversation log\n" for at, who, prompt in rows)


def test_sessions_of_burstgpt_are_conversations(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(burstgpt((0, "a", 50), (3, "b", 40), (9, "a", 80), (9, "", 30)))
    table, _ = read(tmp_path / "b.csv")
    assert table.session_ids() == ["a", "b", "a", ""]
    assert shared(table, 0, 2) == 50


def test_columns_of_any_table_name_session_and_turn(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at,chat,n,in,out\n5,x,1,80,10\n0,x,0,50,10\n1,y,0,50,10\n")
    columns = {"arrival": "at", "session_id": "chat", "turn": "n", "input": "in", "output": "out"}
    table, _ = read(tmp_path / "t.csv", columns=columns)
    assert table.session_ids() == ["x", "y", "x"]
    assert [shared(table, 0, 2), shared(table, 0, 1)] == [50, 0]


COLUMNS = {"arrival": "t", "input": "p", "output": "o"}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *((name, True) for name in ("session_id", "sessionId", "Conversation ID", "chat.id", "thread_id")),
        *((name, False) for name in ("request_id", "id", "user.id", "chats", "sessions", "chat_ids")),
    ],
)
def test_one_line_names_the_column_of_conversations_that_is_left_out(
    tmp_path: Path, name: str, known: bool
) -> None:
    rows = [{"t": at, "p": 9 + 9 * at, "o": 2} for at in range(3)]
    first, _, last = name.rpartition(".")
    own = {first: {last: "a"}} if first else {last: "a"}
    path = lines(tmp_path, *(row | own for row in rows))
    table, reading = read(path, columns=COLUMNS)
    assert table.session is None
    assert any(f"session_id={name} plays conversations" in note for note in reading.notes) == known
    table, reading = read(path, columns=COLUMNS | {"session_id": name})
    assert table.session_ids() == ["a", "a", "a"]
    assert not any("plays conversations" in note for note in reading.notes)


def test_a_published_table_with_a_column_of_conversations_has_them(tmp_path: Path) -> None:
    header = "arrival_timestamp,prompt_size,token_size,request_id,conversation_id"
    (tmp_path / "s.csv").write_text(f"{header}\n0,10,5,a,x\n1,30,5,b,x\n2,10,5,c,y\n")
    assert read(tmp_path / "s.csv")[0].session_ids() == ["x", "x", "y"]


def test_columns_of_parquet_name_session_and_turn(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    rows = {"at": [0.0, 5.0], "chat": ["x", "x"], "n": [0, 1], "in": [50, 80], "out": [10, 10]}
    pa.parquet.write_table(pa.table(rows), tmp_path / "t.parquet")
    columns = {"arrival": "at", "session_id": "chat", "turn": "n", "input": "in", "output": "out"}
    table, _ = read(tmp_path / "t.parquet", columns=columns)
    assert shared(table, 0, 1) == 50


@pytest.mark.parametrize("place", ["top", "info"])
def test_turns_of_guidellm_and_inference_perf_are_conversations(tmp_path: Path, place: str) -> None:
    def placed(turn: int, names: tuple[str, str]) -> dict[str, Any]:
        found = dict(zip(names, ("c", turn), strict=True))
        return found if place == "top" else {"info": found}

    own = [
        placed(turn, ("conversation_id", "turn_index"))
        | {"request_start_time": turn, "prompt_tokens": 50 + 30 * turn, "output_tokens": 10}
        for turn in range(2)
    ]
    (tmp_path / "g.json").write_text(json.dumps({"benchmarks": [{"requests": {"successful": own}}]}))
    assert shared(read(tmp_path / "g.json")[0], 0, 1) == 50
    sent = []
    for turn in range(2):
        row = placed(turn, ("session_id", "turn"))
        info = {"input_tokens": 50 + 30 * turn, "output_tokens": 10} | row.get("info", {})
        sent.append(row | {"start_time": turn, "end_time": turn + 0.5, "info": info})
    (tmp_path / "i.json").write_text(json.dumps(sent))
    assert shared(read(tmp_path / "i.json")[0], 0, 1) == 50


def test_longer_conversations_of_sharegpt_are_counted(
    tmp_path: Path,
) -> None:
    turns = [{"value": "a"}] * 4
    (tmp_path / "s.json").write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:2]}]))
    assert (
        "of 1 longer conversations only the first question is sent" in read(tmp_path / "s.json")[1].notes[0]
    )


def mooncake(at_ms: int, prompt: int, ids: list[int] | None, **more: Any) -> dict[str, Any]:
    named = {} if ids is None else {"hash_ids": ids}
    return {"timestamp": at_ms, "session_id": "s", "input_length": prompt, "output_length": 4} | named | more


def test_additions_of_mooncake_are_whole_conversations_after_their_delay(tmp_path: Path) -> None:
    table, reading = read(lines(tmp_path, mooncake(0, 16, [1]), mooncake(10, 8, [2], delay=5)))
    assert table.prompt_tokens.tolist() == [16, 28]
    assert table.think_ns is not None
    assert table.think_ns.tolist() == [0, 5_000_000]
    assert [segment for segment, _ in table.contents[table.content[1]]] == [1, "s, answer 0", 2]
    assert shared(table, 0, 1) == 16
    assert "1 later turn has only an addition: the conversation is sent" in reading.notes


def test_turns_of_mooncake_that_begin_with_the_ids_before_are_whole_prompts(tmp_path: Path) -> None:
    table, _ = read(lines(tmp_path, mooncake(0, 512, [1]), mooncake(10, 600, [1, 2], delay=5)))
    assert table.prompt_tokens.tolist() == [512, 600]


@pytest.mark.parametrize(("later", "prompt"), [(8, 16 + 4 + 8), (20, 20)])
def test_without_ids_a_prompt_shorter_than_the_conversation_is_an_addition(
    tmp_path: Path, later: int, prompt: int
) -> None:
    table, _ = read(lines(tmp_path, mooncake(0, 16, None), mooncake(10, later, None, delay=5)))
    assert table.prompt_tokens.tolist() == [16, prompt]


def chat(number: int, parent: int, at_s: float, prompt: int, ids: list[int]) -> dict[str, Any]:
    own = {"chat_id": number, "parent_chat_id": parent, "type": "text", "turn": 1}
    return own | {"timestamp": at_s, "input_length": prompt, "output_length": 9, "hash_ids": ids}


def test_chats_of_qwen_bailian_are_sessions_in_seconds_with_ids_of_16_tokens(tmp_path: Path) -> None:
    rows = [chat(0, -1, 0.5, 20, [1, 2]), chat(1, -1, 0.9, 16, [9]), chat(2, 0, 2.5, 40, [1, 2, 3])]
    table, reading = read(lines(tmp_path, *rows))
    assert "Qwen-Bailian" in reading.chosen_as
    assert table.arrival_ns.tolist() == [500_000_000, 900_000_000, 2_500_000_000]
    assert table.session_ids() == ["0", "1", "0"]
    assert table.contents[table.content[2]][:1] == ((1, 16),)


def agent_rows(**more: Any) -> dict[str, Any]:
    calls = [
        {"t": 0.0, "in": 128, "out": 20, "hash_ids": [1, 2], "think_time": 0.0},
        {"t": 4.5, "in": 200, "out": 5, "hash_ids": [1, 2, 3, 4], "think_time": 2.4},
    ]
    return {"id": "conv", "models": ["m"], "block_size": 64, "requests": calls} | more


def test_a_conversation_per_line_is_played_turn_after_turn(tmp_path: Path) -> None:
    table, reading = read(lines(tmp_path, agent_rows(), agent_rows(id="other")))
    assert table.session_ids() == ["conv", "other", "conv", "other"]
    assert table.think_ns is not None
    assert table.think_ns.tolist() == [0, 0, 2_400_000_000, 2_400_000_000]
    assert [shared(table, 0, 2), shared(table, 0, 1)] == [128, 0]  # ids are those of a conversation
    assert not reading.has_times
    everywhere, _ = read(lines(tmp_path, *(agent_rows(id=i, hash_id_scope="global") for i in ("a", "b"))))
    assert shared(everywhere, 0, 1) == 128


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"requests": []}, "must be a list of requests"),
        ({"block_size": 0}, "not a number of tokens"),
        ({"requests": [{"t": 0, "in": 128, "out": 1, "hash_ids": [1] * 9}]}, "9 ids for 128 tokens"),
        ({"requests": [{"t": 0, "in": 8, "out": 1, "think_time": -1}]}, "not a pause"),
        ({"requests": [{"t": 0, "requests": []}]}, "must be a list of requests"),
        ({"requests": [{"t": 0, "requests": [{"t": 0, "in": 8, "out": 1}]}]}, "no request of its own"),
        ({"requests": [{"in": 8, "requests": [{"t": 0, "in": 8, "out": 1}]}]}, "t: not a time"),
    ],
)
def test_a_wrong_conversation_is_found(tmp_path: Path, change: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=rf"t\.jsonl:2.*{part}"):
        read(lines(tmp_path, agent_rows(), agent_rows(id="x") | change))


def call(at_s: float, tokens: int, ids: list[int], took_s: float | None = 0.9) -> dict[str, Any]:
    of = {"type": "n", "model": "large", "input_types": ["text"], "stop": "tool_use", "think_time": 0.2}
    return of | {"t": at_s, "in": tokens, "out": 30, "hash_ids": ids, "api_time": took_s}


def subagent(at_s: float, *calls: dict[str, Any], name: str = "agent_001", **more: Any) -> dict[str, Any]:
    of = {"type": "subagent", "agent_id": name, "subagent_type": "Explore", "duration_ms": 4000}
    return of | {"t": at_s, "status": "completed", "models": ["large"], "requests": list(calls)} | more


@pytest.mark.parametrize("begins_s", [0.0, 1.0])
def test_subagents_of_weka_are_sessions_whose_times_are_of_the_agent_or_of_the_conversation(
    tmp_path: Path, begins_s: float
) -> None:
    """Like one of AIPerf's tests (absolute times), and as kv-cache-tester writes it (relative ones)."""
    inner = [call(begins_s + 0.2, 200, [10, 11]), call(begins_s + 1.4, 260, [10, 11, 12])]
    outer = [call(0.0, 180, [1, 2], 0.8), subagent(1.0, *inner), call(6.0, 280, [1, 2, 10, 4])]
    table, reading = read(lines(tmp_path, agent_rows(), agent_rows(id="x", requests=outer)))
    assert table.session_ids() == ["conv", "x", "x/agent_001", "x/agent_001", "conv", "x"]
    assert (table.arrival_ns / 1e6).tolist() == [0, 0, 1200, 1400, 2400, 5200]
    assert table.prompt_tokens.tolist() == [128, 180, 200, 260, 200, 280]
    assert table.think_ns is not None
    assert (table.think_ns / 1e6).tolist() == [0, 0, 0, 200, 2400, 5200]  # 6.0 - 0.8: the agent works
    assert [shared(table, 1, 5), shared(table, 2, 3)] == [128, 128]
    assert any(note.startswith("1 sub-agent: sessions of their own") for note in reading.notes)
    played = blis.replay(tmp_path / "t.jsonl", model="llama-3.1-8b")
    assert played.requests["outcome"].tolist() == ["completed"] * 6


def test_a_turn_does_not_wait_for_a_subagent_in_the_background(tmp_path: Path) -> None:
    behind = subagent(1.0, call(1.2, 200, [10, 11]), status="async_launched", duration_ms=None)
    outer = [call(0.0, 180, [1, 2]), behind, call(6.0, 280, [1, 2]), call(7.0, 290, [1, 2], None)]
    table, _ = read(lines(tmp_path, agent_rows(requests=outer)))
    assert table.think_ns is not None
    assert (table.think_ns / 1e6).tolist() == [0, 200, 200, 0]  # two of three turns, and that of the agent
    assert table.session_ids() == ["conv", "conv", "conv", "conv/agent_001"]


def test_agents_of_agents_and_of_one_name_are_each_a_session(tmp_path: Path) -> None:
    deep = subagent(2.0, call(2.5, 100, [5]), name="b")
    outer = [call(0.0, 180, [1]), subagent(1.0, call(1.1, 90, [3]), deep, name="a"), deep, deep]
    table, _ = read(lines(tmp_path, agent_rows(requests=outer)))
    assert table.session_ids() == ["conv", "conv/a", "conv/a/b", "conv/b", "conv/b 2"]
    assert (table.arrival_ns / 1e6).tolist() == [0, 1100, 2500, 2500, 2500]


def dynamo(name: str, at_ms: int, session: str | None, ids: list[int]) -> dict[str, Any]:
    replay = {"trace_block_size": 4, "input_length": 4 * len(ids), "input_sequence_hashes": ids}
    request = {"request_id": name, "output_tokens": 2, "request_received_ms": at_ms, "replay": replay}
    row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
    return row if session is None else row | {"agent_context": {"session_id": session}}


def test_requests_of_dynamo_come_at_their_times_and_in_their_sessions(tmp_path: Path) -> None:
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {}}
    rows = [tool, dynamo("a", 100, "p", [1]), dynamo("b", 120, "q", [7]), dynamo("c", 150, "p", [1, 2])]
    table, _ = read(lines(tmp_path, *rows))
    assert table.arrival_ns.tolist() == [0, 20_000_000, 50_000_000]
    assert table.session_ids() == ["p", "q", "p"]
    assert shared(table, 0, 2) == 4
    plain, _ = read(
        lines(tmp_path, {"event_type": "request_payload", "request_id": "a"}, dynamo("a", 9, None, [1]))
    )
    assert plain.session is None


def waiting(name: str, session: str, *before: tuple[str, str]) -> dict[str, Any]:
    needs = [{"request_id": other, "trigger": how, "delay_ms": 7} for other, how in before]
    own = {"request_id": name, "play_id": "p", "session_id": session, "not_before_ms": 3}
    return own | {"input_length": 4, "output_length": 2, "hash_ids": [1], "dependencies": needs}


HEAD = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"}


def test_agentic_mooncake_is_played_where_each_waits_for_the_answer_before(tmp_path: Path) -> None:
    table, _ = read(lines(tmp_path, HEAD, waiting("a", "s"), waiting("b", "s", ("a", "completion"))))
    assert table.think_ns is not None
    assert table.think_ns.tolist() == [0, 7_000_000]


@pytest.mark.parametrize("before", [("a", "dispatch"), ("z", "completion")])
def test_agentic_mooncake_with_other_dependencies_is_refused(tmp_path: Path, before: tuple[str, str]) -> None:
    rows = [HEAD, waiting("a", "s"), waiting("b", "s", before)]
    with pytest.raises(InputError, match=r"t\.jsonl:3: dependencies: waits for others"):
        read(lines(tmp_path, *rows))


def test_lengths_of_applied_compute_are_conversations(tmp_path: Path) -> None:
    row = {"num_turns": 2, "input_prompt_length": 16, "assistant_response_length": [4, 4]}
    row |= {"tool_call_output_length": [8, 8], "tool_call_latency": [0.01, 0.02]}
    table, reading = read(lines(tmp_path, row | {"final_assistant_response_length": 4}))
    assert table.prompt_tokens.tolist() == [16, 28, 40]
    assert table.think_ns is not None
    assert table.think_ns.tolist() == [0, 10_000_000, 20_000_000]
    assert shared(table, 1, 2) == 28
    assert not reading.has_times


def test_the_fixtures_of_agentic_formats(shared_data: Path) -> None:
    folder = shared_data / "agentic_formats"
    prompts = {path.stem: None for path in folder.glob("*.jsonl")}
    for name in prompts.keys() - {"agentic-mooncake"}:
        prompts[name] = read(folder / f"{name}.jsonl")[0].prompt_tokens.tolist()
    assert prompts == {
        "agentic-mooncake": None,
        "applied-compute-agentic": [16, 28, 40],
        "dynamo-agentic": [4, 4, 4, 4],
        "dynamo-standard": [4, 4],
        "mooncake-delta": [16, 28],
        "mooncake": [32, 24],
    }
    with pytest.raises(InputError, match="waits for others"):
        read(folder / "agentic-mooncake.jsonl")


def test_conversations_with_a_limit_in_flight_are_not_sent_all_at_once(tmp_path: Path) -> None:
    path = lines(tmp_path, aiperf(0, 0, 100), aiperf(5, 1, 150))
    settings = {"input_config": {"loadgen": {"concurrency": 1}}}
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(settings))
    result = blis.replay(path, model="llama-3.1-8b")
    assert np.diff(result.requests["arrival_s"]).tolist() == [5.0]
