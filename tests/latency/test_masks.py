"""The masks of structured outputs: what they add to a step, and what of them the forward hides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_cases import models

from blis_py.core.features import StepFeatures
from blis_py.latency.base import LatencyModel, StepTime, overlapped
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.latency.masks import MaskPrices, WithMasks, with_masks
from blis_py.latency.trained import Trained

MODELS = models()
PRICES = MaskPrices(row_ns=2_000, step_ns=500)
LINEAR = Linear(
    LinearCoefficients(gpu=LinearCosts(step=7_000.3, decode_kv_tokens=3.33), host=LinearCosts(step=1_500))
)
"""Tells host time that can be hidden."""


def decode(seqs: int, constrained: int, kv_tokens: int = 1000) -> StepFeatures:
    return StepFeatures(
        decode_seqs=seqs, decode_kv_tokens=kv_tokens, emitted_rows=seqs, constrained_rows=constrained
    )


def test_masks_have_a_price_per_row_and_one_per_step_that_has_any() -> None:
    assert [PRICES.of(rows) for rows in (0, 1, 10)] == [0, 2_500, 20_500]


def test_an_engine_that_takes_turns_adds_them_to_the_step() -> None:
    model = WithMasks(LINEAR, PRICES, beside_forward=False)
    plain = LINEAR.step(decode(8, 0))
    assert model.step(decode(8, 0)) == plain
    assert model.step(decode(8, 4)) == StepTime(plain.gpu_ns, plain.host_ns + 8_500)
    assert model.step_ns(decode(8, 4)) == LINEAR.step_ns(decode(8, 4)) + 8_500


def test_beside_the_forward_only_what_exceeds_it_shows() -> None:
    model = WithMasks(LINEAR, PRICES, beside_forward=True)
    gpu_ns = LINEAR.step(decode(40, 0)).gpu_ns
    assert model.step_ns(decode(40, 4)) == LINEAR.step_ns(decode(40, 0)), "8,500 ns fit there"
    assert model.step_ns(decode(40, 20)) - LINEAR.step_ns(decode(40, 0)) == 40_500 - gpu_ns


def test_behind_another_step_they_share_the_hidden_time_with_the_rest_of_the_host() -> None:
    model = overlapped(WithMasks(LINEAR, PRICES, beside_forward=True))
    plain = LINEAR.step(decode(40, 0))
    assert model.step_ns(decode(40, 0)) == plain.gpu_ns
    assert model.step_ns(decode(40, 4)) == plain.gpu_ns, "8,500 ns and the host's 1,500 ns fit"
    assert model.step_ns(decode(40, 20)) == plain.host_ns + 40_500


def test_where_host_time_is_a_gap_it_stays_one() -> None:
    model = next(model for model in MODELS if isinstance(model, Trained))
    time = model.step(decode(40, 0))
    rows = 2 * time.gpu_ns // 2_000
    behind = overlapped(WithMasks(model, PRICES, beside_forward=True))
    assert behind.step_ns(decode(40, rows)) == PRICES.of(rows) + time.host_ns
    assert behind.step_ns(decode(40, 1)) == time.synchronous_ns


@pytest.mark.parametrize("model", MODELS, ids=[m.provenance for m in MODELS])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("behind", [False, True])
@given(st.integers(1, 64), st.integers(0, 5000), st.integers(1, 40), st.integers(0, 10**6), st.data())
def test_a_run_of_steps_is_its_steps(
    model: LatencyModel,
    beside: bool,
    behind: bool,
    seqs: int,
    kv: int,
    steps: int,
    row_ns: int,
    data: st.DataObject,
) -> None:
    priced: LatencyModel = WithMasks(model, MaskPrices(row_ns, 100), beside)
    priced = overlapped(priced) if behind else priced
    first = decode(seqs, data.draw(st.integers(0, seqs)), kv)
    ends = 1000 + np.cumsum([priced.step_ns(first.after(i)) for i in range(steps)])
    assert priced.decode_run(first, steps, 1000).ends_ns().tolist() == ends.tolist()
    until = int(ends[steps // 2])
    assert priced.decode_run(first, steps, 1000, until).ends_ns().tolist() == ends[: steps // 2 + 1].tolist()


def test_without_a_price_the_model_stays_as_it_is() -> None:
    assert with_masks(LINEAR, None, beside_forward=True) is LINEAR
