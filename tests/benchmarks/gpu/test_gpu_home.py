"""What came home becomes results, tables and profiles; what was not measured is said not to have been."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import bring_home
import gpu_tables
import numpy as np
import pytest
from rows import Rows

from blis_py.latency.fitted_profile import read_profile
from blis_py.traces.samples import StepSamples, read_samples, samples_from
from engine.models.config import find_config
from engine.profile.store import JOURNAL, SAMPLES, ProfileStore

H200 = {
    "gpu": "NVIDIA H200",
    "driver_version": "580",
    "clocks.sm": "1980",
    "torch": "2.11.0",
    "revision": "abc",
}
ATTENTION = {"median_us": 20.0, "floor_us": 15.0, "teraflops": 1.0, "torch_median_us": None}


def measured(out: Path, **provenance: str) -> Rows:
    rows = Rows(out, "attention", H200 | provenance)
    rows.add("decode 4x1024", ATTENTION)
    return rows


def bring(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["bring_home.py", *map(str, arguments)])
    return bring_home.main()


def visit(number: int) -> StepSamples:
    """A prefill or a decode step that takes what it takes."""
    tokens = 16 * (number % 20 + 1)
    prefill = number % 2
    columns: dict[str, Any] = {
        "source": ["prefill" if prefill else "decode"],
        "shape": [number],
        "regime": ["eager"],
        "prefill_seqs": [prefill],
        "prefill_tokens": [tokens * prefill],
        "prefill_pairs": [tokens * (tokens + 1) // 2 * prefill],
        "decode_seqs": [0 if prefill else tokens // 16],
        "decode_kv_tokens": [0 if prefill else 100 * tokens],
        "max_context": [100],
        "emitted_rows": [1],
        "gpu_ns": [1_000_000 + 5_000 * tokens],
        "total_ns": [1_500_000 + 5_000 * tokens],
    }
    return samples_from({}, columns, 1)


def profile(out: Path, visits: int, fold: bool = True) -> None:
    """Samples of so many visits, in the file or in the journal alone."""
    meta = {"device": "NVIDIA H200", "device_kind": "cuda", "model": "qwen3-8b", "settings": {"seed": 0}}
    meta["model_config"] = json.loads(find_config("qwen3-8b").read_text())
    store = ProfileStore(out / "profiles" / "qwen3-8b", meta)
    for number in range(visits):
        store.add(visit(number))
    if fold:
        store.fold()


def test_where_nothing_was_measured_every_table_reports_it() -> None:
    text = gpu_tables.draw(gpu_tables.Results())
    assert text.count(gpu_tables.NOTHING) == len(gpu_tables.TABLES)
    assert "Nothing has been measured on a GPU yet." in text


def test_figures_carry_gpu_driver_clocks_versions_and_revision(tmp_path: Path) -> None:
    measured(tmp_path)
    text = gpu_tables.draw(gpu_tables.gathered([tmp_path]))
    assert "gpu NVIDIA H200 · driver_version 580 · clocks.sm 1980 · torch 2.11.0 · revision abc" in text
    assert "| decode 4x1024 | 20 | 15 | 75% | 1 | – |" in text


def test_a_row_that_was_measured_counts_more_than_a_later_failure(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    rows = measured(one)
    rows.note("broken", {"error": "RuntimeError: no\nsuch | thing"})
    Rows(other, "attention", H200).note("decode 4x1024", {"error": "out of time"})
    text = gpu_tables.draw(gpu_tables.gathered([one, other]))
    assert "| decode 4x1024 | 20 |" in text
    assert "| attention | broken | RuntimeError: no |" in text


def test_rows_go_to_a_file_of_their_script_with_the_provenance_of_their_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured(tmp_path / "out")
    assert bring(monkeypatch, tmp_path / "out", "--into", tmp_path / "home") == 0
    folder = tmp_path / "home" / "benchmarks" / "results" / "gpu" / "h200"
    report = json.loads((folder / "attention.json").read_text())
    (row,) = report["rows"]
    assert report["runs"] == {row["run"]: H200}
    assert "| decode 4x1024 |" in (folder / "README.md").read_text()


@pytest.mark.parametrize("fold", [True, False])
def test_samples_become_a_fitted_profile_even_from_a_journal_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fold: bool
) -> None:
    measured(tmp_path / "out")
    profile(tmp_path / "out", 40, fold)
    assert (tmp_path / "out" / "profiles" / "qwen3-8b" / JOURNAL).exists() != fold
    assert bring(monkeypatch, tmp_path / "out", "--into", tmp_path / "home") == 0
    folder = tmp_path / "home" / "profiles" / "fits" / "h200" / "qwen3-8b"
    assert len(read_samples(folder / SAMPLES)) == 40
    fitted = read_profile(folder)
    assert fitted.regimes["eager"].in_sample.mape < 0.05


def test_of_several_profiles_of_a_model_the_longest_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, visits in (("one", 30), ("two", 40), ("three", 20)):
        measured(tmp_path / name)
        profile(tmp_path / name, visits)
    folder = tmp_path / "home" / "profiles" / "fits" / "h200" / "qwen3-8b"
    assert bring(monkeypatch, tmp_path / "one", tmp_path / "two", "--into", tmp_path / "home") == 0
    assert len(read_samples(folder / SAMPLES)) == 40
    assert bring(monkeypatch, tmp_path / "three", "--into", tmp_path / "home") == 0
    assert len(read_samples(folder / SAMPLES)) == 40
    assert "kept what is there" in capsys.readouterr().out


def test_a_profile_too_short_to_fit_is_kept_and_states_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(tmp_path / "out")
    profile(tmp_path / "out", 3)
    assert bring(monkeypatch, tmp_path / "out", "--into", tmp_path / "home") == 0
    assert "not fitted: only 3 compositions" in capsys.readouterr().out
    folder = tmp_path / "home" / "profiles" / "fits" / "h200" / "qwen3-8b"
    assert np.array_equal(read_samples(folder / SAMPLES)["shape"], [0, 1, 2])


def test_a_rehearsal_is_never_taken_for_figures_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(tmp_path / "out", gpu="cpu")
    assert bring(monkeypatch, tmp_path / "out") == 2
    assert "rehearsed on a CPU" in capsys.readouterr().err
    assert bring(monkeypatch, tmp_path / "out", "--into", tmp_path / "home") == 0
    text = (tmp_path / "home" / "benchmarks" / "results" / "gpu" / "cpu" / "README.md").read_text()
    assert "no figures of a GPU" in text


def test_an_empty_folder_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bring(monkeypatch, tmp_path, "--into", tmp_path / "home") == 2
    assert "nothing was measured there" in capsys.readouterr().err


def test_gpus_do_not_mix_and_what_was_brought_home_before_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured(tmp_path / "one")
    measured(tmp_path / "two", gpu="NVIDIA H100 80GB HBM3").add("prompts", ATTENTION)
    Rows(tmp_path / "three", "attention", H200).add("decode 8x1024", ATTENTION)
    Rows(tmp_path / "three", "attention", H200).note("decode 4x1024", {"error": "out of time"})
    for folders in (("one", "two"), ("three",)):
        assert bring(monkeypatch, *(tmp_path / name for name in folders), "--into", tmp_path / "home") == 0
    results = tmp_path / "home" / "benchmarks" / "results" / "gpu"
    keys = {
        path.parent.name: [row["key"] for row in json.loads(path.read_text())["rows"]]
        for path in results.glob("*/attention.json")
    }
    assert keys == {"h200": ["decode 4x1024", "decode 8x1024"], "h100": ["decode 4x1024", "prompts"]}
    tables = (results / "h200" / "README.md").read_text()
    assert "| decode 4x1024 | 20 |" in tables
    assert "H100" not in tables


def test_rows_of_several_revisions_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(tmp_path / "one")
    Rows(tmp_path / "two", "attention", H200 | {"revision": "def"}).add("prompts 1x2048", ATTENTION)
    assert bring(monkeypatch, tmp_path / "one", tmp_path / "two", "--into", tmp_path / "home") == 0
    assert "rows of 2 revisions" in capsys.readouterr().out
