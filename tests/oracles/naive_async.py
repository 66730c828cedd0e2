"""Asynchronous scheduling of one instance, token by token: a step is composed while the one before it runs.

No prefixes are shared, so blocks are only counted. Where the written design leaves something open, a comment
starting with "Choice" says what was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Job:
    """A request. Of an answer that ends by itself the scheduler knows only the limit."""

    row: int
    arrival_ns: int
    prompt: int
    answer: int
    limit: int
    """Most tokens that it may generate."""
    priority: int = 0

    stored: int = 0
    """Tokens in the cache, those being written by steps in flight included."""
    planned: int = 0
    """Tokens generated, those in flight included."""
    blocks: int = 0
    decodes: bool = False
    """Has its whole prompt, and what it generated before, in the cache."""
    emitted_ns: list[int] = field(default_factory=list)
    preemptions: int = 0
    over: bool = False

    @property
    def missing(self) -> int:
        return self.prompt + self.planned - self.stored

    @property
    def closed(self) -> bool:
        """It gets no more steps; its last token may be in flight."""
        return self.planned >= self.limit


@dataclass
class Batch:
    """Who computes how many tokens, and when that is done."""

    tokens: dict[Job, int]
    end_ns: int = 0
    emits: list[tuple[Job, int]] = field(default_factory=list)
    """Who emits its how-manieth token."""


@dataclass
class Limits:
    blocks: int
    block_size: int
    seqs: int
    budget: int
    chunk: int = 0
    policy: str = "fcfs"
    victims: str = "fcfs"


class NaiveAsync:
    """See the module.

    Args:
        price: duration of a step by its prefill tokens and its decodes, ns.
    """

    def __init__(self, limits: Limits, price: Callable[[int, int], int]) -> None:
        self.limits, self.price = limits, price
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.free = limits.blocks
        self.discarded = 0
        self.closing: list[Job] = []
        """In the order in which their last steps were planned."""
        self.gave_up = False
        """Whether a request lost its place in the batch composed last."""

    def serve(self, jobs: list[Job]) -> None:
        """Until all is done."""
        coming = sorted(jobs, key=lambda job: (job.arrival_ns, job.row))
        now_ns, flight = 0, None
        while True:
            while coming and coming[0].arrival_ns <= now_ns:
                self.waiting.append(coming.pop(0))
            batch = self.compose()
            if flight is None:
                if batch is None:
                    if self.gave_up:
                        continue  # nothing runs, so it is composed again at once
                    if not coming:
                        return
                    now_ns = coming[0].arrival_ns
                    continue
                flight = self.launch(batch, now_ns)
                continue  # the next one is composed at once
            if batch is None:
                now_ns = flight.end_ns
                self.resolve(flight)
                flight = None
            else:
                now_ns = flight.end_ns
                behind = self.launch(batch, now_ns)
                self.resolve(flight)
                flight = behind

    # -- one step --------------------------------------------------------------------------------------

    def compose(self) -> Batch | None:
        if self.limits.policy == "priority-fcfs":
            self.waiting.sort(key=lambda job: (job.priority, job.arrival_ns, f"{job.row}"))
        elif self.limits.policy == "sjf":
            self.waiting.sort(key=lambda job: (job.prompt, job.arrival_ns, f"{job.row}"))
        tokens: dict[Job, int] = {}
        left, preempted = self.give_to_running(tokens)
        self.gave_up = preempted
        if not preempted:
            self.let_in(tokens, left)
        return Batch(tokens) if tokens else None

    def share(self, job: Job, left: int) -> int:
        return min(job.missing, self.limits.chunk or job.missing, left)

    def give_to_running(self, tokens: dict[Job, int]) -> tuple[int, bool]:
        """Running requests in their order; returns the budget left, and whether one had to leave."""
        left, preempted, visited = self.limits.budget, False, set[Job]()
        while left > 0:
            job = next((one for one in self.running if one not in visited and not one.closed), None)
            if job is None:
                break
            visited.add(job)
            wanted = self.share(job, left)
            while job in self.running and not self.take(job, wanted):
                # Choice: pages of those who have had their last step go before another is preempted.
                if self.pages_of_closed():
                    continue
                victim = self.victim()
                left += tokens.pop(victim, 0)
                self.preempt(victim)
                preempted = True
            if job in self.running:
                tokens[job] = wanted
                left -= wanted
            else:
                break  # behind one that gave up its own place the others wait for the next step
        return left, preempted

    def take(self, job: Job, tokens: int) -> bool:
        more = -(-(job.stored + tokens) // self.limits.block_size) - job.blocks
        if more > self.free:
            return False
        self.free -= more
        job.blocks += more
        return True

    def pages_of_closed(self) -> bool:
        for job in self.closing:  # Choice: of several, of the one whose last step was planned first
            if job in self.running and job.blocks:
                self.give_back(job)
                return True
        return False

    def victim(self) -> Job:
        alive = [job for job in self.running if not job.closed]
        if self.limits.victims == "fcfs":
            return alive[-1]
        return max(alive, key=lambda job: (job.priority, job.arrival_ns, alive.index(job)))

    def preempt(self, job: Job) -> None:
        self.give_back(job)
        job.stored, job.decodes = 0, False
        job.preemptions += 1
        self.running.remove(job)
        self.waiting.insert(0, job)

    def give_back(self, job: Job) -> None:
        self.free += job.blocks
        job.blocks = 0

    def let_in(self, tokens: dict[Job, int], left: int) -> None:
        while self.waiting and left > 0 and len(self.running) < self.limits.seqs:
            job = self.waiting[0]
            wanted = self.share(job, left)
            if not self.take(job, wanted):
                return
            self.running.append(self.waiting.pop(0))
            tokens[job] = wanted
            left -= wanted

    def launch(self, batch: Batch, now_ns: int) -> Batch:
        """Books what is certain."""
        decodes = sum(job.decodes for job in batch.tokens)
        prefill = sum(n for job, n in batch.tokens.items() if not job.decodes)
        batch.end_ns = now_ns + self.price(prefill, decodes)
        # Choice: of those whose last step it is, prompts come before decodes.
        for job, tokens in sorted(batch.tokens.items(), key=lambda item: item[0].decodes):
            job.stored += tokens
            if job.missing == 0:
                job.planned += 1
                if job.closed:
                    self.closing.append(job)
                job.decodes = True
                batch.emits.append((job, job.planned))
        return batch

    def resolve(self, batch: Batch) -> None:
        """What came of it, whatever has become of its requests since."""
        for job, number in batch.emits:
            if job.over:
                self.discarded += 1
                continue
            job.emitted_ns.append(batch.end_ns)
            if number == min(job.answer, job.limit):
                job.over = True
                self.give_back(job)
                (self.running if job in self.running else self.waiting).remove(job)
