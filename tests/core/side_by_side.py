"""Random workloads for the scheduler and its reference, and the comparison of the two."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from radix_reference import RadixReference
from reference import Job, Planned, ReferenceScheduler, prompt_of

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KeySpace
from blis_py.core.request import FinishReason, Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

Runs = tuple[tuple[str, int], ...]
STEP_NS = 10


@dataclass(frozen=True)
class Arrival:
    """One request of a random workload."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int = 0
    priority: int = 1
    deadline_ns: int = -1
    runs: Runs = ()


@st.composite
def arrivals(draw: st.DrawFn, longest: int, most: int = 10) -> Arrival:
    """Short enough to be served by `longest` tokens most of the time."""
    prompt = draw(st.integers(1, max(longest - 1, 1)))
    output = draw(st.integers(1, max(longest // 2, 1)))
    arrival_ns = draw(st.one_of(st.just(0), st.integers(0, 30 * STEP_NS)))
    runs: Runs = ()
    if draw(st.booleans()):
        first = draw(st.sampled_from([prompt, prompt // 2, prompt // 3, min(16, prompt)]))
        if first:
            runs = ((draw(st.sampled_from("ab")), first),)
            rest = draw(st.integers(0, prompt - first))
            if rest:
                runs += ((draw(st.sampled_from("bc")), rest),)
    patience = draw(st.one_of(st.just(-1), st.just(-1), st.integers(0, 60 * STEP_NS)))
    return Arrival(
        arrival_ns=arrival_ns,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=draw(st.sampled_from([0, output, output, max(output // 2, 1), output + 3])),
        priority=draw(st.sampled_from([0, 1, 1, 5])),
        deadline_ns=-1 if patience < 0 else arrival_ns + patience,
        runs=runs,
    )


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    """Small pools, so that blocks run out; small budgets, so that requests stall."""
    scheduler = draw(st.sampled_from(["fcfs", "priority-fcfs", "sjf", "reverse-priority"]))
    aging_ms = draw(st.sampled_from([None, 1e-6, 0.0001])) if scheduler == "sjf" else None
    block_size = draw(st.sampled_from([1, 2, 3, 4, 16]))
    blocks = draw(st.integers(1, 12 if block_size == 16 else 30))
    return SchedulerConfig(
        num_kv_blocks=blocks,
        max_model_len=draw(st.sampled_from([10_000, 10_000, 40, 20])),
        scheduler=scheduler,
        preemption_policy=draw(st.sampled_from(["fcfs", "priority"])),
        batch_former=draw(st.sampled_from(["running-first", "prefill-first"])),
        max_num_seqs=draw(st.sampled_from([1, 2, 3, 8, 256])),
        max_num_batched_tokens=draw(st.sampled_from([1, 2, 3, 5, 8, 13, 32, 2048])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3, 8])),
        block_size=block_size,
        enable_prefix_caching=draw(st.sampled_from([True, True, True, False])),
        sjf_aging_ms=aging_ms,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[SchedulerConfig, list[Arrival]]:
    config = draw(configs())
    longest = min(config.num_kv_blocks * config.block_size, config.max_model_len, 60)
    return config, draw(st.lists(arrivals(longest), min_size=1, max_size=10))


@st.composite
def radix_cases(draw: st.DrawFn) -> tuple[SchedulerConfig, list[Arrival]]:
    """The same with a radix cache; what can be shared may go on into the answer."""
    config, workload = draw(cases())
    config = replace(config, prefix_cache="radix", enable_prefix_caching=True)
    longer = []
    for arrival in workload:
        rest = arrival.prompt_tokens - sum(tokens for _, tokens in arrival.runs)
        more = draw(st.sampled_from([0, 0, rest + 4, rest + arrival.output_tokens]))
        runs = (*arrival.runs, (draw(st.sampled_from("bc")), more)) if arrival.runs and more else arrival.runs
        longer.append(replace(arrival, runs=runs))
    return config, longer


class SideBySide:
    """Drives both schedulers through the same workload, `STEP_NS` a step, and compares everything.

    Args:
        jump: let the real one pass alike steps in one go, as the simulator does.
    """

    def __init__(self, config: SchedulerConfig, jump: bool = False) -> None:
        self.config = config
        self.jump = jump
        self.real = Scheduler(config, track_longest=True)
        naive = RadixReference if config.prefix_cache == "radix" else ReferenceScheduler
        self.naive = naive(config)
        self.keys = KeySpace(config.block_size)
        self.requests: dict[str, Request] = {}
        self.jobs: dict[str, Job] = {}

    def run(self, workload: list[Arrival], most_steps: int = 2000) -> None:
        coming = sorted(enumerate(workload), key=lambda item: item[1].arrival_ns)
        now_ns = 0
        for _ in range(most_steps):
            while coming and coming[0][1].arrival_ns <= now_ns:
                self.add(*coming.pop(0))
            self.expire(now_ns)
            next_arrival_ns = coming[0][1].arrival_ns if coming else now_ns + 10**6 * STEP_NS
            if steps := self.step(now_ns, next_arrival_ns):
                now_ns += steps * STEP_NS
            elif coming:
                now_ns = coming[0][1].arrival_ns
            else:
                break
        else:
            raise AssertionError(f"not done after {most_steps} steps")
        self.compare_ends()

    def add(self, index: int, arrival: Arrival) -> None:
        name = f"r{index}"
        a = arrival
        self.requests[name] = request = Request(
            name, a.arrival_ns, a.prompt_tokens, a.output_tokens, a.max_tokens, a.priority, a.deadline_ns,
            self.keys.keys(a.runs),
        )  # fmt: skip
        shareable = sum(tokens for _, tokens in a.runs)
        tokens = prompt_of(name, a.runs, max(a.prompt_tokens, shareable))
        prompt, answer = tokens[: a.prompt_tokens], tokens[a.prompt_tokens :]
        self.jobs[name] = job = Job(
            name, a.arrival_ns, prompt, a.output_tokens, a.max_tokens, a.priority, a.deadline_ns,
            answer=answer, shareable=shareable,
        )  # fmt: skip
        refused = self.real.add(request) is not None
        assert refused != self.naive.add(job)

    def expire(self, now_ns: int) -> None:
        real = {request.id for request in self.real.expire(now_ns)}
        assert real == self.naive.expire(now_ns)

    def step(self, now_ns: int, next_arrival_ns: int) -> int:
        """Plans and finishes one step, or several alike; returns how many, 0 if there is nothing to do."""
        expected = self.naive.schedule(now_ns)
        step = self.real.schedule(now_ns)
        assert (step is None) == (expected is None)
        if step is None or expected is None:
            return 0
        assert [(r.id, n) for r, n in step.prefills] == expected.prefills
        assert [r.id for r in step.admitted] == expected.admitted
        assert [r.id for r in step.preempted] == expected.preempted
        assert step.features == expected.features
        self.compare_plan(expected, 1)
        steps = self.alike(step, now_ns, next_arrival_ns) if self.jump else 1
        for more in range(1, steps):
            assert self.naive.finish() == []
            expected = self.naive.schedule(now_ns + more * STEP_NS)
            assert expected is not None
            assert not expected.prefills + expected.admitted + expected.preempted
            assert step.features.after(more) == expected.features
            self.compare_plan(expected, more + 1)
        assert [r.id for r in self.real.finish(step, steps)] == self.naive.finish()
        self.compare_state()
        return steps

    def compare_plan(self, expected: Planned, steps: int) -> None:
        running = self.naive.running
        assert [r.id for r in self.real.decoding] == [j.id for j in running if j.id in expected.decoding]
        assert self.config.num_kv_blocks - self.real.blocks_in_use(steps) == expected.free_blocks

    def alike(self, step: Step, now_ns: int, next_arrival_ns: int) -> int:
        """Steps until a request arrives, is aborted or may be overdue, or the scheduler wants to plan."""
        change_ns = min(next_arrival_ns, self.real.next_change_ns(now_ns))
        return min(self.real.identical_decode_steps(step), -(-(change_ns - now_ns) // STEP_NS))

    def compare_state(self) -> None:
        self.real.check()  # settles all requests
        real, naive = self.real, self.naive
        assert [r.id for r in real.running] == [j.id for j in naive.running]
        assert {r.id for r in real.waiting} == {j.id for j in naive.waiting}
        for job in naive.running:
            request = self.requests[job.id]
            assert (request.computed, request.generated) == (job.computed, job.generated)
        assert real.kv.pool.num_free == naive.pool.num_free
        assert real.kv.pool.in_use_ticks == naive.block_steps

    def compare_ends(self) -> None:
        real, naive = self.real, self.naive
        assert real.kv.pool.num_free == real.kv.pool.total
        counters = real.counters
        assert counters.prefill_tokens == naive.prefill_tokens
        assert real.decode_tokens == naive.decode_tokens
        assert counters.preemptions == naive.preemptions
        assert counters.prefix_queried_tokens == naive.queried_tokens
        assert counters.prefix_hit_tokens == naive.hit_tokens
        assert counters.priority_inversions == naive.inversions
        assert counters.head_of_line_events == naive.head_of_line
        for name, job in self.jobs.items():
            request = self.requests[name]
            assert request.generated == job.generated
            assert request.preemptions == job.preemptions
            assert request.cached_tokens == job.cached_tokens
            assert request.scheduled_ns == job.scheduled_ns
            assert (request.finish_reason is FinishReason.LENGTH) == job.length_capped
            assert emission_steps(request) == job.emitted_at


def emission_steps(request: Request) -> list[int]:
    """Steps that emitted a token, as first, last and gaps tell."""
    if not request.generated:
        return []
    steps = set(range(request.first_tick, request.last_tick + 1))
    for before, after in request.gaps or ():
        steps -= set(range(before + 1, after))
    return sorted(steps)
