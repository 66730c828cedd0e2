"""Intervals of predictions cover what was left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ACCURACY = Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"
sys.path.insert(0, str(ACCURACY))

from left_out import DISTANCES, LEVEL, Record, half_width, size  # noqa: E402


def server(number: int, errors: np.ndarray, distance: str = DISTANCES[0]) -> list[Record]:
    own = f"source {number}", "vllm", "llama-3.1-8b", "16 bits", "h100", "TP1", distance, ""
    return [Record(*own, {"tpot": float(error)}) for error in errors]


def test_a_new_server_is_covered_however_few_records_it_has() -> None:
    """Errors of a server are alike, and servers with many records no likelier than those with one."""
    random = np.random.default_rng(0)

    def drawn(number: int) -> list[Record]:
        scatter = random.normal(0, 0.1) + random.normal(0, 0.01, int(random.integers(1, 40)))
        return server(number, np.expm1(scatter))

    held = []
    for _ in range(300):
        *others, new = (drawn(number) for number in range(25))
        q = half_width(new[0], [record for of in others for record in of], "tpot")
        held.append(np.mean([size(record, "tpot") <= q for record in new]))
    assert np.mean(held) == pytest.approx(LEVEL, abs=0.05)


def test_one_server_with_many_records_does_not_decide() -> None:
    others = [
        *server(0, np.full(10_000, 1.0)),
        *(r for n in range(1, 30) for r in server(n, np.array([0.05]))),
    ]
    assert half_width(others[-1], others, "tpot") == pytest.approx(np.log(1.05))


def test_where_few_servers_are_as_far_no_nearer_ones_stand_in_for_e2e() -> None:
    far = [r for n in range(9) for r in server(n, np.array([0.3]), DISTANCES[2])]
    near = [Record(*record.server, DISTANCES[0], "", {"e2e": 0.01, "tpot": 0.01}) for record in far]
    assert half_width(far[0], [*far, *near], "e2e") == pytest.approx(np.log(1.3))
    assert half_width(near[0], [*far, *near], "e2e") == pytest.approx(np.log(1.01))


def test_intervals_of_sources_left_out_cover_what_they_promise() -> None:
    results = json.loads((ACCURACY.parent / "results" / "left_out.json").read_text())
    covered = {row["metric"]: row["covered"] for row in results["together"]["source"]}
    assert 0.87 <= covered["ttft"] <= 0.93
    assert 0.87 <= covered["tpot"] <= 0.93
    assert covered["e2e"] >= 0.87  # of few servers: errors of TPOT stand in, which are larger
