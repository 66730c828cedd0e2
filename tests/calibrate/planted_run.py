"""A step log as an engine writes it, of a run whose step times are known: the scheduler in a plain loop."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from blis_py.core.config import SchedulerConfig
from blis_py.core.features import FEATURE_NAMES
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.traces.steplog import StepLog
from blis_py.traces.steplog_columns import REQUEST_KINDS, SCHEMA, SEGMENTS, STEP_KINDS

CONFIG = SchedulerConfig(num_kv_blocks=2000, max_model_len=2048, max_num_seqs=16, max_num_batched_tokens=256)
COSTS = LinearCoefficients(
    gpu=LinearCosts(step=2e6, prefill_tokens=12e3, prefill_pairs=8, decode_seqs=60e3, decode_kv_tokens=150),
    host=LinearCosts(step=1e6, decode_seqs=15e3),
)
BLOCK = 16


@dataclasses.dataclass
class Arrival:
    time_ns: int
    prompt: int
    output: int
    keys: list[int]
    """Of the prompt's full blocks, then of the answer's."""
    priority: int = 1
    deadline_ns: int = -1


def chat(count: int = 120, rate: float = 6.0, seed: int = 1, deadline_ns: int = 0) -> list[Arrival]:
    """Poisson arrivals; three system prompts, and conversations whose next turn repeats prompt and answer.

    There is a pause after the first third.
    """
    rng = random.Random(seed)
    arrivals: list[Arrival] = []
    time_s, keys = 0.0, iter(range(1000, 10**9))
    systems = [[next(keys) for _ in range(8)] for _ in range(3)]
    for i in range(count):
        time_s += rng.expovariate(rate) + (15 if i == count // 3 else 0)
        begin = rng.choice(systems)
        if arrivals and rng.random() < 0.3:
            begin = rng.choice(arrivals[-20:]).keys[:60]
        prompt = len(begin) * BLOCK + rng.randrange(1, 200)
        output = rng.randrange(1, 160)
        new = (prompt + output - 1) // BLOCK - len(begin)
        own = [*begin, *(next(keys) for _ in range(new))]
        now_ns = int(time_s * 1e9)
        deadline = now_ns + deadline_ns + rng.randrange(10**9) if deadline_ns else -1
        arrivals.append(Arrival(now_ns, prompt, output, own, rng.choice([0, 1]), deadline))
    return arrivals


def record_run(
    arrivals: Sequence[Arrival],
    config: SchedulerConfig = CONFIG,
    costs: LinearCoefficients = COSTS,
    *,
    noise: float = 0.0,
    between_ns: int = 0,
    buckets: Sequence[int] = (),
    padding_ns: int = 0,
    max_steps: int = 10**9,
) -> StepLog:
    """Serves the arrivals.

    Args:
        noise: spread of a log-normal factor on every step's GPU time.
        between_ns: what the loop takes from the end of a step to the next one.
        buckets: graph sizes; decode steps are padded to them.
        padding_ns: GPU time of every padded row.
    """
    rng, model = random.Random(5), Linear(costs)
    scheduler = Scheduler(config, track_longest=True)
    caching = scheduler.kv.prefix_caching
    requests: list[Request] = []
    rows: list[dict[str, Any]] = []
    steps: dict[str, list[Any]] = {name: [] for name in STEP_KINDS}
    now_ns, left = 0, list(arrivals)
    gone = 0
    while gone < len(arrivals) and len(steps["step"]) < max_steps:
        if len(requests) == gone:
            now_ns = max(now_ns, left[0].time_ns)
        while left and left[0].time_ns <= now_ns:
            one = left.pop(0)
            row = len(requests)
            known = one.keys[: one.prompt // BLOCK] if caching else []
            request = Request(
                f"request_{row}",
                one.time_ns,
                one.prompt,
                one.output,
                one.output,
                one.priority,
                one.deadline_ns,
                known,
                row,
            )
            assert scheduler.add(request) is None
            requests.append(request)
            rows.append(
                {"enqueue_ns": now_ns, "prompt_blocks": len(known), "first_token_ns": -1, "finish_ns": -1}
            )
        for request in scheduler.expire(now_ns) if scheduler.first_deadline_ns <= now_ns else []:
            rows[request.row]["finish_ns"] = now_ns
            gone += 1
        step = scheduler.schedule(now_ns)
        if step is None:
            continue
        decoding = list(scheduler.decoding)
        f = step.features
        bucket = next((b for b in buckets if b >= f.decode_seqs), 0) if not f.prefill_seqs else 0
        price = model.step(f)
        gpu_ns = int(price.gpu_ns * rng.lognormvariate(0, noise)) + padding_ns * max(
            bucket - f.decode_seqs, 0
        )
        end_ns = now_ns + gpu_ns + price.host_ns
        steps["step"].append(len(steps["step"]))
        values = {
            "start_ns": now_ns,
            "end_ns": end_ns,
            **dict.fromkeys(SEGMENTS, 0),
            "prepare_ns": price.host_ns,
            "launch_ns": gpu_ns,
            "gpu_ns": gpu_ns,
            "regime": "graph" if bucket else "eager",
            "bucket": bucket,
            "waiting": len(scheduler.waiting),
            "running": len(scheduler.running),
            "kv_blocks": scheduler.blocks_in_use(),
            "active_experts": -1,
            "failed": 0,
            **{name: getattr(f, name) for name in FEATURE_NAMES},
            "prefill_ids": tuple(r.row for r, _ in step.prefills),
            "prefill_chunks": tuple(n for _, n in step.prefills),
            "decode_ids": tuple(r.row for r in decoding),
            "admitted_ids": tuple(r.row for r in step.admitted),
            "preempted_ids": tuple(r.row for r in step.preempted),
        }
        emitting = [r for r, n in step.prefills if r.computed + n == r.num_tokens]
        ending = [r for r in emitting if r.generated + 1 == r.target]
        ending += [r for r in decoding if r.finish_tick == scheduler.tick + 1]
        for request in ending if caching else []:
            scheduler.block_table(request)
            request.block_keys = arrivals[request.row].keys
        finished = scheduler.finish(step)
        for request in emitting:
            if rows[request.row]["first_token_ns"] < 0:
                rows[request.row]["first_token_ns"] = end_ns
        for request in finished:
            rows[request.row]["finish_ns"] = end_ns
            gone += 1
        values["finished_ids"] = tuple(r.row for r in finished)
        for name, value in values.items():
            steps[name].append(value)
        now_ns = end_ns + between_ns
    for request in requests:
        scheduler.settle(request)
        reason = request.finish_reason
        rows[request.row] |= {
            "number": request.row,
            "id": request.id,
            "arrival_ns": request.arrival_ns,
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.generated,
            "max_tokens": request.max_tokens,
            "priority": request.priority,
            "deadline_ns": request.deadline_ns,
            "abort_ns": -1,
            "cached_tokens": max(request.cached_tokens, 0),
            "preemptions": request.preemptions,
            "finish_reason": reason.name.lower() if reason is not None else "",
            "block_keys": tuple(request.block_keys),
        }
    table = {name: [row[name] for row in rows] for name in REQUEST_KINDS}
    meta = {"schema": SCHEMA, "clock": "made up", "scheduler": dataclasses.asdict(config)}
    return StepLog(meta, steps, table)
