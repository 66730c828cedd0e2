"""Rounds of a measurement: their order, what is kept, and how it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_py.calibrate.samples import StepSamples, medians, read_samples, samples_from
from blis_py.errors import InputError
from engine.profile.campaign import SENTINEL_EVERY, measure
from engine.profile.shapes import Limits
from engine.profile.store import Store, drift

META: dict[str, Any] = {"device": "none", "settings": {"model": "m", "seed": 0}}


@dataclass
class FakeBench:
    """Two rows per visit, of one composition or of two."""

    stride: int = 1
    limits: Limits = field(default_factory=lambda: Limits(1, 1, 1, 1, 16))
    visited: list[str] = field(default_factory=list)
    fail_at: int = -1

    def serve(self, number: int) -> list[StepSamples]:
        return []

    def visit(self, shape: str) -> StepSamples:
        if len(self.visited) == self.fail_at:
            raise KeyboardInterrupt
        self.visited.append(shape)
        columns = {
            "source": ["sentinel" if shape == "s" else "decode"] * 2,
            "shape": [0, self.stride - 1],
            "total_ns": [100 + len(self.visited)] * 2,
        }
        return samples_from({}, columns, 2)


SHAPES = [f"shape {i}" for i in range(20)]


def run(bench: FakeBench, folder: Path, rounds: int, **settings: Any) -> Store:
    store = Store(folder, META | settings.pop("meta", {}))
    measure(bench, SHAPES, "s", store, rounds=rounds, **settings)
    return store


def test_every_shape_is_warmed_up_and_then_visited_once_per_round_in_changing_order(tmp_path: Path) -> None:
    bench = FakeBench()
    run(bench, tmp_path, 3)
    warm, measured = bench.visited[:21], [shape for shape in bench.visited[21:] if shape != "s"]
    assert sorted(warm) == sorted([*SHAPES, "s"])
    rounds = [measured[i : i + 20] for i in (0, 20, 40)]
    assert all(sorted(once) == sorted(SHAPES) for once in rounds)
    assert len({tuple(once) for once in rounds}) == 3


def test_the_sentinel_comes_again_and_again(tmp_path: Path) -> None:
    bench = FakeBench()
    run(bench, tmp_path, 2)
    places = [i for i, shape in enumerate(bench.visited[21:]) if shape == "s"]
    assert max(np.diff(places)) <= SENTINEL_EVERY + 1
    assert len(places) == 4


@pytest.mark.parametrize("stride", [1, 2])
def test_shapes_have_their_numbers_and_repetitions_count_up(tmp_path: Path, stride: int) -> None:
    samples = run(FakeBench(stride), tmp_path, 3).samples
    decodes = samples.where(samples["source"] == "decode")
    assert sorted(set(decodes["shape"].tolist())) == list(range(20 * stride))
    for source in ("decode", "sentinel"):
        rows = samples.where((samples["source"] == source) & (samples["shape"] == 0))
        repetitions = sorted(rows["repetition"].tolist())
        assert repetitions == list(range(len(repetitions)))
    assert set(medians(decodes)["repetition"].tolist()) == {6 // stride}


def test_a_measurement_that_was_broken_off_goes_on_with_the_next_round(tmp_path: Path) -> None:
    whole = run(FakeBench(), tmp_path / "whole", 3).samples
    with pytest.raises(KeyboardInterrupt):
        run(FakeBench(fail_at=21 + 22 + 5), tmp_path / "broken", 3)
    assert read_samples(tmp_path / "broken" / "samples.csv.gz").meta["rounds"] == 1
    again = FakeBench()
    store = run(again, tmp_path / "broken", 3)
    assert len(again.visited) == 21 + 2 * 22
    for name in ("source", "shape", "repetition"):
        assert store.samples[name].tolist() == whole[name].tolist()
    assert store.samples.meta["counts"] == {"steps": 132, "shapes": 21, "decode": 120, "sentinel": 12}
    assert not list((tmp_path / "broken").glob("unfinished*"))


def test_a_complete_measurement_is_left_as_it_is(tmp_path: Path) -> None:
    run(FakeBench(), tmp_path, 2)
    before = (tmp_path / "samples.csv.gz").read_bytes()
    bench = FakeBench()
    run(bench, tmp_path, 2)
    assert not bench.visited
    assert (tmp_path / "samples.csv.gz").read_bytes() == before


def test_other_settings_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    run(FakeBench(), tmp_path, 1)
    before = (tmp_path / "samples.csv.gz").read_bytes()
    with pytest.raises(InputError, match=r"samples\.csv\.gz: seed: .*now \(1\)"):
        run(FakeBench(), tmp_path, 2, meta={"settings": {"model": "m", "seed": 1}})
    assert (tmp_path / "samples.csv.gz").read_bytes() == before


def test_a_budget_ends_it_after_whole_rounds_and_at_least_one(tmp_path: Path) -> None:
    store = run(FakeBench(), tmp_path, 5, budget_s=0.0)
    assert store.rounds == 1
    assert run(FakeBench(), tmp_path, 5, budget_s=1000.0).rounds == 5


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        Store(tmp_path / "file" / "below", META)


def sentinel_rows(totals: list[int]) -> StepSamples:
    columns = {
        "source": ["sentinel"] * len(totals),
        "repetition": list(range(len(totals))),
        "total_ns": totals,
    }
    return samples_from({}, columns, len(totals))


def test_drift_is_how_far_the_sentinel_moves_not_how_much_it_scatters() -> None:
    assert drift(sentinel_rows([100, 90, 110] * 10)) == 0
    assert drift(sentinel_rows([100] * 10 + [103] * 10 + [110] * 10)) == pytest.approx(7 / 103)
    assert drift(sentinel_rows([1, 2])) == 0


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def note(what: str, done: int, total: int) -> None:
        told.append((what, done, total))

    run(FakeBench(), tmp_path, 2, progress=note)
    assert told[-1] == ("measuring", 40, 40)
    assert {what for what, _, _ in told} == {"warm-up", "measuring"}
