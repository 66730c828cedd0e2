"""`--cross-check`: the same run under every latency model that applies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import blis_py as blis

Blis = Callable[..., tuple[int, str, str]]
RUN = ("run", "--model", "qwen3-14b", "--num-requests", "80", "--rate", "4", "--cross-check")


def test_every_model_that_applies_has_a_row_and_the_run_itself_the_first(blis: Blis) -> None:
    rows = json.loads(blis(*RUN)[1])["cross_check"]
    assert [row["latency_model"] for row in rows] == ["trained", "roofline", "trained-physics"]
    assert all(row["ttft_ms.p99"] > 0 for row in rows)
    assert len({row["tpot_ms.mean"] for row in rows}) == 3


def test_a_row_is_what_the_run_under_that_model_comes_to() -> None:
    from blis_py.sensitivity.cross_check import cross_check

    settings = {"model": "qwen3-14b", "num_requests": 80, "rate": 4, "scheduler": "sjf"}
    simulation = blis.build(**settings)
    row = cross_check(simulation, simulation.run().summary)[1]
    alone = blis.run(**settings, latency_model="roofline").summary
    assert row["e2e_ms.p99"] == alone["cluster"]["e2e_ms"]["p99"]
    assert row["verdict"] == alone["load"]["verdict"]


def test_a_row_keeps_what_the_preset_states_of_its_model_and_of_the_host() -> None:
    """The host time of vLLM 0.10 is that of `trained`; that of a cache lookup holds for every model."""
    from blis_py.sensitivity.cross_check import cross_check

    settings = {
        "model": "qwen3-14b",
        "num_requests": 60,
        "rate": 4,
        "engine": "vllm-0.10",
        "scheduler": "lpm",
    }
    settings |= {"scan_us": 900.0, "rate": 300}
    simulation = blis.build(**settings, latency_model="roofline")
    rows = cross_check(simulation, simulation.run().summary)
    for row in rows:
        alone = blis.run(**settings, latency_model=row["latency_model"]).summary
        assert row["ttft_ms.p99"] == alone["cluster"]["ttft_ms"]["p99"], row["latency_model"]
    assert "+ 906 us a step" in next(row["rests_on"] for row in rows if row["latency_model"] == "trained")


def test_what_is_of_one_latency_model_alone_stays_with_it() -> None:
    from blis_py.config.latency import LatencySection

    section = LatencySection(
        model="trained", step_gap_us=(100.0,), step_scale=1.1, scan_us=2.0, mask_row_us=3.0
    )
    assert section.under("trained") == section
    assert section.under("roofline") == LatencySection(model="roofline", scan_us=2.0, mask_row_us=3.0)


def test_a_model_that_does_not_apply_states_why(blis: Blis) -> None:
    code, out, err = blis(*RUN, "--gpu", "mi300x", "--format", "table")
    assert code == 0, err
    assert "roofline does not apply: " in out
    assert "latency model" in out


def test_without_the_flag_nothing_is_checked(blis: Blis) -> None:
    assert "cross_check" not in json.loads(blis(*RUN[:-1])[1])


LONG = ("run", "--model", "llama-3.1-8b", "--num-requests", "60", "--prompt-tokens", "3000")
"""`trained-physics` prices such prompts at half of what the others say."""
OTHERWISE = ("--latency-model", "trained-physics")


def otherwise(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "says otherwise" in line]


def test_a_run_warns_where_other_models_differ_by_more_than_a_quarter(blis: Blis) -> None:
    code, out, err = blis(*LONG, *OTHERWISE)
    assert code == 0, err
    warnings = otherwise(err)
    assert [line.split(" says ")[0].split()[-1] for line in warnings] == ["trained", "roofline"]
    assert all("TTFT mean" in line and "+" in line for line in warnings)
    assert [f"note: {note}" for note in json.loads(out)["notes"] if "otherwise" in note] == warnings
    assert not otherwise(blis(*LONG)[2]), "trained and roofline are within a quarter of each other here"


def test_a_large_difference_between_models_comes_before_the_result(blis: Blis) -> None:
    code, out, err = blis(*LONG, *OTHERWISE)
    assert code == 0, err
    assert re.match(r"latency models differ by \d\.\d ×, trained says otherwise", json.loads(out)["notes"][0])
    table = blis(*LONG, *OTHERWISE, "--format", "table")
    assert table[0] == 0


def test_what_is_requested_is_what_is_compared(blis: Blis) -> None:
    """TPOT is the same within a quarter; a TTFT that only one of the models meets is reported as such."""
    assert not otherwise(blis(*LONG, *OTHERWISE, "--slo", "tpot.mean=50ms")[2])
    warned = otherwise(blis(*LONG, *OTHERWISE, "--slo", "ttft.mean=60ms")[2])
    assert len(warned) == 2
    assert all("ttft.mean=60ms would be missed" in line for line in warned)


@pytest.mark.parametrize(
    "flags",
    [
        (*OTHERWISE, "--no-cross-check"),
        (*OTHERWISE, "--engine", "blis"),
        (*OTHERWISE, "--cross-check"),
        ("--set", "latency.model=linear", "--set", "latency.linear={gpu: {step: 1.0e+9}}"),
        ("--gpu", "mi300x"),
        (*OTHERWISE, "--num-requests", "40"),
    ],
    ids=["switched off", "the peer's", "whole", "one's own", "one model applies", "too few"],
)
def test_where_there_is_nothing_to_compare_with_nothing_is_said(blis: Blis, flags: tuple[str, ...]) -> None:
    code, _, err = blis(*LONG, *flags)
    assert code == 0, err
    assert not otherwise(err)


@pytest.mark.slow
def test_the_look_at_other_models_costs_a_small_share_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from blis_py.sensitivity import disagreement

    looked_at: list[int] = []
    run = disagreement._run
    monkeypatch.setattr(disagreement, "_run", lambda s: (looked_at.append(len(s.table)), run(s))[1])
    for requests, share in ((60, 60), (4000, 200), (6000, 240)):
        simulation = blis.build(model="qwen3-14b", num_requests=requests, rate=20, output_tokens=30)
        disagreement.disagreements(simulation, simulation.run(record_steps=False))
        assert looked_at == ([share] if share == requests else [share, share])
        looked_at.clear()


def test_the_busiest_requests_are_those_that_bring_most_tokens_per_second() -> None:
    table = blis.build(model="qwen3-14b", num_requests=200, rate=1, arrival="constant").table
    arrival_ns = table.arrival_ns.copy()
    arrival_ns[120:] -= 40_000_000_000 - 10_000_000
    arrival_ns[80:120] = arrival_ns[80] + 10_000_000 * np.arange(40)
    assert abs(replace(table, arrival_ns=arrival_ns).busiest(40) - 80) <= 1


def test_the_two_flags_contradict_each_other(blis: Blis) -> None:
    code, _, err = blis(*LONG, "--cross-check", "--no-cross-check")
    assert code == 2
    assert "--no-cross-check" in err
