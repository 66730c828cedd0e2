"""Files of public repositories, rebuilt in miniature: read right, or refused with what reads them."""

from __future__ import annotations

import json
import shlex
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


def answer(prompt: Any, output: int, error: int | None = None) -> dict[str, Any]:
    """An entry of llmperf's individual responses."""
    figures = {"ttft_s": 0.2, "end_to_end_latency_s": 0.9, "number_total_tokens": 9}
    lengths = {"number_output_tokens": output, "number_input_tokens": prompt}
    return {"error_code": error, "error_msg": "", **figures, **lengths}


LLMPERF = {"input": "number_input_tokens", "output": "number_output_tokens"}


def test_lists_of_objects_are_read_by_their_keys(tmp_path: Path) -> None:
    path = write(
        tmp_path, "m_individual_responses.json", [answer(548, 149), answer(550, 0, 429), answer(9, 3)]
    )
    assert refused(path).endswith("--columns input=number_input_tokens,output=number_output_tokens")
    table, reading = read(path, columns=LLMPERF)
    assert (table.prompt_tokens.tolist(), table.output_tokens.tolist()) == ([548, 9], [149, 3])
    assert any("left out: no output tokens" in note for note in reading.notes)
    bad = write(tmp_path, "b.json", [answer(548, 149), 7, answer(2.5, 3), answer(9, 3)])
    with pytest.raises(InputError, match=r"b\.json entry:1: not a JSON object"):
        read(bad, columns=LLMPERF)
    rows = BadRows(skip=True)
    assert read(bad, columns=LLMPERF, bad=rows)[0].prompt_tokens.tolist() == [548, 9]
    assert rows.count == 2
    with pytest.raises(InputError, match=r"entry:0: tokens: no such key; it has error_code"):
        read(path, columns={**LLMPERF, "input": "tokens"})


def test_a_log_whose_first_request_failed_is_read(tmp_path: Path) -> None:
    def batch(usage: Any) -> dict[str, Any]:
        response = usage and {"status_code": 200, "body": {"created": 1_790_000_000, "usage": usage}}
        return {"custom_id": "q", "response": response, "error": None if usage else {"code": "x"}}

    usage = {"prompt_tokens": 24, "completion_tokens": 15, "prompt_tokens_details": {"cached_tokens": 8}}
    path = write(tmp_path, "batch_output.jsonl", lines(batch(usage)))
    place = "response.body.usage"
    flag = f"arrival=response.body.created,input={place}.prompt_tokens,output={place}.completion_tokens"
    assert refused(path).endswith(f"name its columns: --columns {flag}")
    path = write(tmp_path, "batch_output.jsonl", lines(batch(None), batch(usage)))
    columns = dict(pair.split("=") for pair in flag.split(","))
    with pytest.raises(InputError, match=r"jsonl:1: response\.body\.created: neither a number nor a date"):
        read(path, columns=columns)
    assert read(path, columns=columns, bad=BadRows(skip=True))[0].prompt_tokens.tolist() == [24]


@pytest.mark.parametrize(
    ("names", "flag"),
    [
        # Vidur; Frontier; servers of LLMServingSim; logs of gateways
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens",
            "arrival=arrived_at,input=num_prefill_tokens,output=num_decode_tokens",
        ),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids",
            "arrival=arrived_at,input=num_prefill_tokens,output=num_decode_tokens,session_id=session_id",
        ),
        (
            "num_prefill_tokens,num_decode_tokens,pd_ratio",
            "input=num_prefill_tokens,output=num_decode_tokens",
        ),
        (
            "request_id,input_toks,output_toks,arrival_time,queued_ts,first_token_ts,last_token_ts",
            "arrival=arrival_time,input=input_toks,output=output_toks",
        ),
        (
            "id,endTime,startTime,totalTokens,completionTokens,promptTokens,sessionId",
            "arrival=startTime,input=promptTokens,output=completionTokens,session_id=sessionId",
        ),
        (
            "model,cached_input_tokens,input_tokens,output_tokens,latency_ms,request_timestamp_ms",
            "arrival=request_timestamp_ms,input=input_tokens,output=output_tokens --time-unit ms",
        ),
        ("Prompt Tokens,Completion Tokens", "'input=Prompt Tokens,output=Completion Tokens'"),
        ("user,ts,prompt_len,gen_len", "arrival=ts,input=prompt_len,output=gen_len"),
        # metrics of Vidur, whose sum comes first; exports of OpenRouter, LiteLLM and Langfuse; a proxy's log
        (
            "Request Id,request_num_tokens,request_num_prefill_tokens,request_num_decode_tokens",
            "input=request_num_prefill_tokens,output=request_num_decode_tokens",
        ),
        (
            "generation_id,created_at,cost_total,tokens_prompt,tokens_completion,generation_time_ms",
            "arrival=created_at,input=tokens_prompt,output=tokens_completion",
        ),
        (
            "request_id,spend,total_tokens,prompt_tokens,completion_tokens,startTime,endTime",
            "arrival=startTime,input=prompt_tokens,output=completion_tokens",
        ),
        (
            "id,timestamp,name,inputTokens,outputTokens,totalTokens,latency",
            "arrival=timestamp,input=inputTokens,output=outputTokens",
        ),
        ("ts,tokens_in_flight,tokens_in,tokens_out", "arrival=ts,input=tokens_in,output=tokens_out"),
        # rounds of LMCache's benchmark
        (
            "prompt_tokens,generation_tokens,ttft,generation_time,user_id,launch_time,finish_time",
            "arrival=launch_time,input=prompt_tokens,output=generation_tokens",
        ),
        ("Time,Request Tokens,Response Tokens", "'arrival=Time,input=Request Tokens,output=Response Tokens'"),
    ],
)
def test_unknown_files_are_refused_with_the_flag_that_reads_them(
    tmp_path: Path, names: str, flag: str
) -> None:
    row = dict.fromkeys(names.split(","), 7)
    for path in (
        write(tmp_path, "t.csv", f"{names}\n{','.join(map(str, row.values()))}\n"),
        write(tmp_path, "l.jsonl", lines(row, row)),
        write(tmp_path, "l.json", [row, row]),
    ):
        assert refused(path).endswith(f"name its columns: --columns {flag}")
        columns = dict(pair.split("=") for pair in shlex.split(flag)[0].split(","))
        assert read(path, columns=columns)[0].prompt_tokens[0] == 7


def test_what_has_no_lengths_is_not_taken_for_them(tmp_path: Path) -> None:
    path = write(
        tmp_path, "t.csv", "time,request_count,response_bytes,total_tokens,output_tokens_per_s\n1,2,3,4,5\n"
    )
    assert "--columns arrival=time,input=NAME,output=NAME (no " in refused(path)


@pytest.mark.parametrize(
    ("name", "content", "instead"),
    [
        (
            "profile_export_aiperf.csv",
            "Metric,avg,min,max,p1,std\nRequest Latency (ms),9,8,10,8,1\n",
            "profile_export",
        ),
        (
            "profile_export_genai_perf.csv",
            "Metric,avg,min,max,p99\nRequest Latency (ms),9,8,10,9\n",
            "profile_export",
        ),
        ("profile_export_aiperf.json", {"records": {}, "input_config": {}}, r"profile_export\.jsonl"),
        (
            "profile_export_genai_perf.json",
            {"request_throughput": {}, "input_config": {}},
            r"profile_export\.json ",
        ),
        (
            "stage_0_lifecycle_metrics.json",
            {"load_summary": {}, "successes": {}},
            "give per_request_lifecycle",
        ),
        (
            "summary_session_lifecycle_metrics.json",
            {"num_sessions": 2, "num_sessions_succeeded": 2},
            "give per_request_lifecycle",
        ),
        (
            "per_session_lifecycle_metrics.json",
            [{"session_id": "a", "start_time": 1.5, "num_events": 3, "total_input_tokens": 9}],
            "give per_request_lifecycle",
        ),
        ("m_summary.json", {"mean_input_tokens": 550, "num_concurrent_requests": 5}, "individual responses"),
        ("k6.csv", "metric_name,timestamp,metric_value,check\nhttp_reqs,1,1.0,\n", "log of the server"),
        ("locust_stats.csv", "Type,Name,Request Count,Requests/s\nPOST,/v1,9,1.0\n", "log of the server"),
        ("hey.csv", "response-time,status-code,offset\n0.18,200,0.1\n", "log of the server"),
        (
            "k6.json",
            lines({"metric": "http_reqs", "type": "Point", "data": {"time": "2025-05-14T14:35:16Z"}}) * 2,
            "log of the server",
        ),
        ("summary.json", {"root_group": {}, "metrics": {"http_reqs": {}}, "state": {}}, "log of the server"),
        ("oha.json", {"summary": {}, "latencyPercentiles": {}}, "log of the server"),
        (
            "vegeta.json",
            lines({"attack": "", "seq": 0, "code": 200, "latency": 9, "bytes_out": 1, "bytes_in": 2}) * 2,
            "log of the server",
        ),
        (
            "throughput.json",
            {"elapsed_time": 3.2, "num_requests": 9, "total_num_tokens": 90, "tokens_per_second": 28.0},
            "vllm bench serve",
        ),
        ("latency.json", {"avg_latency": 1, "latencies": [1], "percentiles": {}}, "vllm bench serve"),
        ("report.json", {"engine": {}, "request_info": {}, "performance": {}}, "--request_json"),
        (
            "profile_export_raw.jsonl",
            lines({"metadata": {}, "start_perf_ns": 1, "payload": {}, "responses": []}) * 2,
            r"profile_export\.jsonl",
        ),
        ("trtllm.jsonl", lines({"task_id": 0, "prompt": "Why?", "output_tokens": 9}) * 2, "count the tokens"),
        ("ids.jsonl", lines({"task_id": 0, "input_ids": [1], "output_tokens": 9}) * 2, "count the tokens"),
        (
            "multi_turn.jsonl",
            lines({"session_id": "a", "turns": [{"text": "Why?", "delay": 5}]}) * 2,
            "count the tokens",
        ),
        (
            "usage.csv",
            "start_time,end_time,num_model_requests,input_tokens,output_tokens\n1,61,12,5000,80\n",
            "a log with a row for each request",
        ),
        (
            "usage.json",
            {"object": "page", "data": [], "has_more": False},
            "a log with a row for each request",
        ),
        ("otel.json", {"trace_id": "t", "spans": []}, "blis convert otel --spans FILE"),
        ("collector.json", lines({"resourceSpans": []}) * 2, "blis convert otel --spans FILE"),
        ("jaeger.json", {"data": [], "limit": 0, "offset": 0}, "blis convert otel --spans FILE"),
        (
            "spans.jsonl",
            lines({"name": "chat", "start_time": "2026-01-01T00:00:00Z", "attributes": {}}) * 2,
            "blis convert otel --spans FILE",
        ),
        ("otlp.json", {"resourceSpans": []}, "blis convert otel --spans FILE"),
        ("trace.jsonl", lines({"text_input": "Why?", "output_length": 20}) * 2, "count the tokens"),
        (
            "mooncake.jsonl",
            lines({"messages": [], "output_length": 20, "timestamp": 5}) * 2,
            "count the tokens",
        ),
        ("batch.jsonl", lines({"custom_id": "q", "method": "POST", "body": {}}) * 2, "count the tokens"),
    ],
)
def test_files_without_requests_say_what_to_give_instead(
    tmp_path: Path, name: str, content: Any, instead: str
) -> None:
    with pytest.raises(InputError, match=rf"(it has no|they are converted|a row has the tokens).*{instead}"):
        read(write(tmp_path, name, content))


def test_a_list_within_an_object_is_taken_out_first(tmp_path: Path) -> None:
    calls = [
        {"startTime": "2026-01-01T00:00:00Z", "usageDetails": {"input": 5, "output": 3}, "sessionId": "s"}
    ]
    flag = (
        "--columns arrival=startTime,input=usageDetails.input,output=usageDetails.output,session_id=sessionId"
    )
    message = refused(write(tmp_path, "calls of May.json", {"meta": {}, "data": calls}))
    assert message.endswith(
        f"take its list out (jq .data 'calls of May.json' > list.json) and name the columns: {flag}"
    )
    assert refused(write(tmp_path, "list.json", calls)).endswith(f"name its columns: {flag}")
    columns = dict(pair.split("=") for pair in flag.split()[1].split(","))
    assert read(write(tmp_path, "list.json", calls), columns=columns)[0].prompt_tokens.tolist() == [5]


def test_times_of_conversations_are_not_dropped_without_a_word(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "abcdefgh"}, {"role": "assistant", "content": "abcd"}]
    row = {"conversation_hash": "a", "timestamp": "2023-04-09T00:02:53+00:00", "conversation": turns}
    _, reading = read(write(tmp_path, "chats.jsonl", lines(row, row)))
    assert any(note.startswith("timestamps of 2 conversations are not used") for note in reading.notes)


@pytest.mark.parametrize("more", [{"prompt_tokens": 5}, {"input_tokens": 5}])
def test_texts_with_counts_beside_them_have_lengths(tmp_path: Path, more: dict[str, int]) -> None:
    row = {"prompt": "Why?", "output_tokens": 9, "trace_id": "t", "span_id": "s"} | more
    (name,) = more
    assert refused(write(tmp_path, "l.jsonl", lines(row, row))).endswith(f"input={name},output=output_tokens")


def jaeger(begin_us: Any, lasts_us: Any, **tags: Any) -> dict[str, Any]:
    spelled = [
        {"key": key.replace("__", "."), "type": "int64", "value": value} for key, value in tags.items()
    ]
    names = {"traceID": "abc", "spanID": "d", "operationName": "llm_request", "references": [], "logs": []}
    return names | {"startTime": begin_us, "duration": lasts_us, "tags": spelled}


TOKENS = {"gen_ai__usage__prompt_tokens": 100, "gen_ai__usage__completion_tokens": 20}


def test_spans_of_vllm_may_come_from_jaeger(tmp_path: Path) -> None:
    spans = [
        jaeger(1_700_000_000_000_000, 200_000, **TOKENS),
        jaeger(1_700_000_000_500_000, 100_000, **TOKENS, gen_ai__request__max_tokens=50),
        jaeger(1_700_000_000_000_000, 5, http__status_code=200),
    ]
    document = {"data": [{"traceID": "abc", "spans": spans, "processes": {}}], "limit": 0, "offset": 0}
    table, notes = read_spans(write(tmp_path, "j.json", document))
    assert notes[0] == "2 calls of 3 spans, in 1 sessions of 1 conversations"
    assert table.arrival_ns.tolist() == [0, 500_000_000]
    assert (table.prompt_tokens.tolist(), table.output_tokens.tolist()) == ([100, 100], [20, 20])
    assert table.max_tokens.tolist() == [20, 50]
    assert table.think_ns is not None
    assert table.think_ns.tolist() == [-1, 300_000_000]


@pytest.mark.parametrize("times", [("soon", 5), (None, 5), (1.5, 5), (10**30, 5), (5, "long"), (5, None)])
def test_a_span_of_jaeger_without_a_time_is_found(tmp_path: Path, times: tuple[Any, Any]) -> None:
    document = {"data": [{"spans": [jaeger(*times, **TOKENS)]}]}
    with pytest.raises(InputError, match=r"no (start|end) time"):
        read_spans(write(tmp_path, "j.json", document))


def recorded_by_aiperf(
    second: int, session: str, conversation: str, turn: int, tokens: int
) -> dict[str, Any]:
    begin_ns = 1_700_000_000_000_000_000 + second * 10**9
    names = {"x_correlation_id": session, "root_correlation_id": "root", "conversation_id": conversation}
    names |= {"turn_index": turn, "benchmark_phase": "profiling", "was_cancelled": False}
    metrics = {"input_sequence_length": tokens, "output_sequence_length": 10}
    return {
        "metadata": names | {"request_start_ns": begin_ns, "request_end_ns": begin_ns + 500_000_000},
        "metrics": {key: {"value": value, "unit": "tokens"} for key, value in metrics.items()},
        "error": None,
    }


def test_subagents_of_aiperf_are_sessions_of_their_own(tmp_path: Path) -> None:
    """As its replay of agents records them: children have names of their own and share the root's."""
    rows = [
        recorded_by_aiperf(0, "root", "trace_01", 0, 1000),
        recorded_by_aiperf(1, "sub-1", "trace_01::sa:agent_001:s0", 0, 500),
        recorded_by_aiperf(2, "sub-2", "trace_01::sa:agent_002:s0", 0, 400),
        recorded_by_aiperf(3, "sub-1", "trace_01::sa:agent_001:s0", 1, 700),
        recorded_by_aiperf(4, "root", "trace_01", 1, 1500),
    ]
    skipped = recorded_by_aiperf(5, "root", "trace_01", 2, 9)
    skipped["metadata"]["context_overflow_skip"] = True
    table, reading = read(write(tmp_path, "profile_export.jsonl", lines(*rows, skipped)))
    assert table.session_ids() == ["root", "sub-1", "sub-2", "sub-1", "root"]
    assert table.round_index is not None
    assert table.round_index.tolist() == [0, 0, 0, 1, 1]
    assert (table.arrival_ns / 1e9).tolist() == [0, 1, 2, 3, 4]
    assert any("1 request was left out: not answered" in note for note in reading.stated())


def test_formats_that_are_refused_are_not_recommended(tmp_path: Path) -> None:
    for path in (write(tmp_path, "x.txt", "# figures\n"), write(tmp_path, "x.json", {"a": 1})):
        message = refused(path)
        assert "summary of" not in message
        assert message.count("sweep summary") == 1
        assert "OpenTelemetry" not in message


def test_conversations_of_sharegpt_may_be_lines(tmp_path: Path) -> None:
    def conversation(*texts: str) -> dict[str, Any]:
        return {"conversations": [{"from": "human", "value": text} for text in texts]}

    table, reading = read(
        write(
            tmp_path,
            "s.jsonl",
            lines(conversation("abcdefgh", "abcd"), conversation("alone"), conversation("a", "b")),
        )
    )
    assert (table.prompt_tokens.tolist(), table.output_tokens.tolist()) == ([2, 1], [1, 1])
    assert not reading.has_times


def test_groups_of_a_generated_mooncake_trace_have_no_effect(tmp_path: Path) -> None:
    first = {"session_id": "a", "input_length": 1024, "output_length": 30, "hash_ids": [0, 1]}
    then = {"session_id": "a", "input_length": 100, "output_length": 4, "hash_ids": [9], "delay": 1200.5}
    path = write(tmp_path, "dataset.jsonl", lines({**first, "timestamp": 0.0, "group_id": 46}, then))
    assert read(path)[0].prompt_tokens.tolist() == [1024, 1024 + 30 + 100]


FIGURES = {"completed": 4, "request_throughput": 2.6, "total_input_tokens": 128, "max_concurrency": 2}
SGLANG = {"backend": "sglang", "total_output_tokens_retokenized": 9}


@pytest.mark.parametrize(
    ("name", "content", "fix"),
    [
        ("summary.json", [FIGURES, FIGURES], "--save-detailed"),
        ("appended.jsonl", lines(FIGURES, FIGURES), "--save-detailed"),
        ("sglang.jsonl", lines({**FIGURES, **SGLANG}) * 2, "--output-details"),
    ],
)
def test_several_runs_without_requests_are_refused_before_one_is_chosen(
    tmp_path: Path, name: str, content: Any, fix: str
) -> None:
    with pytest.raises(InputError, match=f"only figures.*{fix}"):
        read(write(tmp_path, name, content))


def test_a_run_all_of_whose_requests_failed_says_so(tmp_path: Path) -> None:
    run = {**FIGURES, "completed": 0, "failed": 3, "input_lens": [32, 31, 9], "output_lens": [0, 0, 0]}
    assert "no requests in it: all 3 failed when recorded" in refused(write(tmp_path, "v.json", run))


def test_agents_of_a_conversation_of_guidellm_are_sessions(tmp_path: Path) -> None:
    def request(agent: str | None, turn: int, start_s: float, end_s: float, prompt: int) -> dict[str, Any]:
        info = {"conversation_id": "c", "turn_index": turn, "agent_id": agent}
        times = {"request_start_time": 1_790_000_000 + start_s, "request_end_time": 1_790_000_000 + end_s}
        return {"info": info, "prompt_tokens": prompt, "output_tokens": 50, **times}

    main = request("main", 0, 0, 2, 1000), request("main", 2, 6, 7, 1200)
    helpers = request("a", 1, 2.5, 5, 300), request("b", 1, 2.5, 4, 310)
    document = {"benchmarks": [{"requests": {"successful": [*main, *helpers]}}]}
    table, reading = read(write(tmp_path, "benchmarks.json", document))
    assert table.session is not None
    assert [table.session_names[number] for number in table.session] == ["c/main", "c/a", "c/b", "c/main"]
    assert any("each prompt begins with the one before" in note for note in reading.notes)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_conversation_of_agents_may_be_a_file(tmp_path: Path, indent: int | None) -> None:
    def request(at_s: float, prompt: int, think_s: float) -> dict[str, Any]:
        ids = list(range(prompt // 64))
        return {"t": at_s, "type": "n", "in": prompt, "out": 20, "hash_ids": ids, "think_time": think_s}

    requests = [request(0.0, 1000, 0.0), request(53.0, 2005, 46.0)]
    conversation = {"id": "trace 1", "block_size": 64, "hash_id_scope": "local", "requests": requests}
    table, _ = read(write(tmp_path, "trace_0001.json", json.dumps(conversation, indent=indent)))
    assert table.prompt_tokens.tolist() == [1000, 2005]
    assert table.think_ns is not None
    assert table.think_ns.tolist() == [0, 46 * 10**9]


def said(
    *turns: tuple[str, str], keys: tuple[str, str, str] = ("conversations", "from", "value")
) -> dict[str, Any]:
    name, role, text = keys
    return {name: [{role: by, text: words} for by, words in turns]}


SYSTEM, QUESTION, ANSWER = ("system", "s" * 400), ("human", "q" * 40), ("gpt", "a" * 80)
OPENAI = ("messages", "role", "content")


@pytest.mark.parametrize(
    ("entry", "prompt", "output", "longer"),
    [
        (said(QUESTION, ANSWER), 10, 20, False),
        (said(SYSTEM, QUESTION, ANSWER), 110, 20, False),
        (said(ANSWER, QUESTION, ("gpt", "b" * 4)), 10, 1, False),
        (said(SYSTEM, QUESTION, ANSWER, QUESTION, ANSWER), 110, 20, True),
        (said(SYSTEM, ("user", "q" * 40), ("assistant", "a" * 80), keys=OPENAI), 110, 20, False),
    ],
)
def test_the_prompt_of_a_conversation_is_its_question_after_the_system_prompt(
    tmp_path: Path, entry: dict[str, Any], prompt: int, output: int, longer: bool
) -> None:
    for path in (write(tmp_path, "s.json", [entry]), write(tmp_path, "s.jsonl", lines(entry, entry))):
        table, reading = read(path)
        assert (table.prompt_tokens[0], table.output_tokens[0]) == (prompt, output)
        assert any("longer conversation" in note for note in reading.notes) == longer


@pytest.mark.parametrize("turns", [[SYSTEM, QUESTION], [ANSWER, QUESTION], [SYSTEM, ANSWER], [QUESTION], []])
def test_a_conversation_without_an_answered_question_is_left_out(
    tmp_path: Path, turns: list[tuple[str, str]]
) -> None:
    path = write(tmp_path, "s.json", [said(QUESTION, ANSWER), said(*turns)])
    table, reading = read(path)
    assert len(table) == 1
    assert "1 request was left out: a conversation without question and answer" in reading.notes
