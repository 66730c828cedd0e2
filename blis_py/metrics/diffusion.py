"""Metrics of block diffusion, in addition to those of every run. Definitions: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blis_py.metrics._columns import Column, Times, whole_ns
from blis_py.metrics.distribution import Distribution, statistics
from blis_py.metrics.groups import Rows
from blis_py.metrics.latencies import Floats, completed_mask
from blis_py.metrics.record import InstanceRecord, RunRecord
from blis_py.requests.table import Ints

NAME = "diffusion"


def columns(record: RunRecord) -> dict[str, Column]:
    """Further columns of the requests table."""
    if record.blocks is None or record.block_rounds is None:
        return {}
    return {
        "blocks": record.blocks,
        "denoise_rounds": record.block_rounds,
        "time_per_block_ms": Times(whole_ns(time_per_block_ns(record)), 6),
    }


def summary(record: RunRecord, rows: Rows, instances: Sequence[InstanceRecord]) -> dict[str, Any]:
    """Further figures of a group of requests and the instances that served it."""
    per_block_ns = time_per_block_ns(record)[rows]
    per_block = statistics(Distribution.of(per_block_ns[~np.isnan(per_block_ns)]))
    return {**totals(instances), "time_per_block_ms": per_block}


def time_per_block_ns(record: RunRecord) -> Floats:
    """(E2E - TTFT) / (blocks - 1) of completed requests with at least two blocks; NaN for the others."""
    blocks = record.outputs
    times = np.full(len(record.table), np.nan)
    several = completed_mask(record) & (blocks > 1)
    times[several] = (record.finish_ns - record.first_token_ns)[several] / (blocks[several] - 1)
    return times


def block_sizes(record: RunRecord, rows: Rows) -> tuple[Ints, Ints]:
    """Tokens of the first block of each of `rows`, which all have one, and of the later ones, row by row."""
    visits, _ = record.visits.of(rows)
    sizes, blocks = record.visits.emission.sizes(visits), record.outputs[rows]
    firsts = np.cumsum(blocks) - blocks
    return sizes[firsts], np.delete(sizes, firsts)


def totals(instances: Sequence[InstanceRecord]) -> dict[str, Any]:
    """vLLM's diffusion metrics and wasted work, over one or several instances."""

    def total(name: str) -> int:
        return sum(getattr(each.of_kind, name) for each in instances)

    rounds, block_rounds, blocks = (total(name) for name in ("rounds", "block_rounds", "committed_blocks"))
    return {
        "committed_blocks": blocks,
        "steps_per_block": block_rounds / blocks if blocks else None,
        "committed_tokens_per_step": total("emitted_tokens") / block_rounds if block_rounds else None,
        "wasted_tokens": total("wasted_tokens"),
        "mean_denoise_blocks": block_rounds / rounds if rounds else None,
        "idle_block_rounds": total("idle_block_rounds"),
        "scheduler_calls": total("batches"),
        "allocator_calls": total("allocator_calls"),
        "unfinished_allocator_calls": total("unfinished_allocator_calls"),
    }
