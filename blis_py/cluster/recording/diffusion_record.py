"""The record of a small block-diffusion run: every batch and every block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_log import BatchRow, DiffusionLog
from blis_py.core.diffusion_request import (
    BatchOutcome,
    Commit,
    DenoiseBatch,
    DiffusionCounters,
    DiffusionRequest,
)
from blis_py.core.request import FinishReason, Request
from blis_py.metrics.record import Outcome as Fate
from blis_py.metrics.visits import Onward

PERCENTILES = (50, 90, 99)
_COMPLETED = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(slots=True)
class DiffusionRun:
    """The record of a run.

    Latencies are defined as for other requests, with a block in place of a token: TTFT ends with the first
    block, time per block is (E2E - TTFT) / (blocks - 1).
    """

    requests: Sequence[DiffusionRequest]
    commit_ns: dict[DiffusionRequest, list[int]]
    """Commit time of each block, by request."""
    scheduler: DiffusionScheduler
    """The scheduler in its final state."""
    batches: list[BatchRow]
    refused: list[DiffusionRequest]

    @property
    def counters(self) -> DiffusionCounters:
        return self.scheduler.totals

    def summary(self) -> dict[str, Any]:
        """Throughput, latencies in ms, vLLM's diffusion metrics and wasted work."""
        done = [(r, ends) for r, ends in self.commit_ns.items() if r.finish_reason in _COMPLETED]
        ttft = [ends[0] - r.arrival_ns for r, ends in done]
        e2e = [ends[-1] - r.arrival_ns for r, ends in done]
        per_block = [(ends[-1] - ends[0]) / (len(ends) - 1) for _, ends in done if len(ends) > 1]
        begin = min((r.arrival_ns for r in self.requests), default=0)
        seconds = (max((ends[-1] for _, ends in done), default=begin) - begin) / 1e9
        counters = self.counters
        return {
            "completed": len(done),
            "length_capped": sum(r.finish_reason is FinishReason.LENGTH for r, _ in done),
            "timed_out": sum(r.finish_reason is FinishReason.TIMEOUT for r in self.requests),
            "unservable": len(self.refused),
            "duration_s": seconds,
            "output_tokens": counters.emitted_tokens,
            "output_tokens_per_s": counters.emitted_tokens / seconds if seconds else 0.0,
            "rounds": counters.rounds,
            "scheduler_calls": counters.batches,
            "committed_blocks": counters.committed_blocks,
            "diffusion_steps_per_block": counters.steps_per_block,
            "diffusion_committed_tokens_per_step": counters.committed_tokens_per_step,
            "wasted_tokens": counters.wasted_tokens,
            "idle_block_rounds": counters.idle_block_rounds,
            "preemptions": counters.preemptions,
            "allocator_calls": counters.allocator_calls,
            "unfinished_allocator_calls": counters.unfinished_allocator_calls,
            **_distribution("ttft_ms", ttft),
            **_distribution("time_per_block_ms", per_block),
            **_distribution("e2e_ms", e2e),
        }


class RunLog:
    """Event log of an instance, for `DiffusionRun`; see `blis_py.cluster.instances.diffusion.RoundEvents`."""

    def __init__(self) -> None:
        self.log = DiffusionLog()

    def round(self, batch: DenoiseBatch, start_ns: int, end_ns: int) -> None: ...

    def batch(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        self.log.batch(batch, outcome)

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        self.log.commits(commits, now_ns)

    def idle(self, duration_ns: int) -> None: ...

    def unservable(self, request: Request, now_ns: int) -> None:
        assert isinstance(request, DiffusionRequest)
        self.log.refused(request)

    def timed_out(self, requests: list[Request]) -> None: ...

    def finished(self, requests: list[Request], end_ns: int) -> None: ...

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None: ...

    def ended(self, requests: list[Request], outcome: Fate) -> None: ...


def _distribution(name: str, values_ns: Sequence[float]) -> dict[str, float]:
    if not values_ns:
        return {}
    values = np.array(values_ns) / 1e6
    percentiles = np.percentile(values, PERCENTILES)
    return {f"mean_{name}": float(values.mean())} | {
        f"p{rank}_{name}": float(value) for rank, value in zip(PERCENTILES, percentiles, strict=True)
    }
