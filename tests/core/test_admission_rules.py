"""Admission rules to the token: the share of remaining limits that SGLang's keeps free, and the blocks that
TensorRT-LLM's counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.core.admission_rules import AdmissionRule, GuaranteedNoEvict, NewTokenRatio
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request

CONFIG = SchedulerConfig(num_kv_blocks=64, max_model_len=4096, block_size=1)
ONE_TOKEN: Any = SimpleNamespace(max_tokens=1, target=1)


def rule(tick: int, free: int, running: int = 1, generated: int = 0) -> NewTokenRatio:
    """With running requests of 1,000 tokens at most."""
    instance: Any = SimpleNamespace(
        running=[SimpleNamespace(max_tokens=1000, target=1000)] * running,
        kv=SimpleNamespace(pool=SimpleNamespace(num_free=free)),
        tick=tick,
        settled_generated=lambda request: generated,
    )
    return NewTokenRatio(CONFIG, instance)


@pytest.mark.parametrize(
    ("tick", "reserved"), [(0, 700), (300, 398), (600, 98), (6000, 98)], ids=lambda value: str(value)
)
def test_the_reserve_falls_from_70_to_10_per_cent_in_600_steps(tick: int, reserved: int) -> None:
    """A prompt of 2 tokens with a limit of 1: more than 3 tokens beside the reserve must be free."""
    assert not rule(tick, reserved + 3).admits(ONE_TOKEN, 2)
    assert rule(tick, reserved + 4).admits(ONE_TOKEN, 2)


def test_every_running_request_counts_with_what_it_may_still_emit() -> None:
    assert not rule(0, 4 * 350 + 1, running=4, generated=500).admits(ONE_TOKEN, 0)
    assert rule(0, 4 * 350 + 2, running=4, generated=500).admits(ONE_TOKEN, 0)


def test_a_refusal_may_be_another_answer_later_and_an_admission_is_final() -> None:
    refused, admitted = rule(0, 600), rule(0, 900)
    assert not refused.admits(ONE_TOKEN, 0)
    assert admitted.admits(ONE_TOKEN, 0)
    assert (refused.varies, admitted.varies) == (True, False)


def test_the_first_request_of_all_is_admitted_whatever_is_free() -> None:
    assert rule(0, 0, running=0).admits(ONE_TOKEN, 50)


@pytest.mark.parametrize("uncached_tokens", [0, 1, 10**6])
def test_vllm_admits_by_the_blocks_of_the_first_step_alone(uncached_tokens: int) -> None:
    nothing_free: Any = SimpleNamespace(kv=SimpleNamespace(pool=SimpleNamespace(num_free=0)))
    admission = AdmissionRule(CONFIG, nothing_free)
    assert admission.admits(ONE_TOKEN, uncached_tokens)
    assert not admission.varies


@pytest.mark.parametrize("running", [1, 2, 5])
def test_long_limits_reserve_4096_tokens_for_each_running_request(running: int) -> None:
    """At first 70 per cent of them; a prompt of 2 tokens with a limit of 1 needs 3 more."""
    reserved = -(-7 * 4096 * running // 10)
    for free, admitted in ((reserved + 3 - 1, False), (reserved + 3 + 1, True)):
        long = rule(0, free, running=running)
        for each in long._instance.running:
            each.max_tokens = each.target = 10**6
        assert long.admits(ONE_TOKEN, 2) == admitted


@pytest.mark.parametrize(
    ("running_tokens", "loading_blocks", "admitted"),
    [
        ([], [], True),
        ([], [14], True),
        ([], [15], False),
        ([], [7, 8], False),
        ([14], [], True),
        ([15], [], False),
        ([6], [4, 4], True),
        ([7], [4, 4], False),
        ([12, 2], [], True),
        ([12, 3], [], False),
    ],
)
def test_without_eviction_running_requests_count_to_their_ends_and_loading_ones_with_their_blocks(
    running_tokens: list[int], loading_blocks: list[int], admitted: bool
) -> None:
    """64 blocks of a token each; the new request has a prompt of 49 and a limit of 1."""
    instance: Any = SimpleNamespace(
        running={Request("", 0, 1, tokens - 1, tokens - 1): None for tokens in running_tokens},
        loads=SimpleNamespace(requests=[SimpleNamespace(block_table=[0] * n) for n in loading_blocks]),
    )
    new: Any = SimpleNamespace(prompt_tokens=49, max_tokens=1, target=1)
    assert GuaranteedNoEvict(CONFIG, instance).admits(new, 49) == admitted
