"""Figures of a measurement as clients of benchmarks print them (`vllm bench serve`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from blis_py.observe.driver import MeasuredRequest
from blis_py.observe.findings import latencies_ms, lateness, tokens_of

_WIDTH = 50
_LATENCIES = (
    ("ttft", "TTFT", "Time to First Token"),
    ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
    ("itl", "ITL", "Inter-token Latency"),
    ("e2e", "E2EL", "End-to-end Latency"),
)
_STATISTICS = (("mean", "Mean"), ("median", "Median"), ("p99", "P99"))


def bench_figures(measured: Sequence[MeasuredRequest], *, streams: bool = True) -> dict[str, Any]:
    """Counts, throughput, latencies in ms, and the errors by what they say.

    Latencies that were not measured are missing: without streaming those of tokens, and all if no request was
    answered.

    Args:
        streams: whether tokens came one by one.
    """
    answered = [one for one in measured if one.end[0] == "ok"]
    sent_ns = [one.sent_ns for one in measured if one.sent_ns >= 0]
    span_s = (max(one.ended_ns for one in measured) - min(sent_ns)) / 1e9 if sent_ns else 0.0
    inputs = sum(max(one.prompt_tokens, 0) for one in answered)
    outputs = sum(tokens_of(one) for one in answered)
    figures: dict[str, Any] = {
        "completed": len(answered),
        "failed": len(measured) - len(answered),
        "duration_s": span_s,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(answered) / span_s if span_s > 0 else None,
        "output_throughput": outputs / span_s if span_s > 0 else None,
        "total_token_throughput": (inputs + outputs) / span_s if span_s > 0 else None,
    }
    for name, values in latencies_ms(measured).items():
        if len(values) and (streams or name == "e2e"):
            figures[f"{name}_ms"] = {
                "mean": float(values.mean()),
                "median": float(np.median(values)),
                "p99": float(np.percentile(values, 99)),
            }
    figures["errors"] = dict(Counter(_error(one) for one in measured if one.end[0] != "ok"))
    figures["send_error"] = lateness(measured)
    return figures


def _error(one: MeasuredRequest) -> str:
    """An error in a few words."""
    return ": ".join(str(part) for part in one.end if part)


def bench_lines(figures: dict[str, Any]) -> Iterator[str]:
    """The figures as a block for the terminal."""
    yield _title("Serving Benchmark Result", "=")
    rows = (
        ("Successful requests", figures["completed"]),
        ("Failed requests", figures["failed"]),
        ("Benchmark duration (s)", figures["duration_s"]),
        ("Total input tokens", figures["total_input_tokens"]),
        ("Total generated tokens", figures["total_output_tokens"]),
        ("Request throughput (req/s)", figures["request_throughput"]),
        ("Output token throughput (tok/s)", figures["output_throughput"]),
        ("Total token throughput (tok/s)", figures["total_token_throughput"]),
    )
    yield from (_row(name, value) for name, value in rows)
    for key, short, title in _LATENCIES:
        if f"{key}_ms" in figures:
            yield _title(title, "-")
            values = figures[f"{key}_ms"]
            yield from (_row(f"{word} {short} (ms)", values[stat]) for stat, word in _STATISTICS)
    if figures["errors"]:
        yield _title("Errors", "-")
        yield from (f"{count:,} x {text}" for text, count in figures["errors"].items())
    yield "=" * _WIDTH


def _title(text: str, line: str) -> str:
    return f" {text} ".center(_WIDTH, line) if line == "=" else text.center(_WIDTH, line)


def _row(name: str, value: float | None) -> str:
    shown = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name + ':':<40}{shown:<10}".rstrip()
