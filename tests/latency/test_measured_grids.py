"""Arithmetic on grids of measured times: gaps, corners, what lies beyond the last point, and what counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_profiles import write
from test_kernel_tables import tables

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import GIB, load_gpu
from blis_py.latency import layer_profile, operator_tables
from blis_py.latency.graph_sizes import default_sizes
from blis_py.latency.kernel_profile import (
    LARGEST_IN_TABLE,
    Curve,
    cell,
    continued,
    extend,
    fill_gaps,
    interpolate,
    longest_known,
    slope_beyond,
    value_at,
)
from blis_py.latency.kernel_tables import _Decode, one_chunk
from blis_py.latency.layer_profile import _fill_corners, _fill_mixed
from blis_py.latency.step_run import run_of, step_by_step, within_the_clock

AXIS = np.array([1.0, 2.0, 4.0, 8.0])


@pytest.mark.parametrize(
    ("line", "filled"),
    [
        ([nan, 10, nan, 40], [nan, 10, 20, 40]),  # two thirds of the way from 2 to 8 lie behind 4
        ([5, nan, nan, 12], [5, 6, 8, 12]),
        ([5, nan, nan, nan], [5, nan, nan, nan]),
        ([nan, nan, 8, nan], [nan, nan, 8, nan]),
        ([nan, nan, nan, nan], [nan, nan, nan, nan]),
        ([1, 2, 3, 4], [1, 2, 3, 4]),
    ],
)
def test_gaps_are_filled_between_measured_points_and_nowhere_else(
    line: list[float], filled: list[float]
) -> None:
    values = np.array(line, float)
    fill_gaps(AXIS, values)
    np.testing.assert_allclose(values, filled)


@pytest.mark.parametrize(
    ("line", "extended"),
    [
        ([10, 20, nan, nan], [10, 20, 40, 80]),
        ([10, 20, 24, nan], [10, 20, 24, 32]),
        ([10, nan, nan, nan], [10, nan, nan, nan]),  # one point has no slope
        ([10, nan, 30, nan], [10, nan, 30, nan]),  # its gap comes first
        ([nan, 20, 30, nan], [nan, 20, 30, nan]),
        ([1, 2, 3, 4], [1, 2, 3, 4]),
    ],
)
def test_a_line_that_was_measured_from_its_beginning_goes_on(
    line: list[float], extended: list[float]
) -> None:
    values = np.array(line, float)
    extend(AXIS, values)
    np.testing.assert_allclose(values, extended)


@pytest.mark.parametrize(
    ("axis", "values", "slope"),
    [
        ([5], [30], 0),
        ([1, 2, 4, 8], [1, 2, 10, 30], 5),  # from 4, half of 8, on
        ([1, 3, 5, 8], [1, 5, 10, 30], 5),  # from the last point before 4
        ([5, 8], [0, 30], 7.5),  # at most twice the mean cost of a unit
        ([1, 2, 4, 8], [1, 2, 30, 10], 0),
        ([2, 8], [[6, 12], [0, 6]], [1, 1]),
    ],
)
def test_the_slope_is_that_of_the_last_octave(axis: list[float], values: Any, slope: Any) -> None:
    np.testing.assert_allclose(slope_beyond(np.array(axis, float), np.array(values, float)), slope)


@pytest.mark.parametrize(
    ("axis", "grid", "along", "end", "longer"),
    [
        ([1, 2], [10, 20], 0, 4, [10, 20, 40]),
        ([3], [7], 0, 6, [7, 7]),
        ([0], [7], 0, 1, [7, 7]),
        # Slopes of 10 and 4 lead to 40 and 23: what is larger on the other axis costs no less.
        ([1, 2], [[10, 20], [11, 15]], 1, 4, [[10, 20, 40], [11, 15, 40]]),
    ],
)
def test_a_grid_is_continued_to_twice_its_end(
    axis: list[float], grid: Any, along: int, end: float, longer: Any
) -> None:
    axes = [np.array(axis, float)] * np.ndim(grid)
    found_axes, found = continued(axes, np.array(grid, float), (along,))
    assert [axis.tolist() for axis in found_axes] == [
        [*axis, end] if place == along else axis.tolist() for place, axis in enumerate(axes)
    ]
    np.testing.assert_allclose(found, longer)


def test_the_longest_measured_context_is_that_of_each_number_of_decodes() -> None:
    table = np.array([[nan, 1, 2], [1, 1, nan], [nan, nan, nan]])
    assert longest_known(np.array([0.0, 16, 256]), table).tolist() == [256, 16, 0]


@pytest.mark.parametrize(
    ("value", "place"),
    [(-5, (0, -0.5)), (0, (0, 0)), (10, (1, 0)), (25, (1, 0.75)), (30, (1, 1)), (50, (1, 2))],
)
def test_a_value_lies_in_the_cell_that_begins_at_it_or_in_the_last(
    value: float, place: tuple[int, float]
) -> None:
    assert cell(np.array([0.0, 10, 30]), value) == place


def test_values_are_interpolated_and_go_on_along_the_last_slope() -> None:
    two = Curve(np.array([0.0, 10]), np.array([1.0, 3]), 10)
    assert [value_at(two, at) for at in (0, 5, 10, 20)] == [1, 2, 3, 5]
    assert value_at(Curve(np.array([4.0]), np.array([7.0]), 4), 100) == 7
    grid = np.array([[0.0, 10], [100, 130]])
    axes = (np.array([0.0, 2]), np.array([0.0, 1]))
    assert [interpolate(axes, grid, at) for at in ((0, 0), (1, 0), (1, 0.5), (2, 1), (4, 2))] == [
        *(0, 50, 60),
        *(130, 300),
    ]


# -- tables that cannot be whole ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "complete"),
    [
        ([[10, nan, nan], [20, 30, nan], [40, 60, 90]], [[10, 15, 22.5], [20, 30, 45], [40, 60, 90]]),
        ([[10, 20, nan], [nan, 30, 60]], [[10, 20, 40], [15, 30, 60]]),
        ([[10, nan, nan], [nan, nan, 50]], [[10, 10, 10], [50, 50, 50]]),  # nothing in common
        ([[10, nan], [20, 15]], [[10, 10], [20, 15]]),  # 7.5 would be less than fewer experts cost
        ([[30, 40], [nan, 35]], [[30, 40], [30, 35]]),  # 26.25 would be less than fewer tokens cost
        ([[5, nan]], [[5, 5]]),
    ],
)
def test_cells_of_experts_that_cannot_be_follow_the_next_line(
    grid: list[list[float]], complete: list[list[float]]
) -> None:
    cells = np.array(grid)
    _fill_corners(cells)
    np.testing.assert_allclose(cells, complete)


@pytest.mark.parametrize(
    ("alone", "beside", "filled"),
    [
        ([0, 5, 9], [7, nan, nan], [7, 12, 16]),  # the two add up
        ([0, 5, 9], [7, 20, nan], [7, 20, 33]),  # or more, as those measured beside each other do
        ([0, 5, 40], [7, 20, nan], [7, 20, 47]),
        ([0, 5, 3], [7, 12, nan], [7, 12, 17]),
        ([0, 5, 9], [7, 30, nan], [7, 30, 53]),
    ],
)
def test_decodes_beside_a_chunk_cost_what_both_cost_or_what_was_measured(
    alone: list[float], beside: list[float], filled: list[float]
) -> None:
    grid = np.array([alone, beside], float).reshape(2, 1, 3, 1)
    _fill_mixed(np.array([0.0, 1, 2]), grid)
    assert grid[1, 0, :, 0].tolist() == filled
    assert grid[0, 0, :, 0].tolist() == alone


def test_a_chunk_that_was_never_measured_is_refused() -> None:
    grid = np.array([[0, 5.0], [nan, nan]]).reshape(2, 1, 2, 1)
    with pytest.raises(InputError, match="too few points"):
        _fill_mixed(np.array([0.0, 1]), grid)


@pytest.mark.parametrize("number", [0.0, 1.0, LARGEST_IN_TABLE])
def test_numbers_of_tables_may_be_nothing_or_the_largest(number: float) -> None:
    assert layer_profile._numbers(Path(), "dense", (f"{number}", "2")) == (number, 2.0)
    assert operator_tables._numbers("gemm", [f"{number}", "2"]) == (number, 2e6)
    assert operator_tables._numbers("gemm", ["2", f"{number}"]) == (2.0, number * 1e6)


@pytest.mark.parametrize("cells", [("-1e-9", "2"), ("2", "1.000001e12"), ("nan", "2"), ("2", "x"), ("", "")])
def test_other_numbers_of_tables_are_refused(cells: tuple[str, str]) -> None:
    readers: list[Callable[[], Any]] = [
        lambda: layer_profile._numbers(Path(), "dense", cells),
        lambda: operator_tables._numbers("gemm", [*cells]),
    ]
    for read in readers:
        with pytest.raises(InputError, match="must be numbers"):
            read()


# -- what lies outside -------------------------------------------------------------------------------------

STEP = StepFeatures(
    prefill_seqs=1,
    prefill_tokens=10,
    prefill_pairs=85,  # 55 among themselves, and 3 cached tokens for each
    decode_seqs=2,
    decode_kv_tokens=40,
    max_context=25,
    emitted_rows=3,
)
EDGES = {
    "tokens": 12,
    "sequences": 3,
    "chunk": 10,
    "cached tokens before a chunk": 3,
    "decodes beside a chunk": 2,
    "decodes": 2,
    "kv": 40,
    "context": 25,
}


@pytest.mark.parametrize("lower", [None, *EDGES])
def test_a_step_lies_outside_if_any_of_its_sizes_does(tmp_path: Path, lower: str | None) -> None:
    model: Any = tables(write(tmp_path))
    edges = {name: most - (name == lower) for name, most in EDGES.items()}
    model._limits = edges
    model._decode_cache[2] = _Decode([0.0, 50.0], [1.0, 2.0], [0.0, 0.0], 20, edges["kv"], edges["context"])
    model.step_ns(STEP)
    # Decodes beside a chunk have a limit of their own: `decodes` is that of steps without chunks.
    assert model.outside.steps == (lower is not None and lower != "decodes")
    assert set(model.outside.farthest) == {lower} - {None, "kv", "context", "decodes"}


def test_chunks_of_a_step_are_one_with_as_many_pairs() -> None:
    assert one_chunk(10, 55) == (10, 0)
    assert one_chunk(10, 85) == (10, 3)
    chunk, past = one_chunk(10, 30)  # two prompts of five
    assert chunk * (chunk + 1) / 2 == pytest.approx(30)
    assert past == 0


# -- graphs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "most", "padded", "sizes"),
    [
        ("vllm", 300, True, (1, 2, 4, *range(8, 249, 8), 256, 272, 288)),
        ("vllm", 8, True, (1, 2, 4, 8)),
        ("sglang", 600, True, (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), 512, 544, 576, 600)),
        ("sglang", 576, True, (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), 512, 544, 576)),
        ("trtllm", None, True, (1, 2, 4, *range(8, 129, 8))),
        ("trtllm", 300, True, (1, 2, 4, *range(8, 129, 8), 192, 256, 300)),
        ("trtllm", 192, True, (1, 2, 4, *range(8, 129, 8), 192)),
        ("trtllm", None, False, (*range(1, 33), 64, 128)),
        ("trtllm", 256, False, (*range(1, 33), 64, 128, 256)),
        ("trtllm", 257, False, (*range(1, 33), 64, 128, 256, 257)),
        ("trtllm", 513, False, (*range(1, 33), 64, 128, 256, 512, 513)),
        ("trtllm", 20, False, tuple(range(1, 21))),
    ],
)
def test_captured_sizes_are_the_engines(
    engine: str, most: int | None, padded: bool, sizes: tuple[int, ...]
) -> None:
    assert default_sizes(engine, load_gpu("h100"), 1, 10_000, most, padded).sizes == sizes


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_captured_sizes_end_at_8192(engine: str) -> None:
    assert default_sizes(engine, load_gpu("h100"), 1, 10_000, 9000, True).sizes[-1] == 8192


@pytest.mark.parametrize(
    ("gib", "tp", "largest"),
    [
        *((19.9, 1, 8), (19.9, 4, 8), (20, 3, 24), (20, 4, 80), (34.9, 1, 24)),
        *((35, 3, 32), (35, 4, 160), (60, 3, 256), (60, 4, 512), (159.9, 3, 256), (159.9, 4, 512)),
        *((160, 1, 512), (160, 8, 512)),
    ],
)
def test_sglang_captures_by_the_memory_of_a_gpu(gib: float, tp: int, largest: int) -> None:
    gpu = replace(load_gpu("h100"), driver_memory_bytes=round(gib * GIB))
    assert default_sizes("sglang", gpu, tp, 10_000, None, True, release=(0, 5, 19)).sizes[-1] == largest


@pytest.mark.parametrize(
    ("gib", "tp", "seqs", "release", "largest"),
    [
        *((20, 3, 999, (0, 5, 20), 48), (20, 4, 999, (), 160), (19.9, 1, 999, (), 8), (35, 3, 999, (), 32)),
        *((80, 1, 50, (0, 5, 21), 256), (80, 1, 50, (0, 5, 22), 50), (80, 1, 50, (), 50)),
    ],
)
def test_sglang_captures_more_on_small_gpus_and_no_more_than_requests_run(
    gib: float, tp: int, seqs: int, release: tuple[int, ...], largest: int
) -> None:
    gpu = replace(load_gpu("h100"), driver_memory_bytes=round(gib * GIB))
    assert default_sizes("sglang", gpu, tp, seqs, None, True, release=release).sizes[-1] == largest


@pytest.mark.parametrize(
    ("gpu", "release", "largest"),
    [("b200", (), 1024), ("gb300", (0, 28), 1024), ("b200", (0, 27), 512), ("rtx-pro-6000", (), 512)],
)
def test_vllm_captures_more_on_blackwell_of_the_data_center(
    gpu: str, release: tuple[int, ...], largest: int
) -> None:
    assert default_sizes("vllm", load_gpu(gpu), 1, 1024, None, True, release=release).sizes[-1] == largest


@pytest.mark.parametrize(
    ("seqs", "tokens", "release", "last"),
    [
        (20, 8192, (), (16, 20, 24, 32, 40)),
        (20, 8192, (0, 30), (16, 24, 32, 40)),
        (20, 30, (), (16, 20, 24, 30)),
        (20, 30, (0, 21), (16, 24, 30)),
        (20, 30, (0, 20), (16, 24)),
        (20, 18, (0, 31), (8, 16, 18)),
    ],
)
def test_vllm_captures_the_limits_of_a_step_themselves(
    seqs: int, tokens: int, release: tuple[int, ...], last: tuple[int, ...]
) -> None:
    sizes = default_sizes("vllm", load_gpu("h100"), 1, seqs, None, True, tokens, release).sizes
    assert sizes[-len(last) :] == last


@pytest.mark.parametrize(("seqs", "largest"), [(1, 2), (20, 40), (255, 496), (256, 512), (300, 512)])
def test_vllm_captures_twice_its_sequences_and_512_at_most(seqs: int, largest: int) -> None:
    assert default_sizes("vllm", load_gpu("h100"), 1, seqs, None, True).sizes[-1] == largest


# -- runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("price", "kept"), [([1, 2, 9.9], [1, 2, 9.9]), ([1, 10, 2], [1]), ([1, 2, 30], [1, 2]), ([9, 10], [9])]
)
def test_prices_end_before_the_first_that_is_as_long_as_the_clock(
    price: Sequence[float], kept: list[float]
) -> None:
    assert within_the_clock(np.array(price), 10.0).tolist() == kept


def test_a_first_step_as_long_as_the_clock_is_refused() -> None:
    with pytest.raises(OverflowError):
        within_the_clock(np.array([10.0, 1]), 10.0)


@pytest.mark.parametrize(
    ("until_ns", "ends_ns"),
    [
        *((109, [110]), (110, [110]), (111, [110, 130]), (130, [110, 130]), (131, [110, 130, 160])),
        *((160, [110, 130, 160]), (161, [110, 130, 160])),
    ],
)
def test_a_run_ends_with_the_first_step_that_reaches_a_time(until_ns: int, ends_ns: list[int]) -> None:
    assert run_of(np.array([10, 20, 30]), 100, until_ns).ends_ns().tolist() == ends_ns
    singly = step_by_step(
        lambda f: 10 * f.decode_kv_tokens, StepFeatures(decode_seqs=1, decode_kv_tokens=1), 3, 100, until_ns
    )
    assert singly.ends_ns().tolist() == ends_ns
