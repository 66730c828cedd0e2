"""Monotone regression of prices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.rising import rising, rising_grid, with_work
from blis_py.models.model_shape import load_model

TIMES = st.floats(1.0, 1e9)


def test_neighbours_in_the_wrong_order_are_replaced_by_their_mean() -> None:
    assert rising(np.array([1.0, 4.0, 2.0, 3.0, 9.0])).tolist() == [1.0, 3.0, 3.0, 3.0, 9.0]
    assert rising(np.array([5.0, 4.0, 3.0])).tolist() == [4.0, 4.0, 4.0]


@given(arrays(np.float64, st.integers(1, 30), elements=TIMES))
def test_the_sum_stays_and_what_rises_is_left_alone(ns: np.ndarray) -> None:
    found = rising(ns)
    assert (np.diff(found) >= 0).all()
    assert found.sum() == pytest.approx(ns.sum())
    assert rising(found) is found


@given(arrays(np.float64, 20, elements=TIMES))
def test_twice_the_work_takes_as_long_to_twice_as_long(ns: np.ndarray) -> None:
    work = 2.0 ** np.arange(20)
    found = with_work(work, ns)
    assert (np.diff(found) >= 0).all()
    assert (found[1:] <= 2 * found[:-1] * (1 + 1e-12)).all()


@given(arrays(np.float64, (7, 5), elements=TIMES))
def test_a_grid_rises_both_ways(ns: np.ndarray) -> None:
    found = rising_grid(ns)
    assert (np.diff(found, axis=0) >= 0).all()
    assert (np.diff(found, axis=1) >= 0).all()


@pytest.mark.parametrize(
    ("model", "tp", "gpu", "engine"),
    [("mixtral-8x7b", 2, "a100-80", "vllm"), ("mixtral-8x7b", 8, "h100", "trtllm")],
)
def test_more_sequences_of_experts_whose_curves_fall_take_no_less_time(
    model: str, tp: int, gpu: str, engine: str
) -> None:
    """Curves of the experts fall by 12 and 25 % from 8 to 16 and from 128 to 256 tokens."""
    priced = build("trained", shape=load_model(model), gpu=load_gpu(gpu), tp=tp, kernels=engine)
    sizes = 2 ** np.arange(10)
    steps = [StepFeatures(decode_seqs=b, decode_kv_tokens=128 * b, emitted_rows=b) for b in sizes.tolist()]
    assert all(fewer <= more <= 2 * fewer for fewer, more in pairwise(map(priced.step_ns, steps)))
