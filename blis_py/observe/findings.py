"""Findings of a measurement: figures, lateness of the client, and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.observe.driver import MeasuredRequest
from blis_py.requests.table import RequestTable
from blis_py.traces.observed import ObservedColumns

LATE_MS = 1.0
"""p99 of the send error above which a note says that the client itself was late."""
_QUANTILES = (50, 90, 99)


def latencies_ms(measured: Sequence[MeasuredRequest]) -> dict[str, NDArray[np.float64]]:
    """TTFT, TPOT, ITL and E2E of the answered requests, in ms."""
    answered = [one for one in measured if one.end[0] == "ok" and one.token_ns]
    ttft = [one.token_ns[0] - one.sent_ns for one in answered]
    e2e = [one.token_ns[-1] - one.sent_ns for one in answered]
    several = [one for one in answered if tokens_of(one) > 1 and len(one.token_ns) > 1]
    tpot = [(one.token_ns[-1] - one.token_ns[0]) / (tokens_of(one) - 1) for one in several]
    gaps = [np.diff(one.token_ns) for one in answered if len(one.token_ns) > 1]
    itl = np.concatenate(gaps) if gaps else np.zeros(0)
    latencies = {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
    return {name: np.asarray(values, dtype=np.float64) / 1e6 for name, values in latencies.items()}


def tokens_of(one: MeasuredRequest) -> int:
    """Output tokens by the server's count, else those that were seen."""
    return one.completion_tokens if one.completion_tokens > 0 else len(one.token_ns)


def send_errors_ms(measured: Sequence[MeasuredRequest]) -> NDArray[np.float64]:
    """Lateness of each request on the wire, in ms."""
    return np.array([one.sent_ns - one.due_ns for one in measured if one.sent_ns >= 0]) / 1e6


def lateness(measured: Sequence[MeasuredRequest]) -> dict[str, float]:
    """The send error, and by how much it would move the means if latencies counted from the due times."""
    errors = send_errors_ms(measured)
    if not len(errors):
        return {}
    figures = {f"p{q}_ms": float(np.percentile(errors, q)) for q in _QUANTILES}
    figures |= {"mean_ms": float(errors.mean()), "max_ms": float(errors.max())}
    for name in ("ttft", "e2e"):
        values = latencies_ms(measured)[name]
        if len(values) and values.mean():
            figures[f"moves_{name}_mean_percent"] = float(100 * errors.mean() / values.mean())
    return figures


def late_note(late: Mapping[str, float]) -> str:
    """A warning, if the client itself was late."""
    if late.get("p99_ms", 0.0) <= LATE_MS:
        return ""
    shares = ", ".join(
        f"the mean {name.upper()} by {late[f'moves_{name}_mean_percent']:.1f} %"
        for name in ("ttft", "e2e")
        if f"moves_{name}_mean_percent" in late
    )
    moved = f": counted from the due times it moves {shares}" if shares else ""
    return f"the client was late: p99 of the send error {late['p99_ms']:.2f} ms{moved}"


def summary(measured: Sequence[MeasuredRequest]) -> dict[str, Any]:
    """Figures of a measurement."""
    figures: dict[str, Any] = {}
    for name, values in latencies_ms(measured).items():
        if len(values):
            figures[f"{name}_ms"] = {
                "mean": float(values.mean()),
                **{f"p{q}": float(np.percentile(values, q)) for q in _QUANTILES},
            }
    span_ns = max((one.ended_ns for one in measured), default=0) - min(
        (one.sent_ns for one in measured), default=0
    )
    tokens = sum(tokens_of(one) for one in measured if one.end[0] == "ok")
    ok = sum(one.end[0] == "ok" for one in measured)
    figures["requests_per_s"] = ok / span_ns * 1e9 if span_ns > 0 else 0.0
    figures["output_tokens_per_s"] = tokens / span_ns * 1e9 if span_ns > 0 else 0.0
    return figures


def write(
    folder: Path,
    table: RequestTable,
    measured: Sequence[MeasuredRequest],
    run: Mapping[str, Any],
    *,
    header: Mapping[str, Any],
    server: Mapping[str, Any],
    seed: int | None,
    workload: str | None,
) -> None:
    """Write trace, token times and `run.yaml`. Requests that were never sent are not part of the trace."""
    sent = sorted((one for one in measured if one.sent_ns >= 0), key=lambda one: (one.sent_ns, one.row))
    if not sent:
        return
    own = table.take(np.array([one.row for one in sent], dtype=np.intp))
    outputs = own.output_tokens.copy()
    inputs = np.zeros(len(own), dtype=np.int64)
    for row, one in enumerate(sent):
        inputs[row] = max(one.prompt_tokens, 0)
        if one.end[0] == "ok" and tokens_of(one) > 0:
            outputs[row] = tokens_of(one)
    streaming = np.full(len(own), bool(run["client"]["streaming"]))
    own = replace(own, output_tokens=outputs, max_tokens=outputs, due_ns=None, streaming=streaming)
    observer = ObservedColumns(own)
    for row, one in enumerate(sent):
        observer.sent(row, one.sent_ns)
        observer.requests[row].token_ns = one.token_ns
        observer.ended(row, one.ended_ns, one.end)
    counts = {"requests": observer.counts()}
    observer.write(
        folder,
        {**run, **counts},
        seed=seed,
        workload=workload,
        server=server,
        header=header,
        server_input_tokens=inputs,
    )
