"""Every recorded run and page is predicted as well as at the last commit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))

FAST = ("h100", "rtx", "open loops", "sample", "few fits")


@pytest.mark.slow
@pytest.mark.parametrize("part", FAST)
def test_no_recorded_run_is_predicted_worse_than_at_the_last_commit(shared_data: Path, part: str) -> None:
    """If meant: `make truth TRUTH=--accept`, and the reason in the commit."""
    from truth import compare, line_of, read_known

    known = read_known()
    assert part in known
    _, moved = compare(part, shared_data, known)
    assert moved
    worse = [line_of(move) for move in moved if move.verdict == "worse"]
    assert not worse, "\n".join(worse)


def test_parts_that_are_tested_are_all_the_fast_ones() -> None:
    from truth_parts import PARTS

    assert {name for name, part in PARTS.items() if part.fast} == set(FAST)


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (0.10, 0.105, "same"),
        (0.10, -0.105, "same"),
        (0.10, 0.12, "worse"),
        (0.10, -0.12, "worse"),
        (-0.10, -0.08, "better"),
        (0.10, None, "worse"),
        (None, 0.10, "new"),
        (0.30, 0.30, "worse"),
        (None, 0.30, "worse"),
    ],
)
def test_a_figure_is_worse_beyond_noise_or_limit_or_where_there_is_none_any_more(
    before: float | None, now: float | None, verdict: str
) -> None:
    from truth import moves
    from truth_parts import Part

    part = Part(dict, noise=0.01, limits=(("E2E mean", 0.2),))
    was, figures = ({} if error is None else {"a run E2E mean": error} for error in (before, now))
    (move,) = moves(part, was, figures)
    assert move.verdict == verdict


def test_every_run_of_vllm_on_h100_has_limits() -> None:
    from truth import read_known
    from truth_parts import PARTS

    limits = {name: PARTS["h100"].limit_of(name) for name in read_known()["h100"]}
    assert sum(limit == 0.03 for limit in limits.values()) == 6
    assert sum(limit == 0.06 for limit in limits.values()) == 6


def test_figures_of_the_engine_are_those_of_its_committed_runs() -> None:
    from truth import RESULTS, read_known
    from truth_parts import of_engine_runs

    found = of_engine_runs(RESULTS.with_name("engine_runs.json"))
    assert read_known()["engine"] == pytest.approx(found, abs=1e-5)


def test_fits_are_tested_on_runs_of_the_same_model(shared_data: Path) -> None:
    """The name of Mixtral-8x7B ends like that of Llama-2-7B."""
    from transfer import pairs

    for _, fitted_to, other in pairs(shared_data / "vllm_h100_runs", 200):
        assert {part[1].config.model for part in fitted_to} == {other[1].config.model}
