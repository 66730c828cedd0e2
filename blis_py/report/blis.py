"""The output files of BLIS (inference-sim): `--metrics-path` and, for replays, `--results-path`.

Names and units follow BLIS: no percentile below p90, and 0 for a latency that was not reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.metrics.distribution import NS_PER_MS, Distribution, in_ms
from blis_py.metrics.emission import Rows
from blis_py.metrics.invariants import check
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.latencies import Latencies, latencies
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.slo import GoodputTargets
from blis_py.report._blis_goodput import blis_goodput
from blis_py.requests.table import Ints

_OMITTED = (
    *("slo_class", "tenant_id", "handled_by", "model", "length_capped", "session_id"),
    "gateway_queue_delay_ms",
)
"""Fields left out of a request's row if empty."""
_STATS = ("mean", "p90", "p95", "p99")


def blis_metrics(
    record: RunRecord,
    *,
    requests: bool = False,
    goodput: GoodputTargets | None = None,
    every_class: bool = False,
    block_size: int = 16,
    whole: bool = True,
) -> dict[str, Any]:
    """A run as BLIS's `MetricsOutput` of the whole cluster.

    Rates are over `vllm_estimated_duration_s`, the time at which the last instance ended its last step,
    from 0. Latencies and outcomes follow our definitions (docs/metrics.md), goodput follows BLIS's.

    Args:
        record: the run.
        requests: add the content of the file that stdout lacks: the cache hit rate and every request.
        goodput: limits every request should meet; without any, no goodput is reported.
        every_class: see `blis_goodput`.
        block_size: tokens per KV block, for the cache hit rate.
        whole: check the record. The visits to some instances of a run need not be one by themselves.
    """
    if whole:
        check(record)
    columns = latencies(record)
    done: Rows = np.flatnonzero(columns.completed)
    count = np.bincount(record.outcome, minlength=len(Outcome)).tolist()
    served = (record.instance >= 0) & (record.outcome != Outcome.UNSERVABLE)
    outputs = int(record.emitted_tokens[done].sum())
    span_s = duration_s(record)
    metrics = {
        "instance_id": "cluster",
        "completed_requests": len(done),
        "still_queued": count[Outcome.QUEUED],
        "still_running": count[Outcome.RUNNING],
        "injected_requests": len(record.table) - count[Outcome.REJECTED],
        "total_input_tokens": int(record.table.prompt_tokens[served].sum()),
        "total_output_tokens": outputs,
        "vllm_estimated_duration_s": span_s,
        "responses_per_sec": len(done) / span_s if span_s else 0.0,
        "tokens_per_sec": outputs / span_s if span_s else 0.0,
        **_stats("e2e", _samples(columns.e2e_ns)),
        **_stats("ttft", _samples(columns.ttft_ns)),
        **_stats("itl", TokenGaps(record).distribution(done)),
        "scheduling_delay_p99_ms": in_ms(_samples(columns.scheduling_delay_ns).percentile(99)),
        "preemption_count": int(record.preemptions.sum()),
        **({"cache_hit_rate": cache_hit_rate(record, block_size)} if requests else {}),
        "dropped_unservable": count[Outcome.UNSERVABLE],
        "length_capped_requests": count[Outcome.LENGTH_CAPPED],
        "timed_out_requests": count[Outcome.TIMED_OUT],
        **({"gateway_evicted_requests": evicted} if (evicted := count[Outcome.EVICTED]) else {}),
        **({"requests": _requests(record, columns)} if requests else {}),
    }
    if goodput is not None:
        metrics |= blis_goodput(record, columns, goodput, span_s, every_class=every_class)
    return {key: as_go_writes(value) for key, value in metrics.items()}


def cache_hit_rate(record: RunRecord, block_size: int) -> float:
    """Cached blocks over all blocks that requests took, those of answers too: the mean over instances.

    A request takes blocks for its prompt and its whole answer; after a preemption, those of its prompt again,
    as BLIS counts them.
    """
    visits, table = record.visits, record.table
    there = np.flatnonzero(visits.scheduled_ns >= 0)
    rows = visits.request[there]
    prompt_tokens = table.prompt_tokens[rows]
    blocks = -(-(prompt_tokens + visits.emitted_tokens[there]) // block_size)
    blocks += visits.preemptions[there] * -(-prompt_tokens // block_size)
    hits = visits.cached_tokens[there] // block_size
    at, count = visits.instance[there], len(record.instances)
    taken, cached = np.bincount(at, blocks, count), np.bincount(at, hits, count)
    return float(np.mean(cached / np.maximum(taken, 1))) if count else 0.0


def blis_results(record: RunRecord) -> list[dict[str, Any]]:
    """Content of `replay --results-path`: completed requests with a numeric id, latencies in µs.

    The id is the number at the end of `request_<number>`, or the id itself where it is a number. Latencies
    are not rounded.
    """
    check(record)
    columns = latencies(record)
    ttft_us, e2e_us, itl_us = (
        (np.nan_to_num(column) / 1e3).tolist()
        for column in (columns.ttft_ns, columns.e2e_ns, columns.itl_mean_ns)
    )
    table = record.table
    results = []
    for row in np.flatnonzero(columns.completed).tolist():
        number = table.id_of(row).removeprefix("request_")
        if not number.isdecimal():
            continue
        results.append(
            {
                "request_id": int(number),
                "ttft_us": ttft_us[row],
                "e2e_us": e2e_us[row],
                "input_tokens": int(table.prompt_tokens[row]),
                "output_tokens": int(record.emitted_tokens[row]),
                "slo_class": table.slo_class[row],
                "model": table.model[row],
                "itl_mean_us": itl_us[row],
            }
        )
    return [
        {name: value for name, value in as_go_writes(result).items() if name not in _OMITTED or value}
        for result in results
    ]


def _requests(record: RunRecord, columns: Latencies) -> list[dict[str, Any]]:
    """A row for every request that reached an instance, without empty fields."""
    table = record.table
    latency_ms = {
        "ttft_ms": columns.ttft_ns,
        "itl_ms": columns.itl_mean_ns,
        "e2e_ms": columns.e2e_ns,
        "scheduling_delay_ms": columns.scheduling_delay_ns,
    }
    fields: dict[str, Sequence[Any]] = {
        "arrived_at": (table.arrival_ns / 1e9).tolist(),
        "requestID": table.ids(),
        "num_prefill_tokens": table.prompt_tokens.tolist(),
        "num_decode_tokens": np.where(
            columns.completed, record.emitted_tokens, _expected_output_tokens(record)
        ).tolist(),
        **{name: (np.nan_to_num(column) / NS_PER_MS).tolist() for name, column in latency_ms.items()},
        "slo_class": table.slo_class.to_list(),
        "tenant_id": table.tenant.to_list(),
        "handled_by": [f"instance_{i}" if i >= 0 else "" for i in record.instance.tolist()],
        "model": table.model.to_list(),
        "length_capped": (record.outcome == Outcome.LENGTH_CAPPED).tolist(),
        "session_id": table.session_ids(),
        "round_index": [0] * len(table) if table.round_index is None else table.round_index.tolist(),
    }
    if record.gateway_ns is not None:
        fields["gateway_queue_delay_ms"] = (np.maximum(record.gateway_ns, 0) / NS_PER_MS).tolist()
    dropped = np.isin(record.outcome, (Outcome.REJECTED, Outcome.UNSERVABLE)).tolist()
    rows = zip(dropped, zip(*fields.values(), strict=True), strict=True)
    return [
        {name: value for name, value in zip(fields, values, strict=True) if name not in _OMITTED or value}
        for gone, values in rows
        if not gone
    ]


def _expected_output_tokens(record: RunRecord) -> Ints:
    """Output tokens each request would have got: its own length, or its budget if that is shorter."""
    output_tokens, limit = record.table.output_tokens, record.table.max_tokens
    return np.where(limit > 0, np.minimum(output_tokens, limit), output_tokens)


def duration_s(record: RunRecord) -> float:
    """The time at which the last instance ended its last step, in s from 0."""
    ends = [one.step_ends.last_ns for one in record.instances if one.steps]
    return max(ends, default=0) / 1e9


def _stats(name: str, samples: Distribution) -> dict[str, float]:
    return {f"{name}_{stat}_ms": in_ms(samples.stat(stat)) for stat in _STATS}


def _samples(column: NDArray[np.float64]) -> Distribution:
    return Distribution.of(column[~np.isnan(column)])


def as_go_writes(value: Any) -> Any:
    """A copy with whole numbers formatted as in Go: 3 for 3.0."""
    if isinstance(value, dict):
        return {key: as_go_writes(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_go_writes(each) for each in value]
    return int(value) if type(value) is float and value.is_integer() else value
