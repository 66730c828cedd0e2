"""Clients far away: what they see of latencies, and when their next requests reach the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import blis_py as blis
from blis_py.errors import InputError
from blis_py.workload import generate
from blis_py.workload.spec import load_spec

MODEL: dict[str, Any] = {"model": "llama-3.1-8b", "seed": 3}
LENGTHS: dict[str, Any] = {
    "input_distribution": {"type": "exponential", "params": {"mean": 300}},
    "output_distribution": {"type": "exponential", "params": {"mean": 40}},
}
FAR = {"rtt_ms": 80, "bandwidth_mbps": 20}
TOKEN_NS = 1600
"""4 bytes at 20 Mbit/s."""
RTT_NS = 80_000_000
NEAR: dict[str, Any] = LENGTHS | {"id": "near", "rate_fraction": 1, "arrival": {"process": "poisson"}}
TURNS = {"reasoning": {"multi_turn": {"max_rounds": 4, "think_time_us": 50_000}}}
USERS: dict[str, Any] = LENGTHS | {"id": "users", "concurrency": 1, "think_time_us": 5000}


def written(folder: Path, *clients: dict[str, Any], **top: Any) -> Path:
    values = {"version": "2", "aggregate_rate": 5, "num_requests": 60, "clients": list(clients)} | top
    (folder / "spec.yaml").write_text(yaml.safe_dump(values))
    return folder / "spec.yaml"


def test_clients_see_the_round_trip_and_the_time_on_the_line(tmp_path: Path) -> None:
    far = NEAR | {"id": "far", "network": FAR}
    result = blis.run(**MODEL, workload_spec=written(tmp_path, NEAR, far))
    frame, table = result.requests, result.record.table
    away = (frame.client == "far").to_numpy()
    up_ms = (RTT_NS + table.prompt_tokens * TOKEN_NS) / 1e6
    down_ms = frame.output_tokens.to_numpy() * TOKEN_NS / 1e6
    assert (frame.client_ttft_ms - frame.ttft_ms).to_numpy()[away] == pytest.approx(up_ms[away], abs=1e-5)
    whole_ms = (up_ms + down_ms)[away]
    assert (frame.client_e2e_ms - frame.e2e_ms).to_numpy()[away] == pytest.approx(whole_ms, abs=1e-5)
    assert np.array_equal(frame.client_e2e_ms.to_numpy()[~away], frame.e2e_ms.to_numpy()[~away])
    report = result.summary["cluster"]["client_ttft_ms"]
    assert report["mean"] == pytest.approx(frame.client_ttft_ms.mean())
    assert report["count"] == 60


def test_in_an_open_loop_the_cluster_gets_the_same_requests_at_the_same_times(tmp_path: Path) -> None:
    far, near = (
        blis.run(**MODEL, workload_spec=written(tmp_path, NEAR | own)).requests
        for own in ({"network": FAR}, {})
    )
    assert "client_ttft_ms" not in near
    for column in ("arrival_s", "ttft_ms", "e2e_ms"):
        assert np.array_equal(far[column], near[column])


@pytest.mark.parametrize("engine", ["vllm", "blis"])
def test_the_next_turn_reaches_the_cluster_later_by_the_way_down_and_up(tmp_path: Path, engine: str) -> None:
    talks = NEAR | TURNS | {"network": FAR}
    record = blis.run(**MODEL, engine=engine, workload_spec=written(tmp_path, talks)).record
    table = record.table
    assert table.session is not None
    later = 0
    for number in set(table.session.tolist()):
        rows = np.flatnonzero(table.session == number)
        if engine == "vllm":
            way_ns = record.emitted_tokens[rows[:-1]] + table.prompt_tokens[rows[1:]]
            due_ns = record.finish_ns[rows[:-1]] + 50_000_000 + RTT_NS + way_ns * TOKEN_NS
            assert np.abs(table.arrival_ns[rows[1:]] - due_ns).max(initial=0) <= 1
        else:
            assert (table.arrival_ns[rows[1:]] - record.finish_ns[rows[:-1]] <= 50_000_000).all()
        later += len(rows) - 1
    assert later > 20


def test_so_does_the_next_request_of_a_permit(tmp_path: Path) -> None:
    record = blis.run(**MODEL, workload_spec=written(tmp_path, USERS | {"network": FAR})).record
    table = record.table
    way_ns = record.emitted_tokens[:-1] + table.prompt_tokens[1:]
    due_ns = record.finish_ns[:-1] + 5_000_000 + RTT_NS + way_ns * TOKEN_NS
    assert np.abs(table.arrival_ns[1:] - due_ns).max() <= 1
    assert table.arrival_ns[0] == table.prompt_tokens[0] * TOKEN_NS


def test_what_a_run_wrote_has_the_same_clients(tmp_path: Path) -> None:
    once = blis.run(**MODEL, workload_spec=written(tmp_path, NEAR | TURNS | {"network": FAR}))
    once.save(tmp_path / "out", plots=False)
    for mode in ("fixed", "closed-loop"):
        again = blis.replay(tmp_path / "out" / "trace.csv", session_mode=mode, **MODEL)
        for column in ("arrival_s", "client_ttft_ms", "client_e2e_ms"):
            assert np.array_equal(again.requests[column], once.requests[column])
    saved = blis.load(tmp_path / "out").requests
    assert saved.client_e2e_ms.to_numpy() == pytest.approx(once.requests.client_e2e_ms.to_numpy())


@pytest.mark.parametrize(
    ("network", "complaint"),
    [({"rtt_ms": -1}, "rtt_ms"), ({"bandwith_mbps": 5}, "did you mean bandwidth_mbps")],
)
def test_a_wrong_network_is_one_clear_error(tmp_path: Path, network: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        generate(load_spec(written(tmp_path, NEAR | {"network": network})))
