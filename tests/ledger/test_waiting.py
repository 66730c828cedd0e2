"""Causes of waiting, from the resources of a step: what the request lacks, or what those ahead of it took."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_runs import Row, linear, table_of
from ledger_runs import all_ledgers
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.ledger.lines import LedgerLine
from blis_py.ledger.waiting import AdmissionState
from blis_py.metrics.record import RunRecord

ROOM = AdmissionState(
    slots=2,
    slots_left=1,
    budget_tokens=100,
    budget_left_tokens=100,
    whole_budget_tokens=128,
    least_tokens=1,
    longest_chunk=128,
    whole_prompts=False,
    free_blocks=10,
    block_size=16,
    closed=False,
    held_back=False,
)


@pytest.mark.parametrize(
    ("changes", "tokens", "line"),
    [
        ({"slots": 0, "slots_left": 0}, 50, LedgerLine.NO_SLOT),
        ({"slots": 0, "closed": True}, 50, LedgerLine.NO_SLOT),
        ({"closed": True}, 50, LedgerLine.NO_KV),
        ({"closed": True, "budget_tokens": 0}, 50, LedgerLine.NO_KV),
        ({"budget_tokens": 0, "budget_left_tokens": 0}, 50, LedgerLine.NO_BUDGET),
        ({"budget_tokens": 15, "least_tokens": 16}, 50, LedgerLine.NO_BUDGET),
        ({"whole_prompts": True, "budget_tokens": 49}, 50, LedgerLine.NO_BUDGET),
        ({"free_blocks": 3}, 50, LedgerLine.NO_KV),
        ({"free_blocks": 3}, 49, LedgerLine.NO_KV),
        ({"free_blocks": 4}, 64, LedgerLine.BEHIND_KV),
        ({"free_blocks": 9, "longest_chunk": 32}, 160, LedgerLine.BEHIND_KV),
        ({"free_blocks": 9, "longest_chunk": 32, "whole_sequence": True}, 160, LedgerLine.NO_KV),
        ({"no_prompts": True, "free_blocks": 3}, 50, LedgerLine.NO_PROMPTS),
        ({"free_blocks": 4, "budget_tokens": 64}, 500, LedgerLine.BEHIND_KV),
        ({"slots_left": 0}, 50, LedgerLine.BEHIND_SLOT),
        ({"slots_left": 0, "held_back": True}, 50, LedgerLine.BEHIND_SLOT),
        ({"held_back": True, "budget_left_tokens": 0}, 50, LedgerLine.HELD_BACK),
        ({"budget_left_tokens": 0}, 50, LedgerLine.BEHIND_BUDGET),
        ({"budget_left_tokens": 1}, 50, LedgerLine.BEHIND_KV),
        ({"whole_prompts": True, "budget_left_tokens": 49}, 50, LedgerLine.BEHIND_BUDGET),
        ({"whole_prompts": True, "budget_left_tokens": 50}, 50, LedgerLine.BEHIND_KV),
        ({}, 50, LedgerLine.BEHIND_KV),
    ],
    ids=lambda value: ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_a_request_waits_for_what_it_lacks_or_for_those_ahead_of_it(
    changes: dict[str, object], tokens: int, line: LedgerLine
) -> None:
    """A request that would have had everything waits in line: for KV it does not lack."""
    assert replace(ROOM, **changes).refuses(tokens) is line


US = 1_000
PROMPTS_FIRST = SchedulerConfig(
    num_kv_blocks=400, max_model_len=4096, max_num_batched_tokens=40, batch_former="prefill-first"
)


def waits(rows: list[Row], config: SchedulerConfig = PROMPTS_FIRST) -> list[dict[LedgerLine, int]]:
    """Of each request before its first token, with steps of 10 us."""

    def run(**options: object) -> RunRecord:
        return simulate(table_of(rows), scheduler=config, latency=linear(10 * US), **options)

    return [ledger.first for ledger in all_ledgers(run, linear(10 * US))[1]]


def test_a_prompt_that_is_not_cut_waits_for_the_budget_that_the_one_ahead_took() -> None:
    """Ten tokens are left of forty, and thirty are wanted at once."""
    first, second = waits([Row(0, 30, 1), Row(0, 30, 1)])
    assert first == {LedgerLine.OWN_PREFILL: 10 * US}
    assert second == {LedgerLine.BEHIND_BUDGET: 10 * US, LedgerLine.OWN_PREFILL: 10 * US}


def test_decodes_take_no_budget_from_prompts_that_go_first() -> None:
    """The second prompt needs all of it, and waits for the first and not for the decode beside that."""
    _, first, second = waits([Row(0, 20, 20), Row(5, 39, 1), Row(6, 40, 1)])
    assert LedgerLine.NO_BUDGET not in {**first, **second}
    assert second[LedgerLine.BEHIND_BUDGET] == 10 * US


def test_a_preemption_behind_the_admissions_is_not_what_kept_a_prompt_out() -> None:
    """In the third step the second request takes all free blocks, the third none, and then the first, which
    needs one, preempts the second: the third was in line behind what took the blocks."""
    config = replace(PROMPTS_FIRST, num_kv_blocks=4, max_model_len=64)
    _, _, third = waits([Row(0, 31, 6), Row(15, 30, 1), Row(16, 10, 1)], config)
    assert LedgerLine.NO_KV not in third
    assert third[LedgerLine.BEHIND_KV] >= 10 * US
