"""Every request of a public bench trace, beside the peer's own results."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from one_pool import simulate

from blis_py.core.config import SchedulerConfig
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.models.model_shape import load_model
from blis_py.traces import read_trace

Rows = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def bench(shared_data: Path) -> Path:
    return shared_data / "bench_traces"


@pytest.fixture(scope="module")
def ours(bench: Path) -> RunRecord:
    latency = build("trained-physics", shape=load_model("qwen3-14b"), gpu=load_gpu("h100"))
    config = SchedulerConfig(num_kv_blocks=15_909, max_model_len=40_960)
    return simulate(read_trace(bench / "a_1k_rate10.csv.gz"), scheduler=config, latency=latency)


@pytest.fixture(scope="module")
def theirs(bench: Path) -> Rows:
    with gzip.open(bench / "a_1k_rate10.peer.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in ("ttft_ms", "itl_ms", "e2e_ms")}


def test_every_request_completes(ours: RunRecord, theirs: Rows) -> None:
    assert len(ours.outcome) == len(theirs["ttft_ms"]) == 1_000
    assert (ours.outcome == Outcome.COMPLETED).all()


@pytest.mark.parametrize("measure", ["ttft_ms", "itl_ms", "e2e_ms"])
def test_every_request_is_within_a_tenth_of_a_percent_or_50_us_of_the_peer(
    ours: RunRecord, theirs: Rows, measure: str
) -> None:
    arrival_ns = ours.table.arrival_ns
    ns = {
        "ttft_ms": ours.first_token_ns - arrival_ns,
        "itl_ms": (ours.last_token_ns - ours.first_token_ns) / np.maximum(ours.emitted_tokens - 1, 1),
        "e2e_ms": ours.finish_ns - arrival_ns,
    }[measure]
    error_ms = np.abs(ns / 1e6 - theirs[measure])
    allowed_ms = np.maximum(0.001 * theirs[measure], 0.05)
    worst = int(np.argmax(error_ms - allowed_ms))
    assert error_ms[worst] <= allowed_ms[worst], f"request {worst} is {error_ms[worst]:.3f} ms off"
