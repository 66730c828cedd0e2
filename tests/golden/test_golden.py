from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_runs import ENGINES, WORKLOADS, golden_run, pinned


def same(found: Any, expected: Any) -> bool:
    """Equal, but for the last bits of averages, which depend on the machine's numpy."""
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=1e-9))
    return bool(found == expected)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda path: path.stem)
def test_a_bundled_workload_runs_as_it_always_has(workload: Path, engine: str) -> None:
    found, expected = golden_run(workload, engine), json.loads(pinned(workload, engine).read_text())
    differing = [key for key in expected if not same(json.loads(json.dumps(found[key])), expected[key])]
    assert not differing, f"{differing} changed; if on purpose, run python tests/golden/golden_runs.py"


def test_the_golden_runs_take_every_path() -> None:
    totals = [json.loads(pinned(path, name).read_text())["cluster"] for path in WORKLOADS for name in ENGINES]
    assert sum(total["preemptions"] for total in totals) > 0
    assert sum(total["prefix_hit_tokens"] for total in totals) > 0
    assert sum(total["head_of_line_events"] for total in totals) > 0
