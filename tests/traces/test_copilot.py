"""GitHub Copilot's traces of coding agents: calls of models within turns within sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_py import replay
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.reading import Reading


def call(second: float, prompt: Any, output: Any, model: str = "Model A", lasts_ms: Any = 900.5) -> Any:
    tokens = {"total": 9, "prompt": prompt, "completion": output, "cached": 5, "cached_pct": 50.0}
    date = f"2026-06-01T10:00:{second:06.3f}0000Z"  # seven digits
    more = {"message_id": "m", "initiator_type": "agent", "result": "Success", "message_metadata": []}
    return {"timestamp": date, "duration_ms": lasts_ms, "model": model, "tokens": tokens} | more


def session(name: str, *turns: list[Any]) -> dict[str, Any]:
    listed = [{"turn_id": str(number), "llm_calls": calls} for number, calls in enumerate(turns)]
    return {"session_id": name, "date": "2026-06-01", "turns": listed}


def read(folder: Path, *rows: dict[str, Any], **settings: Any) -> tuple[RequestTable, Reading]:
    path, reading = folder / "shard-0000.jsonl", Reading(**settings)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_trace(path, reading=reading), reading


def test_calls_of_a_session_are_turns_whose_prompts_grow(tmp_path: Path) -> None:
    first = session("s", [call(0, 1000, 40), call(2, 1100, 60)], [call(30, 1200, 10)])
    table, reading = read(tmp_path, first, session("t", [call(1.5, 700, 5)]))
    assert "GitHub Copilot" in reading.chosen_as
    assert table.session_ids() == ["s", "t", "s", "s"]
    assert (table.arrival_ns / 1e9).tolist() == [0, 1.5, 2, 30]
    assert table.prompt_tokens.tolist() == [1000, 700, 1100, 1200]
    before, after = (dict(table.contents[table.content[row]]) for row in (0, 2))
    assert sum(after[name] for name in before.keys() & after.keys()) == 1040
    assert "1 conversation of several turns: each prompt begins with the one before" in reading.notes
    assert reading.answered_ns is not None
    assert sorted(reading.answered_ns.tolist())[:2] == [900_500_000, 2_400_500_000]


def test_other_models_and_calls_at_the_same_time_are_sessions_of_their_own(tmp_path: Path) -> None:
    calls = [call(0, 1000, 40), call(0.5, 300, 9), call(0.5, 80, 3, "Model B"), call(2, 1100, 60)]
    table, _ = read(tmp_path, session("s", calls, [call(3, 90, 3, "Model B")]))
    assert table.session_ids() == ["s", "s/1", "s/Model B", "s/1", "s/Model B"]


def test_calls_without_prompt_or_answer_are_left_out(tmp_path: Path) -> None:
    calls = [call(0, 1000, 40), call(2, 0, 0), call(3, None, None), call(4, 1100, 0)]
    table, reading = read(tmp_path, session("s", calls), session("empty", []), session("no turns"))
    assert table.prompt_tokens.tolist() == [1000]
    assert "2 requests were left out: a call without a prompt" in reading.notes
    assert "1 request was left out: no output tokens (failed when recorded)" in reading.notes


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (call(0, 1.5, 40), "input tokens: not a whole number"),
        (call(0, 1000, "x"), "output tokens: not a whole number"),
        (call(0, 1000, 40, lasts_ms=-1), "duration_ms: not a duration"),
        (call(0, 1000, 40, lasts_ms="1"), "duration_ms: not a duration"),
        ({**call(0, 1000, 40), "timestamp": "soon"}, "timestamp: not a date"),
        ({**call(0, 1000, 40), "timestamp": None}, "timestamp: not a date"),
        ("a call", "timestamp: not a date"),
    ],
)
def test_a_wrong_call_is_found_and_may_be_skipped(tmp_path: Path, wrong: Any, problem: str) -> None:
    rows = session("s", [call(0, 1000, 40)]), session("t", [call(0, 900, 40)], [wrong])
    with pytest.raises(InputError, match=rf"jsonl:2: turns\[1\]\.llm_calls\[0\]: {problem}"):
        read(tmp_path, *rows)
    table, _ = read(tmp_path, *rows, bad=BadRows(skip=True))
    assert 1000 in table.prompt_tokens


def test_pauses_of_a_closed_loop_are_those_behind_the_answers(tmp_path: Path) -> None:
    read(tmp_path, session("s", [call(0, 1000, 40), call(5.9005, 1100, 60)]))
    path = tmp_path / "shard-0000.jsonl"
    result = replay(path, model="qwen3-14b", gpu="h100", session_mode="closed-loop")
    requests = result.requests
    pauses = np.diff(requests["arrival_s"]) - requests["e2e_ms"][:1] / 1e3
    assert pauses.tolist() == pytest.approx([5.0], abs=1e-3)
