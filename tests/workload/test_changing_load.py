"""Clients that send at some times only, cohorts of many of them, and rates from a file."""

from __future__ import annotations

import csv
import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.workload import RequestTable, generate
from blis_py.workload.spec import load_spec

S = 10**6
CLIENT: dict[str, Any] = {
    "rate_fraction": 1.0,
    "arrival": {"process": "constant"},
    "input_distribution": {"type": "constant", "params": {"value": 100}},
    "output_distribution": {"type": "constant", "params": {"value": 10}},
}


def window(begin_s: float, end_s: float, **own: Any) -> dict[str, Any]:
    return {"start_us": int(begin_s * S), "end_us": int(end_s * S)} | own


def client(name: str, *windows: dict[str, Any], **own: Any) -> dict[str, Any]:
    return CLIENT | {"id": name} | ({"lifecycle": {"windows": list(windows)}} if windows else {}) | own


def made(folder: Path, *clients: dict[str, Any], seed: int | None = None, **top: Any) -> RequestTable:
    (folder / "spec.yaml").write_text(yaml.safe_dump({"version": "2", "clients": list(clients)} | top))
    return generate(load_spec(folder / "spec.yaml"), seed=seed)


def times_s(table: RequestTable, name: str) -> np.ndarray:
    named = np.array(table.client.to_list()) == name
    return table.arrival_ns[named] / 1e9


# -- windows ---------------------------------------------------------------------------------------------


def test_windows_leave_out_what_comes_outside_and_end_the_workload(tmp_path: Path) -> None:
    table = made(tmp_path, client("a", window(2, 4), window(7, 8)), aggregate_rate=2)
    assert times_s(table, "a").tolist() == [2.0, 2.5, 3.0, 3.5, 7.0, 7.5]


def test_the_rate_is_shared_by_clients_whose_windows_overlap(tmp_path: Path) -> None:
    early, late = client("early", window(0, 10)), client("late", window(10, 20))
    both = client("both", window(5, 15), rate_fraction=2.0)
    table = made(tmp_path, early, late, aggregate_rate=10)
    assert [len(times_s(table, name)) for name in ("early", "late")] == [99, 100]
    table = made(tmp_path, early, late, both, aggregate_rate=12)
    assert [len(times_s(table, name)) for name in ("early", "late", "both")] == [39, 40, 60]


@pytest.mark.slow
def test_a_window_with_a_rate_of_its_own_has_it_to_its_end(tmp_path: Path) -> None:
    """BLIS makes 1, 9 and 19 of these: it makes the gaps fill the window exactly, and loses the last."""
    for seconds in (1, 5, 10):
        table = made(tmp_path, client("a", window(3, 3 + seconds, trace_rate=2.0)))
        assert times_s(table, "a").tolist() == [3 + each / 2 for each in range(1, 2 * seconds + 1)]
    counts = [
        len(
            made(
                tmp_path,
                client("a", window(3, 4, trace_rate=2.0), arrival={"process": "poisson"}),
                client("b", window(0, 98, trace_rate=1.0)),
                seed=seed,
            )
        )
        - 98
        for seed in range(400)
    ]
    assert np.mean(counts) == pytest.approx(2, abs=4 * np.sqrt(2 / 400))
    assert np.var(counts) == pytest.approx(2, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("law", [{"process": "gamma", "cv": 3.0}, {"process": "weibull", "cv": 2.0}])
def test_a_window_has_its_rate_however_bursty_its_process(tmp_path: Path, law: dict[str, Any]) -> None:
    """A process that began with a whole gap would bring (cv^2 - 1) / 2 requests more: 4, and 1.5."""
    clients = [client(f"c{n}", window(3, 8, trace_rate=2.0), arrival=law) for n in range(1500)]
    table = made(tmp_path, *clients)
    counts = np.bincount(table.client.codes, minlength=1500)
    assert counts.mean() == pytest.approx(10, abs=4 * counts.std() / np.sqrt(1500))
    assert counts.std() / np.sqrt(1500) < 0.3


def test_windows_in_which_nothing_comes_are_named_as_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no request comes while clients send"):
        made(tmp_path, client("a", window(0, 1, trace_rate=0.001)))


def test_with_an_aggregate_rate_those_of_windows_are_proportions_at_every_time(tmp_path: Path) -> None:
    table = made(
        tmp_path,
        client("a", window(0, 100, trace_rate=3.0)),
        client("b", window(50, 150, trace_rate=1.0)),
        aggregate_rate=8,
    )
    a, b = times_s(table, "a"), times_s(table, "b")
    assert [np.sum(a < 50), np.sum(a >= 50), np.sum(b < 100), np.sum(b >= 100)] == pytest.approx(
        [400, 300, 100, 400], abs=1
    )


def test_a_window_can_have_arrivals_and_lengths_of_its_own(tmp_path: Path) -> None:
    short = {"type": "constant", "params": {"value": 7}}
    shared = {"prefix_group": "g", "prefix_length": 32, "timeout": 5 * S}
    windows = (
        window(0, 10, input_distribution=short),
        window(20, 30, arrival={"process": "gamma", "cv": 4.0}, output_distribution=short),
    )
    table = made(tmp_path, client("a", *windows, **shared), aggregate_rate=20)
    first = table.arrival_ns <= 10 * 10**9
    assert set(table.prompt_tokens[first].tolist()) == {32 + 7}
    assert set(table.prompt_tokens[~first].tolist()) == {32 + 100}
    assert set(table.output_tokens[~first].tolist()) == {7}
    assert set(np.diff(table.arrival_ns[first]).tolist()) == {50_000_000}
    assert len(set(np.diff(table.arrival_ns[~first]).tolist())) > 50
    assert set((table.deadline_ns - table.arrival_ns).tolist()) == {5 * 10**9}


def test_sessions_begin_in_windows_and_go_on_after_them(tmp_path: Path) -> None:
    turns = {"max_rounds": 3, "think_time_us": 4 * S, "single_session": True}
    talk = {"closed_loop": False, "reasoning": {"multi_turn": turns}}
    table = made(tmp_path, client("a", window(1, 2), **talk), aggregate_rate=1)
    assert times_s(table, "a").tolist() == [1.0, 5.0, 9.0]


# -- cohorts ---------------------------------------------------------------------------------------------


def test_a_cohort_is_so_many_clients_that_share_its_rate(tmp_path: Path) -> None:
    cohort = CLIENT | {"id": "team", "population": 4, "prefix_group": "doc", "prefix_length": 48}
    table = made(tmp_path, cohorts=[cohort], aggregate_rate=8, horizon=10 * S)
    assert table.client.names == ("team-0", "team-1", "team-2", "team-3")
    assert [len(times_s(table, name)) for name in table.client.names] == [19, 19, 19, 19]
    assert set(table.prefix_group.names) == {"doc"}
    own = cohort | {"prefix_sharing": "per_member"}
    table = made(tmp_path, cohorts=[own], aggregate_rate=8, horizon=10 * S)
    assert table.prefix_group.names == ("doc-0", "doc-1", "doc-2", "doc-3")
    assert set(table.prefix_tokens.tolist()) == {48}


def test_members_of_a_cohort_draw_for_themselves(tmp_path: Path) -> None:
    cohort = CLIENT | {"id": "team", "population": 2, "arrival": {"process": "poisson"}}
    table = made(tmp_path, cohorts=[cohort], aggregate_rate=8, num_requests=200)
    assert not set(times_s(table, "team-0").tolist()) & set(times_s(table, "team-1").tolist())


def test_a_day_goes_up_and_down_and_comes_again(tmp_path: Path) -> None:
    cohort = CLIENT | {"population": 1, "diurnal": {"peak_hour": 12, "peak_to_trough_ratio": 4}}
    table = made(tmp_path, cohorts=[cohort], aggregate_rate=1, horizon=48 * 3600 * S)
    per_hour, _ = np.histogram(table.arrival_ns / 3.6e12, bins=np.arange(49) - 0.0)
    hours = np.arange(48) + 0.5
    want = 3600 * (1 / 4 + 3 / 4 * (1 + np.cos(2 * np.pi * (hours - 12) / 24)) / 2)
    assert per_hour == pytest.approx(want, rel=0.01)


def test_a_spike_is_a_window_and_a_drain_a_ramp(tmp_path: Path) -> None:
    spike = CLIENT | {"id": "s", "population": 2, "spike": {"start_time_us": 4 * S, "duration_us": 2 * S}}
    drain = CLIENT | {
        "id": "d",
        "population": 1,
        "drain": {"start_time_us": 100 * S, "ramp_duration_us": 100 * S},
    }
    table = made(tmp_path, cohorts=[spike], aggregate_rate=8)
    assert (len(table), table.arrival_ns.min(), table.arrival_ns.max() < 6 * 10**9) == (16, 4 * 10**9, True)
    counts, _ = np.histogram(
        made(tmp_path, cohorts=[drain], aggregate_rate=8).arrival_ns / 1e9, [0, 100, 150, 200, 500]
    )
    assert counts.tolist() == pytest.approx([800, 300, 100, 0], abs=1)
    spike["spike"]["trace_rate"] = 30.0
    assert len(made(tmp_path, cohorts=[spike])) == pytest.approx(60, abs=2)


def test_a_cohort_sends_by_one_rule(tmp_path: Path) -> None:
    cohort = CLIENT | {
        "population": 1,
        "drain": {"start_time_us": 1},
        "diurnal": {"peak_to_trough_ratio": 2},
    }
    with pytest.raises(InputError, match=r"cohorts\[0\].drain: diurnal says already"):
        made(tmp_path, cohorts=[cohort], aggregate_rate=1, num_requests=1)


# -- a rate from a file ----------------------------------------------------------------------------------


def test_a_rate_from_a_file_is_shared_by_the_clients(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("seconds,rate\n0,2\n100,8\n200,0\n300,4\n400,0\n")
    table = made(tmp_path, client("a", rate_fraction=3), client("b"), rate_profile="rates.csv")
    bins = [0, 100, 200, 300, 400, 10**6]
    for name, share in (("a", 0.75), ("b", 0.25)):
        counts, _ = np.histogram(times_s(table, name), bins)
        assert counts.tolist() == pytest.approx([200 * share, 800 * share, 0, 400 * share, 0], abs=1)


def test_the_last_rate_of_a_file_goes_on(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("seconds, rate\n0,1\n10,5\n")
    table = made(tmp_path, client("a"), rate_profile="rates.csv", horizon=110 * S)
    assert len(table) == pytest.approx(510, abs=1)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("time,rate\n0,1\n", "first line must be seconds,rate"),
        ("seconds,rate\n", "has no rows"),
        ("seconds,rate\n5,1\n", "line 2: the first row must be at second 0"),
        ("seconds,rate\n0,1\n9,2\n9,3\n", "line 4: the seconds must rise"),
        ("seconds,rate\n0,-1\n", "line 2: the rate must lie in"),
        ("seconds,rate\n0,nan\n", "line 2: the rate must lie in"),
        ("seconds,rate\n0,fast\n", "line 2: must be two numbers"),
        ("seconds,rate\n0,1,2\n", "line 2: must be two numbers"),
        ("seconds,rate\n0,0\n", "no rate is above 0"),
    ],
)
def test_a_wrong_file_of_rates_is_one_clear_error(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "rates.csv").write_text(text)
    with pytest.raises(InputError, match=r"rates\.csv") as caught:
        made(tmp_path, client("a"), rate_profile="rates.csv", num_requests=5)
    assert part in str(caught.value)


# -- beside the peer -------------------------------------------------------------------------------------


def recorded(folder: Path) -> list[dict[str, str]]:
    with gzip.open(folder / "generated_trace.csv.gz", "rt") as text:
        return list(csv.DictReader(text))


@pytest.mark.parametrize(
    ("case", "constant"), [("20_lifecycle_windows", {"day"}), ("21_cohorts", {"spike-0", "spike-1"})]
)
def test_constant_arrivals_in_windows_and_spikes_are_those_of_the_peer(
    shared_data: Path, case: str, constant: set[str]
) -> None:
    folder = shared_data / "peer_runs" / case
    table = generate(load_spec(folder / "spec.yaml"), num_requests=2000, horizon_ns=13 * 10**9)
    rows = [row for row in recorded(folder) if row["client_id"] in constant]
    for name in constant:
        theirs = [int(row["arrival_time_us"]) for row in rows if row["client_id"] == name]
        assert theirs
        assert (times_s(table, name) * 1e6).round().astype(int).tolist() == theirs


@pytest.mark.parametrize("case", ["20_lifecycle_windows", "21_cohorts"])
def test_its_requests_take_the_times_they_took_there(
    shared_data: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_data / "peer_runs" / case
    for name in ("generated_trace.csv", "metrics.json"):
        with gzip.open(folder / f"{name}.gz", "rb") as text:
            (tmp_path / name).write_bytes(text.read())
    (tmp_path / "header.yaml").write_bytes((folder / "generated_trace.yaml").read_bytes())
    command = shlex.split((folder / "cmd.txt").read_text().splitlines()[-1])[1:]
    for flag in ("--workload-spec", "--metrics-path", "--trace-output", "--log", "--num-requests"):
        if flag in command:
            del command[command.index(flag) : command.index(flag) + 2]
    trace = ["--trace-header", tmp_path / "header.yaml", "--trace-data", tmp_path / "generated_trace.csv"]
    ours_at = tmp_path / "ours.json"
    command = ["replay", *command[1:], *map(str, trace), "--engine", "blis", "--metrics-path", str(ours_at)]
    assert main(command) == 0
    capsys.readouterr()
    ours, theirs = (
        {row["requestID"]: row for row in json.loads(path.read_text())["requests"]}
        for path in (ours_at, tmp_path / "metrics.json")
    )
    assert ours.keys() == theirs.keys()
    for number, row in theirs.items():
        for key in ("ttft_ms", "e2e_ms"):
            assert ours[number][key] == pytest.approx(row[key], abs=1.001e-3), number
