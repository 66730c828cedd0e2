"""Files that public repositories hold, rebuilt in miniature: read right, or refused with the flag that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.otel import read_spans
from blis_py.traces.reading import Reading


def read(path: Path, **settings: Any) -> tuple[RequestTable, Reading]:
    reading = Reading(**settings)
    return read_trace(path, reading=reading), reading


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return path


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    return str(caught.value)


def span(begin: str, end: str, **attributes: Any) -> dict[str, Any]:
    return {"trace_id": "t", "start_time": begin, "end_time": end, "attributes": attributes}


@pytest.mark.parametrize(
    ("counts", "prompt", "output", "guessed"),
    [
        ({}, 2, 3, True),
        ({"gen_ai.usage.completion_tokens": 7}, 2, 7, True),
        ({"gen_ai.usage.input_tokens": 9}, 9, 3, True),
        ({"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 7}, 9, 7, False),
    ],
)
def test_spans_of_inference_perf_have_answers_as_text_and_one_count_at_most(
    tmp_path: Path, counts: dict[str, int], prompt: int, output: int, guessed: bool
) -> None:
    texts = {
        "exgentic.session.id": "case 7",
        "gen_ai.input.messages": json.dumps([{"role": "user", "content": "abcdefgh"}]),
        "gen_ai.output.text": "abcdefghij",
    }
    spans = [span("2026-03-02T09:00:00", "2026-03-02T09:00:02", **texts, **counts)]
    table, notes = read_spans(write(tmp_path, "s.json", {"trace_id": "t", "spans": spans}))
    assert (table.prompt_tokens.tolist(), table.output_tokens.tolist()) == ([prompt], [output])
    assert table.session_names == ["case 7"]
    assert any("guessed from their texts" in note for note in notes) == guessed
