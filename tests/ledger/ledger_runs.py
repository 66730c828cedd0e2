"""Ledgers of every request of a small run, and what has to hold of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cluster_runs import differences
from one_pool import simulate

from blis_py.cluster.instances.diffusion import BlockDiffusion, DiffusionCosts
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.latency.base import FrontendDelays, LatencyModel
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.ledger import kinds
from blis_py.ledger.book import Bookkeeper, Ledger
from blis_py.ledger.division import Divider
from blis_py.ledger.explain import watched
from blis_py.ledger.lines import QUEUEING, LedgerLine
from blis_py.ledger.witness import Witness
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import RequestTable
from blis_py.workload.diffusion import MeasuredSteps, table_rounds
from blis_py.workload.diffusion_steps import MeanAndSpread

Simulate = Callable[..., RunRecord]
ENDED = {Outcome.COMPLETED, Outcome.LENGTH_CAPPED}
DENOISING = Linear(
    LinearCoefficients(
        LinearCosts(step=7e5, prefill_tokens=900, prefill_pairs=0.7, emitted_rows=333),
        LinearCosts(step=9_001),
        FrontendDelays(
            before_enqueue_ns=123_456, per_token_ns=1_003, at_end_ns=77, behind_seq_ns=509, prompt_token_ns=11
        ),
    )
)


def all_ledgers(
    run: Simulate, latency: LatencyModel, diffusion: BlockDiffusion | None = None
) -> tuple[RunRecord, list[Ledger]]:
    """The run, and a ledger for each of its requests; that it was watched made no difference to it."""
    record = run()
    rows = range(len(record.table))
    witness = Witness(watched(record, rows), kinds.noting(diffusion))
    assert differences(record, run(observer=witness)) == []
    notes = {index: notes.runs for index, notes in witness.notes.items()}
    arrivals = dict(zip(record.table.ids(), record.table.arrival_ns.tolist(), strict=True))
    dividers = [Divider(latency, kinds.chunk_alone(diffusion))] * len(record.instances)
    books = Bookkeeper(record, notes, dividers, arrivals)
    return record, [books.ledger(row) for row in rows]


def check_sums(record: RunRecord, ledgers: list[Ledger]) -> None:
    """Every ledger adds up, and what is in it agrees with what the run recorded."""
    for row, ledger in enumerate(ledgers):
        arrival = int(record.table.arrival_ns[row])
        assert all(ns > 0 for ns in (*ledger.whole.values(), *ledger.first.values())), ledger
        assert sum(ledger.whole.values()) == ledger.total_ns, ledger
        if record.finish_ns[row] >= 0:
            assert ledger.total_ns == record.finish_ns[row] - arrival
        if record.first_token_ns[row] >= 0:
            assert sum(ledger.first.values()) == record.first_token_ns[row] - arrival == ledger.ttft_ns
            assert all(ns <= ledger.whole.get(line, 0) for line, ns in ledger.first.items() if _inside(line))
        if record.finish_ns[row] >= 0:
            assert LedgerLine.UNFINISHED not in ledger.whole, ledger
        shares = sum(other.in_steps_ns for other in ledger.in_the_way.values())
        assert shares <= ledger.whole.get(LedgerLine.OTHERS_PREFILL, 0)


def _inside(line: LedgerLine) -> bool:
    """The front end behind the engine may be cut by the end of a run, and tokens seen after it."""
    return line not in (LedgerLine.TOKENISATION, LedgerLine.FRONT_END_AFTER)


def queueing_ns(ledger: Ledger) -> int:
    """From arrival to the step in which the request is first scheduled."""
    before = (LedgerLine.ADMISSION, LedgerLine.GATEWAY, LedgerLine.FRONT_END_BEFORE, *QUEUEING)
    return sum(ledger.first.get(line, 0) for line in before)


def denoising(
    seed: int,
    *,
    count: int = 20,
    timeout_ns: int = 0,
    modes: tuple[bool, bool, bool] = (True, True, True),
    num_kv_blocks: int = 400,
    budget: int = 2048,
    horizon_ns: int | None = None,
    cost_ns: int = 0,
) -> tuple[Simulate, BlockDiffusion]:
    """A run of block diffusion on three slots.

    Args:
        modes: first done, first out; reuse in place; re-looping.
        cost_ns: of a return to the scheduler.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(0, 6_000_000, count))
    table = RequestTable.build(
        arrivals,
        rng.choice([1, 31, 32, 33, 200], count),
        rng.integers(1, 120, count),
        deadline_ns=arrivals + timeout_ns if timeout_ns else None,
    )
    steps = dict.fromkeys(table.client.names, MeasuredSteps(MeanAndSpread(6, 0.5)))
    rounds = table_rounds(table, steps, 32, seed)
    blocks = BlockDiffusion(rounds, DiffusionConfig(32, *modes), DiffusionCosts(cost_ns, cost_ns // 2))
    scheduler = SchedulerConfig(
        num_kv_blocks=num_kv_blocks,
        max_model_len=400,
        block_size=32,
        max_num_seqs=3,
        max_num_batched_tokens=budget,
    )

    def run(**more: Any) -> RunRecord:
        how: dict[str, Any] = {"kind": blocks, "horizon_ns": horizon_ns, **more}
        return simulate(table, scheduler=scheduler, latency=DENOISING, **how)

    return run, blocks
