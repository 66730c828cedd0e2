"""The column of step ends: what is worked out later is what would have been worked out at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.core.request import NEVER_NS
from blis_py.latency import decode_line
from blis_py.latency.decode_line import DecodeLine, LineRun, PackedRuns, run_along
from blis_py.latency.step_run import Ints, PricedRun, StepRun
from blis_py.metrics import step_ends
from blis_py.metrics.step_ends import StepEnds
from blis_py.metrics.steps_table import StepsTable

small = st.floats(0, 40)
lines = st.builds(
    DecodeLine,
    small,
    small,
    small,
    small,
    small,
    unit_ns=st.sampled_from([1, 1000]),
    fixed_ns=st.integers(0, 9),
)
along = st.tuples(
    st.integers(0, 5),  # which line
    st.integers(1, 10**6),
    st.integers(1, 500),
    st.integers(1, 90),
    st.integers(0, 10**12),
)
singles = st.integers(1, 10**15)


def line_run(lines_: list[DecodeLine], spec: tuple[int, int, int, int, int]) -> StepRun:
    which, kv_tokens, growth, steps, start_ns = spec
    return run_along(lines_[which % len(lines_)], kv_tokens, growth, steps, start_ns, NEVER_NS)


@settings(max_examples=60)
@given(
    choice=st.lists(lines, min_size=1, max_size=4),
    specs=st.lists(
        st.one_of(along, singles, st.lists(singles, min_size=2, max_size=5, unique=True)), max_size=40
    ),
    at_once=st.sampled_from([0, 100, 1 << 15]),
)
def test_the_column_holds_the_ends_of_every_run_in_order(
    choice: list[DecodeLine], specs: list[tuple[int, int, int, int, int] | int | list[int]], at_once: int
) -> None:
    column, expected = StepEnds(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_ends, "_AT_ONCE", at_once)
        for spec in specs:
            with pytest.MonkeyPatch.context() as scalar:
                scalar.setattr(decode_line, "SCALAR_STEPS", 10_000)
                if isinstance(spec, tuple):
                    run = line_run(choice, spec)
                    assert isinstance(run, LineRun)
                else:
                    run = StepRun(1, spec) if isinstance(spec, int) else PricedRun(sorted(spec))
            column.append(run)
            assert column.last_ns == run.end_ns
            with pytest.MonkeyPatch.context() as vector:
                vector.setattr(decode_line, "SCALAR_STEPS", 0)
                again = line_run(choice, spec) if isinstance(spec, tuple) else run
            expected += again.ends_ns().tolist()
        assert column.steps == len(expected)
        assert column.ns().tolist() == expected


def test_it_grows_and_can_be_read_in_between() -> None:
    column = StepEnds()
    assert column.ns().tolist() == []
    for end_ns in range(1, 5001):
        column.append(StepRun(1, end_ns))
        if end_ns == 3000:
            early = column.ns()
    assert early.tolist() == list(range(1, 3001))
    column.append(PricedRun(range(6000, 20_000)))
    assert column.ns().tolist() == [*range(1, 5001), *range(6000, 20_000)]


def test_runs_of_a_short_column_are_worked_out_once_and_it_grows_on(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out = []

    class Counted(PackedRuns):
        def ends_ns(self) -> Ints:
            worked_out.append(self)
            return super().ends_ns()

    monkeypatch.setattr(step_ends, "PackedRuns", Counted)
    monkeypatch.setattr(step_ends, "_AT_ONCE", 100)
    line, column = DecodeLine(1.0, 0.0, 0.0, 0.0, 0.0, unit_ns=10), StepEnds()
    for start_ns in (0, 10_000, 20_000):
        column.append(LineRun(line, 1, 1, start_ns, 200, start_ns + 2000))
    expected = [start_ns + 10 * (step + 1) for start_ns in (0, 10_000, 20_000) for step in range(200)]
    assert column.ns().tolist() == column.ns().tolist() == expected
    assert len(worked_out) == 3
    assert column.one(400) == 20_010
    column.append(StepRun(1, 30_000))
    assert column.ns().tolist() == [*expected, 30_000]
    assert column.one(600) == 30_000
    assert len(worked_out) == 3


@pytest.mark.parametrize("rows", [0, 5, 4096, 10_000])
def test_a_table_of_steps_has_as_many_rows_as_were_written_in_memory_or_not(rows: int) -> None:
    table = StepsTable(("start_ns", "running"))
    for row in range(rows):
        table.append((row, row % 7))
    assert len(table) == rows
    assert sum(len(part["running"]) for part in table.parts()) == rows


@pytest.mark.parametrize("first", [0, 99, 100, 199, 250])
def test_one_end_is_read_from_any_part_first(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_ends, "_AT_ONCE", 64)
    column = StepEnds.of(np.arange(100) * 5 + 1)
    column.append(PricedRun(range(1000, 1100)))
    column.append(PricedRun(range(2000, 2100)))
    expected = column.ns().tolist()
    assert [column.one(step) for step in (first, 150, 0)] == [expected[step] for step in (first, 150, 0)]
