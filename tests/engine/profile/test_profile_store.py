"""Rounds of a measurement: their order, what is kept, and how it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.errors import InputError
from blis_py.traces.samples import StepSamples, medians, read_samples, samples_from
from engine.profile.campaign import SENTINEL_EVERY, measure
from engine.profile.shapes import ShapeLimits
from engine.profile.store import JOURNAL, ProfileStore, drift, fold, recovered

META: dict[str, Any] = {"device": "none", "settings": {"model": "m", "seed": 0}}


@dataclass
class FakeBench:
    """Two rows per visit, of one composition or of two."""

    stride: int = 1
    limits: ShapeLimits = field(default_factory=lambda: ShapeLimits(1, 1, 1, 1, 16))
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


def run(bench: FakeBench, folder: Path, rounds: int, **settings: Any) -> ProfileStore:
    store = ProfileStore(folder, META | settings.pop("meta", {}))
    measure(bench, SHAPES, "s", store, rounds=rounds, **settings)
    return store


def run_and_fold(bench: FakeBench, folder: Path, rounds: int, **settings: Any) -> ProfileStore:
    store = run(bench, folder, rounds, **settings)
    store.fold()
    return store


FIRST, LATER = 2 * 20 + 1 + 2, 20 + 2
"""Visits of the first round, which warms up every shape and the sentinel, and of a later one."""


def test_every_shape_is_visited_once_per_round_in_changing_order(tmp_path: Path) -> None:
    bench = FakeBench()
    samples = run(bench, tmp_path, 3).samples
    measured = [shape for shape in bench.visited[FIRST:] if shape != "s"]
    rounds = [measured[i : i + 20] for i in (0, 20)]
    assert all(sorted(once) == sorted(SHAPES) for once in rounds)
    assert rounds[0] != rounds[1]
    decodes = samples.where(samples["source"] == "decode")
    assert len({tuple(decodes["shape"][40 * i : 40 * i + 40].tolist()) for i in range(3)}) == 3


def test_the_first_visit_of_a_shape_warms_up_and_does_not_count(tmp_path: Path) -> None:
    """The second follows at once, so there are rows from the beginning, not after a round of warming up."""
    bench = FakeBench()
    samples = run(bench, tmp_path, 1).samples
    first = [shape for shape in bench.visited if shape != "s"]
    assert first[::2] == first[1::2]
    assert sorted(first[::2]) == sorted(SHAPES)
    visit_of = samples["total_ns"] - 101  # `FakeBench` counts them there
    assert visit_of.tolist()[::2] == [1, *range(3, 34, 2), 34, *range(36, 43, 2)]


def test_the_sentinel_comes_again_and_again(tmp_path: Path) -> None:
    samples = run(FakeBench(), tmp_path, 2).samples
    places = np.flatnonzero(samples["source"][::2] == "sentinel")
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


def names_of(samples: StepSamples) -> list[list[Any]]:
    return [samples[name].tolist() for name in ("source", "shape", "repetition")]


@pytest.mark.parametrize("broken_after", [7, FIRST, FIRST + 5])
def test_a_measurement_that_was_broken_off_goes_on_where_it_stopped(
    tmp_path: Path, broken_after: int
) -> None:
    whole = run(FakeBench(), tmp_path / "whole", 3).samples
    first = FakeBench(fail_at=broken_after)
    with pytest.raises(KeyboardInterrupt):
        run(first, tmp_path / "broken", 3)
    again = FakeBench()
    store = run(again, tmp_path / "broken", 3)
    assert names_of(store.samples) == names_of(whole)
    assert store.samples.meta["counts"] == {"steps": 132, "shapes": 21, "decode": 120, "sentinel": 12}
    before_once = {7: 3, FIRST: LATER, FIRST + 5: LATER + 5}[broken_after]
    assert len(again.visited) == 3 * LATER - before_once + 21, "what was measured is not measured again"
    store.fold()
    assert names_of(read_samples(tmp_path / "broken" / "samples.csv.gz")) == names_of(whole)
    assert [path.name for path in (tmp_path / "broken").iterdir()] == ["samples.csv.gz"]


def test_what_a_visit_brought_is_on_disk_before_the_next_begins(tmp_path: Path) -> None:
    """Nothing is closed or written behind a process that is killed: the files are read as they lie there."""

    class Looking(FakeBench):
        def visit(self, shape: str) -> StepSamples:
            there = recovered(tmp_path)
            rows.append(0 if there is None else len(there))
            return super().visit(shape)

    rows: list[int] = []
    run(Looking(), tmp_path, 2)
    assert rows[:6] == [0, 0, 2, 2, 4, 4]
    assert rows[-3:] == [2 * (2 * LATER - 3), 2 * (2 * LATER - 2), 2 * (2 * LATER - 1)]


@given(cut=st.integers(0, 20_000))
def test_a_journal_that_ends_anywhere_has_its_whole_visits(cut: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        whole = run(FakeBench(), folder, 2).samples
        text = (folder / JOURNAL).read_bytes()
        (folder / JOURNAL).write_bytes(text[:cut])
        found = recovered(folder)
        done = text[:cut].count(b"# visit\n") + text[:cut].count(b"# round\n")
        if found is None:
            assert done == 0
            return
        assert len(found) == 2 * text[:cut].count(b"# visit\n")
        assert names_of(found) == [column[: len(found)] for column in names_of(whole)]
        store = run(FakeBench(), folder, 2)
        assert names_of(store.samples) == names_of(whole)


def test_a_journal_whose_rows_stand_in_the_file_already_is_not_read_twice(tmp_path: Path) -> None:
    store = run(FakeBench(), tmp_path, 1)
    journal = (tmp_path / JOURNAL).read_bytes()
    store.fold()
    (tmp_path / JOURNAL).write_bytes(journal)  # as if it had been killed between the two
    assert fold(tmp_path) == tmp_path / "samples.csv.gz"
    assert names_of(read_samples(tmp_path / "samples.csv.gz")) == names_of(store.samples)
    assert not (tmp_path / JOURNAL).exists()


def test_a_folder_with_a_journal_alone_becomes_a_file_of_samples(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(FakeBench(fail_at=11), tmp_path, 1)
    path = fold(tmp_path)
    assert path is not None
    samples = read_samples(path)
    assert (samples.meta["rounds"], samples.meta["visits"], len(samples)) == (0, 5, 10)
    assert fold(tmp_path / "nowhere") is None


def test_a_complete_measurement_is_left_as_it_is(tmp_path: Path) -> None:
    run_and_fold(FakeBench(), tmp_path, 2)
    before = (tmp_path / "samples.csv.gz").read_bytes()
    bench = FakeBench()
    run_and_fold(bench, tmp_path, 2)
    assert not bench.visited
    assert (tmp_path / "samples.csv.gz").read_bytes() == before


def test_other_settings_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    run_and_fold(FakeBench(), tmp_path, 1)
    before = (tmp_path / "samples.csv.gz").read_bytes()
    with pytest.raises(InputError, match=r"samples\.csv\.gz: seed: .*now \(1\)"):
        run(FakeBench(), tmp_path, 2, meta={"settings": {"model": "m", "seed": 1}})
    assert (tmp_path / "samples.csv.gz").read_bytes() == before


def test_a_budget_ends_it_after_the_visit_under_way_and_warming_up_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A visit takes a second here. Warm-ups are visits, so six visits are three that count."""
    seconds = 0.0

    class Slow(FakeBench):
        def visit(self, shape: str) -> StepSamples:
            nonlocal seconds
            seconds += 1
            return super().visit(shape)

    monkeypatch.setattr("engine.profile.campaign.time.monotonic", lambda: seconds)
    assert len(run(Slow(), tmp_path / "some", 5, budget_s=6.0).samples) == 6
    assert len(run(Slow(), tmp_path / "none", 5, budget_s=0.0).samples) == 2, "one is always measured"
    assert run(Slow(), tmp_path / "all", 5, budget_s=1000.0).rounds == 5
    again = run(Slow(), tmp_path / "some", 5, budget_s=1000.0)
    assert names_of(again.samples) == names_of(run(Slow(), tmp_path / "all", 5).samples)


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        ProfileStore(tmp_path / "file" / "below", META)


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


def test_progress_is_reported_up_to_the_end(tmp_path: Path) -> None:
    lines: list[tuple[str, int, int]] = []

    def note(what: str, done: int, total: int) -> None:
        lines.append((what, done, total))

    run(FakeBench(), tmp_path, 2, progress=note)
    assert lines == [("measuring", done, 44) for done in range(1, 45)]
