"""Run records made up at random, but such as a simulation could have produced."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from blis_py.core.features import FEATURE_NAMES
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.emission import EmittedTokens
from blis_py.metrics.record import InstanceRecord, Outcome, RunRecord
from blis_py.metrics.step_ends import StepEnds
from blis_py.metrics.steps_table import StepsTable
from blis_py.metrics.visits import Visits
from blis_py.requests.table import Labels, RequestTable

NUM_STEPS = 40
TIMES = ("enqueue_ns", "scheduled_ns", "first_token_ns", "last_token_ns", "finish_ns")


def table(arrival_ns: Any, prompt_tokens: Any = 10, **columns: Any) -> RequestTable:
    """A request table; what is not given is unset."""
    arrival = np.asarray(arrival_ns, dtype=np.int64)
    n = len(arrival)

    def ints(value: Any) -> Any:
        return np.broadcast_to(np.asarray(value, dtype=np.int64), n).copy()

    def labels(name: str) -> Labels:
        values = columns.pop(name, "")
        return Labels.constant(values, n) if isinstance(values, str) else Labels.of(values)

    return RequestTable(
        arrival_ns=arrival,
        prompt_tokens=ints(prompt_tokens),
        output_tokens=ints(columns.pop("output_tokens", 4)),
        max_tokens=ints(columns.pop("max_tokens", 0)),
        deadline_ns=ints(columns.pop("deadline_ns", -1)),
        slo_class=labels("slo_class"),
        tenant=labels("tenant"),
        client=labels("client"),
        model=labels("model"),
        prefix_group=labels("prefix_group"),
        prefix_tokens=ints(0),
        content=ints(-1),
        streaming=np.ones(n, dtype=np.bool_),
        slo_target_ns=ints(columns.pop("slo_target_ns", 0)),
        **columns,
    )


def instance(step_end_ns: Any, **fields: Any) -> InstanceRecord:
    """An instance that took these steps; counts not given are plain guesses."""
    ends = np.asarray(step_end_ns, dtype=np.int64)
    given = {
        "num_kv_blocks": 100,
        "busy_ns": int(ends[-1]) if len(ends) else 0,
        "peak_kv_blocks": 50,
        "kv_block_steps": 25 * len(ends),
        "prefill_tokens": 1000,
        "decode_tokens": 3 * len(ends),
        "prefix_queried_tokens": 200,
        "prefix_hit_tokens": 50,
        "preemptions": 0,
        "priority_inversions": 0,
        "head_of_line_events": 0,
    }
    return InstanceRecord(step_ends=StepEnds.of(ends), **{**given, **fields})


def record(
    requests: RequestTable,
    instances: list[InstanceRecord],
    emitted: list[tuple[int, list[int]] | None],
    outcomes: list[Outcome] | None = None,
    frontend: FrontendDelays | None = None,
    preemptions: list[int] | None = None,
    **fields: Any,
) -> RunRecord:
    """A record from the steps with which each request emitted, in (instance, steps) pairs.

    `None` stands for a request that never got to an instance; one with no steps never got a token.
    """
    frontend = frontend or FrontendDelays()
    n = len(requests)
    columns = {name: np.full(n, -1, dtype=np.int64) for name in (*TIMES, "first_step", "last_step")}
    counts = np.zeros(n, dtype=np.int64)
    where = np.full(n, -1, dtype=np.int32)
    breaks = []
    for row, share in enumerate(emitted):
        if share is None:
            continue
        where[row], steps = share[0], share[1]
        columns["enqueue_ns"][row] = requests.arrival_ns[row] + frontend.before_enqueue_ns
        if not steps:
            continue
        ends = instances[share[0]].step_end_ns
        counts[row] = len(steps)
        columns["first_step"][row], columns["last_step"][row] = steps[0], steps[-1]
        columns["scheduled_ns"][row] = columns["enqueue_ns"][row]
        columns["first_token_ns"][row] = ends[steps[0]] + frontend.per_token_ns
        columns["last_token_ns"][row] = ends[steps[-1]] + len(steps) * frontend.per_token_ns
        columns["finish_ns"][row] = columns["last_token_ns"][row] + frontend.at_end_ns
        breaks += [(row, a, b) for a, b in pairwise(steps) if b > a + 1]
    outcome = outcomes or [Outcome.REJECTED if e is None else Outcome.COMPLETED for e in emitted]
    for row, end in enumerate(outcome):
        if end in (Outcome.QUEUED, Outcome.RUNNING):
            columns["finish_ns"][row] = -1
    per_request = np.where(where >= 0, np.asarray(preemptions or [0] * n, dtype=np.int64), 0)
    for index, one in enumerate(instances):
        one.preemptions = int(per_request[where == index].sum())
    ends_ns = [int(one.step_end_ns[-1]) for one in instances if len(one.step_end_ns)]
    turned_away = np.isin(np.asarray(outcome, dtype=np.int8), (Outcome.REJECTED, Outcome.EVICTED))
    if turned_away.any():
        fields.setdefault("rejection", Labels(turned_away.astype(np.int32), ("", "no tokens left")))
    return RunRecord(
        table=requests,
        visits=Visits(
            requests=n,
            request=np.arange(n),
            instance=where,
            role=np.zeros(n, dtype=np.int8),
            outcome=np.asarray(outcome, dtype=np.int8),
            emitted_tokens=counts,
            cached_tokens=np.zeros(n, dtype=np.int64),
            preemptions=per_request,
            emission=EmittedTokens(
                columns.pop("first_step"),
                columns.pop("last_step"),
                np.asarray(breaks, dtype=np.int64).reshape(-1, 3),
            ),
            **columns,
        ),
        instances=instances,
        frontend=frontend,
        end_ns=max([*ends_ns, *columns["finish_ns"].tolist(), 0]),
        **fields,
    )


FATES = {
    Outcome.COMPLETED: 0.5,
    Outcome.LENGTH_CAPPED: 0.1,
    Outcome.REJECTED: 0.05,
    Outcome.UNSERVABLE: 0.05,
    Outcome.TIMED_OUT: 0.1,
    Outcome.QUEUED: 0.05,
    Outcome.RUNNING: 0.1,
    Outcome.EVICTED: 0.05,
}
"""How often a random record draws each."""


def random_record(seed: int, requests: int = 12, instances: int = 2, steps: int = NUM_STEPS) -> RunRecord:
    """Any number of instances, all outcomes, classes, tenants, interruptions and delays."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.integers(0, 1_000_000, requests))
    engines = [
        instance(5_000_000 + np.cumsum(rng.integers(1, 30, steps) * 1_000_000), runs=random_runs(rng, steps))
        for _ in range(instances)
    ]
    shares: list[tuple[int, list[int]] | None] = []
    outcomes = []
    for _ in range(requests):
        fate = Outcome(int(rng.choice(len(Outcome), p=[FATES[outcome] for outcome in Outcome])))
        first = int(rng.integers(0, steps))
        span = np.arange(first, int(rng.integers(first, steps)) + 1)
        kept = span[rng.random(len(span)) < rng.choice([1.0, 0.9, 0.4])].tolist() or [first]
        outcomes.append(fate)
        if fate in (Outcome.REJECTED, Outcome.UNSERVABLE):
            shares.append(None)
        else:
            cut_off = fate in (Outcome.TIMED_OUT, Outcome.EVICTED)
            none_yet = fate == Outcome.QUEUED or (cut_off and rng.random() < 0.5)
            shares.append((int(rng.integers(instances)), [] if none_yet else kept))
    return record(
        table(
            arrivals,
            prompt_tokens=rng.integers(1, 500, requests),
            output_tokens=[1 if s is None else max(1, len(s[1])) for s in shares],
            slo_class=rng.choice(["", "critical", "batch", "vip"], requests).tolist(),
            tenant=rng.choice(["", "a", "b"], requests).tolist(),
            model="m",
        ),
        engines,
        shares,
        outcomes,
        FrontendDelays(*rng.integers(0, 3_000_000, 3).tolist()),
        rng.integers(0, 2, requests).tolist(),
    )


def random_runs(rng: np.random.Generator, rows: int) -> StepsTable:
    """A compact steps table with pauses between some runs."""
    edges = np.cumsum(rng.integers(1, 20, 2 * rows) * 1_000_000)
    counts = ("steps", "waiting", "running", "kv_blocks", *FEATURE_NAMES)
    columns = {
        "start_ns": edges[::2],
        "end_ns": edges[1::2],
        **{name: rng.integers(0, 50, rows) for name in counts},
    }
    table = StepsTable(list(columns))
    for row in zip(*columns.values(), strict=True):
        table.append(row)
    return table


def emission_times(run: RunRecord, row: int) -> list[int]:
    """When each token of a request reached the client, one by one, in ns."""
    emission = run.visits.emission
    skipped = {s for r, a, b in emission.breaks.tolist() if r == row for s in range(a + 1, b)}
    steps = [s for s in range(emission.first_step[row], emission.last_step[row] + 1) if s not in skipped]
    ends = run.instances[run.instance[row]].step_end_ns
    return [int(ends[s]) + (j + 1) * run.frontend.per_token_ns for j, s in enumerate(steps)]
