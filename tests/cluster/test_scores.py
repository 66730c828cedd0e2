"""Scores of many instances, and their age."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster_runs import Row, linear, table_of
from one_pool import simulate

from blis_py.cluster.routing.router import PowerOfTwo
from blis_py.cluster.routing.scorers import DEFAULT_PROFILE, by_instance
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request

US, S = 1_000, 1_000_000_000
CONFIG = SchedulerConfig(num_kv_blocks=400, max_model_len=4096, max_num_seqs=64)


@pytest.mark.parametrize("holders", range(1, 20))
def test_blocks_of_a_prompt_are_counted_for_however_many_hold_them(holders: int) -> None:
    """Nested levels, as reports have them: instance i holds i + 1 blocks."""
    levels = [(((1 << holders) - 1) & ~((1 << i) - 1), i + 1) for i in range(holders)]
    assert by_instance(levels, 20).tolist() == [*range(1, holders + 1), *[0] * (20 - holders)]


def test_levels_of_many_and_of_few_holders_add_up() -> None:
    levels = [(0b1111111011, 2), (0b0011111010, 3), (0b0000001010, 7)]
    assert by_instance(levels, 12).tolist() == [2, 7, 0, 7, 3, 3, 3, 3, 2, 2, 0, 0]


@pytest.mark.parametrize("scorer", ["load-balance", "active-requests"])
@pytest.mark.parametrize("instances", [2, 5, 8])
def test_a_scorer_of_load_counts_what_was_sent_since_the_last_report(scorer: str, instances: int) -> None:
    """Reports are a second old: of eight rounds of simultaneous requests every instance gets one each."""
    rows = [Row(number, 20, 400) for number in range(8 * instances)]
    record = simulate(
        table_of(rows),
        scheduler=CONFIG,
        latency=linear(10 * US),
        num_instances=instances,
        routing_policy="weighted",
        routing_scorers={scorer: 1.0},
        snapshot_refresh_ns=S,
    )
    assert np.bincount(record.instance).tolist() == [8] * instances


def test_without_scorers_weighted_routing_has_those_of_llm_d() -> None:
    assert dict(DEFAULT_PROFILE) == {"precise-prefix-cache": 2, "queue-depth": 1, "kv-utilization": 1}


@pytest.mark.parametrize(
    ("load", "weights", "chosen"),
    [
        ((5, 3, 0), None, 1),
        ((3, 3, 0), None, 0),
        ((3, 5, 0), None, 0),
        # the request makes 4 / 1 and 8 / 2: a tie; 4 / 1 and 7 / 2; 1 / 1 and 1 / 2
        ((3, 7, 0), (1, 2, 1), 0),
        ((3, 6, 0), (1, 2, 1), 1),
        ((0, 0, 0), (1, 2, 1), 1),
        ((0, 1, 0), (1, 2, 1), 0),
    ],
)
def test_of_two_drawn_instances_the_request_goes_where_it_makes_less_load_for_its_capacity(
    load: tuple[int, ...], weights: tuple[int, ...] | None, chosen: int
) -> None:
    """The first and the second of three, numbered 10, 11 and 12."""
    loads = {10 + place: each for place, each in enumerate(load)}
    by_index = None if weights is None else {10 + place: each for place, each in enumerate(weights)}
    draws = iter([0, 0])
    setup: Any = SimpleNamespace(
        rng=SimpleNamespace(below=lambda count: next(draws)),
        signals=SimpleNamespace(ready=[10, 11, 12], load=loads, weights=by_index),
    )
    assert PowerOfTwo(setup)(Request("r", 0, 10), 0) == 10 + chosen
