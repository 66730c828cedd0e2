"""Models of step times refuse GPUs that no link joins, and divisions that a model does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernel_profiles import qkv_us, write
from latency_cases import decode

from blis_py.core.rank_features import RankedFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency import build
from blis_py.latency.decode_line import DecodeLine, LineRun
from blis_py.latency.layer_profile import read_layer_profile
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts, _check
from blis_py.latency.notes import LargestBatch, Outside, forget
from blis_py.latency.operators import Operators
from blis_py.latency.rank_prices import loads_of, most_seqs
from blis_py.latency.roofline import Roofline
from blis_py.latency.trained import Trained
from blis_py.latency.trained_physics import _coefficients
from blis_py.latency.work import distinct_experts
from blis_py.models.model_shape import load_model

DENSE, H100 = load_model("llama-3.1-8b"), load_gpu("h100")
ALONE = replace(H100, link_gpus=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda gpu, tp: Operators(DENSE, gpu, Layout(tp)),
        lambda gpu, tp: Trained(DENSE, gpu, tp),
        lambda gpu, tp: Roofline(DENSE, gpu, tp),
    ],
)
def test_gpus_that_no_link_joins_are_refused(make: Callable[..., Any]) -> None:
    make(ALONE, 1)
    make(H100, 2)
    with pytest.raises(InputError, match="the link joins 1 H100; 2 would need another link"):
        make(ALONE, 2)


def test_a_profile_of_several_gpus_needs_their_link(tmp_path: Path) -> None:
    folder = write(tmp_path)
    meta = (folder / "meta.yaml").read_text().replace("[1]", "[1, 2]")
    (folder / "meta.yaml").write_text(meta + "skew_fit: {enabled: true, per_tp: {1: {alpha_default: 0.5}}}\n")
    assert read_layer_profile(folder, DENSE, H100, 1).skew == 0.5
    assert read_layer_profile(folder, DENSE, H100, 2).skew == 0  # fitted to one GPU alone
    with pytest.raises(InputError, match="the link joins 1 H100"):
        read_layer_profile(folder, DENSE, ALONE, 2)


@pytest.mark.parametrize(
    ("layout", "message"),
    [(Layout(3), "does not divide the 32 heads"), (Layout(2, ep=2), "has no experts to distribute")],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda layout: Operators(DENSE, H100, layout),
        lambda layout: build("linear", shape=DENSE, gpu=H100, tp=layout.gpus, layout=layout, linear={}),
    ],
)
def test_a_layout_that_a_model_does_not_have_is_refused(
    make: Callable[[Layout], Any], layout: Layout, message: str
) -> None:
    make(Layout(2))
    with pytest.raises(InputError, match=message):
        make(layout)


def test_heads_are_not_split_by_a_trained_model() -> None:
    with pytest.raises(InputError, match="does not divide the 32 heads"):
        Trained(DENSE, H100, 3)


@pytest.mark.parametrize("value", [0, 0.0, 3.6e12])
def test_a_price_is_nothing_to_an_hour(value: float) -> None:
    assert _check("k", value) == value


@pytest.mark.parametrize("value", [-1, -1e-9, 3.6e12 + 1, True, "1", None, float("nan")])
def test_other_prices_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="a number of nanoseconds"):
        _check("k", value)


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ([1.0], False),
        ([1.0, 2], True),
        ([1.0] * 3, True),
        ([1.0] * 4, False),
        ([0, 5.0], True),
        ([0, 5.1], False),
        ([0, -0.1], False),
        ([0, float("nan")], False),
    ],
)
def test_coefficients_have_a_number_and_a_range(values: list[float], fits: bool) -> None:
    if fits:
        assert _coefficients("k", values, (2, 3), 5.0) == values
        return
    with pytest.raises(InputError):
        _coefficients("k", values, (2, 3), 5.0)


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("steps", [1, 14, 15, 40])
@pytest.mark.parametrize("until_ns", [1, 5_000, 10**9])
def test_a_linear_run_is_its_steps(hides: bool, steps: int, until_ns: int) -> None:
    """One by one up to 14 of them, or in numpy."""
    costs = LinearCosts(step=90.0, decode_seqs=3.3, decode_kv_tokens=0.7, max_context=1.1)
    host = LinearCosts(step=300.0, emitted_rows=2.5)
    model = Linear(LinearCoefficients(costs, host), hides_host=hides)
    first, now_ns, ends_ns = decode(3, 50, 20), 7, []
    for done in range(steps):
        now_ns += model.step_ns(first.after(done))
        ends_ns.append(now_ns)
        if now_ns >= until_ns:
            break
    assert model.decode_run(first, steps, 7, until_ns).ends_ns().tolist() == ends_ns


def test_a_step_that_costs_nothing_takes_a_unit_in_a_list_of_ends_too() -> None:
    ends: list[int] = []
    free = DecodeLine(0.0, 0.0, 0.0, 0.0, 0.0, unit_ns=3, fixed_ns=2)
    LineRun(free, 10, 1, 100, 3, 115).list_ends(ends)
    assert ends == [105, 110, 115]


def test_counters_are_reset_with_what_they_kept() -> None:
    kept: dict[Any, Any] = {1: 2}
    batch = LargestBatch(4, (kept,))
    batch.record(4)
    assert batch.notes() == []
    batch.record(5)
    assert "steps of up to 5 sequences" in batch.notes()[0]
    batch.record(3)
    assert batch.largest == 5
    batch.clear()
    assert (batch.largest, kept, LargestBatch(0, largest=9).notes()) == (0, {}, [])
    model: Any = type("Model", (), {"outside": Outside(priced=3, steps=2)})()
    model.outside.record("tokens", 5, 4)
    forget(model)
    assert model.outside == Outside()


def test_loads_of_ranks_count_an_idle_one_as_a_token() -> None:
    ranks = [decode(3, 50), decode(0, 0), decode(5, 20)]
    assert loads_of(RankedFeatures(ranks)) == ([(3, 50.0), (5, 20.0)], 9, 5)
    later = RankedFeatures(ranks, since=[7, 0, 9], tick=9)
    assert loads_of(later) == ([(3, 50.0 + 2 * 3), (5, 20.0)], 9, 5)
    ranks[0].prefill_seqs = 4
    assert most_seqs(RankedFeatures(ranks)) == 7
    assert most_seqs(RankedFeatures([decode(0, 0)])) == 0


def test_sparse_layers_are_read_at_the_experts_that_so_many_tokens_activate(tmp_path: Path) -> None:
    """Of three dense operators that take 1 us, one is in every layer, twice; the router is in it, too."""
    sparse = load_model("qwen3-30b-a3b")
    folder = write(tmp_path, model="Qwen/Qwen3-30B-A3B")
    cells = [(tokens, active) for tokens in (1, 64, 4096) for active in (1, 8, 128)]
    rows = "".join(f"{tokens},{active},{20 + 2.0 * active + 0.5 * tokens}\n" for tokens, active in cells)
    (folder / "moe.csv").write_text("tokens,activated_experts,time_us\n" + rows)
    found = read_layer_profile(folder, sparse, H100, 1).tokens
    for tokens, us in zip(found.at.tolist(), (found.ns / 1e3).tolist(), strict=True):
        experts = distinct_experts(sparse.experts, sparse.experts_per_token, int(tokens))
        moe_us = 20 + 2.0 * experts + 0.5 * tokens
        assert us == pytest.approx(sparse.layers * (qkv_us(tokens) + 2) + 2 + sparse.moe_layers * moe_us)
    assert found.measured_to == 2048
