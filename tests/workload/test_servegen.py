"""Folders of ServeGen as workloads: who sends when, how often, and how much."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.workload.generate import generate
from blis_py.workload.servegen import compact, read_chunks
from blis_py.workload.spec import load_spec

LENGTHS = {"0": {"input_tokens": "{100: 0.25, 300: 0.75}", "output_tokens": "{7: 1.0}"}}


def chunk(folder: Path, number: int, rows: list[str], lengths: Any = LENGTHS) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n")
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))


def spec_of(folder: Path, **data: Any) -> Path:
    path = folder.parent / "spec.yaml"
    values = {"version": "2", "seed": data.pop("seed", 42), "servegen_data": {"path": folder.name, **data}}
    path.write_text(yaml.safe_dump(values))
    return path


def requests(path: Path) -> RequestTable:
    return generate(load_spec(path))


def arrivals_s(table: RequestTable) -> np.ndarray:
    return table.arrival_ns / 1e9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients all day, of which one has twice the rate, and one that never sends."""
    everywhere = [f"{600 * window},2,1,Gamma,1,0.5" for window in range(144)]
    half = [f"{600 * window},1,3.0,Weibull,0.4,0.3" for window in range(144)]
    chunk(tmp_path / "model", 0, everywhere)
    chunk(tmp_path / "model", 7, half)
    chunk(tmp_path / "model", 9, ["0,0,0,,0,0"])
    return tmp_path / "model"


def test_three_periods_are_played_one_after_the_other_with_a_pause_between(folder: Path) -> None:
    table = requests(spec_of(folder, window_duration_secs=100, drain_timeout_secs=50))
    times = arrivals_s(table)
    assert times.max() < 2 * 150 + 100
    for begin in (0, 150, 300):
        inside = ((times >= begin) & (times < begin + 100)).sum()
        assert inside == pytest.approx(300, abs=150)  # half of it comes in bursts
        assert not ((times >= begin + 100) & (times < begin + 150)).any()


def test_each_client_has_its_own_rate_burstiness_and_lengths(folder: Path) -> None:
    table = requests(spec_of(folder, span_start=0, span_end=36_000))
    names = np.array(table.client.to_list())
    for name, rate, cv in (("chunk-0", 2, 1), ("chunk-7", 1, 3)):
        gaps_s = np.diff(arrivals_s(table)[names == name])
        assert 1 / gaps_s.mean() == pytest.approx(rate, rel=0.1)
        assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.25)
    assert set(table.prompt_tokens.tolist()) == {100, 300}
    assert (table.prompt_tokens == 300).mean() == pytest.approx(0.75, abs=0.02)
    assert set(table.output_tokens.tolist()) == {7}


def test_a_part_of_the_day_is_played_from_beginning_to_end(tmp_path: Path) -> None:
    chunk(tmp_path / "m", 0, ["0,1,1,Gamma,1,1", "600,4,1,Gamma,1,1", "1200,0,0,,0,0", "1800,2,1,Gamma,1,1"])
    times = arrivals_s(requests(spec_of(tmp_path / "m", span_start=300, span_end=2100)))
    counts = np.histogram(times, [0, 300, 900, 1500, 1800])[0]
    assert counts[2] == 0
    assert counts[[0, 1, 3]] == pytest.approx([300, 2400, 600], rel=0.2)


def test_lengths_are_those_of_the_time_of_day(tmp_path: Path) -> None:
    later = {"1800": {"input_tokens": {"50": 1}, "output_tokens": {"9": 1}}, "900": {}}
    chunk(tmp_path / "m", 0, ["0,1,1,Gamma,1,1", "1800,1,1,Gamma,1,1"], LENGTHS | later)
    table = requests(spec_of(tmp_path / "m", span_start=0, span_end=2400))
    before = arrivals_s(table) < 1800
    assert set(table.output_tokens[before].tolist()) == {7}
    assert set(table.prompt_tokens[~before].tolist()) == {50}


def test_the_five_classes_are_dealt_out_in_turn(tmp_path: Path) -> None:
    for number in range(10):
        chunk(tmp_path / "m", number, ["28800,1,1,Gamma,1,1", "29400,1,1,Gamma,1,1", "30000,1,1,Gamma,1,1"])
    spec = load_spec(spec_of(tmp_path / "m", time_window="morning"))
    classes = [client.slo_class for client in spec.all_clients]
    assert sorted(classes) == sorted(["critical", "standard", "batch", "sheddable", "background"] * 2)
    assert spec.notes[0].startswith("ServeGen: 10 of 10 clients send, morning from 8:")


def test_the_seed_of_the_spec_draws_the_ten_minutes(folder: Path) -> None:
    notes = {load_spec(spec_of(folder, seed=seed)).notes for seed in range(12)}
    assert len(notes) > 3
    assert load_spec(spec_of(folder, seed=5)).notes == load_spec(spec_of(folder, seed=5)).notes


@pytest.mark.parametrize("flag", ["--workload", "--workload-spec", "--trace"])
def test_the_folder_itself_is_a_workload(flag: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--model", "qwen3-14b", flag, str(folder), "--num-requests", "20", "--no-cross-check"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["cluster"]["requests"]["completed"] == 20
    assert "ServeGen: 2 of 2 clients send" in err


def test_a_rate_is_shared_as_they_share_theirs(folder: Path) -> None:
    path = spec_of(folder, span_start=0, span_end=7200)
    table = generate(load_spec(path), rate=6.0)
    assert len(table) == pytest.approx(6 * 7200, rel=0.1)
    assert (np.array(table.client.to_list()) == "chunk-0").mean() == pytest.approx(2 / 3, abs=0.05)


@pytest.mark.parametrize(
    ("rows", "lengths", "data", "message"),
    [
        (["0,one,1,Gamma,1,1"], LENGTHS, {}, "chunk-0-trace.csv:1: rate: must be a number"),
        (["0,1,1,Cauchy,1,1"], LENGTHS, {}, "chunk-0-trace.csv:1: pattern: unknown law of gaps"),
        (["0,1,1"], LENGTHS, {}, "chunk-0-trace.csv:1: not a window of ServeGen"),
        (
            ["0,1,1,Gamma,1,1"],
            {"0": {"input_tokens": "{x: 1}", "output_tokens": "{1: 1}"}},
            {},
            "input_tokens",
        ),
        (["0,1,1,Gamma,1,1"], {"0": 3}, {}, "not a window of lengths"),
        (["99,1,1,Gamma,1,1"], LENGTHS, {}, "no client sends at that time of day"),
        (["0,1,1,Gamma,1,1"], LENGTHS, {"span_start": 9, "span_end": 9}, "must be after span_start"),
        (["0,1,1,Gamma,1,1"], LENGTHS, {"span_end": 9, "time_window": "morning"}, "contradicts span_start"),
        (["0,1,1,Gamma,1,1"], LENGTHS, {"time_window": "noon"}, "servegen_data.time_window"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(
    rows: list[str], lengths: Any, data: dict[str, Any], message: str, tmp_path: Path
) -> None:
    chunk(tmp_path / "m", 0, rows, lengths)
    with pytest.raises(InputError) as error:
        load_spec(spec_of(tmp_path / "m", **data))
    assert message in str(error.value)


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir])
def test_a_folder_that_is_none_is_reported(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "empty")
    with pytest.raises(InputError, match="no data of ServeGen"):
        load_spec(spec_of(tmp_path / "empty"))


def test_compact_lengths_keep_mean_and_spread() -> None:
    drawn = np.random.default_rng(1).lognormal(6, 1, 20_000).astype(int) + 1
    weights = {
        str(value): float(count) for value, count in zip(*np.unique(drawn, return_counts=True), strict=True)
    }
    few = compact(weights, 64)
    values, counts = np.array([int(v) for v in few]), np.array([*few.values()])
    mean = (values * counts).sum() / counts.sum()
    assert len(few) <= 64
    assert counts.sum() == pytest.approx(20_000)
    assert mean == pytest.approx(drawn.mean(), rel=1e-3)
    spread = np.sqrt(((values - mean) ** 2 * counts).sum() / counts.sum())
    assert spread == pytest.approx(drawn.std(), rel=0.15)
    assert compact({"3": 1.0}, 64) == {"3": 1.0}


@pytest.mark.slow
def test_a_recorded_service_is_played_at_its_rates(shared_data: Path, tmp_path: Path) -> None:
    """73 clients of a reasoning service: half an hour of a morning has the requests counted then."""
    source = shared_data / "servegen_deepseek_r1"
    with gzip.open(source / "client_traces.csv.gz", "rt") as text:
        rows = list(csv.DictReader(text))
    with gzip.open(source / "client_length_distributions.json.gz", "rt") as text:
        lengths = json.load(text)
    for client, own in lengths.items():
        names = ("t_s", "rate_rps", "cv", "pattern", "param1", "param2")
        chunk(
            tmp_path / "r1",
            int(client),
            [",".join(r[n] for n in names) for r in rows if r["client"] == client],
            own,
        )
    assert len(read_chunks(tmp_path / "r1")) == 73
    spec = load_spec(spec_of(tmp_path / "r1", span_start=28_800, span_end=30_600))
    counted = 600 * sum(float(r["rate_rps"]) for r in rows if 28_800 <= float(r["t_s"]) < 30_600)
    drawn = [len(generate(spec, seed=seed)) for seed in range(5)]
    assert np.mean(drawn) == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("none", ["0", "0.0", "0.4"])
def test_a_length_of_nothing_counts_as_one_token(tmp_path: Path, none: str) -> None:
    """With its weight, and that of the requests of one token."""
    weights = f"{{{none}: 0.25, 1: 0.25, 9: 0.5}}"
    window = {"0": {"input_tokens": weights, "output_tokens": weights}}
    chunk(tmp_path / "model", 0, ["0,5,1,Poisson,0,0"], window)
    (found,) = read_chunks(tmp_path / "model")
    assert found.lengths_at(0) == ({"1": 0.5, "9": 0.5}, {"1": 0.5, "9": 0.5})
