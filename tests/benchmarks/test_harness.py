"""The benchmarks run and tell the truth about what they ran. No figure is asserted: machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks are scripts beside each other, not a package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def speed(out: Path, *cases: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, str(BENCHMARKS / "speed.py"), "--quick", "--out", str(out), "--only", *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "speed.json").read_text()), done.stdout


def test_a_case_is_recorded_with_its_command_and_where_it_was_measured(tmp_path: Path) -> None:
    results, table = speed(tmp_path, "startup")
    entry = results["startup"]
    assert entry["command"].startswith("python -m blis_py run --engine blis")
    assert entry["provenance"]["packages"].keys() >= {"simpy", "numpy"}
    assert entry["quick"]
    assert len(entry["repetitions"]) == 1
    assert table.splitlines()[2].startswith("| startup (quick) |")


def test_running_one_case_keeps_the_entries_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text('{"million": {"kept": true}, "startup": {"old": true}}')
    results, _ = speed(tmp_path, "startup")
    assert results["million"] == {"kept": True}
    assert "old" not in results["startup"]


def test_a_trace_of_the_peer_is_replayed_to_the_end(tmp_path: Path, shared_data: Path) -> None:
    results, _ = speed(tmp_path, "b_10k_rate100")
    outcome = results["b_10k_rate100"]["outcome"]
    assert outcome["requests"] == outcome["completed"] == 500
    assert outcome["instances"] == 4


@pytest.mark.long
def test_the_studies_measure_and_draw(tmp_path: Path) -> None:
    results, tables = speed(tmp_path, "jump", "curves")
    assert [row["differences"] for row in results["jump"]["rows"]] == [[]]
    assert results["jump"]["rows"][0]["steps"] > 0
    assert [point["requests"] for point in results["curves"]["curves"]["requests"]] == [200, 400]
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert "| jumping, CPU s |" in tables


@pytest.mark.usefixtures("scripts")
def test_a_single_nanosecond_counts_as_a_difference() -> None:
    from jump import differences
    from setting import build, serve

    simulation = build(output_tokens=8, rate=50.0, num_requests=20)
    one, other = serve(simulation), serve(simulation, single_step=True)
    assert differences(one, other) == []
    other.last_token_ns[7] += 1
    other.instances[0].preemptions += 1
    assert differences(one, other) == ["last_token_ns", "instances[0].preemptions"]


@pytest.mark.usefixtures("scripts")
def test_the_saturation_rate_of_an_instance_is_where_its_queue_starts_to_grow() -> None:
    from capacity import saturation_rate
    from setting import build, serve

    rate = saturation_rate(64)

    def last_delay_s(load: float) -> float:
        record = serve(build(output_tokens=64, rate=load * rate, num_requests=4000))
        return float((record.scheduled_ns - record.table.arrival_ns)[-100:].mean()) / 1e9

    assert last_delay_s(0.85) < 0.1
    assert last_delay_s(1.2) > 1


@pytest.mark.usefixtures("scripts")
def test_a_child_is_accounted_for_by_itself() -> None:
    from measure import ChildFailed, run

    repetition, text = run([sys.executable, "-c", "print(len(bytearray(200_000_000)))"])
    assert text == "200000000\n"
    assert repetition.peak_rss_mb > 200
    assert repetition.cpu_s > 0
    with pytest.raises(ChildFailed, match=r"exit code 3[\s\S]*what went wrong"):
        run([sys.executable, "-c", "import sys; print('what went wrong', file=sys.stderr); sys.exit(3)"])


@pytest.mark.usefixtures("scripts")
def test_a_case_names_the_file_it_lacks() -> None:
    from cases import Case

    lacking = Case("nothing", ("replay",), files=("pyproject.toml", "no/such/trace.csv"))
    assert lacking.missing() == ["no/such/trace.csv"]
