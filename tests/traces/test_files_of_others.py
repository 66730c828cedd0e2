"""Files of other tools, as their users have them: read right, or refused with the reason."""

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
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize("separator", ["\t", ";"])
def test_tables_have_tabs_or_semicolons_between_cells(tmp_path: Path, separator: str) -> None:
    rows = "arrival_s,input_tokens,output_tokens\n0,480,31\n0.5,1210,250\n".replace(",", separator)
    table, _ = read(write(tmp_path, "t.tsv", rows))
    assert table.prompt_tokens.tolist() == [480, 1210]
    named = write(tmp_path, "n.tsv", 'ts,in,out,what\n0,480,31,"a b"\n1,5,6,x\n'.replace(",", separator))
    table, _ = read(named, columns={"arrival": "ts", "input": "in", "output": "out", "tenant_id": "what"})
    assert table.tenant.to_list() == ["a b", "x"]
    bad = write(tmp_path, "b.tsv", rows.replace("1210", "many"))
    with pytest.raises(InputError, match=r"b\.tsv:3: input_tokens: not a whole number"):
        read(bad)


LOG = {"arrival": "ts", "input": "usage.prompt_tokens", "output": "usage.completion_tokens"}


def log(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def entry(second: int, prompt: Any, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": 40}
    return {"ts": f"2026-06-01T10:00:{second:02}Z", "usage": usage, **more}


@pytest.mark.parametrize("rows", [1, 2])
def test_json_lines_of_a_log_are_read_by_the_places_of_their_values(tmp_path: Path, rows: int) -> None:
    entries = [entry(0, 512, model="m"), entry(2, 300, model="n")][:rows]
    table, _ = read(write(tmp_path, "l.jsonl", log(*entries)), columns=LOG | {"model": "model"})
    assert table.prompt_tokens.tolist() == [512, 300][:rows]
    assert table.arrival_ns.tolist() == [0, 2 * 10**9][:rows]
    assert table.model.to_list() == ["m", "n"][:rows]


def test_a_key_with_a_dot_in_its_name_is_meant_before_a_nested_one(tmp_path: Path) -> None:
    rows = log({"a.b": 7, "a": {"b": 9}, "out": 1})
    table, _ = read(write(tmp_path, "l.jsonl", rows), columns={"input": "a.b", "output": "out"})
    assert table.prompt_tokens.tolist() == [7]


def test_bad_values_of_a_log_have_their_line_and_may_be_skipped(tmp_path: Path) -> None:
    path = write(
        tmp_path, "l.jsonl", log(entry(0, 512)) + "\n" + log(entry(1, 2.5), entry(2, None), entry(3, 9))
    )
    with pytest.raises(InputError, match=r"l\.jsonl:3: usage\.prompt_tokens: not a whole number"):
        read(path, columns=LOG)
    rows = BadRows(skip=True)
    assert read(path, columns=LOG, bad=rows)[0].prompt_tokens.tolist() == [512, 9]
    assert rows.count == 2
    with pytest.raises(InputError, match=r"tokens: no such key; it has ts, usage\.prompt_tokens, usage\."):
        read(path, columns={"input": "tokens", "output": "usage.completion_tokens"})


def test_columns_of_a_file_that_has_none_name_what_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, "g.json", json.dumps({"benchmarks": []}, indent=1))
    with pytest.raises(
        InputError, match=r"only tables, JSON lines and JSON lists have columns.*this is GuideLLM"
    ):
        read(path, columns=LOG)


def old_vllm(completed: int, **more: Any) -> dict[str, Any]:
    sizes = {"input_lens": [9, 8, 7, 6], "output_lens": [5, 0, 0, 3]}
    return {"request_throughput": 1.0, "total_input_tokens": 30, "completed": completed, **sizes, **more}


@pytest.mark.parametrize(
    ("run", "prompts", "outputs"),
    [
        (old_vllm(4), [9, 8, 7, 6], [5, 1, 1, 3]),
        (old_vllm(2), [9, 6], [5, 3]),
        (old_vllm(3, ttfts=[0.1, 0.1, 0.0, 0.1]), [9, 8, 6], [5, 1, 3]),
        (old_vllm(3, ttfts=[0.1] * 4, errors=["", "timeout", "", ""]), [9, 7, 6], [5, 1, 3]),
    ],
)
def test_empty_answers_of_completed_requests_are_prefills(
    tmp_path: Path, run: dict[str, Any], prompts: list[int], outputs: list[int]
) -> None:
    table, _ = read(write(tmp_path, "v.json", run))
    assert (table.prompt_tokens.tolist(), table.output_tokens.tolist()) == (prompts, outputs)


@pytest.mark.parametrize(
    ("stated", "rate"),
    [
        (4.0, 4.0),
        *((one, None) for one in ("inf", float("inf"), 0, True, -2, 1e-320, 1e308, 10**400, "2", None, [2])),
    ],
)
def test_the_rate_of_a_benchmark_without_times_is_that_in_its_file(
    tmp_path: Path, stated: Any, rate: float | None
) -> None:
    assert read(write(tmp_path, "v.json", old_vllm(4, request_rate=stated)))[1].rate == rate


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "4", None, 10**400])
def test_what_is_no_limit_in_flight_of_a_benchmark_is_none(tmp_path: Path, limit: Any) -> None:
    assert read(write(tmp_path, "v.json", old_vllm(4, max_concurrency=limit)))[1].concurrency is None


def test_the_first_releases_of_aiperf_are_read(tmp_path: Path) -> None:
    def row(at_ns: int, phase: str) -> dict[str, Any]:
        metadata = {"timestamp_ns": 10**18 + at_ns, "credit_phase": phase, "turn_index": 0}
        sizes = {"input_sequence_length": {"value": 550}, "output_sequence_length": {"value": 193}}
        return {"metadata": metadata, "metrics": sizes, "error": None}

    rows = [row(0, "warmup"), *(row(at, "profiling") for at in (10**9, 1_500_000_000))]
    table, reading = read(write(tmp_path, "p.jsonl", log(*rows)))
    assert table.arrival_ns.tolist() == [0, 500_000_000]
    assert "1 request was left out: sent to warm the server up" in reading.notes


def summary(**more: Any) -> dict[str, Any]:
    successes = {"count": 9, "prompt_len": {"mean": 512.0}, "output_len": {"mean": 64.0}}
    return {"load_summary": {}, "successes": successes, "failures": {}, **more}


@pytest.mark.parametrize(
    "content",
    [summary(), summary(load_summary={"count": 9, "send_duration": 3.0}, benchmark_time_seconds=0.0)],
)
def test_summaries_of_inference_perf_say_which_file_has_the_requests(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InputError, match=r"no requests, only figures; give per_request_lifecycle_metrics"):
        read(write(tmp_path, "summary_prometheus_metrics.json", content))


def test_a_sweep_of_vllm_is_read_run_by_run_or_names_what_its_summary_lacks(tmp_path: Path) -> None:
    figures = {"request_throughput": 1.0, "total_input_tokens": 30, "max_num_seqs": 32}
    path = write(tmp_path, "summary.json", [old_vllm(4), old_vllm(4, input_lens=[5, 5, 5, 5])])
    with pytest.raises(InputError, match=r"holds 2 runs; name one: summary\.json#0"):
        read(path)
    assert read(Path(f"{path}#1"))[0].prompt_tokens.tolist() == [5] * 4
    with pytest.raises(InputError, match=r"only figures; give its bench command --save-detailed"):
        read(write(tmp_path, "f.json", [figures]))
    table = "max_num_seqs,request_throughput,total_input_tokens\n32,1.0,30\n"
    with pytest.raises(InputError, match=r"only figures; give the result of one run"):
        read(write(tmp_path, "summary.csv", table))


def span(begin: str, end: str, **attributes: Any) -> dict[str, Any]:
    return {"trace_id": "t", "start_time": begin, "end_time": end, "attributes": attributes}


def messages(*texts: str) -> str:
    return json.dumps([{"role": "user", "parts": [{"type": "text", "content": text}]} for text in texts])


def test_spans_with_texts_only_have_guessed_lengths(tmp_path: Path) -> None:
    texts = {"gen_ai.input.messages": messages("abcdefgh"), "gen_ai.output.messages": messages("abc")}
    spans = [span("2026-02-26T10:00:00", "2026-02-26T10:00:02.5", **texts)]
    table, notes = read_spans(write(tmp_path, "s.json", {"spans": spans}))
    assert (table.prompt_tokens.tolist(), table.output_tokens.tolist()) == ([2], [1])
    assert any("guessed from their texts" in note for note in notes)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("zone", ["+00:00", "Z", ""])
def test_times_of_spans_may_have_an_offset(tmp_path: Path, zone: str) -> None:
    counts = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 2}
    spans = [
        span(f"2026-02-26T10:00:00{zone}", f"2026-02-26T10:00:01{zone}", **counts),
        span("2026-02-26T12:00:03.123456789+02:00", "2026-02-26T12:00:04+02:00", **counts),
    ]
    table, _ = read_spans(write(tmp_path, "s.json", {"spans": spans}))
    assert table.arrival_ns.tolist() == [0, 3_123_456_789]


@pytest.mark.parametrize("time", ["soon", "2026-13-01T00:00:00Z", "٢026-02-26T10:00:00", None])
def test_a_span_without_a_date_is_found(tmp_path: Path, time: Any) -> None:
    counts = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 2}
    spans = [span("2026-02-26T10:00:00", time, **counts)]
    with pytest.raises(InputError, match="no end time"):
        read_spans(write(tmp_path, "s.json", {"spans": spans}))
