"""The server behind the page: what it answers, to whom, and what happens to stale work and dead workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra ui is not installed")
pytest.importorskip("httpx", reason="the client of the tests is not installed")
from fastapi.testclient import TestClient

import blis_py as blis
from blis_py.api import configure
from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.ui.searching import pool_axes, searched
from blis_py.ui.server import app_of
from blis_py.ui.state import with_counts

HANGS_S = 3000
"""Only what hangs takes so long, however busy the machine is."""
HOST, TOKEN = "127.0.0.1:4321", "the-token"
BASE = {"model": "llama-3.1-8b", "rate": 10, "num_requests": 3000, "num_instances": 2, "output_tokens": 32}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = app_of(configure(**BASE, slo=["ttft.p99=1s"]), TOKEN, tmp_path_factory.mktemp("derived"), HOST)
    with TestClient(app, base_url=f"http://{HOST}", headers={"x-blis-token": TOKEN}) as found:
        yield found


def do(client: TestClient, kind: str, tab: str = "one", **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/api/job", json={"kind": kind, "tab": tab, **body}).json()
    return answer


def test_the_whole_run_has_the_numbers_of_summary_json(client: TestClient) -> None:
    state = {"settings": {"num_instances": 3}}
    answer = do(client, "whole", state=state)
    summary = blis.run(**{**BASE, "num_instances": 3}).summary
    assert answer["kind"] == "whole"
    found = {one["source"]: one["value"] for one in answer["tiles"]}
    assert found["summary.json: cluster.ttft_ms.p99"] == summary["cluster"]["ttft_ms"]["p99"]
    assert found["summary.json: cluster.requests.completed"] == 3000
    assert "--num-instances 3" in answer["command"]


def test_a_sample_reports_it_and_has_bands(client: TestClient) -> None:
    answer = do(client, "sample", state={})
    assert answer["kind"] == "sample"
    assert "of 3,000" in answer["label"]
    bands = {one["name"]: one["band"] for one in answer["tiles"] if one["band"]}
    assert {"TTFT p99", "TPOT p50", "Output tokens"} <= set(bands)
    whole = {one["name"]: one["value"] for one in do(client, "whole", state={})["tiles"]}
    assert all(low <= whole[name] <= high for name, (low, high) in bands.items())


def test_a_small_run_is_whole_at_once(client: TestClient) -> None:
    assert do(client, "sample", state={"settings": {"workload.num_requests": 100}})["kind"] == "whole"


@pytest.mark.parametrize("state", [{"settings": {"tp": -1}}, {"settings": {"x": 1}}, {"prompt": "long"}, 7])
def test_nonsense_is_refused_and_the_page_goes_on(client: TestClient, state: Any) -> None:
    response = client.post("/api/job", json={"kind": "sample", "tab": "one", "state": state})
    assert response.status_code == 422
    assert "refused" in response.json()
    assert do(client, "start", state={})["controls"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'"' + b"x" * (1 << 20) + b'"'])
def test_a_bad_body_is_refused(client: TestClient, body: bytes) -> None:
    assert client.post("/api/job", content=body).status_code == 422


def test_an_unknown_job_is_refused(client: TestClient) -> None:
    assert "no such job" in do(client, "exec", state={})["refused"]


def test_nothing_is_answered_without_the_token(client: TestClient) -> None:
    for headers in ({"x-blis-token": ""}, {"x-blis-token": "wrong"}):
        assert client.get("/", headers=headers).status_code == 403
        assert client.post("/api/job", json={"kind": "start"}, headers=headers).status_code == 403
        assert client.post("/api/plan", json={}, headers=headers).status_code == 403
    assert client.get("/", params={"token": TOKEN}, headers={"x-blis-token": ""}).status_code == 200


def test_another_origin_or_host_is_refused(client: TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert client.get("/", headers={"origin": "http://evil.example"}).status_code == 403
    assert client.get("/", headers={"origin": f"http://{HOST}"}).status_code == 200


@pytest.mark.parametrize(
    "name", ["server.py", "..%2fserver.py", "%2e%2e/%2e%2e/pyproject.toml", "/etc/passwd", "report.html"]
)
def test_no_file_but_those_of_the_page_is_reachable(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


def test_the_page_fetches_from_this_server_alone(client: TestClient) -> None:
    response = client.get("/")
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert "https://" not in response.text
    for name in ("page.js", "chart.js", "style.css"):
        assert client.get(f"/page/{name}").status_code == 200


def test_the_latest_wins_and_stale_work_is_cancelled(client: TestClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        states = [{"settings": {"workload.num_requests": 80_000, "num_instances": 3 + i}} for i in range(4)]
        answers = [pool.submit(do, client, "whole", "drag", state=state) for state in states]
        answers.append(pool.submit(do, client, "leave", "drag"))
        found = [answer.result(HANGS_S) for answer in answers]
    assert sum("tiles" in one for one in found) <= 1
    assert all("superseded" in one or "tiles" in one for one in found)


def test_jobs_of_the_same_state_wait_for_each_other(client: TestClient) -> None:
    state = {"settings": {"num_instances": 4}}
    with ThreadPoolExecutor(3) as pool:
        answers = [
            pool.submit(do, client, kind, "same", state=state) for kind in ("whole", "ledger", "report")
        ]
        answers.append(pool.submit(do, client, "sample", "same", state=state))
        found = [answer.result(HANGS_S) for answer in answers]
    assert not any("superseded" in one for one in found)


def test_what_a_closed_tab_began_is_cancelled(client: TestClient) -> None:
    lane = client.app.state.lanes["whole"]
    settings = {"workload.num_requests": 100_000, "num_instances": 8}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(do, client, "whole", "closed", state={"settings": settings})
        while lane._running is None:
            assert not answer.done()
        do(client, "leave", "closed")
        assert answer.result(HANGS_S) == {"superseded": True}


def test_two_tabs_do_not_cancel_each_other(client: TestClient) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(do, client, "whole", tab, state={}) for tab in ("left", "right")]
        assert all("tiles" in answer.result(HANGS_S) for answer in answers)


@pytest.mark.parametrize("module", ["_lanes", "_plans"])
def test_worker_processes_can_use_native_code(module: str) -> None:
    """What they import first imports none of the modules that may be compiled."""
    program = (
        f"import sys, blis_py.ui.{module}\nfrom blis_py import native\n"
        "print([name for name in native.MODULES if f'blis_py.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_killed_worker_is_replaced(client: TestClient) -> None:
    lane = client.app.state.lanes["whole"]
    before = lane.pid
    os.kill(before, signal.SIGKILL)
    assert do(client, "whole", state={})["kind"] == "whole"
    assert lane.pid != before


def test_the_ledger_the_curve_and_the_comparison(client: TestClient) -> None:
    ledger = do(client, "ledger", state={})
    assert ledger["chart"]["bars"]
    points = do(client, "curve", state={})["points"]
    assert [one["factor"] for one in points] == sorted(one["factor"] for one in points)
    assert points[-1]["throughput"] > points[0]["throughput"]
    found = do(client, "compare", state={"settings": {"scheduler.policy": "sjf"}}, pinned={})
    assert found["settings"] == [{"key": "scheduler.policy", "values": ["fcfs", "sjf"]}]
    assert {"ttft_ms", "e2e_ms"} <= set(found["compared"])


def test_the_report_of_the_page_has_its_numbers_and_command(client: TestClient) -> None:
    html = do(client, "report", state={})["html"]
    p99 = next(one["value"] for one in do(client, "whole", state={})["tiles"] if one["name"] == "TTFT p99")
    assert f'data-value="{p99}"' in html
    assert "blis run --model llama-3.1-8b" in html


def test_a_plan_reports_candidates_and_its_answer(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLIS_CACHE", str(tmp_path))
    state = {"settings": {"workload.num_requests": 200, "workload.rate": 60}}
    with client.stream("POST", "/api/plan", json={"state": state, "vary": "instances"}) as response:
        messages = [json.loads(line) for line in response.iter_lines()]
    done = messages[-1]["done"]
    candidates = [one["candidate"] for one in messages if "candidate" in one]
    assert done["settings"]["num_instances"] in {one["settings"]["num_instances"] for one in candidates}
    assert any("progress" in one for one in messages)
    assert {"holds", "dollars", "throughput", "ttft_ms.p99"} <= set(candidates[0])


def test_a_plan_compares_layouts_with_prefill_and_decode_apart(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLIS_CACHE", str(tmp_path))
    state = {"settings": {"workload.num_requests": 60, "workload.rate": 30}}
    with client.stream("POST", "/api/plan", json={"state": state, "vary": "layouts"}) as response:
        messages = [json.loads(line) for line in response.iter_lines()]
    assert any(line.startswith("Disaggregate: ") for line in messages[-1]["done"]["answer"])


def test_a_plan_of_pools_varies_the_instances_of_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLIS_CACHE", str(tmp_path))
    pools = configure(**BASE | {"num_instances": 1}, prefill_instances=1, decode_instances=3)
    assert [(each.key, each.values) for each in pool_axes(pools)] == [
        ("disaggregation.prefill_instances", (1, 2, 3, 4)),
        ("disaggregation.decode_instances", (1, 2, 3, 4, 5, 6)),
    ]
    found: list[dict[str, Any]] = []

    def first(message: dict[str, Any]) -> None:
        found.append(message)
        if "candidate" in message:
            raise InterruptedError

    state = {"settings": {"workload.num_requests": 60, "slo": ["ttft.p99=1s"]}}
    with pytest.raises(InterruptedError):
        searched(pools, tmp_path, {"state": state, "vary": "instances"}, first)
    chosen = found[-1]["candidate"]["pools"]
    assert {*chosen} == {"prefill", "decode"}
    shown_counts = {pool.name: pool.count for pool in with_counts(pools, chosen).all_pools if pool.count}
    assert shown_counts == chosen
    with pytest.raises(InputError, match="plan of pools"):
        searched(pools, tmp_path, {"state": state, "vary": "gpu"}, first)


def test_a_plan_without_targets_is_refused(client: TestClient) -> None:
    with client.stream("POST", "/api/plan", json={"state": {"settings": {"slo": []}}}) as response:
        messages = [json.loads(line) for line in response.iter_lines()]
    assert "refused" in messages[-1]


def test_the_command_prints_a_link_on_the_loopback_address_and_ends_cleanly() -> None:
    words = [sys.executable, "-m", "blis_py", "ui", "--no-browser", "--model", "llama-3.1-8b"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        link = process.stdout.readline()
        assert link.startswith("http://127.0.0.1:")
        assert len(link.split("token=")[1]) > 20
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANGS_S)
    assert "Traceback" not in err
    assert "leaked" not in err


def test_a_port_that_is_taken_or_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--port", "99999"]) == 2
    assert "--port: must be a port" in capsys.readouterr().err
