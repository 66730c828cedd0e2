"""Formats of recorded traffic, and their detection.

A new format is one module with a reader function, and one line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from shlex import quote

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces._json_rows import items, places_of
from blis_py.traces._suggested import conversation_in, suggested
from blis_py.traces.probe import Probe, probe
from blis_py.traces.reading import Reading


@dataclass(frozen=True)
class Format:
    """A format of recorded traffic.

    Attributes:
        title: display name.
        kind: file kind, see `Probe`.
        alternatives: sets of column or key names, one for each spelling of the format.
        reader: module and function, imported on first use.
        without: names the format lacks, which distinguish another format.
        units: whether its arrival times may be in several units.
        hash_ids: whether its prompts have ids of blocks, whose size can be given.
        instead: what to give instead of a file of this format, which is recognised and refused.
        problem: why it is refused.
    """

    title: str
    kind: str
    alternatives: tuple[tuple[str, ...], ...]
    reader: str
    without: tuple[str, ...] = ()
    units: bool = False
    hash_ids: bool = False
    instead: str = ""
    problem: str = "it has no requests, only figures"

    def misses(self, probe: Probe) -> str | None:
        """The column that a file lacks to be in this format; None if it lacks none."""
        misses = [probe.lacks(self.kind, *names) for names in self.alternatives]
        if None not in misses:
            return " and ".join(dict.fromkeys(miss for miss in misses if miss is not None))
        other = [name for name in self.without if name in probe.names]
        return f"has {', '.join(other)}" if other else None

    def why(self, probe: Probe) -> str:
        """Evidence that a file is in this format."""
        names = next(names for names in self.alternatives if probe.lacks(self.kind, *names) is None)
        return f"it has {', '.join(names)}" if names else f"it is {probe.looks}"

    def read(self, probe: Probe, reading: Reading) -> RequestTable:
        """
        Raises:
            InputError: invalid content, or an option without effect on this format.
        """
        if self.instead:
            raise InputError(f"{self.title}: {self.problem}", file=probe.path, fix=self.instead)
        for given, key, takes, why in (
            (reading.time_unit, "--time-unit", self.units, "the unit of its times is part of the format"),
            (reading.hash_block_size, "--hash-block-size", self.hash_ids, "its prompts have no hash ids"),
        ):
            if given is not None and not takes:
                raise InputError(
                    f"{self.title}: {why}", file=probe.path, key=key, value=given, fix="leave it out"
                )
        module, _, name = self.reader.partition(":")
        function: Callable[..., RequestTable] = getattr(import_module(f"blis_py.traces.{module}"), name)
        if probe.document is not None and self.kind != "jsonl":
            return function(probe.path, reading, probe.document)
        return function(probe.path, reading)


_INFERENCE_PERF_REQUESTS = (
    "give per_request_lifecycle_metrics.json (report.request_lifecycle.per_request: true)"
)
_AIPERF_REQUESTS = "give profile_export.jsonl (AIPerf) or profile_export.json (GenAI-Perf)"
_LOAD_TEST = "it has no tokens of requests"
_LOAD_TEST_INSTEAD = "give a log of the server, or a result of a benchmark of LLMs"
_USAGE = "a row has the tokens of all requests of an interval"
_USAGE_INSTEAD = "give a log with a row for each request"
_SPANS = ("they are converted before", "blis convert otel --spans FILE TARGET.csv")
_RETOKENIZED = "total_output_tokens_retokenized"
"""A key that only SGLang writes."""
FORMATS: dict[str, Format] = {
    "tracev2": Format("TraceV2", "csv", (("request_id", "arrival_time_us"),), "tracev2:read"),
    "azure": Format(
        "Azure LLM inference trace",
        "csv",
        (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("arrival_s", "input_tokens", "output_tokens")),
        "azure:read",
        units=True,
    ),
    "burstgpt": Format(
        "BurstGPT trace",
        "csv",
        (("Timestamp", "Request tokens", "Response tokens"),),
        "_mapped:read_burstgpt",
        units=True,
    ),
    "splitwise": Format(
        "splitwise-sim trace",
        "csv",
        (("arrival_timestamp", "prompt_size", "token_size"),),
        "_mapped:read_splitwise",
        units=True,
    ),
    "qwen-bailian": Format(
        "Qwen-Bailian trace",
        "jsonl",
        (("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),),
        "mooncake:read_bailian",
        units=True,
        hash_ids=True,
    ),
    "mooncake": Format(
        "Mooncake trace",
        "jsonl",
        (("timestamp", "input_length", "output_length"),),
        "mooncake:read",
        without=("chat_id", "parent_chat_id"),
        units=True,
        hash_ids=True,
    ),
    "agentic-mooncake": Format(
        "Agentic Mooncake trace",
        "jsonl",
        (("schema", "block_size", "hash_id_scope"),),
        "agentic:read_mooncake",
        hash_ids=True,
    ),
    "agentic": Format(
        "Agentic conversations",
        "jsonl",
        (("id", "block_size", "requests"),),
        "agentic:read_conversations",
        hash_ids=True,
    ),
    "agentic-one": Format(
        "Agentic conversation",
        "json",
        (("id", "block_size", "requests"),),
        "agentic:read_conversation",
        hash_ids=True,
    ),
    "dynamo": Format(
        "Dynamo request trace",
        "jsonl",
        (("event_type", "schema"), ("event_type", "request_id")),
        "agentic:read_dynamo",
        hash_ids=True,
    ),
    "applied-compute": Format(
        "Applied Compute agentic workload",
        "jsonl",
        (("input_prompt_length", "assistant_response_length", "tool_call_output_length"),),
        "agentic:read_applied_compute",
    ),
    "copilot": Format(
        "GitHub Copilot trace of coding agents", "jsonl", (("session_id", "date", "turns"),), "copilot:read"
    ),
    "llmservingsim": Format(
        "LLMServingSim workload",
        "jsonl",
        (("input_toks", "output_toks", "arrival_time_ns"), ("sub_requests", "arrival_time_ns")),
        "llmservingsim:read",
    ),
    "aiperf": Format(
        "AIPerf profile_export.jsonl", "jsonl", (("metadata", "metrics"),), "aiperf:read_aiperf"
    ),
    "genai-perf": Format(
        "GenAI-Perf profile_export.json", "json", (("experiments",),), "aiperf:read_genai_perf"
    ),
    "sglang": Format(
        "SGLang bench_serving result", "jsonl", (("backend", _RETOKENIZED),), "bench_results:read_sglang"
    ),
    "vllm": Format(
        "vLLM bench serve result",
        "json",
        (("request_throughput", "total_input_tokens"), ("input_lens", "output_lens")),
        "bench_results:read_vllm",
        without=(_RETOKENIZED,),
    ),
    "vllm-lines": Format(
        "vLLM bench serve results, appended",
        "jsonl",
        (("request_throughput", "total_input_tokens"), ("input_lens", "output_lens")),
        "bench_results:read_vllm_lines",
        without=(_RETOKENIZED,),
    ),
    "guidellm": Format("GuideLLM benchmarks.json", "json", (("benchmarks",),), "guidellm:read"),
    "inference-perf": Format(
        "inference-perf per-request report", "json list", (("start_time", "info"),), "inference_perf:read"
    ),
    "inference-perf-summary": Format(
        "inference-perf summary of requests, sessions or Prometheus",
        "json",
        (("load_summary", "successes"), ("num_sessions", "num_sessions_succeeded")),
        "",
        instead=_INFERENCE_PERF_REQUESTS,
    ),
    "inference-perf-sessions": Format(
        "inference-perf per-session report",
        "json list",
        (("session_id", "num_events", "total_input_tokens"),),
        "",
        instead=_INFERENCE_PERF_REQUESTS,
    ),
    "vllm-sweep": Format(
        "vLLM bench sweep summary",
        "json list",
        (("request_throughput", "total_input_tokens"),),
        "bench_results:read_vllm_sweep",
    ),
    "vllm-sweep-table": Format(
        "vLLM bench sweep summary",
        "csv",
        (("request_throughput", "total_input_tokens"),),
        "",
        instead="give the result of one run (run=0.json), saved with --save-detailed",
    ),
    "aiperf-summary": Format(
        "summary of AIPerf or GenAI-Perf",
        "json",
        (("input_config", "request_throughput"), ("input_config", "records")),
        "",
        instead=_AIPERF_REQUESTS,
    ),
    "aiperf-summary-table": Format(
        "summary of AIPerf or GenAI-Perf",
        "csv",
        (("Metric", "avg", "min", "max"),),
        "",
        instead=_AIPERF_REQUESTS,
    ),
    "aiperf-raw": Format(
        "raw answers of AIPerf",
        "jsonl",
        (("metadata", "payload", "responses"),),
        "",
        instead=_AIPERF_REQUESTS,
    ),
    "vllm-figures": Format(
        "vLLM bench throughput or latency",
        "json",
        (("elapsed_time", "num_requests", "tokens_per_second"), ("avg_latency", "latencies", "percentiles")),
        "",
        instead="give the result of vllm bench serve --save-result --save-detailed",
    ),
    "trtllm-report": Format(
        "trtllm-bench report",
        "json",
        (("engine", "request_info", "performance"),),
        "",
        instead="give its --request_json",
    ),
    "llmperf-summary": Format(
        "llmperf summary",
        "json",
        (("mean_input_tokens", "num_concurrent_requests"),),
        "",
        instead="give the file of individual responses",
    ),
    "load-test": Format(
        "figures of k6, Locust or hey",
        "csv",
        (
            ("metric_name", "timestamp", "metric_value"),
            ("Type", "Name", "Requests/s"),
            ("response-time", "status-code", "offset"),
        ),
        "",
        problem=_LOAD_TEST,
        instead=_LOAD_TEST_INSTEAD,
    ),
    "load-test-lines": Format(
        "points of k6 or vegeta",
        "jsonl",
        (("metric", "type", "data"), ("attack", "seq", "latency", "bytes_out")),
        "",
        problem=_LOAD_TEST,
        instead=_LOAD_TEST_INSTEAD,
    ),
    "load-test-summary": Format(
        "summary of k6 or oha",
        "json",
        (("root_group", "metrics"), ("summary", "latencyPercentiles")),
        "",
        problem=_LOAD_TEST,
        instead=_LOAD_TEST_INSTEAD,
    ),
    "usage": Format(
        "usage by interval",
        "csv",
        (("num_model_requests", "input_tokens", "output_tokens"),),
        "",
        problem=_USAGE,
        instead=_USAGE_INSTEAD,
    ),
    "usage-pages": Format(
        "usage by interval", "json", (("data", "has_more"),), "", problem=_USAGE, instead=_USAGE_INSTEAD
    ),
    "otel": Format(
        "OpenTelemetry spans",
        "json",
        (("resourceSpans",), ("spans",), ("data", "limit", "offset")),
        "",
        problem=_SPANS[0],
        instead=_SPANS[1],
    ),
    "otel-lines": Format(
        "OpenTelemetry spans",
        "jsonl",
        (("resourceSpans",), ("attributes", "start_time"), ("attributes", "startTimeUnixNano")),
        "",
        problem=_SPANS[0],
        instead=_SPANS[1],
    ),
    "sharegpt": Format(
        "ShareGPT conversations",
        "json list",
        (("conversations",), ("conversation",), ("messages",)),
        "sharegpt:read",
    ),
    "sharegpt-lines": Format(
        "ShareGPT conversations, one per line",
        "jsonl",
        (("conversations",), ("conversation",), ("messages",)),
        "sharegpt:read_lines",
        without=("output_length",),
    ),
    "prompts": Format(
        "prompts as texts",
        "jsonl",
        (
            ("text_input",),
            ("messages", "output_length"),
            ("custom_id", "body"),
            ("prompt", "output_tokens"),
            ("input_ids", "output_tokens"),
            ("session_id", "turns"),
        ),
        "",
        without=("input_length", "input_tokens", "prompt_tokens", "prompt_len"),
        problem="it has no lengths",
        instead="count the tokens of each prompt, and name the columns: --columns input=NAME,output=NAME",
    ),
    "parquet": Format(
        "Parquet of requests",
        "parquet",
        (("arrival_ns", "input_tokens", "output_tokens", "content"),),
        "parquet:read",
    ),
}


def choose(path: Path, named: str | None, reading: Reading) -> tuple[Probe, Format]:
    """The reader of a file: the named one, the mapped one if columns are named, or by its content.

    Raises:
        InputError: unknown format; lists what each format misses.
    """
    if named is not None and named not in FORMATS:
        raise InputError("unknown trace format", key="format", value=named, fix=f"use {', '.join(FORMATS)}")
    probed = probe(path)
    if reading.columns:
        reading.requests_models = True
        _note_conversations(probed, reading)
        return probed, _mapped(probed)
    if named is not None:
        return probed, _as_named(probed, named)
    for format in FORMATS.values():
        if format.misses(probed) is None:
            reading.chosen_as = f"{path.name} is read as {format.title}: {format.why(probed)}"
            return probed, format
    raise InputError(f"not a known trace format: {probed.looks}", file=path, fix=_instead(probed))


def _note_conversations(probe: Probe, reading: Reading) -> None:
    """Say that a column of conversations is not among the ones named."""
    name = conversation_in(probe.places)
    if name and "session_id" not in reading.columns and name not in reading.columns.values():
        reading.note(
            f"it has {name}, which --columns leaves out: every request is played by itself; "
            f"session_id={name} plays conversations"
        )


def _as_named(probe: Probe, named: str) -> Format:
    format = FORMATS[named]
    missing = replace(format, without=()).misses(probe)
    if missing is None:
        return format
    fix = "leave --trace-format out, or name the format of the file"
    raise InputError(f"no {format.title}: it {missing}", file=probe.path, value=named, fix=fix)


def _instead(probe: Probe) -> str:
    """Remedy for a file of unknown format: its columns, or the formats of its kind and what it lacks."""
    columns, known = suggested(probe.places)
    if known and (probe.kind in _MAPPED or probe.one_line):
        return f"name its columns: {columns}"
    for name, value in (probe.document if probe.kind == "json" else {}).items():
        if items(value) and isinstance(value[0], dict) and (of_list := suggested(places_of(value[0])))[1]:
            file = quote(probe.path.name)
            return f"take its list out (jq .{name} {file} > list.json) and name the columns: {of_list[0]}"
    readable = [format for format in FORMATS.values() if not format.instead]
    alike = [format for format in readable if probe.lacks(format.kind) is None]
    if probe.kind != "csv":  # tables have few formats; of JSON only those are alike that share a name
        named = {format.title: {*chain.from_iterable(format.alternatives)} for format in alike}
        alike = [format for format in alike if named[format.title] & {*probe.names}]
    lacking = "; ".join(f"no {format.title}: it {format.misses(probe)}" for format in alike)
    if probe.kind in _MAPPED:
        return f"name its columns: {columns}" + (f" ({lacking})" if lacking else "")
    others = ", ".join(format.title for format in readable if format not in alike)
    return f"{lacking}; or give {others}" if alike else f"give {others}"


_MAPPED = {
    "csv": "_mapped:read",
    "parquet": "parquet:read_mapped",
    "jsonl": "_mapped:read_lines",
    "json list": "_mapped:read_list",
}
"""Readers of named columns, by the kind of file."""


def _mapped(probe: Probe) -> Format:
    kind = "jsonl" if probe.one_line else probe.kind
    known = next((format for format in FORMATS.values() if format.misses(probe) is None), None)
    if kind not in _MAPPED:
        problem = "only tables, JSON lines and JSON lists have columns"
        fix = "leave it out" if known is None else f"leave it out: this is {known.title}"
        raise InputError(problem, file=probe.path, key="--columns", value=probe.looks, fix=fix)
    return Format("table", kind, ((),), _MAPPED[kind], units=True)
