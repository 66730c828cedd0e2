"""Admission rules to the token: what SGLang's passes charge and keep free, and the blocks that TensorRT-LLM's
counts. Figures of SGLang are those of its own `PrefillAdder` and loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.core.admission_rule import AdmissionRule
from blis_py.core.admission_rules import GuaranteedNoEvict
from blis_py.core.config import SchedulerConfig
from blis_py.core.new_token_ratio import NewTokenRatio
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler

CONFIG = SchedulerConfig(num_kv_blocks=64, max_model_len=4096, block_size=1)
ONE_TOKEN: Any = SimpleNamespace(max_tokens=1, target=1)


def sglang(tokens: int, page: int = 1, **values: Any) -> Scheduler:
    settings = {
        "batch_former": "prefill-only",
        "admission_rule": "new-token-ratio",
        "preemption_policy": "fewest-tokens",
        "prefix_cache": "radix",
        "max_num_batched_tokens": 8192,
    }
    limits = {"num_kv_blocks": tokens // page, "max_model_len": 100_000, "block_size": page}
    return Scheduler(SchedulerConfig(**{**limits, **settings, **values}))


def add(core: Scheduler, name: str, prompt: int, limit: int, answer: int | None = None) -> Request:
    request = Request(name, 0, prompt, answer or limit, limit, ends_by_eos=True)
    assert core.add(request) is None
    return request


def step(core: Scheduler) -> tuple[list[str], int]:
    """Names of the prompts and number of decodes of the next step."""
    planned = core.schedule(0)
    assert planned is not None
    core.finish(planned)
    core.check()
    return [request.id for request, _ in planned.prefills], planned.features.decode_seqs


def rule_of(core: Scheduler) -> NewTokenRatio:
    assert isinstance(core._rule, NewTokenRatio)
    return core._rule


@pytest.mark.parametrize("page_reserve", ["none", "charged", "needed", "always"])
def test_a_request_of_a_pass_is_charged_with_its_whole_limit_and_a_page(page_reserve: str) -> None:
    """The second of two prompts of 10 tokens with limits of 90 finds 100 tokens fewer, and a page."""
    pages = {"none": 0, "charged": 1, "needed": 2, "always": 2}[page_reserve]
    for tokens, admitted in ((200 + pages, ["A"]), (201 + pages, ["A", "B"])):
        core = sglang(tokens, page_reserve=page_reserve)
        add(core, "A", 10, 90)
        add(core, "B", 10, 90)
        assert step(core) == (admitted, 0)


def test_running_requests_reserve_a_share_of_what_they_may_still_write() -> None:
    """Behind the pass A counts with 0.7 of 499 tokens: 10 + 200 + 1 of B fit beside 10 + 349.3 from 571."""
    for tokens, admitted in ((570, []), (571, ["B"])):
        core = sglang(tokens)
        add(core, "A", 10, 500)
        assert step(core) == (["A"], 0)
        add(core, "B", 10, 200)
        assert step(core)[0] == admitted


def test_long_limits_count_up_to_4096_tokens() -> None:
    """Beside A and 0.7 of 4096 tokens, 10 + 3200 + 1 of B fit from 6,089 on."""
    for tokens, admitted in ((6088, []), (6089, ["B"])):
        core = sglang(tokens)
        add(core, "A", 10, 6000)
        step(core)
        add(core, "B", 10, 3200)
        assert step(core)[0] == admitted


def test_fixed_lengths_reserve_all_that_is_left() -> None:
    for fixed, admitted in ((False, ["B"]), (True, [])):
        core = sglang(700, fixed_lengths_reserved=fixed)
        core.add(Request("A", 0, 10, 500, 500))
        step(core)
        add(core, "B", 10, 200)
        assert step(core)[0] == admitted


def test_the_share_falls_with_steps_of_decodes_alone() -> None:
    core = sglang(100_000)
    add(core, "A", 10, 5000)
    step(core)
    assert rule_of(core).ratio() == 0.7
    for _ in range(300):
        step(core)
    assert rule_of(core).ratio() == pytest.approx(0.399)
    add(core, "B", 10, 90)
    step(core)
    assert rule_of(core).ratio() == pytest.approx(0.399)
    for _ in range(600):
        step(core)
    assert rule_of(core).ratio() == pytest.approx(0.098)


def test_the_share_is_what_it_was_at_first_when_there_is_nothing_to_do() -> None:
    core = sglang(1000)
    add(core, "A", 10, 200)
    while core.running or core.waiting:
        step(core)
    assert rule_of(core).ratio() < 0.6
    assert core.schedule(0) is None
    assert rule_of(core).ratio() == 0.7


def test_a_retraction_sets_the_share_from_the_decoded_one() -> None:
    """A has a limit of 100 and goes on: (its output + 20) / (100 + 1)."""
    core = sglang(200, page_reserve="none")
    a = add(core, "A", 50, 100)
    step(core)
    rule_of(core)._ratio = 0.0
    add(core, "B", 50, 90)
    while not core.counters.preemptions:
        step(core)
    assert [request.id for request in core.waiting] == ["B"]
    assert rule_of(core).ratio() == (core.settled_generated(a) - 1 + 20) / 101


@pytest.mark.parametrize(("factor", "share"), [(0.0, 0.0), (0.5, 0.35), (1.0, 0.7), (2.0, 1.0)])
def test_conservativeness_is_a_factor_on_the_first_share_up_to_all(factor: float, share: float) -> None:
    assert rule_of(sglang(1000, schedule_conservativeness=factor)).ratio() == share


def test_a_refusal_shuts_admission_until_a_request_leaves() -> None:
    core = sglang(1000)
    add(core, "A", 10, 600)
    add(core, "C", 10, 300, answer=5)
    assert step(core) == (["A", "C"], 0)
    add(core, "B", 10, 600)
    assert step(core) == ([], 2)
    add(core, "D", 1, 1)
    for _ in range(3):
        assert step(core) == ([], 2), "D would fit, and is not looked at"
    assert step(core)[0] == []
    assert [request.id for request in core.waiting] == ["B", "D"]


def test_a_departure_counts_where_the_release_looks_for_it() -> None:
    """With two places, C follows A at once, or a step of decodes later."""
    for at_decodes, steps in ((False, [([], 2), (["C"], 0)]), (True, [([], 2), ([], 1), (["C"], 0)])):
        core = sglang(10_000, max_num_seqs=2, departures_at_decodes=at_decodes)
        add(core, "A", 10, 2)
        add(core, "B", 10, 50)
        step(core)
        add(core, "C", 10, 50)
        assert [step(core) for _ in steps] == steps


def test_a_request_that_ignores_the_end_needs_a_page_beside_its_prompt_where_the_release_says_so() -> None:
    """Without a prefix cache: of 64 tokens A leaves 31, and the prompt of B has 16."""
    for page_reserve, admitted in (("needed", ["A", "B"]), ("always", ["A"])):
        core = sglang(64, page=16, page_reserve=page_reserve, prefix_cache="none")
        core.add(Request("A", 0, 16, 1, 1))
        core.add(Request("B", 0, 16, 1, 1))
        assert step(core)[0] == admitted


def test_a_prompt_that_goes_on_takes_two_places_where_the_release_counts_so() -> None:
    for twice, admitted in ((False, ["A", "B"]), (True, ["A"])):
        core = sglang(1000, max_num_seqs=2, max_num_batched_tokens=32, chunks_count_twice=twice)
        add(core, "A", 40, 10)
        add(core, "B", 40, 10)
        assert step(core)[0] == ["A"]
        assert step(core)[0] == admitted


def test_a_step_that_no_request_decodes_in_ends_the_count_of_those_departed() -> None:
    """A stops in the step behind which B has its last token: nothing is left to decode, and both count no
    longer when C and D come."""
    core = sglang(1000, max_num_seqs=2, async_scheduling=True, departures_at_decodes=True)
    add(core, "A", 10, 50, answer=4)
    core.add(Request("B", 0, 10, 5, 5))
    add(core, "C", 10, 8)
    add(core, "D", 10, 8)
    flight, seen = None, []
    for _ in range(7):
        planned = core.schedule(0)
        if planned is not None:
            core.advance(planned)
        seen.append([] if planned is None else [request.id for request, _ in planned.prefills])
        flight, done = planned, flight
        if done is not None:
            core.resolve(done)
    assert seen == [["A", "B"], [], [], [], [], [], ["C", "D"]]


def test_prompts_take_whole_pages_of_the_chunk() -> None:
    core = sglang(16_000, page=16, max_num_batched_tokens=64)
    add(core, "A", 17, 8)
    add(core, "B", 60, 8)
    planned = core.schedule(0)
    assert planned is not None
    assert [(r.id, n) for r, n in planned.prefills] == [("A", 17), ("B", 32)]


def test_a_prompt_is_found_once_its_outcome_is_known() -> None:
    """Overlapped: B, planned while A's step runs, computes what C finds a step later."""
    core = sglang(1000, async_scheduling=True, max_num_batched_tokens=8)
    flights, cached = [], []
    for name in ("A", "B", "C"):
        core.add(Request(name, 0, 8, 5, 5, block_keys=[1, 2, 3, 4]))
        planned = core.schedule(0)
        assert planned is not None
        cached.append([request.computed for request, _ in planned.prefills])
        core.advance(planned)
        flights.append(planned)
        if len(flights) > 1:
            core.resolve(flights.pop(0))
    assert cached == [[0], [0], [4]]


def test_the_one_with_the_fewest_tokens_is_retracted_to_the_end_of_the_queue() -> None:
    core = sglang(200, page_reserve="none")
    add(core, "A", 50, 60)
    step(core)
    rule_of(core)._ratio = 0.0
    add(core, "B", 50, 60)
    add(core, "C", 60, 60)
    while core.counters.preemptions < 1:
        step(core)
    assert next(iter(reversed(list(core.waiting)))).id in {"B", "C"}
    assert "A" in {request.id for request in core.running}


@pytest.mark.parametrize("uncached_tokens", [0, 1, 10**6])
def test_vllm_admits_by_the_blocks_of_the_first_step_alone(uncached_tokens: int) -> None:
    nothing_free: Any = SimpleNamespace(kv=SimpleNamespace(pool=SimpleNamespace(num_free=0)))
    admission = AdmissionRule(CONFIG, nothing_free)
    assert admission.admits(ONE_TOKEN, uncached_tokens)
    assert not admission.may_change()


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
