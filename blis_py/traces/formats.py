"""Formats of recorded traffic, and their detection.

A new format is one module with a reader function, and one line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
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
    """

    title: str
    kind: str
    alternatives: tuple[tuple[str, ...], ...]
    reader: str
    without: tuple[str, ...] = ()

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
        module, _, name = self.reader.partition(":")
        function: Callable[..., RequestTable] = getattr(import_module(f"blis_py.traces.{module}"), name)
        if probe.document is not None and self.kind != "jsonl":
            return function(probe.path, reading, probe.document)
        return function(probe.path, reading)


_RETOKENIZED = "total_output_tokens_retokenized"
"""A key that only SGLang writes."""
FORMATS: dict[str, Format] = {
    "tracev2": Format("TraceV2", "csv", (("request_id", "arrival_time_us"),), "tracev2:read"),
    "azure": Format(
        "Azure LLM inference trace",
        "csv",
        (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("arrival_s", "input_tokens", "output_tokens")),
        "azure:read",
    ),
    "burstgpt": Format(
        "BurstGPT trace",
        "csv",
        (("Timestamp", "Request tokens", "Response tokens"),),
        "_mapped:read_burstgpt",
    ),
    "splitwise": Format(
        "splitwise-sim trace",
        "csv",
        (("arrival_timestamp", "prompt_size", "token_size"),),
        "_mapped:read_splitwise",
    ),
    "mooncake": Format(
        "Mooncake trace", "jsonl", (("timestamp", "input_length", "output_length"),), "mooncake:read"
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
    "sharegpt": Format(
        "ShareGPT conversations", "json list", (("conversations",), ("conversation",)), "sharegpt:read"
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
        return probed, _mapped(probed)
    if named is not None:
        return probed, _as_named(probed, named)
    for format in FORMATS.values():
        if format.misses(probed) is None:
            reading.chosen_as = f"{path.name} is read as {format.title}: {format.why(probed)}"
            return probed, format
    raise InputError(f"not a known trace format: {probed.looks}", file=path, fix=_instead(probed))


def _as_named(probe: Probe, named: str) -> Format:
    format = FORMATS[named]
    missing = replace(format, without=()).misses(probe)
    if missing is None:
        return format
    fix = "leave --trace-format out, or name the format of the file"
    raise InputError(f"no {format.title}: it {missing}", file=probe.path, value=named, fix=fix)


def _instead(probe: Probe) -> str:
    """Remedy for a file of unknown format: the formats of its kind, and what it lacks."""
    alike = [format for format in FORMATS.values() if probe.lacks(format.kind) is None]
    lacking = "; ".join(f"no {format.title}: it {format.misses(probe)}" for format in alike)
    if probe.kind in ("csv", "parquet"):
        return f"name its columns: --columns arrival=NAME,input=NAME,output=NAME ({lacking})"
    others = ", ".join(format.title for format in FORMATS.values() if format not in alike)
    return f"{lacking}; or give {others}" if alike else f"give {others}"


def _mapped(probe: Probe) -> Format:
    if probe.kind not in ("csv", "parquet"):
        fix = "leave it out"
        raise InputError(
            "only tables have columns", file=probe.path, key="--columns", value=probe.looks, fix=fix
        )
    reader = "_mapped:read" if probe.kind == "csv" else "parquet:read_mapped"
    return Format("table", probe.kind, ((),), reader)
