"""BLIS (inference-sim, Go) in slow motion: an independent model of it, to compare ourselves with.

Written from a description of its behaviour, with nothing of blis_py in it and nothing of its code. It is
naive on purpose: whole microseconds, one event at a time, a walk over every request in every step, blocks
that hold their tokens.

Where blis-py differs on purpose, the difference is a field of `Quirks`. With `BLIS`, all on, this is the
peer. With `DESIGN`, all off, it is what we want to be, and then every request must agree; in between, one
sees which quirk a difference comes from. Not modelled: length caps (a replay's budget is its output
length), horizons, load-dependent routing, sessions.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path

PRIORITY = {"critical": 0, "standard": 1, "": 1, "batch": 5, "sheddable": 6, "background": 7}
PUBLISHED_ALPHA = (15563.199579, 777.3455, 45.907545)
PUBLISHED_BETA = (
    0.152128, 0.0, 1.36252915, 0.752037, 32.09546717, 4.41684444, 126.024825, 481.8613888,
    0.0, 1.94710771, 0.752037,
)  # fmt: skip
QUEUED, STEP, TIMEOUT = 1, 3, 6
"""Order of events at the same microsecond."""
COUNTED = ("steps", "chunks", "stalls", "preemptions", "hits", "full_hits", "evictions", "early_starts")


@dataclass(frozen=True)
class Quirks:
    """What the peer does and blis-py does not."""

    acts_at_step_start: bool = True
    """Tokens and completions count from the start of their step. So an instance whose last requests end
    with the step is idle at once, and begins the next step while that one still takes its time."""
    forgets_stalls: bool = True
    """A decode that gets no token in a step: the time of the step is not in its ITL and E2E."""
    redecodes: bool = True
    """A preempted request starts over: TTFT is overwritten, all its tokens are decoded again; blocks it was
    given in that very step can be found by others, though nothing was computed."""
    free_full_hits: bool = True
    """A block-aligned prompt that is cached in full computes nothing and holds no blocks."""
    slot_for_last_token: bool = True
    """A request that completes takes room for its last token, whose KV is never computed."""
    one_block_per_hash: bool = True
    """Of two blocks with the same content the later one is found, and none when either is refilled."""
    no_tail_for_no_output: bool = True
    """The overhead at the end is not added to a request with an output length of 0."""
    wastes_steps: bool = True
    """A request that preempts itself ends the step's plan even if no request has any tokens yet."""


BLIS = Quirks()
DESIGN = Quirks(*[False] * len(fields(Quirks)))


@dataclass
class Hardware:
    flops_us: float = 989.5e6
    fp8_flops_us: float = 1979e6
    bytes_us: float = 3.35e6


class TrainedPhysics:
    """The published formula, term by term, from the keys of a config.json.

    Args:
        w: bytes per weight; by default as many as an activation has.
        expert_w: bytes per weight of the routed experts, where they differ.
    """

    def __init__(
        self,
        config_json: Path,
        tp: int = 1,
        alpha: Sequence[float] = PUBLISHED_ALPHA,
        beta: Sequence[float] = PUBLISHED_BETA,
        w: float | None = None,
        expert_w: float | None = None,
        hardware: Hardware | None = None,
    ) -> None:
        c, hw = json.loads(config_json.read_text()), hardware or Hardware()
        self.alpha, self.beta, self.tp = [int(a) for a in alpha], list(beta), tp
        self.L, self.d, self.H = c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"]
        self.h = self.d // self.H
        self.dkv = c.get("num_key_value_heads", self.H) * self.h
        self.bpp = {"float32": 4}.get(c.get("torch_dtype", "bfloat16"), 2)
        self.w = self.bpp if w is None else w
        self.expert_w = self.w if expert_w is None else expert_w
        self.F = hw.fp8_flops_us if self.w == 1.0 else hw.flops_us
        self.BW = hw.bytes_us
        self.N = c.get("num_local_experts") or c.get("num_experts") or c.get("n_routed_experts") or 0
        self.k = max(1, c.get("num_experts_per_tok") or 1)
        self.moe = self.N >= 2
        self.interleave = c.get("interleave_moe_layer_step", 0) if self.moe else 0
        self.n_moe = (self.L // (self.interleave + 1) if self.interleave else self.L) if self.moe else 0
        self.n_dense = self.L - self.n_moe
        self.I_moe = c.get("moe_intermediate_size") or c["intermediate_size"]
        self.I_dense = c.get("intermediate_size_mlp") or c["intermediate_size"]
        n_shared = c.get("n_shared_experts", 0)
        self.I_shared = c.get("shared_expert_intermediate_size") or n_shared * self.I_moe

    def ffn(self, x: float) -> float:
        G = self.tp if self.moe else 1
        return (
            self.n_moe * (x * self.k / G) * 6 * self.d * self.I_moe
            + self.n_moe * x * 6 * self.d * self.I_shared / self.tp
            + self.n_dense * x * 6 * self.d * self.I_dense / self.tp
        )

    def allreduce(self, layers: int, tokens: int) -> float:
        return layers * tokens * self.d * self.bpp * 2 * ((self.tp - 1) / self.tp) / self.BW

    def step_us(self, prefills: list[tuple[int, int]], contexts: list[int]) -> int:
        """Duration of a step with prefills of (new tokens, full prompt) and decodes of these contexts."""
        L, d, H, h, dkv, tp = self.L, self.d, self.H, self.h, self.dkv, self.tp
        P, D, S = sum(t for t, _ in prefills), len(contexts), sum(contexts)
        A = sum(4 * (H / tp) * t * (s + t / 2) * h for t, s in prefills)
        t_pc = (L * 2 * P * d * (2 * d + 2 * dkv) / tp + L * A + self.ffn(P)) / self.F
        t_pk = L * 2 * (dkv / tp) * P * 2 / self.BW
        t_dc = (L * 2 * D * d * (2 * d + 2 * dkv) / tp + L * 4 * (H / tp) * S * h + self.ffn(D)) / self.F
        t_dk = L * 2 * (dkv / tp) * 2 * (S + D) / self.BW
        t_w = (
            L * d * (2 * d + 2 * dkv) * self.w / tp
            + self.n_moe * (self.N / tp) * 3 * d * self.I_moe * self.expert_w
            + self.n_moe * 3 * d * self.I_shared * self.w / tp
            + self.n_dense * 3 * d * self.I_dense * self.w / tp
        ) / self.BW
        t_tp = self.allreduce(L, P + D) + self.allreduce(self.n_dense, P + D)
        if self.moe and tp > 1:
            t_tp += self.allreduce(self.n_moe, P + D)
        b = self.beta
        prefill = b[0] * t_pc + b[8] * t_pk if len(b) > 8 else b[0] * max(t_pc, t_pk)
        decode = b[1] * t_dc + b[9] * t_dk if len(b) > 9 else b[1] * max(t_dc, t_dk)
        us = prefill + decode + b[2] * t_w + b[3] * t_tp + b[4] * L + b[5] * (len(prefills) + D) + b[6]
        if len(b) > 7 and self.interleave:
            us += b[7] * self.n_moe
        return max(1, int(us))


@dataclass(frozen=True)
class Row:
    """One row of a trace."""

    id: int
    arrival_us: int
    input: int
    output: int
    slo_class: str = ""
    group: str = ""
    prefix: int = 0
    deadline_us: int = 0


@dataclass
class Config:
    scheduler: str = "fcfs"
    preemption: str = "fcfs"
    budget: int = 2048
    max_num_seqs: int = 256
    threshold: int = 0
    block: int = 16
    total_blocks: int = 4000
    max_model_len: int = 40_960
    prefix_caching: bool = True
    instances: int = 1
    admission_us: int = 0
    routing_us: int = 0


@dataclass(eq=False)
class Request:
    row: Row
    prompt: list[int]
    tokens: list[int] = field(init=False)
    """Prompt and, where they are kept through a preemption, emitted tokens."""
    goal: int = field(init=False)
    """Tokens to prefill before decoding."""
    progress: int = 0
    computed: int = 0
    new: int = 0
    held: int = 0
    """Tokens there is KV for in `blocks`."""
    blocks: list[int] = field(default_factory=list)
    emitted: int = 0
    ttft_us: int = 0
    itl_us: list[int] = field(default_factory=list)
    seen_us: list[int] = field(default_factory=list)
    """When the client saw each token."""
    scheduled_us: int = -1
    preemptions: int = 0
    outcome: str = "unfinished"
    ended_us: int = -1

    def __post_init__(self) -> None:
        self.tokens, self.goal = list(self.prompt), len(self.prompt)

    @property
    def priority(self) -> int:
        return PRIORITY[self.row.slo_class]

    @property
    def id(self) -> str:
        return f"request_{self.row.id}"


class Cache:
    """Blocks, a FIFO list of the free ones, and a map from content to blocks."""

    def __init__(self, config: Config, quirks: Quirks) -> None:
        self.block, self.caching, self.quirks = config.block, config.prefix_caching, quirks
        self.free = list(range(config.total_blocks))
        self.content: list[int | None] = [None] * config.total_blocks
        self.refs = [0] * config.total_blocks
        self.found: dict[int, list[int]] = {}
        self.names: dict[tuple[int, tuple[int, ...]], int] = {}
        self.evictions = 0

    def hashes(self, tokens: Sequence[int]) -> list[int]:
        """Names of the full blocks, each one of everything up to its end."""
        names, previous = [], 0
        for end in range(self.block, len(tokens) + 1, self.block):
            key = (previous, tuple(tokens[end - self.block : end]))
            previous = self.names.setdefault(key, len(self.names) + 1)
            names.append(previous)
        return names

    def lookup(self, tokens: Sequence[int]) -> list[int]:
        blocks: list[int] = []
        for name in self.hashes(tokens) if self.caching else ():
            if name not in self.found:
                break
            blocks.append(self.found[name][0])
        return blocks

    def forget(self, block: int) -> None:
        name, self.content[block] = self.content[block], None
        if name is None or name not in self.found:
            return
        if self.quirks.one_block_per_hash:
            del self.found[name]
        else:
            self.found[name].remove(block)
            if not self.found[name]:
                del self.found[name]

    def register(self, request: Request, first: int, end: int) -> None:
        """Names the blocks that tokens [first, end) fill."""
        if first // self.block == end // self.block:
            return
        names = self.hashes(request.tokens[:end])
        for i in range(first // self.block, end // self.block):
            block = request.blocks[i]
            self.content[block] = names[i]
            others = [] if self.quirks.one_block_per_hash else self.found.get(names[i], [])
            self.found[names[i]] = [*others, block]

    def allocate(self, request: Request, tokens: int, cached: Sequence[int] = ()) -> bool:
        """Room for `tokens` more, after the cached blocks of a new request; False changes nothing."""
        held = request.held + len(cached) * self.block
        room = -held % self.block
        need = max(0, math.ceil((tokens - room) / self.block))
        if need + sum(self.refs[b] == 0 for b in cached) > len(self.free):
            return False
        for block in cached:
            if self.refs[block] == 0:
                self.free.remove(block)
            self.refs[block] += 1
        fresh = self.free[:need]
        del self.free[:need]
        for block in fresh:
            self.evictions += self.content[block] is not None
            self.forget(block)
            self.refs[block] = 1
        request.blocks += [*cached, *fresh]
        request.held = held + tokens
        return True

    def release(self, request: Request, computed: int | None = None) -> None:
        """Frees the blocks, last first; those beyond `computed` tokens hold nothing to be found."""
        for i in reversed(range(len(request.blocks))):
            block = request.blocks[i]
            if computed is not None and (i + 1) * self.block > computed:
                self.forget(block)
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)
        request.blocks, request.held = [], 0


class Instance:
    def __init__(self, config: Config, latency: TrainedPhysics, quirks: Quirks) -> None:
        self.config, self.latency, self.quirks = config, latency, quirks
        self.cache = Cache(config, quirks)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.events: list[tuple[int, int, int, Request | None]] = []
        self.under_way: tuple[int, int] | None = None
        self.counts = dict.fromkeys(COUNTED, 0)
        self.busy_until_us = 0
        self.pushed = 0
        self.generated = 0

    def push(self, time_us: int, kind: int, request: Request | None = None) -> None:
        self.pushed += 1
        heapq.heappush(self.events, (time_us, kind, self.pushed, request))

    def serve(self, requests: list[tuple[int, Request]]) -> None:
        """Lives through the requests, each with the time at which it is queued."""
        for time_us, request in requests:
            self.push(time_us, QUEUED, request)
        pending = False
        while self.events:
            now, kind, _, request = heapq.heappop(self.events)
            if kind == QUEUED:
                assert request is not None
                self.enqueue(now, request)
                if request in self.waiting and not pending:
                    self.counts["early_starts"] += now < self.busy_until_us
                    pending = True
                    self.push(now, STEP)
            elif kind == TIMEOUT:
                assert request is not None
                self.give_up(now, request)
            else:
                pending = self.step(now)

    def enqueue(self, now: int, request: Request) -> None:
        row, config = request.row, self.config
        prompt = len(request.prompt)
        limit = config.max_model_len
        if prompt >= limit or prompt + row.output > limit or self.blocks(prompt) > config.total_blocks:
            request.outcome = "unservable"
        elif 0 < row.deadline_us <= now:
            request.outcome, request.ended_us = "timed_out", now
        else:
            self.waiting.append(request)
            if row.deadline_us > 0 and self.quirks.acts_at_step_start:
                self.push(row.deadline_us, TIMEOUT, request)

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.config.block)

    def give_up(self, now: int, request: Request) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
            self.cache.release(request)
        else:
            return
        request.outcome, request.ended_us = "timed_out", request.row.deadline_us

    def step(self, now: int) -> bool:
        """A step event; returns whether there is another one to come."""
        if self.under_way is not None:
            self.apply(*self.under_way)
            self.under_way = None
            for request in [*self.waiting, *self.running]:
                if 0 < request.row.deadline_us <= now:
                    self.give_up(now, request)
        if not self.waiting and not self.running:
            return False
        self.counts["steps"] += 1
        self.order()
        self.form(now)
        duration = self.price()
        self.busy_until_us = now + duration
        if self.quirks.acts_at_step_start:
            self.apply(now, duration)
            if not self.waiting and not self.running:
                return False
        else:
            self.under_way = (now, duration)
        self.push(now + duration, STEP)
        return True

    def order(self) -> None:
        keys = {
            "priority-fcfs": lambda r: (r.priority, r.row.arrival_us, r.id),
            "sjf": lambda r: (len(r.prompt), r.row.arrival_us, r.id),
            "reverse-priority": lambda r: (-r.priority, r.row.arrival_us, r.id),
        }
        if self.config.scheduler != "fcfs":
            self.waiting.sort(key=keys[self.config.scheduler])

    def form(self, now: int) -> None:
        for request in self.running:
            request.new = 0
        self.budget = self.config.budget
        if self.running_first():
            self.admit(now)
        self.counts["stalls"] += sum(r.new == 0 and r.progress >= r.goal for r in self.running)

    def clamp(self, tokens: int, start: int) -> int:
        if 0 < self.config.threshold < tokens:
            tokens = self.config.threshold
        return min(tokens, self.budget, max(self.config.max_model_len - 1 - start, 0))

    def running_first(self) -> bool:
        """Phase 1; returns whether a request may be admitted after it."""
        preempted = False
        self.i = 0
        while self.i < len(self.running) and self.budget > 0:
            request = self.running[self.i]
            prefill = request.progress < request.goal
            tokens = self.clamp(request.goal - request.progress, request.progress) if prefill else 1
            while not self.cache.allocate(request, tokens):
                preempted = True
                if self.preempt() is request:
                    break
            else:
                request.new = tokens
                request.computed += tokens
                self.budget -= tokens
                self.name_full_blocks(request, request.progress, prefill)
                self.i += 1
                continue
            if self.quirks.wastes_steps or any(r.new for r in self.running):
                break
        return not preempted

    def name_full_blocks(self, request: Request, first: int, prefill: bool) -> None:
        """Of tokens [first, held). Only a preempted request that kept its tokens asks for generated ones."""
        if self.cache.caching and (prefill or not self.quirks.redecodes):
            self.cache.register(request, first, request.held)

    def preempt(self) -> Request:
        at = len(self.running) - 1
        if self.config.preemption == "priority":
            for i in reversed(range(len(self.running))):
                one, worst = self.running[i], self.running[at]
                if (one.priority, one.row.arrival_us) > (worst.priority, worst.row.arrival_us):
                    at = i
        victim = self.running.pop(at)
        self.budget += victim.new
        self.i -= at < self.i
        self.cache.release(victim, None if self.quirks.redecodes else victim.progress)
        self.counts["preemptions"] += 1
        victim.preemptions += 1
        victim.new = victim.progress = victim.computed = 0
        if self.quirks.redecodes:
            victim.emitted, victim.itl_us, victim.seen_us, victim.ttft_us = 0, [], [], 0
        else:
            victim.goal = len(victim.tokens)
        self.waiting.insert(0, victim)
        return victim

    def admit(self, now: int) -> None:
        while self.waiting and self.budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            everything = self.quirks.free_full_hits
            cached = self.cache.lookup(request.tokens if everything else request.tokens[:-1])
            start = len(cached) * self.config.block
            tokens = self.clamp(request.goal - start, start)
            if tokens == 0 and everything:
                self.counts["full_hits"] += 1
            elif not self.cache.allocate(request, tokens, cached):
                return
            else:
                self.name_full_blocks(request, start, True)
            self.counts["hits"] += len(cached)
            self.waiting.pop(0)
            self.running.append(request)
            request.progress, request.new, request.computed = start if tokens else 0, tokens, start + tokens
            self.budget -= tokens
            if self.quirks.redecodes or request.scheduled_us < 0:
                request.scheduled_us = now - request.row.arrival_us

    def price(self) -> int:
        prefills, contexts = [], []
        for request in self.running:
            if request.new and request.progress < request.goal:
                self.counts["chunks"] += request.new < request.goal - request.progress
                prefills.append((request.new, request.goal))
            elif request.new:
                contexts.append(request.progress)
        return self.latency.step_us(prefills, contexts)

    def apply(self, t: int, duration: int) -> None:
        """Progress, tokens and completions of the step that began at `t`."""
        per_token = self.latency.alpha[2]
        for request in list(self.running):
            if request.progress < request.goal:
                request.progress = request.computed
                emits = request.progress == request.goal
            else:
                request.progress += request.new > 0
                emits = request.new > 0
            if emits:
                request.emitted += 1
                self.generated += 1
                request.tokens.append(-self.generated)
                request.seen_us.append(t + duration + request.emitted * per_token)
                if request.ttft_us == 0:
                    request.ttft_us = t + duration + per_token - request.row.arrival_us
                else:
                    request.itl_us.append(duration + per_token)
            request.new = 0
        for request in list(self.running):
            if request.progress >= len(request.prompt) + max(request.row.output, 1) - 1:
                if self.quirks.slot_for_last_token and request.row.output > 0:
                    self.cache.allocate(request, 1)
                self.running.remove(request)
                self.cache.release(request)
                request.outcome = "completed"


@dataclass(frozen=True)
class Outcome:
    """What the peer reports about a request; 0 for what was not reached."""

    outcome: str
    ttft_us: int
    itl_us: float
    e2e_us: int
    scheduling_delay_us: int
    instance: int
    preemptions: int
    gaps_us: tuple[int, ...]


def replay(
    rows: Sequence[Row], config: Config, latency: TrainedPhysics, quirks: Quirks = BLIS
) -> tuple[dict[int, Outcome], dict[str, int]]:
    """Outcome of every request by id, and counts of what happened."""
    on_the_way = config.admission_us + config.routing_us + latency.alpha[0]
    instances = [Instance(config, latency, quirks) for _ in range(config.instances)]
    inboxes: list[list[tuple[int, Request]]] = [[] for _ in instances]
    groups: dict[str, int] = {}
    for row in rows:
        if row.group:
            groups.setdefault(row.group, row.prefix)
    names = list(groups)
    routed: dict[int, int] = {}
    for turn, row in enumerate(sorted(rows, key=lambda row: row.arrival_us)):
        shared = (
            [(1 + names.index(row.group)) << 32 | i for i in range(groups[row.group])] if row.group else []
        )
        own = [(1 + row.id) << 64 | i for i in range(row.input)]
        routed[row.id] = turn % len(instances)
        inboxes[routed[row.id]].append((row.arrival_us + on_the_way, Request(row, shared + own)))
    outcomes: dict[int, Outcome] = {}
    for instance, inbox in zip(instances, inboxes, strict=True):
        instance.serve(inbox)
        instance.counts["evictions"] = instance.cache.evictions
        for _, request in inbox:
            outcomes[request.row.id] = report(request, routed[request.row.id], latency, quirks)
    counts = {name: sum(i.counts[name] for i in instances) for name in instances[0].counts}
    return outcomes, counts


def report(request: Request, instance: int, latency: TrainedPhysics, quirks: Quirks) -> Outcome:
    seen, row, tail = request.seen_us, request.row, latency.alpha[1]
    if request.outcome == "timed_out" and not quirks.acts_at_step_start:
        seen = [time for time in seen if time <= request.ended_us]
    ttft = seen[0] - row.arrival_us if seen else 0
    itl = sum(request.itl_us) if quirks.forgets_stalls else (seen[-1] - seen[0] if seen else 0)
    done = request.outcome == "completed"
    no_tail = row.output == 0 and quirks.no_tail_for_no_output
    return Outcome(
        request.outcome,
        ttft,
        itl / max(row.output - 1, 1) if done else 0,
        ttft + itl + (0 if no_tail else tail) if done else 0,
        max(request.scheduled_us, 0),
        instance,
        request.preemptions,
        tuple(request.itl_us) if quirks.forgets_stalls else tuple(b - a for a, b in pairwise(seen)),
    )
