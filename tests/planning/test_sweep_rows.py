"""The rows of a sweep say by what they differ."""

from __future__ import annotations

from typing import Any

import pytest

import blis_py as blis
from blis_py.errors import InputError
from blis_py.planning.axes import Axis
from blis_py.planning.job import JobOutcome
from blis_py.planning.sweep import Row, Sweep


@pytest.fixture
def few(small: dict[str, Any]) -> dict[str, Any]:
    return small | {"num_requests": 20, "workers": 1, "cache": False}


def test_a_row_states_the_seed_that_was_varied(few: dict[str, Any]) -> None:
    table = blis.sweep(vary={"seed": [1, 2]}, **few).table
    assert table["seed"].tolist() == [1, 2]
    assert [float(x) for x in table["ttft_ms.p99"]] == [
        blis.run(seed=seed, **{k: v for k, v in few.items() if k not in ("workers", "cache")}).summary[
            "cluster"
        ]["ttft_ms"]["p99"]
        for seed in (1, 2)
    ]


def test_a_row_counts_the_runs_of_its_point_otherwise(few: dict[str, Any]) -> None:
    assert blis.sweep(seeds=2, **few).table["seed"].tolist() == [0, 1]


def test_seeds_that_are_varied_and_counted_contradict_each_other(few: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--seeds: contradicts seeds that are varied"):
        blis.sweep(vary={"seed": [1, 2]}, seeds=2, **few)


def test_a_setting_and_a_figure_of_the_same_name_have_a_column_each(few: dict[str, Any]) -> None:
    del few["output_tokens"]
    done = blis.sweep(vary={"output_tokens": [10, 20]}, output_tokens_stdev=0, **few)
    assert done.table["output_tokens"].tolist() == [10, 20]
    assert done.table["measured.output_tokens"].tolist() == [200, 400]
    assert done.mean("output_tokens")["mean"].tolist() == [200, 400]


def test_values_of_two_kinds_are_listed_as_text_and_numbers_of_two_kinds_as_numbers() -> None:
    mixed, numbers = Axis("mixed", "", (True, "auto")), Axis("numbers", "", (1, 2.5))
    points = [dict(zip(("mixed", "numbers"), values, strict=True)) for values in ((True, 1), ("auto", 2.5))]
    rows = tuple(Row(point, 0, JobOutcome(refused="no")) for point in points)
    table = Sweep(None, (mixed, numbers), rows, 0).table
    assert table["mixed"].tolist() == ["True", "auto"]
    assert table["numbers"].tolist() == [1, 2.5]


@pytest.mark.parametrize("name", ["on_progress", "told"])
def test_progress_comes_with_every_row_also_under_its_former_name(few: dict[str, Any], name: str) -> None:
    seen: list[tuple[int, int]] = []
    blis.sweep(vary={"seed": [1, 2]}, **few, **{name: lambda rows, total: seen.append((len(rows), total))})
    assert seen == [(1, 2), (2, 2)]
