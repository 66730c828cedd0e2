"""`--cross-check`: the same run under every latency model that applies."""

from __future__ import annotations

import json
from collections.abc import Callable

import blis_py as blis

Blis = Callable[..., tuple[int, str, str]]
RUN = ("run", "--model", "qwen3-14b", "--num-requests", "80", "--rate", "4", "--cross-check")


def test_every_model_that_applies_has_a_row_and_the_run_itself_the_first(blis: Blis) -> None:
    rows = json.loads(blis(*RUN)[1])["cross_check"]
    assert [row["latency_model"] for row in rows] == ["trained", "roofline", "trained-physics"]
    assert all(row["ttft_ms.p99"] > 0 for row in rows)
    assert len({row["tpot_ms.mean"] for row in rows}) == 3


def test_a_row_is_what_the_run_under_that_model_comes_to() -> None:
    from blis_py.cross_check import cross_check

    settings = {"model": "qwen3-14b", "num_requests": 80, "rate": 4, "scheduler": "sjf"}
    simulation = blis.build(**settings)
    row = cross_check(simulation, simulation.run().summary)[1]
    alone = blis.run(**settings, latency_model="roofline").summary
    assert row["e2e_ms.p99"] == alone["cluster"]["e2e_ms"]["p99"]
    assert row["verdict"] == alone["load"]["verdict"]


def test_a_model_that_does_not_apply_says_why(blis: Blis) -> None:
    code, out, err = blis(*RUN, "--gpu", "mi300x", "--format", "table")
    assert code == 0, err
    assert "roofline does not apply: " in out
    assert "latency model" in out


def test_without_the_flag_nothing_is_checked(blis: Blis) -> None:
    assert "cross_check" not in json.loads(blis(*RUN[:-1])[1])
