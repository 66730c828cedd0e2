"""What it costs that a policy looks waiting requests up in the prefix cache, in a run."""

from __future__ import annotations

from typing import Any

import pytest

from blis_py import api
from blis_py.calibrate.fit import fit, write_profile
from blis_py.traces.samples import samples_from

LOAD: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "engine": "blis",
    "latency_model": "trained",
    "rate": 200.0,
    "num_requests": 150,
    "prompt_tokens": 200,
    "output_tokens": 30,
}
LPM: dict[str, Any] = {**LOAD, "scheduler": "lpm"}


def mean_ttft_ms(result: api.Result) -> float:
    return float(result.requests["ttft_ms"].mean())


def test_it_slows_an_engine_that_takes_turns_down() -> None:
    free, slow = (api.run(**LPM, scan_us=price) for price in (0.0, 200.0))
    assert mean_ttft_ms(slow) > mean_ttft_ms(free) + 1


def test_asynchronous_scheduling_hides_what_fits_beside_a_step() -> None:
    prices = (0.0, 2.0, 2e4)
    free, hidden, slow = (api.run(**LPM, async_scheduling=True, scan_us=price) for price in prices)
    assert mean_ttft_ms(hidden) == pytest.approx(mean_ttft_ms(free), abs=0.01), "but for the first step"
    assert mean_ttft_ms(slow) > mean_ttft_ms(free) + 1


def test_an_order_without_cache_lookups_costs_nothing() -> None:
    free, run = (api.run(**LOAD, **price) for price in ({}, {"scan_us": 1e4}))
    assert mean_ttft_ms(run) == mean_ttft_ms(free)
    assert not any("looks waiting requests up" in note for note in run.notes)


def test_without_a_price_it_costs_nothing_and_the_run_reports_it() -> None:
    text = "lpm looks waiting requests up in the prefix cache, which costs nothing here"
    assert any(text in note for note in api.build(**LPM).notes)
    for priced in ({"scan_us": 0.0}, {"engine": "vllm"}):
        assert not any(text in note for note in api.build(**{**LPM, **priced}).notes)


@pytest.mark.parametrize("engine", ["vllm", "blis"])
def test_what_a_profile_measured_goes_before_what_a_preset_assumes(engine: str, tmp_path: Any) -> None:
    """Decodes alone, with 5 us for each request looked up."""
    rows = range(200)
    seqs, scanned = [1 + i % 20 for i in rows], [i * 7 % 90 for i in rows]
    columns: dict[str, Any] = {
        "source": ["run"] * 200,
        "regime": ["eager"] * 200,
        "shape": list(rows),
        "decode_seqs": seqs,
        "decode_kv_tokens": [100 * n for n in seqs],
        "emitted_rows": seqs,
        "scanned_requests": scanned,
        "schedule_ns": [20_000 + 5_000 * n for n in scanned],
        "gpu_ns": [1_000_000 + 10_000 * n for n in seqs],
    }
    taken = zip(columns["gpu_ns"], columns["schedule_ns"], strict=True)
    columns["total_ns"] = [gpu_ns + schedule_ns + 50_000 for gpu_ns, schedule_ns in taken]
    meta = {"device": "cpu", "device_kind": "cpu", "block_size": 16}
    meta |= {"num_kv_blocks": 500, "max_model_len": 512}
    profile = fit(samples_from(meta, columns, 200), bootstrap=0)
    assert profile.scan_ns == pytest.approx(5_000, rel=0.01)
    write_profile(tmp_path, meta, profile)
    load = {name: value for name, value in LPM.items() if name not in ("engine", "latency_model")}
    settings = {**load, "rate": 2000.0, "profile": str(tmp_path), "engine": engine, "async_scheduling": False}
    measured, report, free = (
        api.run(**settings, **price) for price in ({}, {"scan_us": 5.0}, {"scan_us": 0.0})
    )
    assert mean_ttft_ms(measured) == pytest.approx(mean_ttft_ms(report), rel=0.01)
    assert mean_ttft_ms(measured) > 1.1 * mean_ttft_ms(free)
