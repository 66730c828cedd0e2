"""Names of a run's figures, among them those of other benchmarks: vLLM, SGLang, GuideLLM, genai-perf."""

from __future__ import annotations

import re
from collections.abc import Collection

from blis_py.metrics.registry import METRICS, named

DEFAULT_STATISTIC = "p99"
"""Statistic of a latency that is named without one."""
_COUNTS = {
    "throughput.output_tokens_per_s": (
        *("output_tokens_per_s", "output_tokens_per_second", "output_token_throughput"),
        *("output_throughput", "tokens_per_s", "tps", "otps"),
    ),
    "throughput.total_tokens_per_s": (
        *("total_tokens_per_s", "tokens_per_second", "total_tokens_per_second"),
        *("total_token_throughput", "total_throughput"),
    ),
    "throughput.requests_per_s": (
        *("requests_per_s", "requests_per_second", "request_throughput", "rps", "qps"),
    ),
    "goodput.requests_per_s": ("goodput", "goodput_per_s", "request_goodput"),
    "output_tokens_per_s_per_gpu": ("tokens_per_s_per_gpu", "output_token_throughput_per_gpu"),
    "goodput.attainment": ("attainment",),
}
_LATENCIES = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
    "request_latency": "e2e",
}
_STATISTICS = {"median": "p50", "avg": "mean", "average": "mean"}
_IN_FRONT = re.compile(r"(?P<stat>mean|median|avg|std|min|max|p\d+)_(?P<name>.+)")


def figure_named(name: str, known: Collection[str]) -> str:
    """The figure of a run that a name means; the name itself if it means none.

    Args:
        known: the figures of the runs, as in the `cluster` of `summary.json`.

    >>> figure_named("output_throughput", ["throughput.output_tokens_per_s"])
    'throughput.output_tokens_per_s'
    >>> figure_named("median_ttft_ms", ["ttft_ms.p50"])
    'ttft_ms.p50'
    """
    if name in known:
        return name
    words = name.strip().lower().replace("-", "_").replace(" ", "_")
    found = next((figure for figure, names in _COUNTS.items() if words in names), None) or _latency(words)
    return found if found is not None and found in known else name


def _latency(words: str) -> str | None:
    """The statistic of a latency: `ttft.p99`, `p99_ttft_ms`, `time_to_first_token`."""
    match = _IN_FRONT.fullmatch(words)
    name, _, stat = (match["name"], "", match["stat"]) if match else words.partition(".")
    name = name.removesuffix("_ms").removesuffix("_s")
    metric = named(_LATENCIES.get(name, name))
    if metric is None:
        return None
    return f"{METRICS[metric.name].key}.{_STATISTICS.get(stat, stat) or DEFAULT_STATISTIC}"
