"""Ledgers of requests whose prefill and decode are apart: each nanosecond of the hand-over has a cause."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from ledger_runs import all_ledgers, check_sums

from blis_py.ledger.lines import LedgerLine

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from apart import US, cluster, requests, simulate

LATENCY = cluster("vllm").pools[0].spec.latency
PREFILL, DECODE = {LedgerLine.OWN_PREFILL: 30 * US}, {LedgerLine.DECODE: 30 * US}
WIRE = {LedgerLine.WIRE: 23 * US}


@pytest.mark.parametrize(
    ("handoff", "beyond"),
    [
        ("vllm", {LedgerLine.EXTRA_STEP: 11 * US}),
        ("trtllm", {}),
        ("sglang", {}),
    ],
)
def test_a_hand_over_alone_is_wire_and_for_vllm_one_step_more(
    handoff: str, beyond: dict[LedgerLine, int]
) -> None:
    record, (ledger,) = all_ledgers(partial(simulate, requests([0], [20], [4]), handoff), LATENCY)
    check_sums(record, [ledger])
    assert ledger.whole == PREFILL | DECODE | WIRE | beyond
    assert ledger.first == PREFILL | WIRE | beyond


@pytest.mark.parametrize(
    ("handoff", "settings", "expected"),
    [
        # The first request keeps the blocks of the decode instance up to 94, or 83.
        ("vllm", {"num_kv_blocks": 8}, {LedgerLine.RESERVATION: 64 * US, **WIRE}),
        ("sglang", {"num_kv_blocks": 8}, {LedgerLine.RESERVATION: 83 * US, **WIRE}),
        ("trtllm", {}, {LedgerLine.LINK_QUEUE: 20 * US, **WIRE}),
    ],
)
def test_waits_have_a_line_by_cause(
    handoff: str, settings: dict[str, int], expected: dict[LedgerLine, int]
) -> None:
    run = partial(simulate, requests([0, 0], [20, 20], [4, 4]), handoff, prefill=2, **settings)
    record, ledgers = all_ledgers(run, LATENCY)
    check_sums(record, ledgers)
    lines = (LedgerLine.RESERVATION, LedgerLine.LINK_QUEUE, LedgerLine.WIRE)
    assert {line: ns for line, ns in ledgers[1].whole.items() if line in lines} == expected


@pytest.mark.parametrize("handoff", ["vllm", "trtllm", "sglang"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_ledgers_add_up_under_pressure(handoff: str, async_scheduling: bool) -> None:
    rng, count = Random(handoff), 30
    arrivals = sorted(rng.randint(0, 400) for _ in range(count))
    prompts = [rng.randint(1, 60) for _ in range(count)]
    deadlines = [rng.choice([-1, -1, at + 200]) for at in arrivals]
    table = requests(arrivals, prompts, [rng.choice([1, 2, 9, 50]) for _ in range(count)], deadlines)
    more = {"prefill": 2, "decode": 2, "num_kv_blocks": 40, "max_num_batched_tokens": 16}
    run: Callable[..., object] = partial(simulate, table, handoff, async_scheduling=async_scheduling, **more)
    record, ledgers = all_ledgers(run, LATENCY)  # type: ignore[arg-type]
    check_sums(record, ledgers)
    assert any(LedgerLine.WIRE in ledger.whole for ledger in ledgers)
