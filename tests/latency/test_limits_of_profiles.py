"""Fitted profiles and learned surfaces: which numbers a file may have, what lies between and beyond them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from latency_cases import decode, fitted_profile

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.latency import operator_tables, surfaces
from blis_py.latency.fitted_beyond import continued_decodes, further_ns, inside
from blis_py.latency.fitted_profile import Correction, read_meta, read_profile, write_profile
from blis_py.latency.fitted_shape import datasheet_of
from blis_py.latency.fitted_surface import FittedSurface, SurfaceCurve, monotone
from blis_py.latency.kernel_profile import Curve
from blis_py.latency.surfaces import Surface, Surfaces, corners_of, launching, read_surfaces, sizes_of

META = {"device": "a GPU", "tp": 1}
FIT, EAGER = ("fit",), ("fit", "regimes", "eager")
ACCURACY = {"steps": 0, "mape": 0.1, "p90": 0.2, "bias": 0.0}


def profile_with(tmp_path: Path, *changes: tuple[tuple[Any, ...], Any]) -> Path:
    path = write_profile(tmp_path, META, fitted_profile())
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    for keys, value in changes:
        part = values
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


WITHIN: list[tuple[tuple[Any, ...], list[Any], list[Any]]] = [
    ((*FIT, "repeated_read_ns"), [0, 1e15], [-1e-9, 1.1e15]),
    ((*FIT, "scan_ns"), [0, 1e15], [-1, 1.1e15]),
    ((*FIT, "experts_in_use"), [0, 1e6], [-1, 1.1e6]),
    ((*FIT, "sources"), [{"a": 0}, {"a": 2**53}], [{"a": -1}, {"a": 2**53 + 1}, {"a": 1.5}]),
    (
        (*FIT, "masks"),
        [{"row_ns": 0, "step_ns": 0}],
        [{"row_ns": -1, "step_ns": 0}, {"row_ns": 0, "step_ns": -1}],
    ),
    ((*EAGER, "knee"), [0], [-1]),
    ((*EAGER, "shapes"), [0, 2**53], [-1, 2**53 + 1]),
    ((*EAGER, "excluded"), [0, 2**53], [-1, 2**53 + 1]),
    ((*EAGER, "gpu", "step"), [0, 1e15], [-1, 1.1e15]),
    (
        (*EAGER, "domain"),
        [{"tokens": [-1, 2**62]}],
        [{"tokens": [-2, 5]}, {"tokens": [1]}, {"tokens": [1, 2, 3]}],
    ),
    ((*EAGER, "correction"), [None], [{}]),
    ((*EAGER, "correction", "tokens"), [[0, 64, 1e15]], [[-1, 64, 512], [64, 1, 512], [1, 1, 512]]),
    ((*EAGER, "correction", "kv_tokens"), [[0, 64, 1e15]], [[-1, 64, 512], [64, 1, 512], [1, 64]]),
    ((*EAGER, "in_sample"), [None], [{}]),
    (("graph_buckets",), [[1], [2**31 - 1], []], [[0], [2**31], ["a"]]),
    (("mixed_buckets",), [[1], [], None], [[0], [1, 0]]),
    (("tp",), [1], [0, 1.5, "a"]),
]


@pytest.mark.parametrize(("keys", "value"), [(keys, value) for keys, good, _ in WITHIN for value in good])
def test_numbers_of_a_profile_may_be_at_their_limits(
    tmp_path: Path, keys: tuple[Any, ...], value: Any
) -> None:
    read_profile(profile_with(tmp_path, (keys, value)))


@pytest.mark.parametrize(("keys", "value"), [(keys, value) for keys, _, bad in WITHIN for value in bad])
def test_numbers_of_a_profile_are_within_their_limits(
    tmp_path: Path, keys: tuple[Any, ...], value: Any
) -> None:
    with pytest.raises(InputError, match=f"{keys[-1]}|{keys[-2] if len(keys) > 1 else keys[-1]}"):
        read_profile(profile_with(tmp_path, (keys, value)))


def test_draws_of_a_regime_are_as_many_and_as_long(tmp_path: Path) -> None:
    one = (*EAGER, "host_draws")
    with pytest.raises(InputError, match="as many draws as gpu_draws"):
        read_profile(profile_with(tmp_path, (one, [[1.0, 2.0, 3.0]])))
    with pytest.raises(InputError, match="a draw does not fit"):
        read_profile(profile_with(tmp_path, (one, [[1.0, 2.0, 3.0], [1.0, 2.0]])))
    with pytest.raises(InputError, match="host_draws"):
        read_profile(profile_with(tmp_path, (one, [[1.0, 2.0, 3.0], [1.0, -2.0, 3.0]])))
    read_profile(profile_with(tmp_path, (one, [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])))
    assert read_meta(tmp_path)[1]["device"] == "a GPU"


@pytest.mark.parametrize(
    ("meta", "name"),
    [
        ({}, None),
        ({"device": "cpu"}, None),
        ({"device": "h100", "device_kind": "cpu"}, None),
        ({"device": "h100", "device_kind": "cuda"}, "H100"),
        ({"device": "h100"}, "H100"),
        ({"device": "no such GPU"}, None),
    ],
)
def test_a_measured_device_has_the_datasheet_of_its_name(meta: dict[str, Any], name: str | None) -> None:
    found = datasheet_of(meta)
    assert (found if found is None else found.name) == name


# -- surfaces of fits --------------------------------------------------------------------------------------

PRICES = {"step": 100.0, "tokens": 2.0, "tokens_beyond_knee": 3.0, "decode_kv_tokens": 0.5}


@pytest.mark.parametrize(("tokens", "ns"), [(0, 100), (9, 118), (10, 120), (11, 125), (20, 170)])
def test_a_plane_has_a_kink_at_its_knee(tokens: float, ns: float) -> None:
    curve = FittedSurface(PRICES, 10, None).curve(tokens)
    assert (curve.at, curve.ns, curve.slopes) == ([0.0], [ns], [0.5])


def test_a_table_multiplies_the_plane_at_its_points_and_goes_on_along_it() -> None:
    """At 10 and 20 tokens 120 and 170, and 10 more behind 20 tokens of KV."""
    surface = FittedSurface(PRICES, 10, Correction((10.0, 20.0), (0.0, 20.0), ((1.0, 1.1), (2.0, 2.0))))
    first, middle, last, before, beyond = (surface.curve(tokens) for tokens in (10, 15, 20, 5, 30))
    assert first.ns == pytest.approx([120, 143])
    assert last.ns == pytest.approx([340, 360])
    assert middle.ns == pytest.approx([230, 251.5])
    assert before.ns == first.ns
    assert beyond.ns == pytest.approx([390, 410])
    assert first.slopes == pytest.approx([1.15, 0.5])
    alone = FittedSurface(PRICES, 10, Correction((10.0,), (0.0,), ((1.5,),)))
    assert [alone.curve(tokens).ns for tokens in (5, 10, 20)] == [[180.0], [180.0], [230.0]]
    assert alone.curve(10).slopes == [0.5]


def test_a_table_that_falls_is_made_monotone_by_the_middle() -> None:
    found = monotone(np.array([[1.0, 5.0, 3.0], [4.0, 2.0, 6.0]]))
    assert found.tolist() == [[1.0, 3.5, 4.0], [3.0, 3.5, 6.0]]


class Guide:
    """A model of the hardware: 3 ns a decode and 2 a token of its context."""

    def step_ns(self, f: StepFeatures) -> int:
        return 3 * f.decode_seqs + 2 * f.decode_kv_tokens


def test_the_part_of_a_step_beyond_what_was_measured_is_priced_by_the_hardware() -> None:
    guide: Any = Guide()
    limits = [("decode_seqs", 4), ("decode_kv_tokens", 100), ("seqs_of_another_kind", 1)]
    clipped = inside(decode(6, 150, 20), limits)
    assert (clipped.decode_seqs, clipped.decode_kv_tokens, clipped.max_context) == (4, 100, 20)
    assert further_ns(guide, decode(6, 150), limits) == 3 * 2 + 2 * 50
    assert further_ns(guide, decode(4, 100), limits) == 0
    curve = SurfaceCurve([0.0, 50.0, 200.0], [10.0, 60.0, 90.0], [1.0, 0.2, 0.1])
    found = continued_decodes(curve, guide, decode(6, 0), limits)
    assert found.at == [0.0, 50.0, 100.0]
    assert found.ns == pytest.approx([16.0, 66.0, 76.0])
    assert found.slopes == [1.0, 0.2, 2.0]
    assert continued_decodes(curve, guide, decode(6, 0), [("decode_seqs", 4)]) is curve
    edge = continued_decodes(curve, guide, decode(6, 0), [("decode_kv_tokens", 50)])
    assert (edge.at, edge.ns) == ([0.0, 50.0, 50.0], [10.0, 60.0, 60.0])


# -- learned surfaces --------------------------------------------------------------------------------------


def test_a_point_lies_in_the_cell_of_its_corners() -> None:
    knots = (np.array([0.0, 10.0, 30.0]), np.array([1.0]))
    found = {place: float(weight) for place, weight in corners_of(knots, (np.array(15.0), np.array(9.0)))}
    assert found == {(1, 0): 0.75, (2, 0): 0.25}
    surface = Surface((np.array([0.0, 10.0, 30.0]),), np.array([0.0, 1.0, 3.0]))
    at = surface.at((np.array([-5.0, 0.0, 5.0, 10.0, 20.0, 30.0, 99.0]), np.zeros(7)))
    assert at.tolist() == [0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    priced: Any = SimpleNamespace(ns=np.array([10.0]), at=(np.array([10.0]),))
    assert surface.ns(priced) == pytest.approx([10 * np.e])


def test_surfaces_and_curves_are_found_by_their_names(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    top: dict[str, Any] = {
        **{"gpu": "G", "engine": "e", "source": "s", "curve_knots": [0, 1], "curves": {"c": [50, 150]}},
        "surfaces": {"a": {"knots": [[0, 1], [0, 2]], "percent": [0, 100, 200, 300]}},
    }
    file.write_text(json.dumps(top))
    found = read_surfaces(file)
    assert [found.has(name) for name in ("a", "c", "x")] == [True, True, False]
    assert found.named("a").logs.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert found.named("c").logs.tolist() == [0.5, 1.5]
    assert found.launch_ns == 0
    del top["surfaces"]["a"]["knots"]
    file.write_text(json.dumps(top))
    with pytest.raises(InputError, match="no operator surfaces"):
        read_surfaces(file)
    assert sizes_of(4096, 1536.0, 16, 128, 8) == "4096x1536,16of128,8"


@pytest.mark.parametrize(
    ("here", "there", "factor"), [(6.0, 4.0, 1.5), (0.0, 4.0, 1.0), (6.0, 0.0, 1.0), (None, 4.0, 1.0)]
)
def test_a_host_launches_as_much_longer_as_was_measured(
    monkeypatch: pytest.MonkeyPatch, here: float | None, there: float, factor: float
) -> None:
    known = {"a": here, "b": there}

    def load(gpu: str, engine: str) -> Surfaces | None:
        return None if known[gpu] is None else Surfaces(gpu, engine, "", {}, known[gpu] or 0.0)

    monkeypatch.setattr(surfaces, "load_surfaces", load)
    assert launching("a", "vllm", "b") == factor


# -- tables of operators -----------------------------------------------------------------------------------


def test_shared_experts_are_two_products_beside_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    shape: Any = SimpleNamespace(
        **{"hidden": 64, "moe_intermediate": 32, "experts_per_token": 2, "experts": 8, "moe_layers": 5},
        shared_intermediate=48,
    )
    requested: list[tuple[float, float]] = []
    one = Curve(np.array([1.0]), np.array([2.0]), 1.0)

    def gemm(n: float, k: float) -> Curve:
        requested.append((n, k))
        return one

    rows = [(1.0, 7.0), (1.0, 5.0), (4.0, 9.0)]
    monkeypatch.setattr(operator_tables, "_table", lambda *_: iter(rows))
    parts = operator_tables._experts(Path("x"), shape, 2, gemm)
    assert [weight for weight, _ in parts] == [5.0] * 4
    assert (parts[0][1].at.tolist(), parts[0][1].ns.tolist(), parts[0][1].measured_to) == ([1, 4], [5, 9], 4)
    assert requested == [(8, 64), (48, 64), (64, 24)]
    shape.shared_intermediate = 0
    assert len(operator_tables._experts(Path("x"), shape, 2, gemm)) == 2


def test_a_shape_that_was_not_measured_reaches_as_much_of_the_roofline_as_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of four shapes take twice what the roofline says, and a fifth one far away ten times."""
    gpu: Any = SimpleNamespace(fp16_flops=1e12, fp8_flops=None, hbm_bytes_per_s=1e12)

    def floor_ns(m: float, n: float, k: float, width: int) -> float:
        return max(2 * m * n * k / 1e3, (width * (n * k + m * k) + 2 * m * n) / 1e3)

    near = [(64.0, 64.0), (64.0, 128.0), (128.0, 64.0), (128.0, 128.0)]
    for width, dtype in ((2, "bfloat16"), (1, "fp8")):
        rows = [(n, k, m, 2 * floor_ns(m, n, k, width)) for n, k in near for m in (1.0, 512.0)]
        rows += [(9e6, 9e6, m, 10 * floor_ns(m, 9e6, 9e6, width)) for m in (1.0, 512.0)]
        rows += [(64.0, 64.0, 1.0, 1e12)]  # of two measurements the shorter counts
        monkeypatch.setattr(operator_tables, "_table", lambda *_, rows=rows: iter(rows))
        look = operator_tables._gemm(Path("x"), gpu, dtype)
        found = look(96.0, 96.0)
        assert found.at.tolist() == [1, 512]
        assert found.ns == pytest.approx([2 * floor_ns(m, 96, 96, width) for m in (1, 512)])
        assert found.measured_to == 512
        assert look(64.0, 64.0).ns.tolist() == [2 * floor_ns(m, 64, 64, width) for m in (1, 512)]
