"""Explicit coefficients, to the nanosecond."""

from __future__ import annotations

import pytest
from latency_cases import decode, prefill

from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.models.model_shape import load_model


def test_gpu_and_host_part_are_priced_apart() -> None:
    model = Linear(
        LinearCoefficients(
            gpu=LinearCosts(step=1000, prefill_tokens=10, prefill_pairs=0.5), host=LinearCosts(step=300)
        )
    )
    assert model.step(prefill(4)) == StepTime(gpu_ns=1000 + 40 + 5, host_ns=300)
    assert model.step_ns(prefill(4)) == 1345


def test_a_constant_step_time_is_constant() -> None:
    model = Linear(LinearCoefficients(gpu=LinearCosts(step=7_000_000)))
    assert model.decode_run(decode(1, 500), 4).ends_ns().tolist() == [
        7_000_000,
        14_000_000,
        21_000_000,
        28_000_000,
    ]


def test_each_step_is_rounded_to_the_nearest_nanosecond() -> None:
    model = Linear(LinearCoefficients(gpu=LinearCosts(decode_kv_tokens=0.3)))
    assert model.decode_run(decode(1, 5), 4).ends_ns().tolist() == [2, 4, 6, 8]  # 1.5 1.8 2.1 2.4


def test_a_step_that_costs_nothing_takes_a_nanosecond() -> None:
    free = Linear(LinearCoefficients())
    assert free.step_ns(decode(1, 1)) == 1
    assert free.decode_run(decode(1, 1), 100).ends_ns().tolist() == list(range(1, 101))


def test_coefficients_come_as_a_mapping_too() -> None:
    mapping = {
        "gpu": {"step": 5, "decode_seqs": 2},
        "host": {"emitted_rows": 1},
        "frontend": {"at_end_ns": 9},
    }
    model = build("linear", shape=load_model("qwen3-14b"), gpu=load_gpu("H100"), tp=1, linear=mapping)
    assert model.step(decode(3, 10)) == StepTime(gpu_ns=11, host_ns=3)
    assert model.frontend == FrontendDelays(at_end_ns=9)


@pytest.mark.parametrize("part", ["gpu", "host"])
@pytest.mark.parametrize("price", [0.0, 0.5])
def test_the_longest_context_is_followed_only_where_it_has_a_price(part: str, price: float) -> None:
    costs = {"gpu": LinearCosts(step=1.0), part: LinearCosts(step=1.0, max_context=price)}
    assert Linear(LinearCoefficients(**costs)).uses_max_context == (price > 0)
