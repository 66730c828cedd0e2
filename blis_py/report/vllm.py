"""The result file of `vllm bench serve --save-result`: scripts written for it read a simulated run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import NS_PER_MS, Distribution
from blis_py.metrics.emission import Rows
from blis_py.metrics.invariants import check
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.kinds import kind_of
from blis_py.metrics.latencies import Latencies, latencies
from blis_py.metrics.record import NOT_SERVED, Outcome, RunRecord
from blis_py.metrics.slo import GoodputTargets, assess
from blis_py.requests.table import Ints

PERCENTILES = (50, 90, 95, 99)

_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}
"""vLLM's name of each metric, and our name."""

_ERRORS = {
    Outcome.REJECTED: "rejected by admission",
    Outcome.UNSERVABLE: "does not fit: too long for the model or for the KV cache",
    Outcome.TIMED_OUT: "timed out",
    Outcome.QUEUED: "still queued when the run ended",
    Outcome.RUNNING: "still running when the run ended",
    Outcome.EVICTED: "evicted from its instance",
}

_TOKENS_AT_ONCE = 4_000_000


def vllm_result(
    record: RunRecord,
    *,
    goodput: GoodputTargets | None = None,
    detailed: bool = True,
    request_rate: float | str | None = None,
    max_concurrency: int | None = None,
) -> dict[str, Any]:
    """A run as the JSON object of `vllm bench serve`, under its names and in its units.

    Latency statistics in ms over completed requests; lists in seconds with one entry per request in
    order of arrival, failed ones included (no tokens, latencies 0, the reason under `errors`). Differences
    from a real file: no `date` (the same run gives the same bytes), no `generated_texts` (a simulator has
    none), and `queue_times` is 0 because the simulated client has no queue of its own.

    Args:
        record: the run.
        goodput: limits for `request_goodput`; `None` there without any.
        detailed: the lists too, as with `--save-detailed`: `itls` has one number per output token.
        request_rate: the configured rate in requests per second, if any.
        max_concurrency: the configured limit on the client's requests in progress, if any.
    """
    check(record)
    columns = latencies(record)
    done: Rows = np.flatnonzero(columns.completed)
    gaps = TokenGaps(record)
    held = assess(record, columns, goodput)
    result: dict[str, Any] = {
        "endpoint_type": "blis",
        "backend": "blis",
        "label": None,
        "model_id": record.config.get("model"),
        "tokenizer_id": None,
        "num_prompts": len(record.table),
        "request_rate": request_rate,
        "burstiness": None,
        "max_concurrency": max_concurrency,
        **_throughput(record, done, None if held is None else int(held.good.sum())),
    }
    result |= _lists(record, columns, gaps, done) if detailed else {}
    result |= {
        "max_output_tokens_per_s": _peak_tokens_per_s(record, gaps, done),
        "max_concurrent_requests": _peak_concurrency(record.table.arrival_ns[done], record.finish_ns[done]),
        "rtfx": 0.0,
    }
    for name, ours in _METRICS.items():
        samples = gaps.distribution(done) if ours == "itl" else _samples(columns.column(ours)[done])
        result |= _statistics(name, samples)
    return result


def _throughput(record: RunRecord, done: Rows, good: int | None) -> dict[str, Any]:
    """Figures over the span of the completed requests, `good` of which met the limits."""
    duration_s = float(record.finish_ns[done].max() - record.table.arrival_ns[0]) / 1e9 if len(done) else 0.0
    inputs, outputs = int(record.table.prompt_tokens[done].sum()), int(record.emitted_tokens[done].sum())

    def rate(count: int) -> float:
        return count / duration_s if duration_s else 0.0

    return {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(record.table) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": rate(len(done)),
        "request_goodput": None if good is None else rate(good),
        "output_throughput": rate(outputs),
        "total_token_throughput": rate(inputs + outputs),
    }


def _statistics(name: str, samples: Distribution) -> dict[str, float]:
    """Statistics of a metric; vLLM reports 0 for an empty sample."""
    stats = {"mean": "mean", "median": "median", "std": "std"} | {f"p{q}": f"p{q}" for q in PERCENTILES}
    return {
        f"{word}_{name}_ms": samples.stat(stat) / NS_PER_MS if samples.count else 0.0
        for word, stat in stats.items()
    }


def _samples(column: NDArray[np.float64]) -> Distribution:
    return Distribution.of(column[~np.isnan(column)])


def _lists(record: RunRecord, columns: Latencies, gaps: TokenGaps, done: Rows) -> dict[str, list[Any]]:
    requests = len(record.table)
    itls: list[list[float]] = [[] for _ in range(requests)]
    gap_ns, counts = gaps.of_each(done)
    gap_s = (gap_ns / 1e9).tolist()
    ends = np.cumsum(counts).tolist()
    for row, start, end in zip(done.tolist(), [0, *ends], ends, strict=False):
        itls[row] = gap_s[start:end]
    return {
        "input_lens": record.table.prompt_tokens.tolist(),
        "output_lens": np.where(columns.completed, record.emitted_tokens, 0).tolist(),
        "ttfts": _seconds_or_zero(columns, columns.ttft_ns),
        "itls": itls,
        "latencies": _seconds_or_zero(columns, columns.e2e_ns),
        "start_times": (record.table.arrival_ns / 1e9).tolist(),
        "queue_times": [0.0] * requests,
        "errors": _errors(record),
    }


def _errors(record: RunRecord) -> list[str]:
    errors = [_ERRORS.get(Outcome(end), "") for end in record.outcome.tolist()]
    if record.rejection is None:
        return errors
    return [
        f"{'rejected at routing' if why == NOT_SERVED else error}: {why}" if why else error
        for error, why in zip(errors, record.rejection.to_list(), strict=True)
    ]


def _seconds_or_zero(columns: Latencies, column: NDArray[np.float64]) -> list[float]:
    seconds: list[float] = (np.where(columns.completed, column, 0.0) / 1e9).tolist()
    return seconds


def _peak_tokens_per_s(record: RunRecord, gaps: TokenGaps, done: Rows) -> float:
    """Most tokens emitted within one second, in whole seconds from the first completed request's arrival."""
    if not len(done):
        return 0.0
    start_ns = int(record.table.arrival_ns[done].min())
    seconds = int((record.last_token_ns[done].max() - start_ns) // 10**9) + 1
    tokens: Ints = np.zeros(seconds, dtype=np.int64)
    size = np.cumsum(record.emitted_tokens[done])
    for part in np.split(done, np.searchsorted(size, np.arange(_TOKENS_AT_ONCE, size[-1], _TOKENS_AT_ONCE))):
        second = (_emissions(record, gaps, part) - start_ns) // 10**9
        kind = kind_of(record)
        sizes = None if kind is None else np.concatenate(kind.block_sizes(record, part))
        tokens += np.bincount(second, sizes, minlength=seconds).astype(np.int64)
    return float(tokens.max())


def _emissions(record: RunRecord, gaps: TokenGaps, rows: Rows) -> Ints:
    """Emission time of each token (or block) of each request: all first ones, then the others."""
    gap_ns, counts = gaps.of_each(rows)
    first_ns = record.first_token_ns[rows]
    before_each = np.cumsum(counts) - counts
    elapsed = np.concatenate(([0], np.cumsum(gap_ns)))
    later: Ints = elapsed[1:] + np.repeat(first_ns - elapsed[before_each], counts)
    return np.concatenate((first_ns, later))


def _peak_concurrency(start_ns: Ints, end_ns: Ints) -> int:
    """Most completed requests under way at once; one that ends as another starts does not overlap it."""
    if not len(start_ns):
        return 0
    starts_ns = np.sort(start_ns)
    ended = np.searchsorted(np.sort(end_ns), starts_ns, side="right")
    return int((np.arange(1, len(starts_ns) + 1) - ended).max())
