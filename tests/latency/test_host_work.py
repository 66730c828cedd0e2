"""Masks and scans of the queue: what they add to a step, and what of them a forward hides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_cases import models

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import LatencyModel, StepTime, overlapped
from blis_py.latency.fitted import Fitted
from blis_py.latency.host_work import MaskPrices, WithHostWork, with_host_work
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.latency.step_run import StepRun, step_by_step
from blis_py.latency.trained import Trained
from blis_py.sensitivity.reruns import Redrawable

MODELS = models()
PRICES = MaskPrices(row_ns=2_000, step_ns=500)
LINEAR = Linear(
    LinearCoefficients(gpu=LinearCosts(step=7_000.3, decode_kv_tokens=3.33), host=LinearCosts(step=1_500))
)
"""Tells host time that can be hidden."""


def decode(seqs: int, constrained: int, kv_tokens: int = 1000, scanned: int = 0) -> StepFeatures:
    return StepFeatures(
        decode_seqs=seqs,
        decode_kv_tokens=kv_tokens,
        emitted_rows=seqs,
        constrained_rows=constrained,
        scanned_requests=scanned,
    )


def test_masks_have_a_price_per_row_and_one_per_step_that_has_any() -> None:
    assert [PRICES.of(rows) for rows in (0, 1, 10)] == [0, 2_500, 20_500]


def test_an_engine_that_takes_turns_adds_them_to_the_step() -> None:
    model = WithHostWork(LINEAR, PRICES)
    plain = LINEAR.step(decode(8, 0))
    assert model.step(decode(8, 0)) == plain
    assert model.step(decode(8, 4)) == StepTime(plain.gpu_ns, plain.host_ns + 8_500)
    assert model.step_ns(decode(8, 4)) == LINEAR.step_ns(decode(8, 4)) + 8_500


def test_beside_the_forward_only_what_exceeds_it_shows() -> None:
    model = WithHostWork(LINEAR, PRICES, masks_beside=True)
    gpu_ns = LINEAR.step(decode(40, 0)).gpu_ns
    assert model.step_ns(decode(40, 4)) == LINEAR.step_ns(decode(40, 0)), "8,500 ns fit there"
    assert model.step_ns(decode(40, 20)) - LINEAR.step_ns(decode(40, 0)) == 40_500 - gpu_ns


def test_behind_another_step_they_share_the_hidden_time_with_the_rest_of_the_host() -> None:
    model = overlapped(WithHostWork(LINEAR, PRICES, masks_beside=True))
    plain = LINEAR.step(decode(40, 0))
    assert model.step_ns(decode(40, 0)) == plain.gpu_ns
    assert model.step_ns(decode(40, 4)) == plain.gpu_ns, "8,500 ns and the host's 1,500 ns fit"
    assert model.step_ns(decode(40, 20)) == plain.host_ns + 40_500


def test_where_host_time_is_a_gap_it_stays_one() -> None:
    model = next(model for model in MODELS if isinstance(model, Trained))
    time = model.step(decode(40, 0))
    rows = 2 * time.gpu_ns // 2_000
    behind = overlapped(WithHostWork(model, PRICES, masks_beside=True))
    assert behind.step_ns(decode(40, rows)) == PRICES.of(rows) + time.host_ns
    assert behind.step_ns(decode(40, 1)) == time.synchronous_ns


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=[m.provenance for m in MODELS])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("behind", [False, True])
@settings(max_examples=40)
@given(
    st.integers(1, 64),
    st.integers(0, 5000),
    st.integers(1, 40),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)),
    st.data(),
)
def test_a_run_of_steps_is_its_steps(
    model: LatencyModel,
    beside: bool,
    behind: bool,
    seqs: int,
    kv: int,
    steps: int,
    work_ns: tuple[int, int],
    data: st.DataObject,
) -> None:
    row_ns, scan_ns = work_ns
    priced: LatencyModel = WithHostWork(model, MaskPrices(row_ns, 100), scan_ns, masks_beside=beside)
    priced = overlapped(priced) if behind else priced
    constrained, scanned = (data.draw(st.integers(0, most)) for most in (seqs, 128))
    first = decode(seqs, constrained, kv, scanned)
    ends = 1000 + np.cumsum([priced.step_ns(first.after(i)) for i in range(steps)])
    assert priced.decode_run(first, steps, 1000).ends_ns().tolist() == ends.tolist()
    until = int(ends[steps // 2])
    assert priced.decode_run(first, steps, 1000, until).ends_ns().tolist() == ends[: steps // 2 + 1].tolist()


def test_a_scan_comes_before_the_launch_and_adds_to_a_step_that_takes_turns() -> None:
    for masks_beside in (False, True):
        model = WithHostWork(LINEAR, scan_ns=300.0, masks_beside=masks_beside)
        assert model.step_ns(decode(8, 0, scanned=20)) == LINEAR.step_ns(decode(8, 0)) + 6_000


def test_behind_another_step_a_scan_is_hidden_as_far_as_that_reaches() -> None:
    plain = LINEAR.step(decode(40, 0))
    model = overlapped(WithHostWork(LINEAR, scan_ns=300.0))
    assert model.step_ns(decode(40, 0, scanned=20)) == plain.gpu_ns
    assert model.step_ns(decode(40, 0, scanned=1000)) == plain.host_ns + 300_000
    gap = next(model for model in MODELS if isinstance(model, Trained))
    time = gap.step(decode(40, 0))
    model = overlapped(WithHostWork(gap, scan_ns=300.0))
    assert model.step_ns(decode(40, 0, scanned=20)) == time.synchronous_ns
    assert model.step_ns(decode(40, 0, scanned=10**5)) == 3 * 10**7 + time.host_ns


def test_a_scan_and_a_mask_wait_for_each_other() -> None:
    model = WithHostWork(LINEAR, PRICES, scan_ns=300.0)
    assert model.step_ns(decode(8, 4, scanned=20)) == LINEAR.step_ns(decode(8, 0)) + 8_500 + 6_000


def test_without_a_price_the_model_stays_as_it_is() -> None:
    assert with_host_work(LINEAR, None, 0.0, masks_beside=True) is LINEAR


def test_it_has_other_sets_of_coefficients_where_the_model_has_them() -> None:
    fitted = next(model for model in MODELS if isinstance(model, Fitted))
    for model in (LINEAR, fitted):
        priced = with_host_work(model, PRICES, 300.0, masks_beside=False)
        assert isinstance(priced, Redrawable) == isinstance(model, Redrawable)
    step = decode(8, 4, scanned=20)
    drawn = with_host_work(fitted, PRICES, 300.0, masks_beside=False).redrawn(0)  # type: ignore[attr-defined]
    assert drawn.step_ns(step) == fitted.redrawn(0).step_ns(decode(8, 0)) + 8_500 + 6_000


class Dip(Linear):
    """A model whose steps take less at some contexts than at shorter ones, as measured curves may."""

    def step(self, features: StepFeatures) -> StepTime:
        time = super().step(features)
        return StepTime(time.gpu_ns * (6 if features.decode_kv_tokens % 3 else 10) // 10, time.host_ns)

    def overlapped(self) -> Dip:
        return Dip(self.coefficients, hides_host=True)

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        return step_by_step(self.step_ns, features, steps, start_ns, until_ns)


@pytest.mark.parametrize("share", [0.2, 0.4, 0.55, 0.8, 1.2])
def test_work_that_the_first_step_hides_may_show_in_a_shorter_one(share: float) -> None:
    base = Dip(LinearCoefficients(gpu=LinearCosts(step=10_000), host=LinearCosts(step=1_000)))
    priced = WithHostWork(base, MaskPrices(0, int(10_000 * share)), 0.0, masks_beside=True)
    first = decode(1, 1, kv_tokens=3)
    ends = np.cumsum([priced.step_ns(first.after(done)) for done in range(9)])
    assert priced.decode_run(first, 9).ends_ns().tolist() == ends.tolist()


@pytest.mark.parametrize("share", [0.05, 0.15, 0.3, 0.55])
def test_behind_another_step_it_shares_the_shorter_one_with_the_host(share: float) -> None:
    """Beside 4,000 ns of the host, a forward of 10,000 ns hides masks of 3,000 ns; one of 6,000 does not."""
    base = Dip(LinearCoefficients(gpu=LinearCosts(step=10_000), host=LinearCosts(step=4_000)))
    priced = overlapped(WithHostWork(base, MaskPrices(0, int(10_000 * share)), 0.0, masks_beside=True))
    first = decode(1, 1, kv_tokens=3)
    assert priced.step_ns(first.after(1)) == max(6_000, 4_000 + int(10_000 * share))
    ends = np.cumsum([priced.step_ns(first.after(done)) for done in range(9)])
    assert priced.decode_run(first, 9).ends_ns().tolist() == ends.tolist()
