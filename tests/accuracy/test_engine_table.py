"""What the committed runs of our own engine show is what pages and tables say."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module: benchmarks are scripts beside each other, not a package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "accuracy"))
    import engine_table

    yield engine_table
    sys.modules.pop("engine_table")


def row(tables: Any, error: float, preemptions: tuple[int, int] = (0, 0), identical: float = 1.0) -> Any:
    errors = dict.fromkeys(tables.TARGETS, error)
    return tables.Row(
        "a case", "small", 3.0, errors, (0.5, 0.51), preemptions, identical, 0.05, -error, "scatter"
    )


def test_tables_in_documents_match_the_committed_runs(tables: Any) -> None:
    """If not: `python benchmarks/accuracy/engine_table.py`."""
    for path, text in tables.places(tables.read_rows()).items():
        assert path.read_text(encoding="utf-8") == text, path


def test_the_page_of_validation_states_the_number_of_runs_and_their_median_errors(tables: Any) -> None:
    rows = tables.read_rows()
    page = (ROOT / "benchmarks" / "results" / "validation.md").read_text(encoding="utf-8")
    section = page.split("## Our own engine")[1].split("##")[0]
    shown = re.findall(r"([\d.]+) % \((\w+ mean)\)", section)
    assert [name for _, name in shown] == ["TTFT mean", "TPOT mean", "E2E mean"]
    assert shown == [(f"{100 * tables.median_error(rows, name):.1f}", name) for _, name in shown]
    worst = max(abs(each.errors["TTFT mean"]) for each in rows)
    assert f"the worst TTFT mean is {100 * worst:.0f} % off" in section
    assert f"{len(rows)} runs on a CPU" in section


def test_medians_are_of_absolute_errors_and_bias_keeps_its_sign(tables: Any) -> None:
    rows = [row(tables, error) for error in (-0.04, 0.01, 0.02)]
    lines = tables.medians(rows)
    assert "| E2E mean | 2.0 % | 1.0 to 4.0 % | 5 % |" in lines
    assert "| step time: bias | -1.0 % | -2.0 to +4.0 % | 1 % |" in lines
    assert "| preemptions, in the 0 runs with any (0; predicted 0) | | | 2 % |" in lines
    assert any("100 % of the steps, in every run" in line for line in lines)
    assert tables.own_engine(rows).endswith("| 2.0% / 2.0% / 2.0% |")


def test_one_batch_that_differs_is_reported(tables: Any) -> None:
    lines = tables.medians([row(tables, 0.01), row(tables, 0.01, identical=0.99999)])
    assert any("99.999% of the steps in the worst run" in line for line in lines)


def test_what_injected_step_times_leave_is_that_of_the_worst_run(tables: Any) -> None:
    rows = [row(tables, 0.01) for _ in range(3)]
    assert not any("injected |" in line and "within" in line for line in tables.medians(rows))
    for each, ttft in zip(rows[:2], (0.001, -0.0021), strict=True):
        each.injected.update({"TTFT mean": ttft, "E2E mean": 0.0002})
    (line,) = [line for line in tables.medians(rows) if "within" in line]
    assert "within 0.21 % and 0.02 % in the worst run" in line


def test_preemptions_count_where_there_are_any_on_either_side(tables: Any) -> None:
    rows = [row(tables, 0.0), row(tables, 0.0, (0, 3)), row(tables, 0.0, (10, 9))]
    (line,) = [line for line in tables.medians(rows) if line.startswith("| preemptions")]
    assert line.startswith("| preemptions, in the 2 runs with any (10; predicted 12) |")


def test_with_row_replaces_one_row_and_nothing_else(tables: Any) -> None:
    text = "before\n| a |\n| 1 |\n\n| b |\n| 2 |\nafter\n"
    assert tables.with_row(text, "| 2", "| 5 |") == text.replace("| 2 |", "| 5 |")
