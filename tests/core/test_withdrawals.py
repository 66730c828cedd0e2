"""Requests whose clients give up: when they leave, by the rule of the release."""

from __future__ import annotations

from typing import Any

import pytest

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import FinishReason, Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

RULES = ("boundary", "output", "output-or-chunk")


def core_of(**values: Any) -> Scheduler:
    settings: dict[str, Any] = {
        "num_kv_blocks": 100,
        "max_model_len": 400,
        "block_size": 4,
        "max_num_batched_tokens": 16,
        "batch_former": "prefill-only",
        "admission_rule": "new-token-ratio",
        "prefix_cache": "radix",
        "radix_eviction": "leaves-to-fit",
    }
    return Scheduler(SchedulerConfig(**{**settings, **values}))


def added(core: Scheduler, name: str, prompt: int, limit: int = 50, **values: Any) -> Request:
    request = Request(name, 0, prompt, limit, limit, **values)
    assert core.add(request) is None
    return request


def step(core: Scheduler) -> list[Request]:
    planned = core.schedule(0)
    assert planned is not None
    done = core.finish(planned)
    core.check()
    return done


def launched(core: Scheduler) -> Step:
    planned = core.schedule(0)
    assert planned is not None
    core.advance(planned)
    return planned


@pytest.mark.parametrize("rule", RULES)
def test_a_request_that_decodes_ends_with_its_next_output_where_the_rule_says_so(rule: str) -> None:
    core = core_of(aborts_at=rule)
    request, other = added(core, "A", 8), added(core, "B", 8)
    step(core)
    assert core.withdraw(request) is (rule == "boundary")
    assert (request in core.running) is (rule != "boundary")
    assert step(core) == ([] if rule == "boundary" else [request])
    assert request.finish_reason is FinishReason.ABORT
    assert request.generated == (1 if rule == "boundary" else 2)
    assert list(core.running) == [other]


def test_a_step_in_flight_has_its_next_output_and_the_step_behind_it_is_in_vain() -> None:
    core = core_of(aborts_at="output", async_scheduling=True)
    request = added(core, "A", 8)
    first = launched(core)
    assert not core.withdraw(request)
    second = launched(core)
    assert second.features.decode_seqs == 1, "it is planned once more"
    assert core.resolve(first) == [request]
    assert (request.generated, core.counters.discarded_tokens) == (1, 1)
    assert core.schedule(0) is None
    core.resolve(second)
    core.check()


def test_a_request_that_sits_out_a_step_of_prompts_ends_with_the_next_of_decodes() -> None:
    core = core_of(aborts_at="output")
    request = added(core, "A", 8)
    step(core)
    added(core, "B", 8)
    assert not core.withdraw(request)
    assert step(core) == [], "a step of prompts"
    assert step(core) == [request]
    assert request.generated == 2


@pytest.mark.parametrize("rule", RULES)
def test_a_waiting_request_leaves_at_once(rule: str) -> None:
    core = core_of(aborts_at=rule)
    assert core.withdraw(added(core, "A", 8))
    assert not core.has_candidates


@pytest.mark.parametrize(("rule", "found_tokens"), [("boundary", 16), ("output-or-chunk", 0)])
def test_what_the_last_chunk_of_a_prompt_computed_is_lost_where_the_release_drops_it(
    rule: str, found_tokens: int
) -> None:
    core = core_of(aborts_at=rule)
    request = added(core, "A", 40, block_keys=range(10))
    step(core)
    assert core.withdraw(request)
    again = added(core, "B", 40, block_keys=range(10))
    step(core)
    assert again.cached_tokens == found_tokens


def test_before_that_release_a_prompt_is_computed_to_its_end() -> None:
    core = core_of(aborts_at="output")
    request = added(core, "A", 40)
    step(core)
    assert not core.withdraw(request)
    assert [step(core), step(core)] == [[], [request]]
    assert request.generated == 1


def test_a_deadline_that_passed_is_not_seen_again() -> None:
    core = core_of(aborts_at="output")
    request = added(core, "A", 8, deadline_ns=5)
    step(core)
    assert core.expire(6) == []
    assert core.first_deadline_ns > 6
    assert step(core) == [request]
    assert request.finish_reason is FinishReason.TIMEOUT


def test_a_request_whose_last_step_is_planned_ends_with_the_step_before_it() -> None:
    core = core_of(aborts_at="output", async_scheduling=True)
    request = added(core, "A", 8, limit=2)
    first = launched(core)
    assert not core.withdraw(request)
    second = launched(core)
    assert core.resolve(first) == [request]
    assert (request.generated, core.counters.discarded_tokens) == (1, 1)
    assert core.resolve(second) == []
    assert core.is_settled
    core.check()


def test_a_request_in_its_last_step_ends_with_it_once() -> None:
    core = core_of(aborts_at="output", async_scheduling=True)
    request = added(core, "A", 8, limit=1)
    first = launched(core)
    assert not core.withdraw(request, FinishReason.TIMEOUT)
    assert core.resolve(first) == [request]
    assert request.finish_reason is FinishReason.TIMEOUT
    assert not core.running
