"""What a router knows at each decision, and the record of it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from cluster_runs import Run, differences, runs
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.metrics.decisions import Decisions
from blis_py.metrics.record import RunRecord


def recorded(run: Run, **options: Any) -> tuple[RunRecord, Decisions]:
    record = run.record(record_decisions=0, **options)
    assert record.decisions is not None
    return record, record.decisions


def unequal(one: Decisions, other: Decisions) -> list[str]:
    return [f.name for f in fields(one) if not np.array_equal(getattr(one, f.name), getattr(other, f.name))]


@pytest.mark.slow
@settings(max_examples=150)
@given(run=runs(), asynchronous=st.booleans())
def test_jumping_over_steps_changes_nothing_of_what_the_router_sees(run: Run, asynchronous: bool) -> None:
    """Queues, batches, KV use and the content of caches, to the nanosecond at which a step ends."""
    run = replace(run, config=replace(run.config, async_scheduling=asynchronous))
    run.options["num_instances"] += 1
    jumped, seen = recorded(run)
    single, seen_by_steps = recorded(run, single_step=True)
    assert unequal(seen, seen_by_steps) == []
    assert differences(jumped, single) == []


@pytest.mark.slow
@settings(max_examples=60)
@given(run=runs())
def test_looking_on_changes_nothing(run: Run) -> None:
    assert differences(run.record(), recorded(run)[0]) == []
