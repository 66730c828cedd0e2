"""KV from outside and steps of several tokens, for every workload and every setting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KeySpace
from blis_py.core.kv_source import Supply
from blis_py.core.request import NEVER_NS, FinishReason, Request, Status
from blis_py.core.scheduler import Scheduler

STEP_NS = 10

configs = st.builds(
    SchedulerConfig,
    num_kv_blocks=st.integers(4, 25),
    max_model_len=st.sampled_from([1000, 50]),
    scheduler=st.sampled_from(["fcfs", "priority-fcfs", "sjf", "lpm"]),
    preemption_policy=st.sampled_from(["fcfs", "priority"]),
    batch_former=st.sampled_from(["running-first", "prefill-first"]),
    max_num_seqs=st.sampled_from([1, 3, 256]),
    max_num_batched_tokens=st.sampled_from([2, 9, 2048]),
    long_prefill_token_threshold=st.sampled_from([0, 5]),
    block_size=st.sampled_from([1, 4]),
    prefix_cache=st.sampled_from(["hash", "radix"]),
)


@dataclass(frozen=True)
class Case:
    """A request, what a source has of it, and how many tokens its decode steps emit."""

    arrival_ns: int
    prompt: int
    output: int
    carried: int = 0
    shared: int = 0
    supply: int = 0
    load_ns: int = 0
    gone: int = 0
    patience_ns: int = -1
    drafts: int = 0


cases = st.builds(
    Case,
    arrival_ns=st.integers(0, 300),
    prompt=st.integers(1, 30),
    output=st.integers(2, 15),
    carried=st.sampled_from([0, 0, 1]),
    shared=st.sampled_from([0, 8, 20]),
    supply=st.sampled_from([0, 3, 8, 17, 100]),
    load_ns=st.sampled_from([0, 0, 15, 40, 333]),
    gone=st.sampled_from([0, 0, 0, 5, 100]),
    patience_ns=st.sampled_from([-1, -1, 35, 100, 400]),
    drafts=st.sampled_from([0, 0, 0, 1, 3]),
)


class World:
    """The source, and the supplier of emissions, of some cases."""

    def __init__(self, workload: list[Case]) -> None:
        self.workload = workload
        self.loading: dict[Request, int] = {}
        """Tokens under way."""

    def offer(self, request: Request, computed_tokens: int, now_ns: int) -> Supply | None:
        case = self.workload[request.row]
        more = case.supply - computed_tokens
        return Supply(more, now_ns + case.load_ns) if more > 0 else None

    def load(self, request: Request, computed_tokens: int, supply: Supply, now_ns: int) -> None:
        assert computed_tokens + supply.tokens < request.num_tokens
        assert request not in self.loading
        if supply.ready_ns > now_ns:
            self.loading[request] = supply.tokens

    def arrived(self, request: Request, now_ns: int) -> int:
        return max(self.loading.pop(request) - self.workload[request.row].gone, 0)

    def cancel(self, request: Request) -> None:
        del self.loading[request]

    def is_irregular(self, request: Request) -> bool:
        return self.workload[request.row].drafts > 0

    def rows(self, request: Request) -> int:
        return 1 + self.workload[request.row].drafts

    def tokens(self, request: Request, step: int, rows: int) -> int:
        return 1 + (step + request.row) % rows


def run(config: SchedulerConfig, workload: list[Case], jump: bool) -> tuple[list[Any], list[Request]]:
    """Every step, as it was composed, and the requests at their ends."""
    world, keys = World(workload), KeySpace(config.block_size)
    scheduler = Scheduler(config, track_longest=True, source=world, emission=world)
    coming = sorted(range(len(workload)), key=lambda row: workload[row].arrival_ns)
    served: list[Request] = []
    steps: list[Any] = []
    emitted: dict[int, int] = {}
    now_ns = 0
    for _ in range(3000):
        while coming and workload[coming[0]].arrival_ns <= now_ns:
            case = workload[row := coming.pop(0)]
            deadline_ns = -1 if case.patience_ns < 0 else case.arrival_ns + case.patience_ns
            prefix = keys.keys([("a", min(case.shared, case.prompt))])
            request = Request(
                f"r{row}", case.arrival_ns, case.prompt, case.output, case.output, row % 3, deadline_ns,
                prefix, row, carried=case.carried,
            )  # fmt: skip
            if scheduler.add(request) is None:
                served.append(request)
                emitted[row] = case.carried
        scheduler.expire(now_ns)
        step = scheduler.schedule(now_ns)
        next_ns = workload[coming[0]].arrival_ns if coming else NEVER_NS
        next_ns = min(next_ns, scheduler.next_change_ns(now_ns))
        assert {r for r in scheduler.queued if r.status is Status.WAITING_FOR_KV} == set(world.loading)
        if step is None:
            assert not scheduler.running
            if next_ns == NEVER_NS:
                break
            now_ns = next_ns
            continue
        count = min(scheduler.identical_decode_steps(step), -(-(next_ns - now_ns) // STEP_NS)) if jump else 1
        decoding = [r.row for r in scheduler.decoding]
        prefills = [(r.row, n) for r, n in step.prefills]
        emissions = step.emissions or {}
        assert all(1 < n <= dict(step.prefills)[r] for r, n in emissions.items())
        for row in decoding:
            emitted[row] += count
        for r, n in step.prefills:
            if r.computed + n >= r.num_tokens:
                emitted[r.row] += emissions.get(r, 1)
        for i in range(count):
            features = step.features.after(i) if i else step.features
            steps.append((now_ns + i * STEP_NS, decoding, prefills, features))
        scheduler.finish(step, count)
        scheduler.check()
        now_ns += count * STEP_NS
    else:
        raise AssertionError("not done")
    assert not scheduler.queue_depth, "a request waits for ever"
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
    assert not world.loading
    for request in served:
        assert request.status is Status.FINISHED
        assert request.generated == emitted[request.row]
        assert request.generated <= request.target
        if request.finish_reason is not FinishReason.TIMEOUT:
            assert request.generated == request.target
    return steps, served


def fate(request: Request) -> tuple[Any, ...]:
    """What is known of a request at its end."""
    return (
        request.id, request.generated, request.first_tick, request.last_tick, request.gaps, request.bursts,
        request.cached_tokens, request.scheduled_ns, request.preemptions, request.finish_reason,
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300)
@given(configs, st.lists(cases, min_size=1, max_size=10))
def test_a_jump_equals_single_steps_and_all_requests_end(
    config: SchedulerConfig, workload: list[Case]
) -> None:
    alone, served = run(config, workload, jump=False)
    jumped, served_too = run(config, workload, jump=True)
    assert jumped == alone
    assert list(map(fate, served)) == list(map(fate, served_too))


@settings(max_examples=60)
@given(configs, st.lists(cases, min_size=1, max_size=8))
def test_a_source_that_has_nothing_and_drafts_of_no_request_change_nothing(
    config: SchedulerConfig, workload: list[Case]
) -> None:
    plain = [replace(case, supply=0, drafts=0, carried=0) for case in workload]
    steps, served = run(config, plain, jump=True)
    assert all(request.bursts is None for request in served)
    assert [features.decode_seqs for _, _, _, features in steps] == [len(d) for _, d, _, _ in steps]


@pytest.mark.slow
@settings(max_examples=100)
@given(configs, st.lists(cases, min_size=1, max_size=8), st.booleans())
def test_overlapped_steps_lose_and_invent_no_token(
    config: SchedulerConfig, workload: list[Case], late: bool
) -> None:
    config = replace(config, async_scheduling=True, late_length_stops=late)
    world = World(workload)
    scheduler = Scheduler(config, source=world, emission=world)
    requests = [
        Request(f"r{row}", 0, case.prompt, case.output, case.output, row=row, carried=case.carried)
        for row, case in enumerate(workload)
    ]
    served = [request for request in requests if scheduler.add(request) is None]
    flight, now_ns = None, 0
    for _ in range(3000):
        step = scheduler.schedule(now_ns)
        if step is not None:
            scheduler.advance(step)
        if flight is not None:
            scheduler.resolve(flight)
        scheduler.check()
        if step is None and flight is None and scheduler.next_change_ns(now_ns) == NEVER_NS:
            break
        flight = step
        now_ns += STEP_NS
    assert [r.generated for r in served] == [r.target for r in served]
    assert scheduler.kv.pool.num_free == scheduler.kv.pool.total
