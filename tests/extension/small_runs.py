"""Instances and requests of the examples here: steps of 10 us, and 1 us for each prefill token."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from blis_py.cluster.topology import InstanceSpec
from blis_py.core.config import SchedulerConfig
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.requests.table import Labels, RequestTable

US = 1000
OF_SPEC = ("emission", "kv_source")


def spec(decode_seqs: int = 0, **settings: Any) -> InstanceSpec:
    """
    Args:
        decode_seqs: ns for each sequence that decodes.
        settings: of the scheduler, and `OF_SPEC`.
    """
    own = {name: settings.pop(name) for name in OF_SPEC if name in settings}
    scheduler = SchedulerConfig(**{"num_kv_blocks": 60, "max_model_len": 400, "block_size": 4, **settings})
    costs = LinearCosts(step=10 * US, prefill_tokens=US, decode_seqs=decode_seqs)
    return InstanceSpec(scheduler=scheduler, latency=Linear(LinearCoefficients(gpu=costs)), **own)


def requests(
    arrivals_us: Sequence[int],
    prompts: Sequence[int],
    outputs: Sequence[int],
    shared: Sequence[tuple[str, int]] = (),
    extra_key: Sequence[str] | None = None,
) -> RequestTable:
    """
    Args:
        shared: name and length of the text that each prompt begins with.
        extra_key: of each.
    """
    count = len(arrivals_us)
    return RequestTable.build(
        np.array(arrivals_us, np.int64) * US,
        np.array(prompts, np.int64),
        np.array(outputs, np.int64),
        content=np.array([i if shared and shared[i][1] else -1 for i in range(count)]),
        contents=[(run,) for run in shared],
        extra_key=None if extra_key is None else Labels.of(extra_key),
    )


def random_requests(rng: Random, count: int = 40) -> RequestTable:
    """Three texts, many prompts that begin with one of them, answers short and long."""
    prompts = [rng.randint(1, 60) for _ in range(count)]
    shared = [(rng.choice("abc"), min(prompt, rng.choice([0, 8, 24, 60]))) for prompt in prompts]
    outputs = [rng.choice([1, 2, 9, 50]) for _ in range(count)]
    arrivals = sorted(rng.randint(0, 900) for _ in range(count))
    return requests(arrivals, prompts, outputs, shared, [rng.choice(["", "x", "y"]) for _ in range(count)])


def same(jump: RunRecord, single: RunRecord) -> None:
    """All requests have all their tokens, and jumps over steps come to the same as single steps."""
    for record in (jump, single):
        check(record)
        assert (record.outcome == Outcome.COMPLETED).all()
        assert record.emitted_tokens.tolist() == record.table.output_tokens.tolist()
    for column in ("first_token_ns", "finish_ns", "instance", "preemptions", "cached_tokens"):
        assert getattr(jump, column).tolist() == getattr(single, column).tolist(), column
    assert [(one.kv_block_steps, one.prefill_tokens, one.decode_tokens) for one in jump.instances] == [
        (one.kv_block_steps, one.prefill_tokens, one.decode_tokens) for one in single.instances
    ]
