"""Workloads from metrics and from spans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from blis_py import run
from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.traces.otel import read_spans
from blis_py.traces.prometheus import read_metrics


def scrape(time_s: float, ended: int, prompts: tuple[int, int, int], hits: int = 0) -> str:
    """A scrape after so many requests of 150 tokens and as many of 300, with answers of 64."""
    low, high, count = prompts
    itl_s = 0.02 * ended * 63
    return (
        f"# scraped_at {time_s}\n"
        f'vllm:request_success_total{{finished_reason="length"}} {ended - 1}\n'
        f'vllm:request_success_total{{finished_reason="stop"}} {1}\n'
        f'vllm:request_prompt_tokens_bucket{{le="100.0"}} 0\n'
        f'vllm:request_prompt_tokens_bucket{{le="200.0"}} {low}\n'
        f'vllm:request_prompt_tokens_bucket{{le="500.0"}} {high}\n'
        f'vllm:request_prompt_tokens_bucket{{le="+Inf"}} {count}\n'
        f"vllm:request_prompt_tokens_sum {low * 150 + (high - low) * 300}\n"
        f'vllm:request_generation_tokens_bucket{{le="50.0"}} 0\n'
        f'vllm:request_generation_tokens_bucket{{le="100.0"}} {count}\n'
        f'vllm:request_generation_tokens_bucket{{le="+Inf"}} {count}\n'
        f"vllm:request_generation_tokens_sum {count * 64}\n"
        f"vllm:inter_token_latency_seconds_sum {itl_s}\nvllm:inter_token_latency_seconds_count {ended * 63}\n"
        f"vllm:prefix_cache_hits_total {hits}\nvllm:prefix_cache_queries_total {high * 225}\n"
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="4000"} 1.0\n\n'
    )


def convert(tmp_path: Path, text: str, *flags: str) -> dict[str, object]:
    (tmp_path / "metrics.txt").write_text(text)
    words = ("convert", "prometheus", "--metrics", str(tmp_path / "metrics.txt"), *flags)
    assert main([*words, str(tmp_path / "spec.yaml")]) == 0
    return dict(yaml.safe_load((tmp_path / "spec.yaml").read_text()))


def test_rates_and_mean_lengths_of_a_scraped_series_are_kept(tmp_path: Path) -> None:
    text = scrape(100, 1, (0, 0, 0)) + scrape(160, 301, (150, 300, 300)) + scrape(220, 901, (450, 900, 900))
    spec = convert(tmp_path, text, "--engine-file", str(tmp_path / "engine.yaml"))
    (client,) = spec["clients"]  # type: ignore[misc]
    windows = client["lifecycle"]["windows"]
    assert [window["trace_rate"] for window in windows] == [5.0, 10.0]
    assert spec["num_requests"] == 900
    result = run(workload_spec=str(tmp_path / "spec.yaml"), model="qwen3-14b", gpu="h100")
    table = result.record.table
    assert table.prompt_tokens.mean() == pytest.approx(225, rel=0.05)
    assert table.output_tokens.mean() == pytest.approx(64, rel=0.02)
    assert (table.arrival_ns < 60e9).mean() == pytest.approx(1 / 3, abs=0.06)
    engine = yaml.safe_load((tmp_path / "engine.yaml").read_text())
    assert engine["latency"]["linear"]["gpu"]["step"] == pytest.approx(0.02 * 1e9)
    assert engine["scheduler"] == {"num_kv_blocks": 4000, "block_size": 16}


def test_prefix_hits_become_a_shared_prefix_of_that_share(tmp_path: Path) -> None:
    text = scrape(0, 1, (0, 0, 0)) + scrape(60, 301, (150, 300, 300), hits=300 * 45)
    (client,) = convert(tmp_path, text)["clients"]  # type: ignore[misc]
    assert client["prefix_length"] == 45
    lengths = client["input_distribution"]["params"]
    mean = sum(int(length) * weight for length, weight in lengths.items()) / sum(lengths.values())
    assert mean + 45 == pytest.approx(225, rel=0.02)


def test_without_sums_lengths_lie_evenly_in_their_buckets(tmp_path: Path) -> None:
    """Half of the prompts between 101 and 200 tokens, half between 201 and 500: 250.5 in the mean."""
    text = scrape(0, 1, (0, 0, 0)) + scrape(60, 301, (150, 300, 300), hits=300 * 45)
    bare = "".join(line for line in text.splitlines(True) if "_tokens_sum" not in line)
    (client,) = convert(tmp_path, bare)["clients"]  # type: ignore[misc]
    assert client["prefix_length"] == int(0.2 * 250.5)
    lengths = client["input_distribution"]["params"]
    mean = sum(int(length) * weight for length, weight in lengths.items()) / sum(lengths.values())
    assert mean == pytest.approx(250.5 - 50, abs=1)


def test_a_restart_of_the_server_does_not_count_backwards(tmp_path: Path) -> None:
    text = scrape(0, 101, (50, 100, 100)) + scrape(60, 31, (15, 30, 30)) + scrape(120, 61, (30, 60, 60))
    spec = convert(tmp_path, text)
    assert spec["num_requests"] == 31 + 30


def test_range_data_of_prometheus_states_the_same(tmp_path: Path) -> None:
    series = [
        {"metric": {"__name__": "vllm:request_success_total", "finished_reason": reason}, "values": values}
        for reason, values in (("stop", [[0, "1"], [60, "31"]]), ("length", [[0, "0"], [60, "30"]]))
    ]
    (tmp_path / "range.json").write_text(json.dumps({"status": "success", "data": {"result": series}}))
    metrics = read_metrics(tmp_path / "range.json")
    assert metrics.of("vllm:request_success_total") == [1, 61]


@pytest.mark.parametrize("text", ["", "{", "[1]", "vllm:a 1\n", '{"data": {"result": [{"metric": {}}]}}'])
def test_what_are_no_metrics_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.txt").write_text(text)
    with pytest.raises(InputError):
        read_metrics(tmp_path / "metrics.txt")


def span(begin_ms: int, end_ms: int, conversation: str, prompt: int, output: int) -> dict[str, object]:
    values = {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": output}
    attributes = [{"key": name, "value": {"intValue": str(value)}} for name, value in values.items()]
    attributes.append({"key": "gen_ai.conversation.id", "value": {"stringValue": conversation}})
    times = {"startTimeUnixNano": str(begin_ms * 10**6), "endTimeUnixNano": str(end_ms * 10**6)}
    return {"traceId": "t", "spanId": "s", "attributes": attributes, **times}


def test_turns_and_tools_become_a_session_with_think_time(tmp_path: Path) -> None:
    tool = {
        "traceId": "t",
        "attributes": [],
        "startTimeUnixNano": "1100000000",
        "endTimeUnixNano": "1400000000",
    }
    spans = [
        span(1000, 1100, "a", 100, 20),
        tool,
        span(1400, 1500, "a", 150, 10),
        span(1450, 1600, "a", 90, 5),
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    (tmp_path / "spans.json").write_text(json.dumps(document))
    table, _ = read_spans(tmp_path / "spans.json")
    assert table.session_ids() == ["a", "a", "a/1"]
    assert table.think_ns is not None
    assert table.think_ns.tolist() == [-1, 300 * 10**6, -1]
    assert table.arrival_ns.tolist() == [0, 400 * 10**6, 450 * 10**6]
    assert table.contents[1] == (("a#0", 120), ("a#1", 40))
    assert main(["convert", "otel", "--spans", str(tmp_path / "spans.json"), str(tmp_path / "out.csv")]) == 0
    again = run(model="qwen3-14b", gpu="h100", trace=str(tmp_path / "out.csv"), session_mode="closed-loop")
    assert np.sort(again.record.table.prompt_tokens).tolist() == [90, 100, 150]
    assert again.record.cached_tokens.max() == 112


def test_flat_spans_one_per_line_are_read(tmp_path: Path) -> None:
    attributes = {"llm.token_count.prompt": 7, "llm.token_count.completion": 3, "session.id": "x"}
    line = {
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-01-01T00:00:01Z",
        "attributes": attributes,
    }
    (tmp_path / "spans.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(line)}\n")
    table, _ = read_spans(tmp_path / "spans.jsonl")
    assert table.prompt_tokens.tolist() == [7, 7]


@pytest.mark.parametrize("text", ["", "{}", "[[[", '{"attributes": {}, "start_time": 1}\n'])
def test_what_are_no_spans_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "spans.json").write_text(text)
    with pytest.raises(InputError):
        read_spans(tmp_path / "spans.json")


@pytest.mark.parametrize(
    "changed",
    [{"gen_ai.usage.input_tokens": 10**30}, {"start": "1" + "0" * 30}, {"start": float("inf")}],
)
def test_counts_and_times_beyond_all_bounds_are_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    attributes = {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3, **changed}
    start = attributes.pop("start", 1)
    one = {"start_time": start, "end_time": 2, "attributes": attributes}
    (tmp_path / "spans.json").write_text(json.dumps([one]))
    with pytest.raises(InputError):
        read_spans(tmp_path / "spans.json")


@pytest.mark.parametrize(("limit", "kept"), [(64, 64), (-1, 20), (None, 20)])
def test_the_limit_of_a_call_is_that_of_its_request(tmp_path: Path, limit: int | None, kept: int) -> None:
    """Without one it is the length of its answer."""
    call = span(1000, 1100, "a", 100, 20)
    if limit is not None:
        given = {"key": "gen_ai.request.max_tokens", "value": {"intValue": str(limit)}}
        call["attributes"] = [*call["attributes"], given]  # type: ignore[misc]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [call]}]}]}
    (tmp_path / "spans.json").write_text(json.dumps(document))
    table, _ = read_spans(tmp_path / "spans.json")
    assert table.max_tokens.tolist() == [kept]
