"""Instances that serve both phases and keep blocks for each other: no request waits for ever."""

from __future__ import annotations

import pytest
from apart import requests, simulate

from blis_py.metrics.invariants import check
from blis_py.metrics.record import Outcome

BOTH = {"prefill": 1, "decode": 0, "shared": 2, "num_kv_blocks": 12}
"""12 blocks of 4 tokens: two prompts of 40 tokens do not fit into one instance."""
CROSSED = requests([0, 0, 0], [4, 40, 40], [4, 4, 4])
"""In turn: the second computes its prompt on instance 1 and decodes on 2, the third the other way round."""


@pytest.mark.parametrize("handoff", ["vllm", "trtllm"])
@pytest.mark.parametrize("single_step", [False, True])
def test_two_prompts_kept_for_each_other_end(handoff: str, single_step: bool) -> None:
    """Each instance keeps one prompt and has no room for the other: one is evicted, the other is served."""
    record = simulate(CROSSED, handoff, single_step=single_step, **BOTH)
    check(record)
    assert sorted(record.outcome.tolist()) == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.EVICTED]


def test_a_lease_that_ends_frees_the_blocks_as_well() -> None:
    record = simulate(CROSSED, "vllm", lease_ns=1000, load_failure_policy="recompute", **BOTH)
    check(record)
    assert record.outcome.tolist() == 3 * [Outcome.COMPLETED]
