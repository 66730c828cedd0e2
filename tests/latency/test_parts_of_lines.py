"""Prices along lines: where they bend, and what they are at least."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_py.core.features import StepFeatures
from blis_py.latency.decode_line import DecodeLine, LineRun, PackedRuns, line_ns
from blis_py.latency.fitted import _decode_ns
from blis_py.latency.fitted_beyond import continued_decodes
from blis_py.latency.fitted_surface import SurfaceCurve
from blis_py.latency.layer_profile import _all_reduce
from blis_py.latency.rank_prices import Line

LINE = Line.of(np.array([0.0, 10.0, 30.0, 100.0]), np.array([5.0, 15.0, 25.0, 95.0]))


@pytest.mark.parametrize(
    ("where", "ns"), [(0, 5), (4, 9), (10, 15), (20, 20), (30, 25), (60, 55), (100, 95), (110, 105), (-2, 3)]
)
def test_a_line_is_straight_between_its_points_and_goes_on_beyond_both_ends(where: float, ns: float) -> None:
    assert LINE.value(where) == pytest.approx(ns)
    assert LINE.values(np.array([where])).tolist() == [LINE.value(where)]


@pytest.mark.parametrize(("kv_tokens", "units"), [(0, 13), (10, 33), (1000, 2013)])
def test_a_decode_line_is_the_larger_of_two_lines(kv_tokens: int, units: int) -> None:
    for line in (DecodeLine(10, 3, 2, 0, 0.5), DecodeLine(10, 0, 0.5, 3, 2)):
        assert line.at(kv_tokens) == units
        assert line_ns(line, kv_tokens) == units
    assert DecodeLine(10, 3, 0.5, 0, 2).at(1) == 10 + 3.5


@pytest.mark.parametrize(
    ("low", "high", "straight"),
    [(0, 9, True), (1, 10, False), (10, 29, True), (9, 31, False), (30, 500, True), (12, 12, True)],
)
def test_a_stretch_is_straight_if_no_point_lies_in_it(low: float, high: float, straight: bool) -> None:
    assert LINE.straight(low, high) == straight


@pytest.mark.parametrize(
    ("kv_tokens", "max_context", "per_context", "ns"),
    [
        (0, 0, 0.0, 1),  # no time is a nanosecond
        (1, 0, 0.0, 1),
        (10, 0, 0.0, 5),  # 0.5 ns each up to 20 tokens, then 2 ns
        (20, 0, 0.0, 10),
        (21, 0, 0.0, 12),
        (10, 3, 4.0, 17),
        (10, -1, 4.0, 5),  # the longest context is not tracked
    ],
)
def test_decodes_are_priced_by_their_tokens_and_the_longest_context(
    kv_tokens: int, max_context: int, per_context: float, ns: int
) -> None:
    curve = SimpleNamespace(at=[0.0, 20.0], ns=[0.0, 10.0], slopes=[0.5, 2.0])
    decode: Any = SimpleNamespace(curve=curve, per_context=per_context)
    assert _decode_ns(decode, kv_tokens, max_context) == ns


@pytest.mark.parametrize(
    ("x", "y"),
    [((5.0, 1.0), (9.0, 1.0)), ((9.0, 1.0), (5.0, 1.0)), ((5.0, 1.0), (5.0, 2.0)), ((5.0, 2.0), (5.0, 2.0))],
)
def test_packed_runs_take_the_dearer_of_their_two_lines_as_single_steps_do(
    x: tuple[float, float], y: tuple[float, float]
) -> None:
    line, ends = DecodeLine(1.0, *x, *y), []
    for step in range(6):
        ends.append((ends or [7])[-1] + line_ns(line, 10 + 2 * step))
    runs = PackedRuns([LineRun(line, 10, 2, 7, 6, ends[-1]), LineRun(line, 10, 2, 7, 6, ends[-1])])
    assert runs.ends_ns().tolist() == ends * 2


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_ring_sends_all_but_its_own_part_twice(tp: int) -> None:
    shape: Any = SimpleNamespace(hidden=100, dtype_bytes=2)
    gpu: Any = SimpleNamespace(
        require_links=lambda _: None, all_reduce_overhead_ns=50.0, link_bytes_per_s=1e9, link_efficiency=0.5
    )
    curve = _all_reduce(shape, gpu, tp)
    assert np.interp(0.0, curve.at, curve.ns) == pytest.approx(50)
    assert np.interp(1000.0, curve.at, curve.ns) == pytest.approx(50 + 1000 * 200 * 2 * (tp - 1) / tp / 0.5)


class Guide:
    """A model that knows the hardware: what a decode and a cached token take, in ns."""

    def __init__(self, decode_ns: int, token_ns: int) -> None:
        self._decode_ns, self._token_ns = decode_ns, token_ns

    def step_ns(self, f: StepFeatures) -> int:
        return self._decode_ns * f.decode_seqs + self._token_ns * f.decode_kv_tokens


@pytest.mark.parametrize("token_ns", [0, 3])
def test_decodes_beyond_the_measured_go_on_as_steeply_as_the_hardware_says(token_ns: int) -> None:
    curve = SurfaceCurve([0.0, 100.0], [10.0, 20.0], [0.1, 0.5])
    guide: Any = Guide(7, token_ns)
    limits = (("decode_seqs", 4), ("decode_kv_tokens", 200))
    found = continued_decodes(curve, guide, StepFeatures(decode_seqs=6), limits)
    assert found.at == [0.0, 100.0, 200.0]
    assert found.ns == [10 + 14, 20 + 14, 70 + 14]
    assert found.slopes == [0.1, 0.5, token_ns]
    assert continued_decodes(curve, guide, StepFeatures(decode_seqs=6), ()) is curve
