"""Batches and admission as SGLang and TensorRT-LLM do them, step by step."""

from __future__ import annotations

from typing import Any

from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler


def scheduler(**values: Any) -> Scheduler:
    limits = {"num_kv_blocks": 1000, "max_model_len": 4096, "max_num_batched_tokens": 100}
    return Scheduler(SchedulerConfig(**{**limits, **values}))


def steps(core: Scheduler, count: int) -> list[tuple[int, int]]:
    """Prompt tokens and decodes of the next steps."""
    found = []
    for _ in range(count):
        step = core.schedule(0)
        assert step is not None
        found.append((step.features.prefill_tokens, step.features.decode_seqs))
        core.finish(step)
        core.check()
    return found


def request(name: str, prompt: int, answer: int = 8) -> Request:
    return Request(name, 0, prompt, answer, answer)


def test_sglang_computes_prompts_alone_and_then_decodes_alone() -> None:
    core = scheduler(batch_former="prefill-only", block_size=1)
    core.add(request("A", 150))
    assert steps(core, 3) == [(100, 0), (50, 0), (0, 1)]
    core.add(request("B", 30))
    assert steps(core, 3) == [(30, 0), (0, 2), (0, 2)]


def test_sglang_fills_the_rest_of_a_chunk_with_the_beginning_of_the_next_prompt() -> None:
    core = scheduler(batch_former="prefill-only", block_size=1)
    for name, prompt in (("A", 70), ("B", 70)):
        core.add(request(name, prompt))
    assert steps(core, 3) == [(100, 0), (40, 0), (0, 2)]


def test_sglang_looks_for_new_requests_in_intervals_of_decode_steps() -> None:
    core = scheduler(batch_former="prefill-only", receive_interval=4)
    core.add(request("A", 20, 20))
    assert steps(core, 2) == [(20, 0), (0, 1)]
    core.add(request("B", 20, 20))
    assert steps(core, 5) == [(0, 1), (0, 1), (0, 1), (20, 0), (0, 2)]


def test_identical_steps_end_where_the_scheduler_looks_again() -> None:
    core = scheduler(batch_former="prefill-only", receive_interval=10)
    core.add(request("A", 20, 200))
    steps(core, 2)
    core.add(request("B", 20, 20))
    step = core.schedule(0)
    assert step is not None
    assert core.identical_decode_steps(step) == 9


def test_trtllm_computes_whole_prompts_beside_decodes() -> None:
    core = scheduler(batch_former="in-flight")
    for name, prompt in (("A", 60), ("B", 60), ("C", 30)):
        core.add(request(name, prompt))
    assert steps(core, 3) == [(60, 0), (90, 1), (0, 3)]


def test_trtllm_has_prompts_wait_for_others_while_it_decodes() -> None:
    core = scheduler(batch_former="in-flight", prompt_wait_steps=3, prompt_wait_share=0.9)
    core.add(request("A", 10, 40))
    assert steps(core, 1) == [(10, 0)], "nothing decodes, so nothing waits"
    core.add(request("B", 10, 40))
    assert steps(core, 4) == [(0, 1), (0, 1), (0, 1), (10, 1)]
    core.add(request("C", 95, 40))
    assert steps(core, 1) == [(95, 2)], "enough tokens wait"


def test_without_eviction_a_request_starts_when_all_can_run_to_their_ends() -> None:
    core = scheduler(admission_rule="guaranteed-no-evict", num_kv_blocks=10, block_size=16)
    for name in "ABC":
        core.add(request(name, 16, 64))  # five blocks each
    assert steps(core, 2) == [(32, 0), (0, 2)]
    while core.waiting:
        steps(core, 1)
    assert core.counters.preemptions == 0
    assert len(core.running) == 1


def test_blocks_alone_admit_more_and_preempt() -> None:
    core = scheduler(num_kv_blocks=10, block_size=16)
    for name in "ABC":
        core.add(request(name, 16, 64))
    assert steps(core, 1) == [(48, 0)]
    while core.running:
        steps(core, 1)
    assert core.counters.preemptions > 0


def test_sglangs_ranks_count_less_of_what_others_may_write() -> None:
    for rule, second in (("new-token-ratio", (0, 1)), ("new-token-ratio-ranks", (16, 0))):
        core = scheduler(
            admission_rule=rule, batch_former="prefill-only", num_kv_blocks=105, fixed_lengths_reserved=False
        )
        core.add(request("A", 16, 1000))
        assert steps(core, 1) == [(16, 0)]
        core.add(request("B", 16, 1000))
        assert steps(core, 1) == [second], "0.7 of 1000 tokens do not fit beside 16 + 1000, 0.21 do"


def test_sglang_decodes_all_that_run_whatever_the_chunk() -> None:
    core = scheduler(batch_former="prefill-only", max_num_batched_tokens=2)
    for name in "ABC":
        core.add(request(name, 2))
    assert steps(core, 5) == [(2, 0), (2, 0), (2, 0), (0, 3), (0, 3)]
