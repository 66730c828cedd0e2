"""`blis replay`, with the peer's own flags and files, beside an independent model of the peer.

Every case names the quirks of the peer in which it differs on purpose. Without them the model and we must
agree on every request; with any one of them left in, we must not, or the case proves nothing about it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_case import NO_DELAY, TEN_MS, Case, at_once, disagreements, ours, shuffled, theirs, traffic
from peer_model import BLIS, Config, Hardware, Quirks, Row


def few(rows: int = 40) -> list[Row]:
    return traffic(rows, 30)


def one_at_a_time(**changes: Any) -> list[Row]:
    """Three tokens in three steps of 10 ms from 0."""
    return [replace(Row(0, 0, 100, 3), **changes)]


TIGHT = Config(total_blocks=300, max_num_seqs=8, max_model_len=4_800)
"""Prefixes of a dozen groups do not fit beside the running requests, which always do."""
SCARCE = Config(total_blocks=120, max_model_len=1_920)
"""Decoding outgrows the pool."""
SHARED = traffic(150, 30, (20, 200), (5, 40), groups="abcdefghijkl", prefix=320)
GROWING = traffic(80, 100, (20, 200), (20, 90))

AS_THE_PEER: dict[str, Case] = {
    **{
        f"scheduler {name}": Case(traffic(150), Config(scheduler=name, max_num_seqs=16))
        for name in ("fcfs", "sjf", "priority-fcfs", "reverse-priority")
    },
    **{
        f"arriving at once, {name}": Case(at_once(few(60)), Config(scheduler=name, max_num_seqs=5))
        for name in ("fcfs", "sjf", "priority-fcfs", "reverse-priority")
    },
    "equal lengths and classes, ties by id": Case(
        at_once([Row(number, 0, 64, 9, "batch") for number in range(30)]),
        Config(scheduler="sjf", max_num_seqs=3),
    ),
    "rows out of order": Case(shuffled(traffic(80)), Config(scheduler="priority-fcfs", max_num_seqs=8)),
    "chunked prefill": Case(traffic(60, 20, (500, 3000)), Config(budget=256), shows=("chunks",)),
    "prefill threshold": Case(traffic(60, 20, (500, 3000)), Config(threshold=100), shows=("chunks",)),
    "threshold near the budget": Case(
        traffic(60, 100, (10, 300)), Config(budget=24, max_num_seqs=24, threshold=11), shows=("chunks",)
    ),
    "a budget as large as the batch": Case(
        traffic(60, 200, (10, 200)), Config(budget=24, max_num_seqs=24), shows=("chunks",)
    ),
    "one at a time": Case(few(), Config(max_num_seqs=1)),
    **{
        f"blocks of {size}": Case(
            traffic(80, groups="abc", prefix=100),
            Config(block=size, total_blocks=64_000 // size),
            shows=("hits",),
        )
        for size in (1, 16, 32)
    },
    "shared prefixes": Case(traffic(100, groups="abcd", prefix=200), shows=("hits",)),
    "a prompt that ends with its prefix, not on a block": Case(
        traffic(80, prompt=(0, 3), groups="ab", prefix=200), shows=("hits",)
    ),
    "one class only": Case(traffic(80, classes=("sheddable",)), Config(scheduler="priority-fcfs")),
    "deadlines": Case(traffic(120, patience_s=(0.1, 4)), Config(max_num_seqs=10)),
    "deadline before the queue": Case([*few(), Row(99, 1_000, 50, 5, deadline_us=9_000)]),
    "deadline in the last step": Case(one_at_a_time(deadline_us=25_000), alpha=NO_DELAY, beta=TEN_MS),
    "deadline between tokens": Case(one_at_a_time(deadline_us=15_000), alpha=NO_DELAY, beta=TEN_MS),
    "too long, by one token": Case(
        [
            *few(),
            Row(90, 500, 1_000, 24),
            Row(91, 500, 1_000, 25),
            Row(92, 500, 1_024, 0),
            Row(93, 500, 1_023, 1),
        ],
        Config(max_model_len=1_024),
    ),
    "too big for the pool": Case(
        [*few(), Row(90, 500, 1_900, 20), Row(91, 500, 1_900, 21)],
        replace(SCARCE, max_num_seqs=1),
        automatic_max_model_len=True,
    ),
    "prompts of one token": Case(traffic(60, 20, (1, 1), (20, 30))),
    "two busy instances": Case(
        traffic(120, 200), Config(instances=2, admission_us=300, routing_us=1_700, max_num_seqs=8)
    ),
    **{
        f"{model}, TP {tp}": Case(
            traffic(30, 60, output=(20, 40)), Config(max_model_len=8_192), model=model, tp=tp
        )
        for model in ("mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-8b", "qwen3-0.6b")
        for tp in (1, 2)
    },
    **{
        # The peer's formula has one width for all weights; an MXFP4 checkpoint has two.
        f"gpt-oss-120b, TP {tp}": Case(
            few(), Config(max_model_len=8_192), model="gpt-oss-120b", tp=tp, w=2.0, expert_w=0.53125
        )
        for tp in (1, 2)
    },
    "interleaved experts": Case(
        few(),
        model="mixtral-8x7b",
        tp=2,
        own_model={
            "model_type": "of_its_own",
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 9_000,
            "n_shared_experts": 2,
        },
    ),
    "shared experts": Case(
        few(), model="qwen3-30b-a3b", own_model={"shared_expert_intermediate_size": 1_000}
    ),
    "first layers dense": Case(
        few(), model="qwen3-30b-a3b", own_model={"model_type": "of_its_own", "first_k_dense_replace": 3}
    ),
    "FP8 weights": Case(few(), own_model={"quantization_config": {"quant_method": "fp8"}}, w=1.0),
    "4-bit weights": Case(
        few(), own_model={"quantization_config": {"quant_method": "awq", "bits": 4}}, w=0.5
    ),
    "L40S": Case(few(), model="llama-3.1-8b", gpu="L40S", hardware=Hardware(362.05e6, 1466e6, 0.864e6)),
    "A100": Case(few(), gpu="A100-80", hardware=Hardware(312e6, 312e6, 2.039e6)),
    **{
        f"{count} coefficients": Case(
            [Row(99, 0, 100, 400), *traffic(60, 200)],
            alpha=(1_000.9, 200.5, 50.7),
            beta=(0.5, 0.7, 1, 0.4, 20, 9, 300, 50, 0.8, 1.2, 0.9)[:count],
        )
        for count in (7, 8, 9, 10, 11)
    },
    "a constant and the batch": Case(
        traffic(60, 60, output=(20, 40)), alpha=NO_DELAY, beta=(0, 0, 0, 0, 0, 40, 6_000)
    ),
}
"""Where BLIS and blis-py are to agree as they are."""

WITHOUT_ITS_QUIRKS: dict[str, Case] = {
    "a request that comes while the last step of all others takes its time": Case(
        [Row(0, 0, 100, 1), Row(1, 4_000, 100, 1)],
        differs=("acts_at_step_start",),
        shows=("early_starts",),
        alpha=NO_DELAY,
        beta=TEN_MS,
    ),
    "one output token": Case(
        traffic(60, output=(1, 1)), differs=("acts_at_step_start",), shows=("early_starts",)
    ),
    "deadline before the first token of a step that has begun": Case(
        one_at_a_time(deadline_us=5_000), differs=("acts_at_step_start",), alpha=NO_DELAY, beta=TEN_MS
    ),
    "deadline at the start of a step": Case(
        one_at_a_time(deadline_us=20_000), differs=("acts_at_step_start",), alpha=NO_DELAY, beta=TEN_MS
    ),
    "three instances": Case(
        traffic(120, 60, output=(1, 60)),
        Config(instances=3, admission_us=300, routing_us=1_700, max_num_seqs=8),
        differs=("acts_at_step_start",),
        shows=("early_starts",),
    ),
    "no output token": Case(
        traffic(60, output=(0, 12)), differs=("no_tail_for_no_output", "acts_at_step_start")
    ),
    "prompts cached in full": Case(
        traffic(100, prompt=(0, 3), groups="abcd", prefix=192),
        differs=("free_full_hits",),
        shows=("full_hits",),
    ),
    "prefixes evicted": Case(SHARED, TIGHT, differs=("slot_for_last_token",), shows=("evictions", "hits")),
    "the same prefix computed twice": Case(
        traffic(40, 100, (5, 60), (2, 6), groups="abcdef", prefix=160, seed=4),
        replace(TIGHT, total_blocks=60, max_model_len=900, budget=48, threshold=16),
        differs=("one_block_per_hash",),
        shows=("evictions", "hits", "chunks"),
    ),
    **{
        name: Case(
            rows, config, differs=("redecodes", "forgets_stalls", *further), shows=("preemptions", *shows)
        )
        for name, rows, config, further, shows in (
            ("preemption of the last", GROWING, SCARCE, (), ()),
            (
                "preemption of the least urgent",
                GROWING,
                replace(SCARCE, preemption="priority"),
                (),
                ("stalls",),
            ),
            (
                "preemption by itself, before any request has tokens",
                GROWING,
                replace(SCARCE, preemption="priority", total_blocks=60, max_model_len=960, budget=40),
                ("slot_for_last_token", "wastes_steps"),
                ("stalls", "chunks"),
            ),
            (
                "preemption of shared prefixes",
                traffic(80, 100, (20, 200), (20, 90), groups="abc", prefix=100),
                SCARCE,
                (),
                ("hits",),
            ),
        )
    },
}
"""Where they differ on purpose, and agree once the peer has lost the quirks named."""

CASES = AS_THE_PEER | WITHOUT_ITS_QUIRKS


def without(*quirks: str) -> Quirks:
    return replace(BLIS, **dict.fromkeys(quirks, False))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_request_agrees_with_the_peer_up_to_the_named_quirks(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    measured = ours(case, tmp_path)
    expected, counts = theirs(case, tmp_path, without(*case.differs))
    assert disagreements(measured, expected) == []
    if case.differs and case.shows:
        counts = theirs(case, tmp_path, BLIS)[1]
    assert all(counts[what] for what in case.shows), counts
    for quirk in case.differs:
        others = [other for other in case.differs if other != quirk]
        assert disagreements(measured, theirs(case, tmp_path, without(*others))[0]), quirk


STATISTICS = {"mean": np.mean} | {f"p{p}": lambda values, p=p: np.percentile(values, p) for p in (90, 95, 99)}


def test_the_statistics_of_a_run_agree(tmp_path: Path) -> None:
    case = CASES["scheduler sjf"]
    measured = ours(case, tmp_path)
    requests = theirs(case, tmp_path, BLIS)[0].values()
    samples = {
        "ttft": [request.ttft_us for request in requests],
        "e2e": [request.e2e_us for request in requests],
        "itl": [gap for request in requests for gap in request.gaps_us],
    }
    for metric, values in samples.items():
        for name, statistic in STATISTICS.items():
            assert measured[f"{metric}_{name}_ms"] == pytest.approx(statistic(values) / 1e3), (metric, name)
    delays = [request.scheduling_delay_us for request in requests]
    assert measured["scheduling_delay_p99_ms"] == pytest.approx(np.percentile(delays, 99) / 1e3)
    assert measured["total_output_tokens"] == sum(row.output for row in case.rows)
    assert measured["total_input_tokens"] == sum(row.input for row in case.rows)


def test_a_replay_reads_a_row_as_the_peer_does(tmp_path: Path) -> None:
    """Sent time first; prompts as served, unless in a group; a group's prefix as its first row has it."""
    rows = [
        Row(0, 0, 40, 9, group="g", prefix=100),
        Row(1, 30_000, 50, 9, group="g", prefix=700),
        Row(2, 60_000, 60, 9),
    ]
    case = Case([*rows, Row(3, 61_000, 80, 9)])
    as_written = {
        1: {"server_input_tokens": "999"},
        2: {"arrival_time_us": "5", "send_time_us": "60000"},
        3: {"input_tokens": "1", "server_input_tokens": "80"},
    }
    folder = tmp_path / "ours"
    folder.mkdir()
    assert disagreements(ours(case, folder, as_written), theirs(case, tmp_path, BLIS)[0]) == []
