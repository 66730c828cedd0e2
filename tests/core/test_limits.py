"""What can never be served, what is cut, and settings that cannot work."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from blis_py.core.checks import _check
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import FinishReason, Request
from blis_py.core.scheduler import Scheduler
from blis_py.errors import InputError


def config(**values: Any) -> SchedulerConfig:
    return SchedulerConfig(**{"num_kv_blocks": 10, "max_model_len": 100, "block_size": 4, **values})


def served(one: Request, **values: Any) -> Request:
    scheduler = Scheduler(config(**values))
    assert scheduler.add(one) is None
    while (step := scheduler.schedule(0)) is not None:
        scheduler.finish(step)
    return one


def test_a_request_beyond_max_model_len_is_refused() -> None:
    scheduler = Scheduler(config(max_model_len=20))
    assert scheduler.add(Request("A", 0, 15, 5, 5)) is None
    assert scheduler.add(Request("B", 0, 15, 6, 6)) == "needs 21 tokens, max_model_len is 20"
    assert scheduler.add(Request("C", 0, 20, 1, 0)) == "needs 21 tokens, max_model_len is 20"
    assert len(scheduler.waiting) == 1


def test_a_request_that_needs_more_blocks_than_exist_is_refused() -> None:
    scheduler = Scheduler(config())
    # 40 tokens fit; the last token emitted is never stored.
    assert scheduler.add(Request("A", 0, 30, 11, 11)) is None
    assert scheduler.add(Request("B", 0, 30, 12, 12)) == "needs 11 KV blocks, the pool has 10"
    assert scheduler.add(Request("C", 0, 30, 15, 15)) == "needs 11 KV blocks, the pool has 10"
    assert scheduler.add(Request("D", 0, 30, 16, 16)) == "needs 12 KV blocks, the pool has 10"
    exact = Scheduler(config(max_model_len=45))
    assert exact.add(Request("C", 0, 30, 15, 15)) == "needs 11 KV blocks, the pool has 10"
    assert exact.add(Request("D", 0, 30, 16, 16)) == "needs 46 tokens, max_model_len is 45"


def test_the_largest_request_that_is_not_refused_runs_to_its_end() -> None:
    one = served(Request("A", 0, 30, 11, 11))
    assert (one.generated, one.finish_reason) == (11, FinishReason.STOP)


def test_without_a_limit_of_its_own_a_request_is_cut_at_max_model_len() -> None:
    one = served(Request("A", 0, 5, 100, 0), max_model_len=8)
    assert (one.generated, one.finish_reason) == (3, FinishReason.LENGTH)


def test_reaching_max_model_len_with_the_last_token_is_no_cut() -> None:
    one = served(Request("A", 0, 5, 3, 0), max_model_len=8)
    assert (one.generated, one.finish_reason) == (3, FinishReason.STOP)


def test_the_clients_limit_ends_a_longer_answer() -> None:
    one = served(Request("A", 0, 5, 30, 4))
    assert (one.generated, one.finish_reason) == (4, FinishReason.STOP)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scheduler", "lifo"),
        ("preemption_policy", "random"),
        ("batch_former", "decode-first"),
        ("num_kv_blocks", 0),
        ("max_model_len", 0),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("block_size", 0),
        ("long_prefill_token_threshold", -1),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=key):
        Scheduler(config(**{key: value}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prefix_cache": "tree"}, "prefix_cache: unknown choice"),
        (
            {"radix_eviction_policy": "random", "prefix_cache": "radix"},
            "radix_eviction_policy: unknown choice",
        ),
        ({"radix_eviction_policy": "lfu"}, "radix_eviction_policy: belongs to the radix cache"),
        ({"prefix_cache": "radix", "enable_prefix_caching": False}, "contradicts enable_prefix_caching"),
        ({"scheduler": "lpm", "enable_prefix_caching": False}, "lpm orders by the prefix cache"),
        ({"scheduler": "hrrn", "prefix_cache": "none"}, "hrrn orders by the prefix cache"),
        ({"scheduler": "dfs-weight"}, "dfs-weight walks the radix tree"),
        ({"fairness_ms": 5.0}, "fairness_ms: belongs to lpm, hrrn, dfs-weight"),
        ({"scheduler": "lpm", "fairness_ms": -1.0}, "fairness_ms: must not be negative"),
        ({"scheduler": "lpm", "fairness_tokens": -1}, "fairness_tokens: must not be negative"),
        ({"scheduler": "lpm", "lpm_max_queue": 0}, "lpm_max_queue: must be at least 1"),
        ({"scheduler": "lpm", "in_batch_sharing_tokens": 0}, "in_batch_sharing_tokens: must be at least 1"),
        ({"in_batch_sharing_tokens": None}, "in_batch_sharing_tokens: belongs to lpm"),
    ],
)
def test_settings_of_the_cache_that_do_not_go_together_are_refused(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Scheduler(config(**values))


@pytest.mark.parametrize("values", [{"sjf_aging_ms": 5.0}, {"scheduler": "sjf", "sjf_aging_ms": -1.0}])
def test_an_aging_bound_needs_sjf_and_a_time(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="sjf_aging_ms"):
        Scheduler(config(**values))


LIMITED = [
    (field.name, kind, field.metadata[kind])
    for field in fields(SchedulerConfig)
    for kind in ("least", "above", "most")
    if field.metadata.get(kind) is not None
]


@pytest.mark.parametrize(
    ("name", "kind", "limit"), LIMITED, ids=[f"{name} {kind}" for name, kind, _ in LIMITED]
)
def test_a_limit_itself_is_allowed_unless_a_setting_must_be_above_it(
    name: str, kind: str, limit: float
) -> None:
    (limits,) = (field.metadata for field in fields(SchedulerConfig) if field.name == name)
    beyond = limit + 1 if kind == "most" else limit - 1
    if kind == "above":
        with pytest.raises(InputError, match=f"must be above {limit:,}"):
            _check(name, limit, limits)
        _check(name, limit + 0.5, limits)
        return
    _check(name, limit, limits)
    with pytest.raises(InputError, match=r"must (be at most|be at least|not be negative)"):
        _check(name, beyond, limits)


def test_one_block_and_one_token_are_the_smallest_pool_and_sequence() -> None:
    assert served(Request("A", 0, 4, 1, 1), num_kv_blocks=1).generated == 1
    for limits in ({"num_kv_blocks": 0}, {"max_model_len": 0}):
        with pytest.raises(InputError, match="must be at least 1"):
            Scheduler(config(**limits))
    Scheduler(config(num_kv_blocks=1, max_model_len=1))
